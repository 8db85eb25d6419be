"""Training with less memory: gradient checkpointing, 8-bit optimizer states, bfloat16 weights, and float16."""

from __future__ import annotations

import functools
import importlib.util
import math
import os
import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from acclimate.base.device import Precision, autocast, copy_to, preserve_rng_state, to_device
from acclimate.base.errors import UserError
from acclimate.base.progress import print_message
from acclimate.engine.options import OptimizerName, WeightsName
from acclimate.models.batching import GRAPH_BYTES, fits_in_one_pass, limit_memory
from acclimate.models.encoding import encode, reads_pairs
from acclimate.models.families import reads_unpadded

if TYPE_CHECKING:
    from acclimate.engine.diagnosis import StepEngine

    OptionsT = TypeVar("OptionsT", bound="LimitedMemory")
    R = TypeVar("R")


class LimitedMemory(Protocol):
    """Options of a training that may limit its memory."""

    @property
    def max_memory(self) -> float | None:
        """The limit in gigabytes; None for the memory of the device."""


LOST_UPDATES = (
    "AdamW alone loses changes of bf16 weights of less than half a unit in the last place: after 100 steps they had "
    "moved 48 % as far as fp32 weights at a learning rate of 1e-4, and 11 % at 1e-5"
)
"""Measured; see docs/dev/log.md."""
MEASURED_TOKENS = 32, 64
"""Lengths of the two texts from which the memory of a token is measured."""
FIRST_SCALE, GROWTH_STEPS = 2.0**16, 2_000
"""First factor on the loss in fp16, and after how many steps without an overflow it is doubled."""


def with_memory_limit(run: Callable[[OptionsT], R]) -> Callable[[OptionsT], R]:
    """Wrap a function of options so that it plans for the memory that they allow."""

    @functools.wraps(run)
    def limited(options: OptionsT) -> R:
        with limit_memory(options.max_memory):
            return run(options)

    return limited


def check_optimizer(optimizer: OptimizerName, weights: WeightsName) -> None:
    """Check that the library that an optimizer or a type of weights needs is installed.

    Raises:
        UserError: If it is not.
    """
    if importlib.util.find_spec("torchao") is None and (optimizer, weights) != ("adamw", "fp32"):
        option = "--weights bf16" if weights == "bf16" else f"--optimizer {optimizer}"
        why = f" {LOST_UPDATES}." if weights == "bf16" else ""
        raise UserError(f"{option} needs torchao: pip install 'acclimate[memory]'.{why}")


def make_optimizer(name: OptimizerName, groups: list[dict[str, Any]], **options: Any) -> torch.optim.Optimizer:
    """Create an AdamW optimizer. Its steps are computed in fp32, and updates of bf16 weights rounded stochastically.

    Args:
        name: ``"adamw"`` keeps two moments in the type of the weights. ``"adamw-8bit"`` quantizes them in blocks of
            256 values (Dettmers et al., 2022), except for tensors of less than 4,096 values.
        groups: Parameter groups.
        options: Learning rate, betas and epsilon.
    """
    low = any(parameter.dtype == torch.bfloat16 for group in groups for parameter in group["params"])
    if name == "adamw" and not low:
        return torch.optim.AdamW(groups, fused=True, **options)
    from torchao.optim import AdamW8bit, _AdamW

    if shutil.which(os.environ.get("CXX", "g++")) is None:  # torchao compiles its steps if it can
        torch.compiler.set_stance("force_eager")
    make = AdamW8bit if name == "adamw-8bit" else _AdamW
    optimizer: torch.optim.Optimizer = make(groups, bf16_stochastic_round=low, **options)
    return optimizer


