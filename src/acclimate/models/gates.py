"""Gates on units besides attention heads: feed-forward units and embedding features (DGA, Table 3)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from acclimate.base.errors import UserError, unknown_name_error, warn_once
from acclimate.models.attention import ALTERNATIVES, HeadLayer
from acclimate.models.families import probe_of
from acclimate.models.reach import stacked_experts

Part = Literal["H", "I", "O", "E"]
PARTS: dict[Part, str] = {
    "H": "attention heads",
    "I": "intermediate units of the feed-forward",
    "O": "output units of the feed-forward",
    "E": "features of the embedding",
}
"""The letters follow the paper's Table 3."""

FEED_FORWARD = (
    ("intermediate.dense", "output.dense", None),
    ("ffn.lin1", "ffn.lin2", None),
    ("ffn", "ffn_output", None),
    ("mlp.Wi", "mlp.Wo", None),
    ("mlp.gate_proj", "mlp.down_proj", "mlp.up_proj"),
    ("mlp.gate_up_proj", "mlp.down_proj", None),
    ("mlp.c_fc", "mlp.c_proj", None),
    ("feed_forward.w1", "feed_forward.w2", "feed_forward.w3"),
)
"""Names of the first and the last layer of a feed-forward block, and of the layer that computes the second factor of a
gated linear unit, where that is a layer of its own."""
ATTENTION = ("attention", "full_attention", "sliding_attention", "chunked_attention")
"""Entries of ``layer_types`` for layers with attention heads."""
EMBEDDING_NORM = ("LayerNorm", "norm")
GATES_ATTRIBUTE, UNITS_ATTRIBUTE = "acclimate_gates", "acclimate_units"


def parse_parts(parts: Any) -> Any:
    """Return the letters of ``"H,I"`` as a tuple; other values unchanged."""
    return tuple(letter.strip() for letter in parts.split(",")) if isinstance(parts, str) else parts


