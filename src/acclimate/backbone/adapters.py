"""Bottleneck adapters (Houlsby et al., ICML 2019): two in each layer, before the residual and the normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from acclimate.backbone.heads import HeadLayer
from acclimate.backbone.units import gate_units
from acclimate.errors import UserError

ADAPTER_SIZE = "acclimate_adapter_size"
"""Entry of the configuration of a model with adapters: the width of their bottleneck."""


class Bottleneck(nn.Module):
    """h + W_up gelu(W_down h + b_down) + b_up, near the identity at the start."""

    def __init__(self, width: int, size: int) -> None:
        """Make an adapter for vectors of ``width``, with a bottleneck of ``size``."""
        super().__init__()
        self.down, self.up = nn.Linear(width, size), nn.Linear(size, width)
        for layer in (self.down, self.up):
            nn.init.trunc_normal_(layer.weight, std=1e-2, a=-2e-2, b=2e-2)
            nn.init.zeros_(layer.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map (..., width) to (..., width)."""
        return hidden + self.up(nn.functional.gelu(self.down(hidden)))


def adapter_size(model: PreTrainedModel) -> int:
    """Return the bottleneck of the adapters in a model; 0 if it has none."""
    return int(getattr(model.config, ADAPTER_SIZE, 0) or 0)


def add_adapters(model: PreTrainedModel, layers: Sequence[HeadLayer], size: int, seed: int = 0) -> list[nn.Parameter]:
    """Put an adapter behind the output projection of each attention and of each feed-forward.

    In front of dropout, residual and normalisation: the place of Houlsby et al. but for dropout, which they have
    before the adapter.

    Args:
        model: A model that went through :func:`acclimate.backbone.attach`.
        layers: What ``attach`` returned.
        size: Width of the bottleneck.
        seed: Of the first weights.

    Returns:
        The parameters of the adapters.

    Raises:
        UserError: If the feed-forward of the model cannot be found, or the model has adapters already.
    """
    if adapter_size(model) and any(hasattr(layer.output, "adapter") for layer in layers):
        raise UserError(
            "The model has adapters already. Go on with another method, under which everything in it learns, or start "
            "from the model without them."
        )
    feed_forward: list[Any] = gate_units(model, layers, ["O"])["O"]
    linears = [layer.output for layer in layers] + [units.linear for units in feed_forward]
    parameters: list[nn.Parameter] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for linear in linears:
            adapter = Bottleneck(linear.out_features, size).to(linear.weight)
            linear.add_module("adapter", adapter)
            linear.register_forward_hook(_through)
            parameters += list(adapter.parameters())
    setattr(model.config, ADAPTER_SIZE, size)
    return parameters


def _through(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    return module.adapter(output)  # type: ignore[operator]
