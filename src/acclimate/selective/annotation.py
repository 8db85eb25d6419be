"""The rule by which a token is important to a task: the sequential buffer of Gu et al. (EMNLP 2020), section 2.2."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from acclimate.selective.options import AnnotationOptions

NEAR = 1e-3
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
class Walk:
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
    def proposal(self) -> list[int]:
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
class Annotated:
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
        return int((np.abs(self.scores - threshold) < NEAR).sum())
