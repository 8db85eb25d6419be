"""A model that keeps its original beside it, and reads a text with the mean of both (Ke et al., 2022: Ensemble)."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from acclimate.backbone.adapters import adapter_size
from acclimate.errors import UserError

ENSEMBLE = "acclimate_ensemble"
"""Entry of the configuration of a model that has its original beside it."""
ORIGINAL = "original"
"""Name of the submodule that holds it, and so the prefix of its weights."""


def keep_original(model: PreTrainedModel) -> nn.Module:
    """Put a frozen copy of the encoder, as it is now, beside a model; its forward does not read it.

    Returns:
        The copy.

    Raises:
        UserError: If the model has adapters.
    """
    if adapter_size(model):
        raise UserError("An ensemble of models with adapters cannot be saved; start from a model without them.")
    original = copy.deepcopy(model.base_model)
    original.requires_grad_(False)
    model.add_module(ORIGINAL, original)
    setattr(model.config, ENSEMBLE, True)
    return original


def average_with_original(model: PreTrainedModel, state: dict[str, torch.Tensor]) -> None:
    """Let the encoder of a model give the mean of its last hidden states and those of its original; both learn.

    Args:
        model: A model whose head reads the last hidden states of ``base_model``, or its pooler.
        state: Weights of the original, named without prefix.

    Raises:
        ValueError: If weights are missing.
    """
    original: Any = keep_original(model)
    if getattr(original, "pooler", None) is not None:
        original.pooler = None  # the one pooler reads the mean
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
        if isinstance(pooler, nn.Linear):  # of ALBERT: what it does with it stands in the model
            first = pooler(output.last_hidden_state[:, 0])
            output.pooler_output = module.pooler_activation(first)  # type: ignore[operator]
        elif pooler is not None:
            output.pooler_output = pooler(output.last_hidden_state)
        return output
