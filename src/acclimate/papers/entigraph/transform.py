"""Text on pairs and triples of the entities of a document (EntiGraph, Yang et al., ICLR 2025)."""

from __future__ import annotations

import math
import random
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
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

MAX_ENTITIES = 100
"""Largest value of ``entities``: all of their triples are counted."""


def draw_groups(names: Sequence[str], size: int, most: int, seed: str) -> list[tuple[str, ...]]:
    """Return groups of so many names, drawn without replacement, in the order of :func:`itertools.combinations`."""
    total = math.comb(len(names), size)
    drawn = set(random.Random(seed).sample(range(total), min(most, total)))
    return [group for place, group in enumerate(combinations(names, size)) if place in drawn]


@register_transform(
    "entigraph",
    paper="EntiGraph, Yang et al., ICLR 2025",
    summary="text on pairs and triples of the entities of each document, by a language model",
)
@dataclass(frozen=True)
class EntiGraph(TextRecipe):
    """Asks for the entities of each document, and then for texts on how they are related.

    The released code writes on every pair, on triples until it is stopped, and also on single entities; here all
    groups are pairs or triples, and as many as are asked for. The prompts are our own.

    Attributes:
        entities: Maximum entities of a document, the first that the model names.
        pairs: Maximum pairs of entities of a document; drawn at random if there are more.
        triples: Maximum triples.
        seed: Random seed of the drawing.
    """

    placeholders: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "entities": ("text",),
        "pairs": ("text", "entities"),
        "triples": ("text", "entities"),
    }
    entities: int = 20
    pairs: int = 20
    triples: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 <= self.entities <= MAX_ENTITIES:
            raise UserError(f"Transform 'entigraph': entities is from 2 to {MAX_ENTITIES}, not {self.entities}.")
        if min(self.pairs, self.triples) < 0:
            raise UserError("Transform 'entigraph': pairs and triples are at least 0.")

    def write(self, session: Session, pieces: Pieces) -> Generator[Document]:
        """Yield a text for each pair and triple that is drawn."""
        for block in batched(pieces, BLOCK):
            asked = (Asked(piece, "entities") for piece in block)
            found = session.lists(asked, self.entities, least=2, commas=True)
            yield from session.texts(
                Asked(piece, prompt, {"entities": "\n".join(f"- {name}" for name in group)}, {"entities": group})
                for piece, names in found
                for prompt, size, most in (("pairs", 2, self.pairs), ("triples", 3, self.triples))
                for group in draw_groups(names, size, most, f"{self.seed} {prompt} {piece.text}")
            )