def use_bf16_weights(model: nn.Module) -> None:
    """Convert the parameters of a model to bf16; its buffers, such as rotary frequencies, stay as they are."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)


def set_gradient_checkpointing(
    model: PreTrainedModel,
    precision: Precision,
    wanted: bool | None,
    length: int,
    progress: bool = False,
    *,
    views: int = 1,
    obstacle: str | None = None,
) -> bool:
    """Turn gradient checkpointing on if it is wanted, or, with None, if the graph of a row does not fit into memory.

    Each layer then keeps only its input, and runs again in the backward pass with the same dropout masks.

    Args:
        model: The model in training.
        precision: The precision of its forward pass.
        wanted: The choice of the user.
        length: Maximum tokens of a row.
        progress: Whether to print that it is on.
        views: Number of times that the model reads each text.
        obstacle: Why the layers of the model cannot run again in the backward pass; None if the method allows it.

    Returns:
        Whether it is on.

    Raises:
        UserError: If it is wanted and does not work with the model or the method.
    """
    if not model.supports_gradient_checkpointing:
        obstacle = f"{type(model).__name__} does not support it"
    if model.device.type == "cuda":  # on a CPU, the cache decides how much is read at once
        measure_graph(model, precision)
    if wanted is None:
        wanted = obstacle is None and not fits_in_one_pass(model, views, length)
    if not wanted:
        return False
    if obstacle:
        raise UserError(f"Gradient checkpointing is not possible: {obstacle}. Remove --gradient-checkpointing.")
    print_message(
        "Gradient checkpointing is on: the backward pass recomputes activations, to save memory.", enabled=progress
    )
    # transformers before 5.23 has the second name.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})
    return True


def measure_graph(model: PreTrainedModel, precision: Precision) -> float:
    """Return the bytes per token that a forward pass keeps for its backward pass; store them with the model.

    They depend on the architecture, the precision, the kernels and the weights that train, so two short texts are read
    instead of a formula. The weights and their copies in half precision, which do not depend on the text, cancel out.
    """
    training, (few, many) = model.training, MEASURED_TOKENS
    to_device(model).train()  # a method may have added modules
    try:
        with preserve_rng_state():
            size = max(1.0, (_kept_bytes(model, precision, many) - _kept_bytes(model, precision, few)) / (many - few))
    finally:
        model.train(training)
    setattr(model, GRAPH_BYTES, size)
    return size


def _kept_bytes(model: PreTrainedModel, precision: Precision, tokens: int) -> int:
    """Return the bytes that the forward pass of a text keeps."""
    text = torch.zeros(1, tokens, dtype=torch.long)
    if reads_unpadded(model):
        text[:, tokens // 2 :] = 1  # two texts, so that attention runs as in training
    ids = torch.arange(tokens)[None] % model.config.get_text_config().vocab_size
    if reads_pairs(model):
        ids[:, tokens // 2 :] = ~ids[:, tokens // 2 :]
    kept: dict[int, Tensor] = {}  # holds the tensors, so that no address occurs twice

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    device = model.device
    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with torch.enable_grad(), hooks, autocast(precision, device):
        encode(model, copy_to(ids, device), copy_to(text, device))
    own = {value.untyped_storage().data_ptr() for value in model.state_dict(keep_vars=True).values()}
    return sum(tensor.untyped_storage().nbytes() for place, tensor in kept.items() if place not in own)


class LossScaler:
    """Scales the loss in fp16 so that small gradients are not rounded to zero (Micikevicius et al., 2018).

    A step whose gradients overflow is skipped and halves the scale; :data:`GROWTH_STEPS` steps without one double it.
    The norm of the gradients is on the host anyway, so that nothing else has to wait for the device.
    """

    def __init__(self, engine: StepEngine) -> None:
        self.engine, self.finite_steps, self.skipped = engine, 0, 0
        engine.loss_scale = FIRST_SCALE

    def unscale(self, model: nn.Module) -> None:
        """Divide the gradients by the scale."""
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        torch._foreach_mul_(gradients, 1 / self.engine.loss_scale)

    def skips_step(self, model: nn.Module, norm: float) -> bool:
        """Return whether gradients with this norm have overflowed; then remove them, so that no weight changes."""
        if math.isfinite(norm):
            self.finite_steps += 1
            if self.finite_steps % GROWTH_STEPS == 0:
                self.engine.loss_scale *= 2
            return False
        if self.engine.loss_scale <= 1:  # no overflow of scaled values
            return False
        self.engine.loss_scale /= 2
        self.finite_steps, self.skipped = 0, self.skipped + 1
        for parameter in model.parameters():
            parameter.grad = None
        return True

    def state(self) -> dict[str, float]:
        """Return what a resumed training needs."""
        return {"scale": self.engine.loss_scale, "finite_steps": self.finite_steps, "skipped": self.skipped}

    def load(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state` returned."""
        self.engine.loss_scale, self.finite_steps = float(state["scale"]), int(state["finite_steps"])
        self.skipped = int(state["skipped"])
