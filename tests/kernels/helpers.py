"""Gradients of a model, and counts of the tokens that its layers process."""

from __future__ import annotations

from collections import Counter

import torch


def gradients(model):
    return {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}


def count_tokens(model):
    """Return a list to which each feed-forward call of a tiny model (width 48) appends the number of its tokens."""
    seen = []
    for layer in model.base_model.modules():
        if isinstance(layer, torch.nn.Linear) and layer.in_features == 48:
            layer.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0].shape[:-1].numel()))
    return seen


def count_tokens_by_layer(model):
    """Return the tokens that each feed-forward of a BERT-like model read last, by the index of its layer."""
    seen: Counter[int] = Counter()
    for number, layer in enumerate(model.base_model.encoder.layer):
        layer.output.dense.register_forward_hook(
            lambda module, inputs, output, number=number: seen.update({number: inputs[0].shape[:-1].numel()})
        )
    return seen
