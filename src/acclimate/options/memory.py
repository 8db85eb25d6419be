"""Types of the options of a training that decide how much memory it takes."""

from __future__ import annotations

from typing import Annotated, Literal

from acclimate.options.declaration import Option
from acclimate.options.numbers import Positive

OptimizerName = Literal["adamw", "adamw-8bit"]
WeightsName = Literal["fp32", "bf16"]

Optimizer = Annotated[
    OptimizerName,
    Option(
        "Optimizer: adamw, or adamw-8bit, whose state takes 2 bytes per weight in place of 8.",
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
        "Compute activations again in the backward pass, which saves memory and costs about a third more time.",
        default="if the activations of one row do not fit into memory",
        negated="--no-gradient-checkpointing",
        recorded=False,
    ),
]
MaxMemory = Annotated[
    Positive | None,
    Option(
        "Memory to plan micro-batches for, in gigabytes.",
        default="that of the device",
        more="It replaces the environment variable ACCLIMATE_MEMORY_GB. Results depend on it only as they depend on "
        "the order of sums and on the dropout masks.",
        study=False,
        recorded=False,
    ),
]
