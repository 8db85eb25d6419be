"""Gates on units besides attention heads: feed-forward units and embedding features (DGA, Table 3)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from acclimate.errors import UserError, unknown_name_error
from acclimate.models.attention import ALTERNATIVES, HeadLayer
from acclimate.models.families import probe_of

Part = Literal["H", "I", "O", "E"]
PARTS: dict[Part, str] = {
    "H": "attention heads",
    "I": "intermediate units of the feed-forward",
    "O": "output units of the feed-forward",
    "E": "features of the embedding",
}
"""The letters are those of the paper's Table 3."""

FEED_FORWARD = (
    ("intermediate.dense", "output.dense"),
    ("ffn.lin1", "ffn.lin2"),
    ("ffn", "ffn_output"),
    ("mlp.Wi", "mlp.Wo"),
)
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
    """The output units of a linear layer: each owns a row and a bias entry, or two of each in a fused gated layer."""

    linear: nn.Linear
    units: int

    def spread_over_parameters(self, values: Tensor) -> list[tuple[Tensor, Tensor]]:
        """See :meth:`UnitGroup.spread_over_parameters`."""
        rows = values.repeat(self.linear.out_features // self.units)
        weight = [(self.linear.weight, rows[:, None])]
        return weight if self.linear.bias is None else [*weight, (self.linear.bias, rows)]


@dataclass(frozen=True)
class EmbeddingUnits:
    """The features of the embedding: each owns a column of every table and its entries in the normalization.

    The word embeddings are usually tied to the decoder, which is then protected with them.
    """

    tables: tuple[nn.Embedding, ...]
    norm: nn.LayerNorm
    units: int

    def spread_over_parameters(self, values: Tensor) -> list[tuple[Tensor, Tensor]]:
        """See :meth:`UnitGroup.spread_over_parameters`."""
        columns = [(table.weight, values[None, :]) for table in self.tables]
        scales = [(value, values) for value in (self.norm.weight, self.norm.bias) if value is not None]
        return [*columns, *scales]


class _Gate:
    """A forward hook that multiplies the output of a linear layer by the current gates of its part, if any."""

    def __init__(self, gates_by_part: dict[str, Tensor], part: str, index: int, units: int) -> None:
        self.gates_by_part, self.part, self.index, self.units = gates_by_part, part, index, units

    def _apply(self, values: Tensor) -> Tensor:
        gates = self.gates_by_part[self.part][self.index][:, None, :].to(values.dtype)
        if values.shape[-1] == self.units:
            return values * gates
        # A gated linear unit computes both halves in one layer; the activation is applied to the first.
        first, second = values.split([self.units, values.shape[-1] - self.units], dim=-1)
        return torch.cat([first * gates, second], dim=-1)

    def __call__(self, module: nn.Module, inputs: Any, output: Tensor) -> Tensor | None:
        return self._apply(output) if self.part in self.gates_by_part else None


class _GateBefore(_Gate):
    """A forward pre-hook that does the same with the input of a layer."""

    def __call__(self, module: nn.Module, inputs: Any, output: Any = None) -> Any:
        return (self._apply(inputs[0]), *inputs[1:]) if self.part in self.gates_by_part else None


def gate_units(
    model: PreTrainedModel, layers: Sequence[HeadLayer], parts: Iterable[str]
) -> dict[str, list[UnitGroup]]:
    """Find the units of some parts of a model and register the hooks that gate them.

    A gate multiplies the context vector of a head (H), an intermediate unit before its activation (I), an output unit
    of the feed-forward before dropout (O), or a feature of the summed embeddings before normalization (E).

    Args:
        model: A model that :func:`acclimate.models.attach` has prepared.
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
    gates_by_part, known = getattr(model, GATES_ATTRIBUTE), getattr(model, UNITS_ATTRIBUTE)
    for part in parts:
        if part not in PARTS:
            raise unknown_name_error("part", part, PARTS)
        if part == "H":
            known[part] = list(layers)
        elif part == "E" and part not in known:
            units = _embedding(model)
            units.norm.register_forward_pre_hook(_GateBefore(gates_by_part, part, 0, units.units))
            known[part] = [units]
        elif part not in known:
            known[part] = [_feed_forward(model, layer, part) for layer in layers]
            for index, found in enumerate(known[part]):
                found.linear.register_forward_hook(_Gate(gates_by_part, part, index, found.units))
    return {part: known[part] for part in parts}


@contextmanager
def use_gates(model: PreTrainedModel, gates: Mapping[str, Tensor]) -> Iterator[None]:
    """Return a context in which ``model`` runs with gates (layers, rows, units) on parts other than H."""
    current = getattr(model, GATES_ATTRIBUTE)
    current.update(gates)
    try:
        yield
    finally:
        current.clear()


def _feed_forward(model: PreTrainedModel, layer: HeadLayer, part: str) -> LinearUnits:
    """Find the feed-forward of an attention layer: in the nearest module that contains both."""
    name = layer.name
    while name:
        name = name.rpartition(".")[0]
        for pair in FEED_FORWARD:
            both = [_linear(model, f"{name}.{suffix}" if name else suffix) for suffix in pair]
            inner, outer = both
            if inner is not None and outer is not None and inner.out_features % outer.in_features == 0:
                found = inner if part == "I" else outer
                return LinearUnits(found, outer.in_features if part == "I" else outer.out_features)
    raise UserError(f"The feed-forward of {type(model).__name__} cannot be found; use only the parts H and E.")


def _linear(model: nn.Module, name: str) -> nn.Linear | None:
    try:
        found = model.get_submodule(name)
    except AttributeError:
        return None
    return found if isinstance(found, nn.Linear) else None


def _embedding(model: PreTrainedModel) -> EmbeddingUnits:
    embeddings = getattr(model.base_model, "embeddings", nn.Module())
    norm = next((found for name in EMBEDDING_NORM if (found := getattr(embeddings, name, None)) is not None), None)
    tables = tuple(module for module in embeddings.modules() if isinstance(module, nn.Embedding))
    if not isinstance(norm, nn.LayerNorm) or not tables:
        raise UserError(f"The embedding of {type(model).__name__} cannot be gated; use only the parts H, I and O.")
    return EmbeddingUnits(tables, norm, tables[0].embedding_dim)
