"""Words of a lexicon before other words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from acclimate.errors import UserError
from acclimate.masking.base import Strategy, Vocabulary
from acclimate.masking.phrases import listed
from acclimate.masking.registry import register
from acclimate.masking.whole_word import fill
from acclimate.masking.words import Words


@register(
    "lexicon-first",
    paper="Zhai et al., Findings of ACL 2024 (Chinese MentalBERT)",
    summary="words of a lexicon before random words, until the rate is reached",
)
@dataclass(frozen=True)
class LexiconFirst(Strategy):
    """Whole words of a lexicon first; random whole words fill what is left of the rate (Zhai et al., 2024).

    An entry of several words is one unit: its tokens are chosen together and share their fate. The paper masks a
    fifth of the tokens: give ``mask_rate`` 0.2 for that.

    Attributes:
        lexicon: Text file with an entry a line.
        order: Which entries come first where a text has more of them than the rate allows: ``random`` ones, or those
            first in the ``text``, as in the released code. By chance is the default: else what stands late in a
            text full of entries is never masked.
        share: Probability that an occurrence of an entry comes before other words. With 1, as in the paper, a text
            full of entries never has another word masked.
        case: Whether capitals matter; an uncased tokenizer knows none.
    """

    files: ClassVar[tuple[str, ...]] = ("lexicon",)

    lexicon: str = ""
    order: Literal["random", "text"] = "random"
    share: float = 1.0
    case: bool = False

    def __post_init__(self) -> None:
        """Check the shares.

        Raises:
            UserError: If one is out of range, or the file is missing.
        """
        super().__post_init__()
        if not 0 <= self.share <= 1:
            raise UserError(f"lexicon-first: 'share' is a probability, from 0 to 1, not {self.share:g}.")

    def choose(
        self, ids: np.ndarray, text: np.ndarray, allowed: np.ndarray, vocabulary: Vocabulary, rng: np.random.Generator
    ) -> np.ndarray:
        """Choose entries and words."""
        words = Words.of(ids, text, allowed, vocabulary.pieces)
        units, first = listed(self.lexicon, words, ids, vocabulary, fold=not self.case)
        first &= rng.random(len(units)) < self.share
        rank = rng.random(len(units))
        if self.order == "text":
            rank[first] = np.arange(len(units))[first]
        return units.leaders(fill(units, self.rate, rng, first, rank), ids.shape)
