"""Metrics of generated answers: F1 and exact match of SQuAD, ROUGE-L, chrF, and the scores of a function of the user.

Each is a mean over items, so that intervals are over items or their groups. So chrF is that of each answer; the chrF
of a corpus, which pools n-grams over all answers, is another number. Of several references the best counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, ClassVar

import regex

from acclimate.base.errors import UserError
from acclimate.evaluation.qa import exact_match, f1
from acclimate.evaluation.scoring import Collapse, MeanScoring, find_collapse, register

WORD = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]|[\p{L}\p{N}\p{M}]+")
"""A word of ROUGE-L, or a character in scripts without blanks; for ASCII the words of ``rouge-score``, not stemmed."""
SCORE = "score"
"""Name of the metric that is a function of the user."""
PATTERN_SECONDS = 10
"""Longest time that a pattern may search an answer."""


def rouge_l(predicted: str, references: Sequence[str]) -> float:
    """Return the F1 of ROUGE-L (Lin, 2004): the longest common subsequence of words, the best over the references."""
    return max(_common_f1(_words(predicted), _words(reference)) for reference in references)


def _words(text: str) -> list[str]:
    return WORD.findall(text.lower())


def _common_f1(first: Sequence[str], second: Sequence[str]) -> float:
    """Return 2 x LCS / (n + m); the subsequence is counted in bits (Hyyrö, 2004), a word of ``second`` at a time."""
    places: dict[str, int] = {}
    for number, word in enumerate(first):
        places[word] = places.get(word, 0) | 1 << number
    free = whole = (1 << len(first)) - 1
    for word in second:
        found = free & places.get(word, 0)
        free = ((free + found) | (free - found)) & whole
    common = len(first) - free.bit_count()
    return 2 * common / (len(first) + len(second)) if common else 0.0


@lru_cache(maxsize=1)
def _chrf_metric() -> Any:
    try:
        from sacrebleu.metrics import CHRF
    except ImportError as error:
        raise UserError("chrF needs sacrebleu: pip install 'acclimate[generation]'.") from error
    return CHRF()


@lru_cache(maxsize=1 << 16)
def _chrf(predicted: str, references: tuple[str, ...]) -> float:
    return float(_chrf_metric().sentence_score(predicted, list(references)).score) / 100


def chrf(predicted: str, references: Sequence[str]) -> float:
    """Return the chrF (Popović, 2015) of one answer, in [0, 1], by ``sacrebleu``: n-grams of up to 6 characters.

    Raises:
        UserError: If ``sacrebleu`` is not installed.
    """
    return _chrf(predicted, tuple(references))


MEASURES: dict[str, Callable[[str, Sequence[str]], float]] = {
    "f1": f1,
    "exact_match": exact_match,
    "rouge_l": rouge_l,
    "chrf": chrf,
}
"""The metrics by name, as functions of an answer and its references."""


def measurable() -> tuple[str, ...]:
    """Return the names of the metrics that can be measured here; chrF needs an optional package."""
    return tuple(name for name in MEASURES if name != "chrf" or find_spec("sacrebleu"))


def extract(pattern: str | None, output: str) -> str:
    """Return the answer in an output: the last match of a pattern, or its first group if it has one; else empty.

    The last, since a final answer follows the reasoning. Without a pattern the whole output is the answer.

    Raises:
        UserError: If the pattern takes too long.
    """
    if not pattern:
        return output.strip()
    try:
        found = [*regex.finditer(pattern, output, timeout=PATTERN_SECONDS)]
    except TimeoutError as error:
        raise UserError(f"The pattern {pattern!r} takes more than {PATTERN_SECONDS} s for one answer.") from error
    return str((found[-1][1] if found[-1].re.groups else found[-1][0]) or "").strip() if found else ""


@register("generation")
@dataclass(frozen=True)
class AnswerScoring(MeanScoring):
    """Generated answers; gold is the references of an item, and predicted a list of its answer.

    A second entry of a prediction is what a function of the user gave it, the metric :data:`SCORE`, which is then the
    primary one.
    """

    hub_task: ClassVar[tuple[str, str]] = ("text-generation", "Text Generation")
    measured: tuple[str, ...] = ()
    """Names of the metrics; by default those that can be measured here."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.measured:
            object.__setattr__(self, "measured", measurable())

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of the metrics."""
        return self.measured

    def item_scores(self, gold: Sequence[Any], predicted: Sequence[Any], metric: str) -> Sequence[float]:
        """Return the score of each item."""
        pairs = zip(predicted, gold, strict=True)
        if metric != SCORE:
            return [MEASURES[metric](shown[0], references) for shown, references in pairs]
        # References in the place of a prediction have no score.
        return [
            exact_match(shown[0], references) if isinstance(shown[-1], str) else float(shown[-1])
            for shown, references in pairs
        ]

    def learned_by(self, metric: str) -> str:
        """Return F1 for the scores of a function, which are known only for the answers that it was given."""
        return "f1" if metric == SCORE else metric

    def find_collapse(self, gold: Sequence[Any], predicted: Sequence[Any]) -> Collapse | None:
        """Return the answer that is given to nearly all items, whatever its scores."""
        return find_collapse([references[:1] for references in gold], [shown[:1] for shown in predicted])
