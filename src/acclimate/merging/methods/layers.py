"""The first layers of one model under the other layers of another (Vast et al., ECIR 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Self

from pydantic import Field

from acclimate.base.bounds import Integer
from acclimate.base.errors import UserError
from acclimate.merging.base import Context, Merge, register
from acclimate.merging.rules import Rule


@register(
    "layers", paper="Vast et al., ECIR 2024", summary="embeddings and first layers of one model, the rest of another"
)
@dataclass(frozen=True)
class Layers(Merge):
    """Takes embeddings and first layers from the second model, which was adapted to the domain.

    The rest is that of the first model, which learned a task elsewhere with the first part frozen.

    Attributes:
        layers: Number of layers, counted from the embeddings, that the second model gives (paper: 2).
    """

    formula: ClassVar[str] = "embeddings and first layers of the second model, all else of the first"
    several: ClassVar[bool | None] = None
    joins_tasks: ClassVar[bool] = True
    starts_with_base: ClassVar[bool] = True
    layers: Annotated[Integer, Field(ge=0, le=10_000)] = 2

    def resolve(self, count: int) -> Self:
        """Return the merge, if there are two models."""
        if count != 2:
            raise UserError(f"layers needs two models, the second for the embeddings and first layers, not {count}.")
        return self

    def rule(self, context: Context) -> tuple[Rule, list[str]]:
        """Return the rule that copies each tensor from one of the two."""
        names = context.merger.first_layers(self.layers)
        return lambda name, reads: reads[1 if name in names else 0](), []
