"""Named entities before other words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from acclimate.masking.base import Strategy, Vocabulary
from acclimate.masking.phrases import listed
from acclimate.masking.registry import register
from acclimate.masking.whole_word import fill
from acclimate.masking.words import Words


@register(
    "entity-first",
    paper="Sun et al., 2019 (ERNIE); Guu et al., ICML 2020 (REALM)",
    summary="entities of a list, whole, before random words or instead of them",
)
@dataclass(frozen=True)
class EntityFirst(Strategy):
    """Entities of a list as wholes, as the entity-level stage of ERNIE masks them (Sun et al., 2019).

    The papers find entities with a tagger; here they are the entries of a list. Where a text has more entities than
    the rate allows, random ones of them are chosen.

    Attributes:
        entities: Text file with an entity a line, of one or several words.
        fill: Whether random whole words fill what is left of the rate. Without them only entities are masked, the
            salient spans of REALM (Guu et al., 2020), and a text without entities has no masked token.
        case: Whether capitals matter, as they mostly do in names; an uncased tokenizer knows none.
    """

    files: ClassVar[tuple[str, ...]] = ("entities",)

    entities: str = ""
    fill: bool = True
    case: bool = True

    def choose(
        self, ids: np.ndarray, text: np.ndarray, allowed: np.ndarray, vocabulary: Vocabulary, rng: np.random.Generator
    ) -> np.ndarray:
        """Choose entities and words."""
        words = Words.of(ids, text, allowed, vocabulary.pieces)
        units, first = listed(self.entities, words, ids, vocabulary, fold=not self.case)
        taken = fill(units, self.rate, rng, first)
        return units.leaders(taken if self.fill else taken & first, ids.shape)
