"""The rule by which a token is important to a task: the sequential buffer of Gu et al. (EMNLP 2020), section 2.2.

The rule on many units at once: all buffers advance together.

The rule is sequential within a unit: what s' holds depends on every decision before. Between units nothing depends on
anything, so each round asks for the next token of all of them, and the classifier reads those buffers by length in
batches of a budget of tokens: hardly any padding, and batches that stay full until few units are left. No token is
decided differently than one buffer at a time would decide it, but for what rounding in another batch shape can flip.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from acclimate.methods.selective.options import AnnotationOptions
from acclimate.progress import Progress

THRESHOLD_MARGIN = 1e-3
"""Tokens whose score is closer than this to the threshold are counted: another precision might flip them."""


@dataclass(frozen=True)
class Unit:
    """What is annotated as one: a text, or a sentence of it.

    Attributes:
        tokens: Its token ids, without special ones.
        label: Number of the class y.
        second: Token ids of the second text of a pair, which stays whole beside every buffer; None without one.
        row: Which row of the task it comes from.
    """

    tokens: tuple[int, ...]
    label: int
    second: tuple[int, ...] | None = None
    row: int = 0


class Confidence(Protocol):
    """What a fine-tuned classifier thinks of buffers."""

    def __call__(self, requests: Sequence[tuple[Unit, Sequence[int]]]) -> np.ndarray:
        """Return the probabilities of all classes for each buffer, read in place of the tokens of its unit.

        Args:
            requests: Units and buffers (token ids, possibly none).

        Returns:
            (requests, classes), summing to one.
        """
        ...


@dataclass
class RuleState:
    """One unit on its way through the rule: the buffer s', and what has been decided.

    Attributes:
        unit: What is walked through.
        full: P(y|s).
        empty: P(y|s') of the buffer as it is; only the marginal criterion asks for that of the empty buffer.
        options: The rule.
        buffer: s'.
        scores: S of each token so far (Eq. 1); under the marginal criterion P(y|s') - P(y|s'w).
        important: Whether each token so far is important.
    """

    unit: Unit
    full: float
    empty: float
    options: AnnotationOptions
    buffer: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    important: list[bool] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        """Whether every token has been decided."""
        return len(self.scores) == len(self.unit.tokens)

    @property
    def candidate_buffer(self) -> list[int]:
        """s'w: the buffer with the next token."""
        return [*self.buffer, self.unit.tokens[len(self.scores)]]

    def decide(self, confidence: float) -> None:
        """Decide on the next token, given P(y|s'w); an important one does not stay in the buffer."""
        if self.options.criterion == "paper":
            score = self.full - confidence
            important = score < self.options.delta
        else:
            score = self.empty - confidence
            important = -score > self.options.epsilon
        if not important:
            self.buffer.append(self.unit.tokens[len(self.scores)])
            self.empty = confidence
        self.scores.append(score)
        self.important.append(important)


@dataclass(frozen=True)
class AnnotatedUnit:
    """A unit with its annotation.

    Attributes:
        unit: What was annotated.
        important: For each token whether it is important (tokens,). Nowhere in a unit that stays a negative.
        scores: S of each token (tokens,); empty in a unit that stays a negative.
        full: P(y|s).
        correct: Whether the classifier gives s its label.
    """

    unit: Unit
    important: np.ndarray
    scores: np.ndarray
    full: float
    correct: bool

    def near(self, options: AnnotationOptions) -> int:
        """Return how many tokens a rounding might have decided: the score within 1e-3 of the threshold."""
        threshold = options.delta if options.criterion == "paper" else -options.epsilon
        return int((np.abs(self.scores - threshold) < THRESHOLD_MARGIN).sum())


def annotate_units(
    units: Sequence[Unit],
    confidence: Confidence,
    options: AnnotationOptions,
    *,
    stop_words: np.ndarray | None = None,
    progress: bool = False,
) -> list[AnnotatedUnit]:
    """Find the important tokens of units.

    Args:
        units: What to annotate.
        confidence: The fine-tuned classifier.
        options: The rule.
        stop_words: For each id of the vocabulary whether it is a stop word, as the first token of a unit and behind it
            (2, vocabulary): such a token is not marked at the end, but takes part in the buffer as any other. None for
            no stop words.
        progress: Show a bar.

    Returns:
        An annotation for each unit, in their order; those that ``misclassified="drop"`` leaves out are missing.
    """
    if not units:
        return []
    whole = confidence([(unit, unit.tokens) for unit in units])
    correct = whole.argmax(1) == np.array([unit.label for unit in units])
    walked = correct | (options.misclassified == "annotate")
    chosen = [place for place, walks in enumerate(walked) if walks]
    walks = _apply_rule(
        [units[place] for place in chosen],
        [float(whole[place, units[place].label]) for place in chosen],
        confidence,
        options,
        progress,
    )
    by_place = dict(zip(chosen, walks, strict=True))
    result = []
    for place, unit in enumerate(units):
        if place not in by_place and options.misclassified == "drop":
            continue
        walk = by_place.get(place)
        important = np.array(walk.important if walk else [False] * len(unit.tokens), dtype=bool)
        if stop_words is not None:
            behind = np.minimum(np.arange(len(unit.tokens)), 1)
            important &= ~stop_words[behind, np.array(unit.tokens, dtype=np.int64)]
        scores = np.array(walk.scores if walk else [], dtype=np.float64)
        result.append(AnnotatedUnit(unit, important, scores, float(whole[place, unit.label]), bool(correct[place])))
    return result


def _apply_rule(
    units: Sequence[Unit], full: Sequence[float], confidence: Confidence, options: AnnotationOptions, progress: bool
) -> list[RuleState]:
    """Take every unit from its first token to its last, a token of each a round."""
    empty = np.zeros(len(units))
    if options.criterion == "marginal" and units:
        before = confidence([(unit, ()) for unit in units])
        empty = before[np.arange(len(units)), [unit.label for unit in units]]
    walks = [
        RuleState(unit, whole, float(none), options) for unit, whole, none in zip(units, full, empty, strict=True)
    ]
    alive = [walk for walk in walks if not walk.ended]
    total, decided = sum(len(unit.tokens) for unit in units), 0
    with Progress("Annotating", total, unit="tokens", enabled=progress) as bar:
        while alive:
            found = confidence([(walk.unit, walk.candidate_buffer) for walk in alive])
            for walk, probabilities in zip(alive, found, strict=True):
                walk.decide(float(probabilities[walk.unit.label]))
            decided += len(alive)
            bar.update(decided)
            alive = [walk for walk in alive if not walk.ended]
    return walks
