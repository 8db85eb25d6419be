"""The first layers of one model under the other layers of another (Vast et al., ECIR 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from acclimate.base.bounds import Integer
from acclimate.merging.base import Context, Merge, ModelName, register
from acclimate.merging.rules import Rule


@register(
    "layers", paper="Vast et al., ECIR 2024", summary="embeddings and first layers of one model, the rest of another"
)
@dataclass(frozen=True)
class Layers(Merge):
    """Takes embeddings and first layers from a model that was adapted to the domain.

    The rest is that of a model that learned a task elsewhere, with the first part frozen.

    Attributes:
        domain_model: Model whose embeddings and first layers the result gets.
        layers: Number of layers, counted from the embeddings, that it gets (paper: 2).
    """

    formula: ClassVar[str] = "embeddings and first layers of the domain model, all else of the model"
    several: ClassVar[bool | None] = False
    models: ClassVar[tuple[str, ...]] = ("domain_model",)
    joins_tasks: ClassVar[bool] = True
    main: ClassVar[str] = "domain_model"
    domain_model: ModelName
    layers: Annotated[Integer, Field(ge=0, le=10_000)] = 2

    def rule(self, context: Context) -> tuple[Rule, list[str]]:
        """Return the rule that copies each tensor from one of the two."""
        names = context.merger.first_layers(self.layers)
        return lambda name, reads: reads[1 if name in names else 0](), []
