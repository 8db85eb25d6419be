"""Types of the options of a training that decide how much memory and time it takes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from acclimate.base.bounds import Positive
from acclimate.base.options import METHOD, MODEL, Option
from acclimate.base.registry import PartLike

OptimizerName = Literal["adamw", "adamw-8bit"]
WeightsName = Literal["fp32", "bf16"]

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
    PartLike | None,
    Option(
        "Adapter to train instead of the weights, such as lora, 'lora r=8', wider or deeper; see docs/decoders.md.",
        METHOD,
        default="none; all weights train",
        more="Or ``{name: parameters}``. It is merged into the saved model. A low-rank one is also kept in "
        "``out/adapter`` in the format of peft. Any method can use it, unless the method itself trains only some of "
        "the weights. The kinds are those of :data:`acclimate.models.adapters.ADAPTERS`.",
    ),
]


def check_adapter(given: Any) -> None:
    """Check that the weights under an adapter are in fp32.

    Raises:
        ValueError: If not.
    """
    if given.adapter is not None and given.weights != "fp32":
        raise ValueError(
            "adapters are merged into fp32 weights; remove 'weights', or save memory with 'lora quantize=4bit'"
        )
