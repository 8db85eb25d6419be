"""Scores of extractive question answering: exact match and F1 of SQuAD v1.1, and the factoid measures of BioASQ."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from acclimate.evaluation.scoring import SCORINGS, Scoring

NAMES = ("f1", "exact_match", "strict_accuracy", "lenient_accuracy", "mrr")
MAX_RANK = 5
"""Answers to a factoid question that BioASQ looks at."""

_ARTICLE = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION_REMOVAL = str.maketrans("", "", string.punctuation)


def normalise_squad(text: str) -> str:
    """Return what SQuAD compares: lower case, no ASCII punctuation, no articles, single spaces.

    The order matters and is that of the official scorer: punctuation goes before articles, and leaves no space, so
    that "a-b" is one word "ab" and no article. Punctuation outside of ASCII stays, and so do accents.
    """
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_PUNCTUATION_REMOVAL)).split())


def normalise_bioasq(text: str) -> str:
    """Return what BioASQ compares: lower case; punctuation and articles count.

    White space is made single spaces, which its scorer leaves to those who write the answers down.
    """
    return " ".join(text.lower().split())


def exact_match(predicted: str, gold: Sequence[str]) -> float:
    """Return 1 if a prediction is one of the gold answers after normalisation, else 0."""
    return float(any(normalise_squad(predicted) == normalise_squad(answer) for answer in gold))


def f1(predicted: str, gold: Sequence[str]) -> float:
    """Return the F1 of the bags of words of a prediction and a gold answer, for the gold answer that gives most.

    As in the scorer of SQuAD v1.1 it is 0 where nothing is shared, also if both are empty after normalisation.
    """
    return max(
        _word_overlap_f1(normalise_squad(predicted).split(), normalise_squad(answer).split()) for answer in gold
    )


def _word_overlap_f1(predicted: list[str], gold: list[str]) -> float:
    shared = sum((Counter(predicted) & Counter(gold)).values())
    return 2 * shared / (len(predicted) + len(gold)) if shared else 0.0


def reciprocal_rank(ranked: Sequence[str], gold: Sequence[str]) -> float:
    """Return 1 / rank of the first of the best five answers that equals a gold answer, 0 if none does (BioASQ)."""
    wanted = {normalise_bioasq(answer) for answer in gold}
    return next((1 / rank for rank, text in enumerate(ranked[:MAX_RANK], 1) if normalise_bioasq(text) in wanted), 0.0)


def qa_scores(gold: Sequence[Sequence[str]], ranked: Sequence[Sequence[str]]) -> dict[str, list[float]]:
    """Score each question.

    Args:
        gold: The gold answers of each question, at least one.
        ranked: The predicted answers of each question, the best first; none counts as wrong.

    Returns:
        A value for each question, in 0..1, under each of the :data:`NAMES`. ``exact_match`` and ``f1`` judge the
        best answer as SQuAD v1.1 does. ``strict_accuracy`` asks whether the best answer is right for BioASQ,
        ``lenient_accuracy`` whether one of the best five is, and ``mrr`` is the reciprocal of its rank.

    Raises:
        ValueError: If there is no question, the lengths differ, or a question has no gold answer.
    """
    if not gold or len(gold) != len(ranked) or not all(gold):
        raise ValueError("Give at least one question, gold answers for each, and as many lists of predictions.")
    best = [answers[0] if answers else "" for answers in ranked]
    ranks = [reciprocal_rank(answers, right) for answers, right in zip(ranked, gold, strict=True)]
    return {
        "f1": [f1(text, right) for text, right in zip(best, gold, strict=True)],
        "exact_match": [exact_match(text, right) for text, right in zip(best, gold, strict=True)],
        "strict_accuracy": [float(rank == 1) for rank in ranks],
        "lenient_accuracy": [float(rank > 0) for rank in ranks],
        "mrr": ranks,
    }


def qa_metrics(gold: Sequence[Sequence[str]], ranked: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return the means over questions of :func:`qa_scores`; shares of one, where the official scorers print percent.

    Raises:
        ValueError: As :func:`qa_scores`.
    """
    return {name: sum(values) / len(values) for name, values in qa_scores(gold, ranked).items()}


@dataclass(frozen=True)
class QAScoring(Scoring):
    """Answers to questions: gold is a list of texts an item, predicted a list of texts, the best first.

    All metrics are means over questions; the first, F1, is what a task is judged by.
    """

    kind: ClassVar[str] = "qa"
    hub_task: ClassVar[tuple[str, str]] = ("question-answering", "Question Answering")

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of the metrics."""
        return NAMES

    def counts(self, gold: Sequence[Any], predicted: Sequence[Any], metric: str) -> np.ndarray:
        """Return the score of each question, and a one: (questions, 2)."""
        if metric not in NAMES:
            raise ValueError(f"Unknown metric '{metric}'. Available: {', '.join(NAMES)}.")
        values = qa_scores(gold, predicted)[metric]
        return np.stack([np.asarray(values), np.ones(len(values))], -1)

    def value(self, sums: np.ndarray, metric: str) -> np.ndarray:
        """Return sum / number."""
        return np.asarray(sums[..., 0] / np.maximum(sums[..., 1], 1e-12))


SCORINGS[QAScoring.kind] = QAScoring
