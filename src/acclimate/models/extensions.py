"""Modules that an architecture of ``transformers`` does not have: bottleneck adapters, and the original encoder.

Adapters are those of Houlsby et al. (ICML 2019). A model with its original encoder is the ensemble of Ke et al.
(2022).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from acclimate.errors import UserError
from acclimate.models.attention import HeadLayer
from acclimate.models.gates import gate_units, linear_sizes

ADAPTER_SIZE_KEY = "acclimate_adapter_size"
"""Configuration entry of a model with adapters: the width of their bottleneck."""


class Bottleneck(nn.Module):
    """h + W_up gelu(W_down h + b_down) + b_up, initialized near the identity."""

    def __init__(self, width: int, size: int) -> None:
        """Make an adapter for vectors of ``width`` with a bottleneck of ``size``."""
        super().__init__()
        self.down, self.up = nn.Linear(width, size), nn.Linear(size, width)
        for layer in (self.down, self.up):
            nn.init.trunc_normal_(layer.weight, std=1e-2, a=-2e-2, b=2e-2)
            nn.init.zeros_(layer.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map (..., width) to (..., width)."""
        return hidden + self.up(nn.functional.gelu(self.down(hidden)))


def adapter_size(model: PreTrainedModel) -> int:
    """Return the bottleneck width of the adapters in a model; 0 if it has none."""
    return int(getattr(model.config, ADAPTER_SIZE_KEY, 0) or 0)


def add_adapters(model: PreTrainedModel, layers: Sequence[HeadLayer], size: int, seed: int = 0) -> list[nn.Parameter]:
    """Add an adapter after the output projection of each attention block and each feed-forward block.

    Adapters come before dropout, the residual connection and normalization. Houlsby et al. apply dropout before the
    adapter.

    Args:
        model: A model that :func:`acclimate.models.attach` has prepared.
        layers: The result of ``attach``.
        size: Width of the bottleneck.
        seed: Random seed of the initial weights.

    Returns:
        The parameters of the adapters.

    Raises:
        UserError: If the feed-forward of the model cannot be found, or the model already has adapters.
    """
    if adapter_size(model) and any(hasattr(layer.output, "adapter") for layer in layers):
        raise UserError(
            "The model already has adapters. Use another method, which trains all of its weights, or start from the "
            "model without adapters."
        )
    feed_forward: list[Any] = gate_units(model, layers, ["O"])["O"]
    linears = [layer.output for layer in layers] + [units.linear for units in feed_forward]
    parameters: list[nn.Parameter] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for linear in linears:
            adapter = Bottleneck(linear_sizes(linear)[1], size).to(linear.weight)
            linear.add_module("adapter", adapter)
            linear.register_forward_hook(_apply_adapter)
            parameters += list(adapter.parameters())
    setattr(model.config, ADAPTER_SIZE_KEY, size)
    return parameters


def _apply_adapter(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    return module.adapter(output)  # type: ignore[operator]


ENSEMBLE_KEY = "acclimate_ensemble"
"""Configuration entry of a model that contains its original encoder."""
ORIGINAL = "original"
"""Name of the submodule with the original encoder, and prefix of its weights."""


def keep_original(model: PreTrainedModel) -> nn.Module:
    """Add a frozen copy of the current encoder to a model, as a submodule that its forward pass does not use.

    Returns:
        The copy.

    Raises:
        UserError: If the model has adapters.
    """
    if adapter_size(model):
        raise UserError("An ensemble of models with adapters cannot be saved; start from a model without adapters.")
    original = copy.deepcopy(model.base_model)
    original.requires_grad_(False)
    model.add_module(ORIGINAL, original)
    setattr(model.config, ENSEMBLE_KEY, True)
    return original


def average_with_original(model: PreTrainedModel, state: dict[str, torch.Tensor]) -> None:
    """Make an encoder return the mean of its last hidden states and those of its original; both encoders are trained.

    Args:
        model: A model whose head reads the last hidden states of ``base_model``, or its pooler.
        state: Weights of the original, named without the prefix.

    Raises:
        ValueError: If weights are missing.
    """
    original: Any = keep_original(model)
    if getattr(original, "pooler", None) is not None:
        original.pooler = None  # the pooler of the model reads the mean
    missing = original.load_state_dict(state, strict=False).missing_keys
    if missing:
        raise ValueError(f"weights of the original are missing, such as {missing[0]}")
    original.requires_grad_(True)
    model.base_model.register_forward_hook(_Average(original), with_kwargs=True)


class _Average:
    def __init__(self, original: nn.Module) -> None:
        self.original = original

    def __call__(self, module: nn.Module, inputs: Any, options: dict[str, Any], output: Any) -> Any:
        other = self.original(*inputs, **options)
        output.last_hidden_state = (output.last_hidden_state + other.last_hidden_state) / 2
        pooler: Any = getattr(module, "pooler", None)
        if isinstance(pooler, nn.Linear):  # ALBERT applies it and its activation in the model
            first = pooler(output.last_hidden_state[:, 0])
            output.pooler_output = module.pooler_activation(first)  # type: ignore[operator]
        elif pooler is not None:
            output.pooler_output = pooler(output.last_hidden_state)
        return output
