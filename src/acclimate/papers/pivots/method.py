"""Masking of pivots: words that tell the labels of a source domain and are frequent in the target domain as well."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
from transformers import PreTrainedTokenizerBase

from acclimate.api import (
    AdaptContext,
    Method,
    Strategy,
    SubwordTable,
    UserError,
    Vocabulary,
    Words,
    best_first,
    check_positive,
    check_single_label,
    encode_texts,
    read_stop_words,
    register_method,
)

PIVOTS_FILE = "pivots.json"
COUNTED_TOKENS = 10_000_000
"""Tokens of the target text in which words are counted."""
SHOWN = 10

Score = Literal["mutual-information", "polarity"]


@dataclass(frozen=True)
class PivotMasking(Strategy):
    """Chooses each pivot with the probability ``rate``, and each other word with the probability ``others``."""

    name: ClassVar[str] = "pivots"

    pivots: frozenset[str] = field(kw_only=True, repr=False)
    others: float = field(kw_only=True)

    def choose(
        self, ids: np.ndarray, text: np.ndarray, allowed: np.ndarray, vocabulary: Vocabulary, rng: np.random.Generator
    ) -> np.ndarray:
        """Choose words."""
        words = Words.of(ids, text, allowed, vocabulary.subwords)
        forms = words.surface_forms(ids, vocabulary.subwords, lowercase=True)
        pivot = np.fromiter((form in self.pivots for form in forms), bool, len(forms))
        chosen = rng.random(len(forms)) < np.where(pivot, self.rate, self.others)
        return words.leaders(chosen, ids.shape)


@register_method(
    "pivots",
    paper="Li et al., IJCAI 2022; Ben-David et al., TACL 2020",
    summary="MLM that masks the words that tell the labels of another domain and are frequent in both",
)
@dataclass
class Pivots(Method):
    """Mask pivots more often than other words of the target text.

    The train split of the task is labelled text of a source domain, the text of the run that of the target domain.
    Pivots are the words with the highest score among those that occur in at least ``least`` texts of both. To predict
    them, the model learns which words of the target go with them, such as "slow" and "cold" with "bad". The model
    folder gets ``pivots.json`` with the pivots. Fine-tune the result on the source task.

    The probabilities are those of PERL (Ben-David et al., 2020), which predicts pivots only. DASK (Li et al., 2022)
    chooses the words by polarity and part of speech, and updates polarities from pseudo-labels of the target; here
    stop words are left out instead, and the polarity is taken from the source. Method ``dask`` is that paper's.

    Attributes:
        count: Number of pivots.
        least: Minimum number of texts, in each of the two domains, that a pivot occurs in.
        score: What makes a word a pivot: the ``mutual-information`` of its presence and the label, or (DASK) the
            ``polarity``: how far the labels of the texts with the word are from a uniform distribution, |2p - 1| for
            two labels. The polarity of a rare word is high by chance.
        pivot_rate: Probability that a pivot is masked.
        other_rate: Probability that any other word is masked.
        stop_words: Words that are no pivots: ``english``, ``none``, a file, or the name of a language.
    """

    purpose: ClassVar[str] = "Use the end task"
    needs_task: ClassVar[bool] = True
    kinds: ClassVar[tuple[str, ...]] = ("masked",)
    kinds_reason: ClassVar[str] = "chooses the tokens to mask"
    sets_mask_rate: ClassVar[bool] = True
    files: ClassVar[tuple[str, ...]] = ("stop_words",)

    count: int = 100
    least: int = 10
    score: Score = "mutual-information"
    pivot_rate: float = 0.5
    other_rate: float = 0.1
    stop_words: str = "english"

    def __post_init__(self) -> None:
        """Validate the numbers."""
        check_positive(count=self.count, least=self.least)
        for name in ("pivot_rate", "other_rate"):
            if not 0 < getattr(self, name) < 1:
                raise UserError(f"{name} must be a probability between 0 and 1, not {getattr(self, name):g}.")
        self._masking: PivotMasking | None = None  # set by `prepare`

    def check(self, run: AdaptContext) -> None:
        """Check the kind of the task, and that there are stop words."""
        check_single_label(self.name, [run.task])
        read_stop_words(self.stop_words, run.tokenizer)
        super().check(run)

    def prepare(self, run: AdaptContext) -> None:
        """Find the pivots."""
        candidates, source, target = find_candidates(run, self.least, self.stop_words)
        known = Counter(word for words in source for word in words)
        labels = np.array([example.label for example in run.task.train])
        scores, tables = score_words(candidates, source, labels, len(run.task.labels), self.score)
        order = best_first(scores, np.arange(len(candidates)))[: self.count].tolist()
        likely = (tables / np.bincount(labels, minlength=tables.shape[1]).clip(min=1)).argmax(1)
        chosen = {
            candidates[place]: {
                "score": float(scores[place]),
                "label": run.task.labels[likely[place]],
                "source_texts": known[candidates[place]],
                "target_texts": target[candidates[place]],
            }
            for place in order
        }
        run.preparation[PIVOTS_FILE] = {"candidates": len(candidates), "pivots": chosen}
        run.say(
            f"Pivots: {len(chosen)} of {len(candidates):,} words that are in {self.least} texts of both domains, such "
            f"as {', '.join([*chosen][:SHOWN])}."
        )
        self._masking = PivotMasking(self.pivot_rate, pivots=frozenset(chosen), others=self.other_rate)

    def masking(self, rate: float) -> PivotMasking | None:
        """Return the masking of pivots; it does not depend on ``rate``."""
        return self._masking


def find_candidates(run: AdaptContext, least: int, stop_words: str) -> tuple[list[str], list[set[str]], Counter[str]]:
    """Return the words that can be pivots, the words of each source text, and the target texts with each word.

    Args:
        run: The run, whose task is the source.
        least: Minimum number of texts, in each of the two domains, that a word occurs in.
        stop_words: See :class:`Pivots`.

    Raises:
        UserError: If there is no such word.
    """
    subwords = SubwordTable.of(run.tokenizer)
    texts = [f"{example.text} {example.text_pair or ''}" for example in run.task.train]
    source = list(word_sets(encode_texts(run.tokenizer, texts), run.tokenizer, subwords))
    target = Counter(word for words in word_sets(_target_rows(run), run.tokenizer, subwords) for word in words)
    unwanted = read_stop_words(stop_words, run.tokenizer)
    known = Counter(word for words in source for word in words)
    candidates = sorted(
        word
        for word, number in known.items()
        if word.isalpha() and word not in unwanted and min(number, target[word]) >= least
    )
    if not candidates:
        raise UserError(
            f"No word occurs in {least} texts of the task '{run.task.name}' and of the corpus; lower 'least'."
        )
    return candidates, source, target


def _target_rows(run: AdaptContext) -> Iterable[np.ndarray]:
    """Yield the rows of the target text in which words are counted."""
    read = 0
    for number in range(len(run.rows)):
        if read > COUNTED_TOKENS:
            run.say(f"Words are counted in the first {COUNTED_TOKENS:,} tokens of the text.")
            return
        row = run.rows[number]
        read += len(row)
        yield row


def word_sets(
    rows: Iterable[Sequence[int] | np.ndarray], tokenizer: PreTrainedTokenizerBase, subwords: SubwordTable
) -> Iterable[set[str]]:
    """Yield the words of each row of token ids, in lower case."""
    special = np.array(sorted(tokenizer.all_special_ids))
    for row in rows:
        ids = np.asarray(row)[None]
        words = Words.of(ids, np.zeros_like(ids), ~np.isin(ids, special), subwords)
        yield set(words.surface_forms(ids, subwords, lowercase=True))


def score_words(
    words: Sequence[str], texts: Sequence[set[str]], labels: np.ndarray, classes: int, score: Score
) -> tuple[np.ndarray, np.ndarray]:
    """Return how much the presence of words says about labels.

    Args:
        words: The words.
        texts: The words of each text.
        labels: The class of each text (texts,).
        classes: Number of classes.
        score: See :class:`Pivots`.

    Returns:
        The score of each word (words,): its mutual information in nats, or its polarity from 0 to 1; and in how many
        texts of each class it occurs (words, classes).
    """
    place = {word: number for number, word in enumerate(words)}
    counts = np.zeros((len(words), classes))
    for text, label in zip(texts, labels.tolist(), strict=True):
        for word in text & place.keys():
            counts[place[word], label] += 1
    sizes = np.bincount(labels, minlength=classes).astype(float)
    if score == "polarity":
        shares = counts / counts.sum(1, keepdims=True)
        return np.abs(shares - 1 / classes).sum(1) * classes / (2 * (classes - 1)), counts
    joint = np.stack([counts, sizes - counts]) / len(texts)  # (present or not, words, classes)
    independent = joint.sum(2, keepdims=True) * (sizes / len(texts))
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(joint > 0, joint * np.log(joint / independent), 0.0)
    return terms.sum((0, 2)), counts
