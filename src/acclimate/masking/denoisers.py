"""A mixture of maskings: short spans, the end of the text, and much or long spans."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from acclimate.errors import UserError
from acclimate.masking.base import Strategy, Vocabulary, register
from acclimate.masking.rewriting import positions_by_text
from acclimate.masking.span import SpanMasking

LONGEST = 10
"""Maximum length of a span as a multiple of the mean."""


@register(
    "denoisers",
    paper="Tay et al., ICLR 2023 (UL2)",
    summary="each text by another task: short spans, the end of the text, or half of it or long spans",
)
@dataclass(frozen=True)
class Denoisers(Strategy):
    """Draws one of the seven denoisers of UL2 for each text (Tay et al., ICLR 2023), for masked language models.

    Regular denoising (R) chooses spans of 3 or 8 words, ``rate`` of the tokens. Sequential denoising (S) chooses the
    ``suffix`` at the end of the text. Extreme denoising (X) chooses spans of 3, 8 or 64 words, ``most`` of the tokens,
    or spans of 64 words, ``rate`` of them. As in :class:`SpanMasking`, spans are of whole words with lengths from a
    geometric distribution; those of UL2 are of tokens. An encoder sees from the mask tokens which denoiser was drawn,
    so there are no mode tokens.

    Attributes:
        suffix: Share of the tokens that S chooses.
        most: Share of the tokens that three of the four denoisers of X choose.
        regular: Relative frequency of R; the three are those of a uniform draw from the seven denoisers.
        sequential: Relative frequency of S.
        extreme: Relative frequency of X.
    """

    suffix: float = 0.25
    most: float = 0.5
    regular: float = 2.0
    sequential: float = 1.0
    extreme: float = 4.0

    def __post_init__(self) -> None:
        """Check the parameters.

        Raises:
            UserError: If a share or frequency is out of range.
        """
        super().__post_init__()
        if not (0 < self.suffix < 1 and 0 < self.most < 1):
            raise UserError(
                f"denoisers: 'suffix' and 'most' must be between 0 and 1, not {self.suffix} and {self.most}."
            )
        frequencies = (self.regular, self.sequential, self.extreme)
        if not (min(frequencies) >= 0 and 0 < sum(frequencies) < np.inf):  # also false for NaN
            raise UserError(
                "denoisers: 'regular', 'sequential' and 'extreme' must be at least 0, and not all 0, not "
                f"{', '.join(map(str, frequencies))}."
            )

    @property
    def parts(self) -> list[tuple[float, SpanMasking | None]]:
        """The denoisers: how often each is drawn, with the sum 1, and its masking; None for the end of the text."""
        spans = [(3, self.rate), (8, self.rate), (3, self.most), (8, self.most), (64, self.most), (64, self.rate)]
        maskings = [SpanMasking(rate, p=1 / mean, longest=LONGEST * mean) for mean, rate in spans]
        weights = [self.regular / 2] * 2 + [self.extreme / 4] * 4
        total = sum(weights) + self.sequential
        return [
            (self.sequential / total, None),
            *((one / total, of) for one, of in zip(weights, maskings, strict=True)),
        ]

    def choose(
        self, ids: np.ndarray, text: np.ndarray, allowed: np.ndarray, vocabulary: Vocabulary, rng: np.random.Generator
    ) -> np.ndarray:
        """Choose tokens."""
        shares, maskings = zip(*self.parts, strict=True)
        drawn = rng.choice(len(shares), size=text.max(initial=-1) + 2, p=shares)  # the last one is for padding
        leader = np.full(ids.shape, -1)
        for number, masking in enumerate(maskings):
            mine = allowed & (drawn[text] == number)
            if masking is None:
                found = self._choose_ends(np.where(mine, text, -1), rng)
            else:
                found = masking.choose(ids, text, mine, vocabulary, rng)
            leader = np.maximum(leader, found)
        return leader

    def _choose_ends(self, text: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Choose the end of each text, where ``text`` is -1 at all tokens that may not be chosen.

        A fraction of a token is rounded up with the probability that makes the expected number exact.
        """
        leader = np.full(text.shape, -1)
        for positions in positions_by_text(text):
            count = int(self.suffix * len(positions) + rng.random())
            chosen = positions[len(positions) - count :]
            leader.ravel()[chosen] = chosen
        return leader