class UnitGroup(Protocol):
    """The units of one layer."""

    @property
    def units(self) -> int:
        """Number of units."""

    def spread_over_parameters(self, values: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Spread one value per unit over the weights of that unit.

        Args:
            values: (units,).

        Returns:
            Parameters, each with values that broadcast over it; zero for weights that belong to no unit.
        """


@dataclass(frozen=True)
class LinearUnits:
    """The output units of a linear layer: each owns a row and a bias entry, or two of each in a gated layer.

    Attributes:
        linear: The layer. GPT-2's ``Conv1D`` has a transposed weight: its units own columns.
        units: Number of units.
        factor: The layer with the second factor of a gated linear unit, if that is another layer.
    """

    linear: Any
    units: int
    factor: Any = None

    def spread_over_parameters(self, values: Tensor) -> list[tuple[Tensor, Tensor]]:
        """See :meth:`UnitGroup.spread_over_parameters`."""
        spread = []
        for linear in filter(None, (self.linear, self.factor)):
            rows = values.repeat(linear_sizes(linear)[1] // self.units)
            spread.append((linear.weight, rows[None, :] if isinstance(linear, Conv1D) else rows[:, None]))
            if linear.bias is not None:
                spread.append((linear.bias, rows))
        return spread


@dataclass(frozen=True)
class EmbeddingUnits:
    """The features of the embedding: each owns a column of every table and its entries in the normalization, if any.

    The word embeddings are usually tied to the language-model head, which is then protected with them.

    Attributes:
        tables: The embedding tables.
        norm: The normalization of their sum; None in most decoders.
        reader: The module whose input the sum is: the normalization, or the first layer.
        units: Number of features.
    """

    tables: tuple[nn.Embedding, ...]
    norm: nn.LayerNorm | None
    reader: nn.Module
    units: int

    def spread_over_parameters(self, values: Tensor) -> list[tuple[Tensor, Tensor]]:
        """See :meth:`UnitGroup.spread_over_parameters`."""
        columns = [(table.weight, values[None, :]) for table in self.tables]
        scales = () if self.norm is None else (self.norm.weight, self.norm.bias)
        return [*columns, *((value, values) for value in scales if value is not None)]


class _Gate:
    """A forward hook that multiplies the output of a linear layer by its current gates (rows, units), if any.

    The gates are an attribute of each hook: compiled layers share a graph if their hooks differ in nothing else.
    """

    def __init__(self, units: int) -> None:
        self.units = units
        self.gates: Tensor | None = None

    def _apply(self, values: Tensor, gates: Tensor) -> Tensor:
        gates = gates[:, None, :].to(values.dtype)
        if values.shape[-1] == self.units:
            return values * gates
        # A gated linear unit computes both halves in one layer; the activation is applied to the first.
        first, second = values.split([self.units, values.shape[-1] - self.units], dim=-1)
        return torch.cat([first * gates, second], dim=-1)

    def __call__(self, module: nn.Module, inputs: Any, output: Tensor) -> Tensor | None:
        return None if self.gates is None else self._apply(output, self.gates)


class _GateBefore(_Gate):
    """A forward pre-hook that does the same with the input of a layer."""

    def __call__(self, module: nn.Module, inputs: Any, output: Any = None) -> Any:
        return None if self.gates is None else (self._apply(inputs[0], self.gates), *inputs[1:])


def gate_units(
    model: PreTrainedModel, layers: Sequence[HeadLayer], parts: Collection[str]
) -> dict[str, list[UnitGroup]]:
    """Find the units of some parts of a model and register the hooks that gate them.

    A gate multiplies the context vector of a head (H), an intermediate unit before its activation (I), an output unit
    of the feed-forward before dropout (O), or a feature of the summed embeddings before normalization (E).

    Args:
        model: A model that :func:`acclimate.models.probe.attach` has prepared.
        layers: The result of ``attach``.
        parts: Letters of :data:`PARTS`.

    Returns:
        The unit groups of each part, in the order of the layers; a single group for the embedding.

    Raises:
        UserError: If there is no such part, or it cannot be found in this model.
    """
    if not layers:
        probe = probe_of(model)
        reason = "" if probe is None else f" ({probe.obstacles['gates']})"
        raise UserError(
            f"The attention of {type(model).__name__} cannot be gated or extended{reason}, which this method needs. "
            f"Use a method that needs no access to attention heads, such as lm. {ALTERNATIVES}"
        )
    if not hasattr(model, GATES_ATTRIBUTE):
        setattr(model, GATES_ATTRIBUTE, {})
        setattr(model, UNITS_ATTRIBUTE, {})
    kinds = getattr(model.config, "layer_types", None) or ()
    headless = [kind for kind in kinds if kind not in ATTENTION]
    if headless and "H" in parts:
        warn_once(
            f"{len(headless)} of {len(kinds)} layers of {type(model).__name__} have no attention heads "
            f"({', '.join(dict.fromkeys(headless))}). Importance and protection of heads leave them out."
        )
    hooks, known = getattr(model, GATES_ATTRIBUTE), getattr(model, UNITS_ATTRIBUTE)
    for part in parts:
        if part not in PARTS:
            raise unknown_name_error("part", part, PARTS)
        if part == "H":
            known[part] = list(layers)
        elif part == "E" and part not in known:
            units = _embedding(model)
            known[part], hooks[part] = [units], [_GateBefore(units.units)]
            units.reader.register_forward_pre_hook(hooks[part][0])
        elif part not in known:
            known[part] = feed_forward_units(model, part, len(layers))
            hooks[part] = [_Gate(found.units) for found in known[part]]
            for found, hook in zip(known[part], hooks[part], strict=True):
                found.linear.register_forward_hook(hook)
    return {part: known[part] for part in parts}


@contextmanager
def use_gates(model: PreTrainedModel, gates: Mapping[str, Tensor]) -> Iterator[None]:
    """Return a context in which ``model`` runs with gates (layers, rows, units) on parts other than H."""
    hooks: list[tuple[_Gate, Tensor]] = [
        pair
        for part, values in gates.items()
        for pair in zip(getattr(model, GATES_ATTRIBUTE)[part], values, strict=True)
    ]
    for hook, values in hooks:
        hook.gates = values
    try:
        yield
    finally:
        for hook, _ in hooks:
            hook.gates = None


def feed_forward_units(model: PreTrainedModel, part: str, least: int) -> list[LinearUnits]:
    """Find the units of the feed-forward blocks of a model in the order of its layers.

    Args:
        model: The model.
        part: ``"I"`` for the intermediate units, ``"O"`` for the output units.
        least: Number of blocks that have to be found.

    Raises:
        UserError: If there are fewer.
    """
    if stacked_experts(model):
        raise UserError(
            f"The feed-forward of {type(model).__name__} is a mixture of experts; use the parts H and E, or lora."
        )
    units: list[LinearUnits] = []
    for module in model.base_model.modules():
        for first, last, other in FEED_FORWARD:
            inner, outer = _linear(module, first), _linear(module, last)
            if inner is None or outer is None or linear_sizes(inner)[1] % linear_sizes(outer)[0]:
                continue
            factor = _linear(module, other) if other else None
            size, width = linear_sizes(outer)
            units.append(LinearUnits(inner, size, factor) if part == "I" else LinearUnits(outer, width))
            break
    if len(units) < least:
        raise UserError(f"The feed-forward of {type(model).__name__} cannot be found; use only the parts H and E.")
    return units


def linear_sizes(linear: Any) -> tuple[int, int]:
    """Return the number of inputs and of outputs of a linear layer or a ``Conv1D``."""
    return (linear.nx, linear.nf) if isinstance(linear, Conv1D) else (linear.in_features, linear.out_features)


def _linear(model: nn.Module, name: str) -> nn.Module | None:
    try:
        found = model.get_submodule(name)
    except AttributeError:
        return None
    return found if isinstance(found, nn.Linear | Conv1D) else None


def _embedding(model: PreTrainedModel) -> EmbeddingUnits:
    base: Any = model.base_model
    embeddings = getattr(base, "embeddings", None)
    if embeddings is None:  # a decoder: the tables and the list of layers are next to each other
        tables = tuple(module for module in base.children() if isinstance(module, nn.Embedding))
        norm, readers = None, [module[0] for module in base.children() if isinstance(module, nn.ModuleList)]
        if tables and len({table.embedding_dim for table in tables}) == len(readers) == 1:
            return EmbeddingUnits(tables, None, readers[0], tables[0].embedding_dim)
    else:
        norm = next((found for name in EMBEDDING_NORM if (found := getattr(embeddings, name, None)) is not None), None)
        tables = tuple(module for module in embeddings.modules() if isinstance(module, nn.Embedding))
        if isinstance(norm, nn.LayerNorm) and tables:
            return EmbeddingUnits(tables, norm, norm, tables[0].embedding_dim)
    raise UserError(f"The embedding of {type(model).__name__} cannot be gated; use only the parts H, I and O.")
