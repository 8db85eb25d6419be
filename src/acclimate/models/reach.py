"""The weights of the body of a model, some of which are not modules, and the share of them that something reaches.

``transformers`` stacks the experts of a mixture in parameters (experts, rows, columns), which no list of linear layers
contains.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from acclimate.base.errors import UserError

LEAST_SHARE = 0.5
"""Share of the weights that has to be reached, unless the user asks for less."""
VECTORS = "vectors (biases, normalizations)"


def linear_layers(model: PreTrainedModel) -> dict[str, nn.Module]:
    """Return the linear layers of the body by name, without a head or a pooler, which no loss on tokens reads."""
    inside = {id(module) for module in model.base_model.modules()} - {id(model.get_output_embeddings())}
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D) and id(module) in inside and "pooler" not in name.split(".")
    }


def stacked_experts(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the matrices of all experts of a layer, (experts, rows, columns), by name."""
    return {
        f"{place}.{name}": weight
        for place, module in model.named_modules()
        if hasattr(module, "num_experts") or "expert" in type(module).__name__.lower()
        for name, weight in module.named_parameters(recurse=False)
        if weight.dim() == 3
    }


def body_weights(model: PreTrainedModel) -> dict[str, nn.Parameter]:
    """Return the weights of the encoder or decoder by name, without embedding tables, heads and adapters."""
    base = model.base_model
    tables = {id(module.weight) for module in base.modules() if isinstance(module, nn.Embedding)}
    head = model.get_output_embeddings()
    inside = {id(weight) for weight in base.parameters()} - tables - {id(getattr(head, "weight", None))}
    return {
        re.sub(r"\.(base_layer|parametrizations|original)\b", "", name): weight
        for name, weight in model.named_parameters()
        if id(weight) in inside and ".lora_" not in name
    }


def describe_reach(model: PreTrainedModel, reached: Iterable[Tensor], by: str, remedy: str = "") -> str:
    """Return one sentence on the share of the body that is not reached, with the names of all matrices in it.

    Args:
        model: The model.
        reached: Weights that are reached.
        by: What reaches them, for messages.
        remedy: What to do if it is not even :data:`LEAST_SHARE`; empty if that is not an error.

    Raises:
        UserError: If more is not reached, and there is a remedy.
    """
    known, body = {id(weight) for weight in reached}, body_weights(model)
    left = {name: weight for name, weight in body.items() if id(weight) not in known}
    share = sum(map(_size, left.values())) / max(1, sum(map(_size, body.values())))
    kinds: dict[str, int] = {}
    for name, weight in left.items():
        kind = re.sub(r"\.\d+\.", ".*.", name) if weight.dim() > 1 else VECTORS
        kinds[kind] = kinds.get(kind, 0) + _size(weight)
    names = ", ".join(sorted(kinds, key=lambda kind: -kinds[kind]))
    if remedy and share > LEAST_SHARE:
        raise UserError(f"{by} does not reach {share:.1%} of the weights of the layers: {names}. {remedy}")
    return f"{by} does not reach {share:.1%} of the weights of the layers{f': {names}' if names else ''}."


def _size(weight: nn.Parameter) -> int:
    shape = getattr(getattr(weight, "quant_state", None), "shape", None)  # in four bits, two are packed in one
    return weight.numel() if shape is None else shape.numel()
