"""Vocabulary overlap of two texts, and fragmentation of their words by a tokenizer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import regex
from transformers import PreTrainedTokenizerBase

TOP = 10_000
MIN_DOCUMENTS = 3
MAX_EXAMPLES = 10
_UNIGRAM = regex.compile(r"[\p{L}\p{N}_]\p{M}*[\p{L}\p{N}_][\p{L}\p{N}\p{M}_]*")
_WORD = regex.compile(r"[\p{L}\p{Nl}\p{No}][\p{L}\p{Nl}\p{No}\p{M}]*")


@dataclass
class WordCounts:
    """Word counts of a collection of documents.

    Attributes:
        words: Number of words counted.
        frequency: Occurrences of each lower-cased word.
        documents: Number of documents that contain each lower-cased word.
        written: Occurrences of each word that consists of letters only, in its original case.
    """

    words: int = 0
    frequency: Counter[str] = field(default_factory=Counter)
    documents: Counter[str] = field(default_factory=Counter)
    written: Counter[str] = field(default_factory=Counter)


def count_words(texts: Iterable[str], most: int | None = None) -> WordCounts:
    """Count the words of texts, stopping at the first text after ``most`` words.

    Words are defined as in scikit-learn's ``CountVectorizer``: two or more letters, digits or underscores. Unlike in
    scikit-learn, a combining mark belongs to the letter before it and does not split the word.
    """
    found = WordCounts()
    for text in texts:
        if most is not None and found.words >= most:
            break
        words = _UNIGRAM.findall(text.lower())
        found.words += len(words)
        found.frequency.update(words)
        found.documents.update(set(words))
        found.written.update(_WORD.findall(text))
    return found


def overlap(one: WordCounts, other: WordCounts, stop_words: Collection[str]) -> dict[str, Any]:
    """Measure vocabulary overlap by both definitions of Gururangan et al. (ACL 2020).

    ``top``, as described in the paper: the fraction of the 10,000 most frequent words of one text, stop words
    excluded, that are among the 10,000 most frequent of the other. If a text has fewer words, the size of the smaller
    vocabulary is used (``top_words``). ``jaccard``, as computed by the published code: the Jaccard similarity of the
    words that occur in at least three documents and are not stop words; ``jaccard_words`` is the size of their union.
    Both measures grow with the amount of text, so compare equal amounts.
    """
    ranked = [_ranked(counts.frequency, stop_words) for counts in (one, other)]
    size = min(TOP, *map(len, ranked))
    common = len(set(ranked[0][:size]) & set(ranked[1][:size]))
    frequent = [
        {word for word, count in counts.documents.items() if count >= MIN_DOCUMENTS and word not in stop_words}
        for counts in (one, other)
    ]
    union = len(frequent[0] | frequent[1])
    return {
        "top": common / size if size else 0.0,
        "top_words": size,
        "jaccard": len(frequent[0] & frequent[1]) / union if union else 0.0,
        "jaccard_words": union,
    }


def _ranked(frequency: Counter[str], stop_words: Collection[str]) -> list[str]:
    """Return words by decreasing frequency, ties in alphabetical order."""
    words = [word for word in frequency if word not in stop_words]
    return sorted(words, key=lambda word: (-frequency[word], word))


def fragmentation(tokenizer: PreTrainedTokenizerBase, counts: WordCounts) -> dict[str, Any]:
    """Measure how many tokens a tokenizer needs per word, weighted by word frequency.

    Args:
        tokenizer: Tokenizer; each word is tokenized after a space, as inside a text.
        counts: Word counts of the text. Only words that consist of letters are used.

    Returns:
        ``pieces``: mean tokens per word; ``split``: fraction of words split into several tokens; ``unknown``: fraction
        of words with an unknown token; ``examples``: the most frequent words split into at least three tokens.
    """
    words = list(counts.written)
    if not words:
        return {"pieces": 0.0, "split": 0.0, "unknown": 0.0, "examples": []}
    ids: Sequence[Sequence[int]] = tokenizer([f" {word}" for word in words], add_special_tokens=False)["input_ids"]
    total = sum(counts.written.values())
    weights = [counts.written[word] for word in words]
    fragmented = sorted(
        (word for word, tokens in zip(words, ids, strict=True) if len(tokens) > 2),
        key=lambda word: (-counts.written[word], word),
    )
    unknown = tokenizer.unk_token_id
    return {
        "pieces": sum(len(tokens) * weight for tokens, weight in zip(ids, weights, strict=True)) / total,
        "split": sum(weight for tokens, weight in zip(ids, weights, strict=True) if len(tokens) > 1) / total,
        "unknown": sum(weight for tokens, weight in zip(ids, weights, strict=True) if unknown in tokens) / total,
        "examples": fragmented[:MAX_EXAMPLES],
    }
