"""How alike the words of two texts are, and into how many pieces a tokenizer cuts them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import regex
from transformers import PreTrainedTokenizerBase

TOP = 10_000
FEWEST_DOCUMENTS = 3
_UNIGRAM = regex.compile(r"[\p{L}\p{N}_]\p{M}*[\p{L}\p{N}_][\p{L}\p{N}\p{M}_]*")
_WORD = regex.compile(r"[\p{L}\p{Nl}\p{No}][\p{L}\p{Nl}\p{No}\p{M}]*")
LISTED = 10


@dataclass
class WordCounts:
    """Words of some documents.

    Attributes:
        words: How many words were counted.
        frequency: How often each occurs, in lower case.
        documents: In how many documents each occurs.
        written: How often each occurs as it is written, words of letters alone.
    """

    words: int = 0
    frequency: Counter[str] = field(default_factory=Counter)
    documents: Counter[str] = field(default_factory=Counter)
    written: Counter[str] = field(default_factory=Counter)


def count_words(texts: Iterable[str], most: int | None = None) -> WordCounts:
    """Count the words of texts, until about ``most`` words were read.

    A word is what scikit-learn's ``CountVectorizer`` takes for one: two or more letters, digits or underscores. That
    tears words at combining marks; here these belong to the letter before them.
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
    """Measure how many words two texts share, by both definitions of Gururangan et al. (ACL 2020).

    ``top``: the share of the most frequent 10,000 words of the one, stop words left out, that are among those of the
    other: what the paper describes. Where a text has fewer words, as many as the smaller has (``top_words``).
    ``jaccard``: words in both over words in either, of words that occur in three documents or more and are no stop
    words: what the code published with it computes. Both grow with the amount of text, so give as much of each.
    """
    ranked = [_ranked(counts.frequency, stop_words) for counts in (one, other)]
    size = min(TOP, *map(len, ranked))
    common = len(set(ranked[0][:size]) & set(ranked[1][:size]))
    frequent = [
        {word for word, count in counts.documents.items() if count >= FEWEST_DOCUMENTS and word not in stop_words}
        for counts in (one, other)
    ]
    either = len(frequent[0] | frequent[1])
    return {
        "top": common / size if size else 0.0,
        "top_words": size,
        "jaccard": len(frequent[0] & frequent[1]) / either if either else 0.0,
        "jaccard_words": either,
    }


def _ranked(frequency: Counter[str], stop_words: Collection[str]) -> list[str]:
    """Return words by frequency; those that are equally frequent in the order of the alphabet."""
    words = [word for word in frequency if word not in stop_words]
    return sorted(words, key=lambda word: (-frequency[word], word))


def fragmentation(tokenizer: PreTrainedTokenizerBase, counts: WordCounts) -> dict[str, Any]:
    """Measure into how many pieces a tokenizer cuts the words of a text, each word as often as it occurs.

    Args:
        tokenizer: Reads each word behind a space, as inside a text.
        counts: Of the text; words of letters alone count.

    Returns:
        ``pieces``: mean tokens of a word; ``split``: share of the words that are cut; ``unknown``: share with a part
        that the vocabulary does not know; ``examples``: the words cut into three or more that occur most often.
    """
    words = list(counts.written)
    if not words:
        return {"pieces": 0.0, "split": 0.0, "unknown": 0.0, "examples": []}
    ids: Sequence[Sequence[int]] = tokenizer([f" {word}" for word in words], add_special_tokens=False)["input_ids"]
    total = sum(counts.written.values())
    weights = [counts.written[word] for word in words]
    cut = sorted(
        (word for word, tokens in zip(words, ids, strict=True) if len(tokens) > 2),
        key=lambda word: (-counts.written[word], word),
    )
    unknown = tokenizer.unk_token_id
    return {
        "pieces": sum(len(tokens) * weight for tokens, weight in zip(ids, weights, strict=True)) / total,
        "split": sum(weight for tokens, weight in zip(ids, weights, strict=True) if len(tokens) > 1) / total,
        "unknown": sum(weight for tokens, weight in zip(ids, weights, strict=True) if unknown in tokens) / total,
        "examples": cut[:LISTED],
    }
