"""Documents studied with strategies that the model invents for each (Active Reading, Lin et al., 2025)."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from acclimate.api import (
    BLOCK,
    Asked,
    Document,
    Pieces,
    Session,
    TextRecipe,
    UserError,
    batched,
    register_transform,
)


@register_transform(
    "active-reading",
    paper="Active Reading, Lin et al., 2025",
    summary="each document studied with strategies that a language model invents for it",
)
@dataclass(frozen=True)
class ActiveReading(TextRecipe):
    """Asks for strategies to study each document, and then for the result of each strategy.

    This is the variant of the paper that knows no task. The prompts are our own.

    Attributes:
        strategies: Maximum strategies of a document, the first that the model names.
        seed: Random seed of the order of documents, where tokens are limited.
    """

    placeholders: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "strategies": ("text", "number"),
        "study": ("text", "strategy"),
    }
    strategies: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.strategies < 1:
            raise UserError(f"Transform 'active-reading': strategies is at least 1, not {self.strategies}.")

    def write(self, session: Session, pieces: Pieces) -> Generator[Document]:
        """Yield the result of each strategy."""
        number = {"number": str(self.strategies)}
        for block in batched(pieces, BLOCK):
            found = session.lists((Asked(piece, "strategies", number) for piece in block), self.strategies)
            yield from session.texts(
                Asked(piece, "study", {"strategy": strategy}, {"strategy": strategy})
                for piece, own in found
                for strategy in own
            )
