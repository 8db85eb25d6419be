"""The rule that decides which tokens are important: the sequential buffer of Gu et al. (EMNLP 2020), section 2.2.

Within a unit the rule is sequential, since the buffer s' depends on every earlier decision. Units are independent, so
all of them advance together: each round scores the next token of every unit, in length-sorted batches with a token
budget. This gives the same decisions as one buffer at a time, up to rounding differences between batch shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from acclimate.api import Progress
from acclimate.papers.selective.options import AnnotationOptions

THRESHOLD_MARGIN = 1e-3
"""Tokens whose score is this close to the threshold are counted: in another precision they might flip."""


@dataclass(frozen=True)
class Unit:
    """A text, or a sentence of it, that is annotated as one sequence.

    Attributes:
        tokens: Token ids without special tokens.
        label: Class index y.
        second: Token ids of the second text of a pair, which accompanies every buffer unchanged; None for single
            texts.
        row: Index of the task's row that the unit comes from.
    """

    tokens: tuple[int, ...]
    label: int
    second: tuple[int, ...] | None = None
    row: int = 0


class Confidence(Protocol):
    """A fine-tuned classifier that scores buffers."""

    def __call__(self, requests: Sequence[tuple[Unit, Sequence[int]]]) -> np.ndarray:
        """Return the class probabilities of each buffer, read instead of the tokens of its unit.

        Args:
            requests: Units and buffers (token ids, possibly empty).

        Returns:
            (requests, classes); rows sum to one.
        """
        ...


@dataclass
class RuleState:
    """State of the rule for one unit.

    Attributes:
        unit: The unit.
        full: P(y|s).
        current: P(y|s') of the current buffer; used by the marginal criterion only.
        options: Options of the rule.
        buffer: s'.
        scores: S of each token so far (Eq. 1); for the marginal criterion P(y|s') - P(y|s'w).
        important: Whether each token so far is important.
    """

    unit: Unit
    full: float
    current: float
    options: AnnotationOptions
    buffer: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    important: list[bool] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        """Whether every token has been decided."""
        return len(self.scores) == len(self.unit.tokens)

    @property
    def candidate_buffer(self) -> list[int]:
        """s'w: the buffer followed by the next token."""
        return [*self.buffer, self.unit.tokens[len(self.scores)]]

    def decide(self, confidence: float) -> None:
        """Decide on the next token, given P(y|s'w). An important token is not added to the buffer."""
        if self.options.criterion == "paper":
            score = self.full - confidence
            important = score < self.options.delta
        else:
            score = self.current - confidence
            important = -score > self.options.epsilon
        if not important:
            self.buffer.append(self.unit.tokens[len(self.scores)])
            self.current = confidence
        self.scores.append(score)
        self.important.append(important)


@dataclass(frozen=True)
class AnnotatedUnit:
    """A unit with its annotation.

    Attributes:
        unit: The unit.
        important: Whether each token is important (tokens,). All False for a unit that is kept as a negative example.
        scores: S of each token (tokens,); empty for a unit that is kept as a negative example.
        full: P(y|s).
        correct: Whether the classifier predicts the label of the unit.
    """

    unit: Unit
    important: np.ndarray
    scores: np.ndarray
    full: float
    correct: bool

    def near_threshold(self, options: AnnotationOptions) -> int:
        """Return the number of tokens whose score is within 1e-3 of the threshold."""
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
        units: The units.
        confidence: The fine-tuned classifier.
        options: Options of the rule.
        stop_words: Whether each vocabulary id is a stop word, as the first token of a unit and as a later one
            (2, vocabulary); None for no stop words. Stop words enter the buffer like other tokens, but are never
            marked as important.
        progress: Show a progress bar.

    Returns:
        An annotation of each unit, in order, without the units that ``misclassified="drop"`` leaves out.
    """
    if not units:
        return []
    full = confidence([(unit, unit.tokens) for unit in units])
    correct = full.argmax(1) == np.array([unit.label for unit in units])
    scored = np.flatnonzero(correct | (options.misclassified == "annotate")).tolist()
    states = _apply_rule(
        [units[index] for index in scored],
        [float(full[index, units[index].label]) for index in scored],
        confidence,
        options,
        progress,
    )
    by_index = dict(zip(scored, states, strict=True))
    result = []
    for index, unit in enumerate(units):
        state = by_index.get(index)
        if state is None and options.misclassified == "drop":
            continue
        important = np.array(state.important if state else [False] * len(unit.tokens), dtype=bool)
        if stop_words is not None:
            is_later = np.minimum(np.arange(len(unit.tokens)), 1)
            important &= ~stop_words[is_later, np.array(unit.tokens, dtype=np.int64)]
        scores = np.array(state.scores if state else [], dtype=np.float64)
        result.append(AnnotatedUnit(unit, important, scores, float(full[index, unit.label]), bool(correct[index])))
    return result


def _apply_rule(
    units: Sequence[Unit], full: Sequence[float], confidence: Confidence, options: AnnotationOptions, progress: bool
) -> list[RuleState]:
    """Run the rule over all tokens of all units; each round decides one token of every unfinished unit."""
    empty = np.zeros(len(units))
    if options.criterion == "marginal" and units:
        probabilities = confidence([(unit, ()) for unit in units])
        empty = probabilities[np.arange(len(units)), [unit.label for unit in units]]
    states = [RuleState(*row, options) for row in zip(units, full, empty.tolist(), strict=True)]
    active = [state for state in states if not state.is_done]
    total, decided = sum(len(unit.tokens) for unit in units), 0
    with Progress("Annotating", total, unit="tokens", enabled=progress) as bar:
        while active:
            found = confidence([(state.unit, state.candidate_buffer) for state in active])
            for state, probabilities in zip(active, found, strict=True):
                state.decide(float(probabilities[state.unit.label]))
            decided += len(active)
            bar.update(decided)
            active = [state for state in active if not state.is_done]
    return states
