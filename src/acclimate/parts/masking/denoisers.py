"""A mixture of maskings: short spans, the end of the text, and much or long spans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from acclimate.base.errors import UserError
from acclimate.parts.masking.base import Strategy, Vocabulary, register
from acclimate.parts.masking.pairs import Pair, body_of, draw_spans, free_sentinels, pair_spans
from acclimate.parts.masking.rewriting import positions_by_text
from acclimate.parts.masking.span import SpanMasking

LONGEST = 10
"""Maximum length of a span as a multiple of the mean."""


@register(
    "denoisers",
    paper="Tay et al., ICLR 2023 (UL2)",
    summary="each text by another task: short spans, the end of the text, or half of it or long spans",
)
@dataclass(frozen=True)
class Denoisers(Strategy):
    """Draws one of the seven denoisers of UL2 for each text (Tay et al., ICLR 2023).

    Regular denoising (R) chooses spans of 3 or 8 words, ``rate`` of the tokens. Sequential denoising (S) chooses the
    ``suffix`` at the end of the text. Extreme denoising (X) chooses spans of 3, 8 or 64 words, ``most`` of the tokens,
    or spans of 64 words, ``rate`` of them. As in :class:`SpanMasking`, spans are of whole words with lengths from a
    geometric distribution; UL2's are of tokens. An encoder sees from the mask tokens which denoiser was drawn,
    so there are no mode tokens.

    A causal model reads a mode token first: ``[NLU]`` for R, ``[S2S]`` for S, ``[NLG]`` for X. With S it then predicts
    the end from the beginning, of which no token is predicted. With R and X it reads the text with a sentinel such as
    ``<extra_id_0>`` for each span, and predicts the spans, each after its sentinel. Mode tokens and sentinels are
    ordinary text where the vocabulary lacks them, so the model keeps its vocabulary. The row is no longer
    than the text was, so the end of the text, or its beginning with S, is left out; a text that would lose more than
    half stays as it is.

    An encoder-decoder reads the mode token, and the text with a sentinel for each span, or with S for its end; it
    predicts them after their sentinels. Here spans are of tokens and drawn as in :class:`SpanCorruption`. A text loses
    as many tokens at its end (with S at its beginning) as its mode has, unless these are more than half.

    Attributes:
        suffix: Share of the tokens that S chooses.
        most: Share of the tokens that three of the four denoisers of X choose.
        regular: Relative frequency of R; the three together amount to a uniform draw from the seven denoisers.
        sequential: Relative frequency of S.
        extreme: Relative frequency of X.
        plain: Share of the texts that a causal model reads as usual.
    """

    rearranges: ClassVar[bool] = True
    pairs: ClassVar[bool] = True

    suffix: float = 0.25
    most: float = 0.5
    regular: float = 2.0
    sequential: float = 1.0
    extreme: float = 4.0
    plain: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (0 < self.suffix < 1 and 0 < self.most < 1 and 0 <= self.plain <= 1):
            raise UserError(
                "denoisers: 'suffix', 'most' and 'plain' are shares between 0 and 1, not "
                f"{self.suffix}, {self.most} and {self.plain}."
            )
        frequencies = (self.regular, self.sequential, self.extreme)
        if not (min(frequencies) >= 0 and 0 < sum(frequencies) < np.inf):  # also false for NaN
            raise UserError(
                "denoisers: 'regular', 'sequential' and 'extreme' must be at least 0, and not all 0, not "
                f"{', '.join(map(str, frequencies))}."
            )

    @property
    def growth(self) -> float:
        """Tokens of source and target per token of a text: at most two sentinels for three tokens in spans."""
        return 1 + 2 * self.most / 3

    @property
    def spans(self) -> list[tuple[int, float]]:
        """Mean length and share of the tokens of the denoisers R and X."""
        return [(3, self.rate), (8, self.rate), (3, self.most), (8, self.most), (64, self.most), (64, self.rate)]

    @property
    def parts(self) -> list[tuple[float, SpanMasking | None]]:
        """The denoisers: how often each is drawn, with the sum 1, and its masking; None for the end of the text."""
        maskings = [SpanMasking(rate, p=1 / mean, longest=LONGEST * mean) for mean, rate in self.spans]
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

    def rearrange(
        self, ids: np.ndarray, allowed: np.ndarray, vocabulary: Vocabulary, rng: np.random.Generator
    ) -> np.ndarray:
        """Return the row for a causal model."""
        places = np.flatnonzero(allowed)
        shares, maskings = zip(*self.parts, strict=True)
        number = rng.choice(len(shares), p=shares)
        if rng.random() < self.plain or not len(places):
            return ids
        head, body, tail = np.split(ids, [places[0], places[-1] + 1])
        masking = maskings[number]
        if masking is None:
            chosen = np.arange(len(body)) >= len(body) - max(1, int(self.suffix * len(body) + rng.random()))
        else:
            free = allowed[None, places[0] : places[-1] + 1]
            chosen = masking.choose(body[None], np.zeros_like(body[None]), free, vocabulary, rng)[0] >= 0
        mode = _encode(mode_of(number), vocabulary)
        least = len(body) / 2
        while chosen.any() and len(body) >= least:
            if masking is None:
                made = np.concatenate([~mode, ~body[~chosen], body[chosen]])
            else:
                made = np.concatenate([~mode, *_replace_spans(body, chosen, vocabulary)])
            excess = len(head) + len(made) + len(tail) - len(ids)
            if excess <= 0:
                return np.concatenate([head, made, tail])
            body, chosen = (body[excess:], chosen[excess:]) if masking is None else (body[:-excess], chosen[:-excess])
        return ids

    def pair(self, ids: np.ndarray, allowed: np.ndarray, vocabulary: Vocabulary, rng: np.random.Generator) -> Pair:
        """Return source and target of a text for an encoder-decoder."""
        number = int(rng.choice(len(self.parts), p=[share for share, _ in self.parts]))
        place, mode = body_of(allowed), _encode(mode_of(number), vocabulary)
        length = place.stop - place.start
        if length <= 2 * len(mode):
            mode = mode[:0]
        head, body, tail = ids[: place.start], ids[place], ids[place.stop :]
        body = body[len(mode) :] if number == 0 else body[: length - len(mode)]
        first = place.start + len(mode) * (number == 0)
        free = free_sentinels(body, vocabulary)
        if number == 0 and len(free):
            chosen = np.arange(len(body)) >= len(body) - max(1, int(self.suffix * len(body) + rng.random()))
        else:
            mean, rate = self.spans[number - 1]
            chosen = draw_spans(len(body), rate, mean, len(free), rng)
        kept = slice(len(head), len(head) + len(body))
        made = pair_spans(np.concatenate([head, body, tail]), kept, chosen, free, mode)
        spelled = np.zeros(len(ids), dtype=bool)
        spelled[first : first + len(body)] = chosen
        return made._replace(spelled=spelled)


MODES = ("[S2S]", "[NLU]", "[NLG]")
"""The mode tokens of S, R and X."""
SENTINELS = ("<extra_id_{}>", "<{}>")
"""Replacement of a span, by its number: a token of T5 and UL2, or for other vocabularies a short text."""


def mode_of(number: int) -> str:
    """Return the mode token of a denoiser, by its number in :attr:`Denoisers.parts`."""
    return MODES[0 if number == 0 else 1 if number <= 2 else 2]


def _replace_spans(body: np.ndarray, chosen: np.ndarray, vocabulary: Vocabulary) -> list[np.ndarray]:
    """Return what is read, the text with a sentinel for each run of chosen tokens, and what is predicted, the runs."""
    read, predicted = [], []
    edges = np.flatnonzero(np.diff(chosen)) + 1
    number = 0
    for part, is_span in zip(np.split(body, edges), np.split(chosen, edges), strict=True):
        if not is_span[0]:
            read.append(~part)
            continue
        sentinel = _encode(SENTINELS[0], vocabulary, number)
        if len(sentinel) > 1:
            sentinel = _encode(SENTINELS[1], vocabulary, number)
        read.append(~sentinel)
        predicted += [sentinel, part]
        number += 1
    return read + predicted


def _encode(text: str, vocabulary: Vocabulary, number: int = 0) -> np.ndarray:
    """Return the tokens of a mode token or sentinel."""
    key = ("denoisers", text, number)
    if key not in vocabulary.cache:
        assert vocabulary.tokenizer is not None
        found = vocabulary.tokenizer(text.format(number), add_special_tokens=False)["input_ids"]
        vocabulary.cache[key] = np.array(found, dtype=np.int64)
    tokens: np.ndarray = vocabulary.cache[key]
    return tokens
