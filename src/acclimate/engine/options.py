"""Types of the options of a training that decide how much memory and time it takes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from acclimate.base.bounds import Positive
from acclimate.base.options import METHOD, MODEL, Option

OptimizerName = Literal["adamw", "adamw-8bit"]
WeightsName = Literal["fp32", "bf16"]
LowRankName = Literal["lora", "rslora", "dora", "pissa", "olora", "soma", "mica", "orthogonal"]
"""The names in :data:`acclimate.models.lora.LOW_RANK`."""
AdapterName = Literal[LowRankName, "codyra", "wider", "deeper"]
"""The names in :data:`acclimate.adaptation.adapters.ADAPTERS`."""

Optimizer = Annotated[
    OptimizerName,
    Option(
        "Optimizer: adamw, or adamw-8bit, whose state takes 2 bytes per weight instead of 8.",
        more="The latter needs torchao, which compiles it in the first step.",
    ),
]
Weights = Annotated[
    WeightsName,
    Option(
        "Type of the weights in training: fp32, or bf16, which saves memory and is less exact.",
        more="Updates of bf16 weights are rounded stochastically, which needs torchao. Gradients are summed, and the "
        "model is saved, in bf16.",
    ),
]
GradientCheckpointing = Annotated[
    bool | None,
    Option(
        "Recompute activations in the backward pass, which saves memory and takes about a third more time.",
        default="on if the activations of one row do not fit into memory",
        negated="--no-gradient-checkpointing",
        recorded=False,
    ),
]
Compile = Annotated[
    bool,
    Option(
        "Compile the layers of the model with torch.compile, which makes long trainings on a GPU faster.",
        more="The first steps take minutes, and need a C++ compiler, or Triton on a GPU. Layers that cannot be "
        "compiled run as they are, and a warning names them. Results depend on it only as they depend on rounding and "
        "on the dropout masks.",
        recorded=False,
    ),
]
Fsdp = Annotated[
    bool,
    Option(
        "Divide weights, gradients and optimizer state among the processes of torchrun (FSDP2), for larger models.",
        MODEL,
        more="It changes nothing but rounding. ``accelerate launch`` with FSDP of version 2 does the same.",
        study=False,
        recorded=False,
    ),
]
MaxMemory = Annotated[
    Positive | None,
    Option(
        "Memory budget for micro-batches, in gigabytes.",
        default="the device's memory",
        more="It replaces the environment variable ACCLIMATE_MEMORY_GB. Results depend on it only as they depend on "
        "the order of sums and on the dropout masks.",
        study=False,
        recorded=False,
    ),
]
Adapter = Annotated[
    AdapterName | None,
    Option(
        "Adapter to train instead of the weights: a low-rank one such as lora, wider, or deeper.",
        METHOD,
        default="none; all weights train",
        more="It is merged into the saved model. A low-rank one is also kept in ``out/adapter`` in the format of "
        "peft. Any method can use it, unless the method itself trains only some of the weights.",
    ),
]
AdapterSetting = Annotated[
    dict[str, Any] | None,
    Option(
        "Setting of the adapter: r, alpha, dropout or targets of low-rank ones, units of wider, layers of deeper.",
        METHOD,
        default="r=16 on all linear layers but the head",
        more="See :class:`acclimate.models.lora.AdapterSettings`, "
        ":class:`acclimate.parts.modules.wider.WiderSettings`, "
        ":class:`acclimate.parts.modules.deeper.DeeperSettings` and "
        ":class:`acclimate.parts.modules.sparse_rank.SparseRankSettings`.",
        flag="--adapter-set",
    ),
]
Quantization = Annotated[
    Literal["4bit"] | None,
    Option(
        "Quantization of the frozen weights under an adapter, to save memory (QLoRA).",
        MODEL,
        more="The adapter is merged into the weights before quantization, which are loaded once more.",
    ),
]


def check_adapter(given: Any) -> None:
    """Check that options of an adapter come with an adapter, whose base model is in fp32 or quantized.

    Raises:
        ValueError: If not.
    """
    for name in ("adapter_settings", "quantize"):
        if getattr(given, name) is not None and given.adapter is None:
            raise ValueError(f"'{name}' is for adapters; add 'adapter', such as lora, or remove it")
    if given.adapter is not None and given.weights != "fp32":
        raise ValueError("adapters are merged into fp32 weights; remove 'weights', or save memory with 'quantize'")
