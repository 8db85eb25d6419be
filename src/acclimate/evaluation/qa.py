"""Metrics of extractive question answering: exact match and F1 of SQuAD v1.1, and the factoid metrics of BioASQ."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from acclimate.evaluation.scoring import MeanScoring, register

NAMES = ("f1", "exact_match", "strict_accuracy", "lenient_accuracy", "mrr")
MAX_RANK = 5
"""Number of ranked answers to a factoid question that BioASQ considers."""

_ARTICLE = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION_REMOVAL = str.maketrans("", "", string.punctuation)


def normalize_squad(text: str) -> str:
    """Normalize an answer as SQuAD does: lower case, no ASCII punctuation, no articles, single spaces.

    As in the official scorer, punctuation is removed before articles, so that "a-b" becomes "ab". Other punctuation
    and accents are kept.
    """
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_PUNCTUATION_REMOVAL)).split())


def normalize_bioasq(text: str) -> str:
    """Normalize an answer as BioASQ does: lower case, with punctuation and articles.

    Whitespace is also reduced to single spaces, which the official scorer does not do.
    """
    return " ".join(text.lower().split())


def exact_match(predicted: str, gold: Sequence[str]) -> float:
    """Return 1 if a prediction equals a gold answer after normalization, else 0."""
    return float(any(normalize_squad(predicted) == normalize_squad(answer) for answer in gold))


def f1(predicted: str, gold: Sequence[str]) -> float:
    """Return the maximum over the gold answers of the F1 between bags of words.

    As in the scorer of SQuAD v1.1, F1 is 0 if no word is shared, even if both are empty after normalization.
    """
    return max(
        _word_overlap_f1(normalize_squad(predicted).split(), normalize_squad(answer).split()) for answer in gold
    )


def _word_overlap_f1(predicted: list[str], gold: list[str]) -> float:
    shared = sum((Counter(predicted) & Counter(gold)).values())
    return 2 * shared / (len(predicted) + len(gold)) if shared else 0.0


def reciprocal_rank(ranked: Sequence[str], gold: Sequence[str]) -> float:
    """Return 1 / rank of the first correct answer among the best five, 0 if there is none (BioASQ)."""
    correct = {normalize_bioasq(answer) for answer in gold}
    return next((1 / rank for rank, text in enumerate(ranked[:MAX_RANK], 1) if normalize_bioasq(text) in correct), 0.0)


def qa_scores(gold: Sequence[Sequence[str]], ranked: Sequence[Sequence[str]]) -> dict[str, list[float]]:
    """Score each question.

    Args:
        gold: The gold answers to each question, at least one.
        ranked: The predicted answers to each question, the best first; an empty list counts as wrong.

    Returns:
        The scores of all questions, in [0, 1], for each of :data:`NAMES`. ``exact_match`` and ``f1`` score the best
        answer as in SQuAD v1.1. The others come from BioASQ: ``strict_accuracy`` is 1 if the best answer is
        correct, ``lenient_accuracy`` if one of the best five is, and ``mrr`` is the reciprocal rank of the first such
        answer.

    Raises:
        ValueError: If there are no questions, the lengths differ, or a question has no gold answer.
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
    """Return the means of :func:`qa_scores` over the questions, in [0, 1] (the official scorers print percentages).

    Raises:
        ValueError: As :func:`qa_scores`.
    """
    return {name: sum(values) / len(values) for name, values in qa_scores(gold, ranked).items()}


@register("qa")
@dataclass(frozen=True)
class QAScoring(MeanScoring):
    """Question answering: gold answers and predicted answers, the best first, are lists of texts.

    All metrics are means over questions; F1 is the primary one.
    """

    hub_task: ClassVar[tuple[str, str]] = ("question-answering", "Question Answering")
    names: ClassVar[tuple[str, ...]] = NAMES

    def item_scores(self, gold: Sequence[Any], predicted: Sequence[Any], metric: str) -> Sequence[float]:
        """Return the score of each question."""
        return qa_scores(gold, predicted)[metric]
