"""What a way to mask does to a text, in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np

from acclimate.masking import Vocabulary
from acclimate.masking.words import Words, is_punctuation
from acclimate.objectives import Batch

SEEN_OFTEN = 20
"""Occurrences that a word must have for the share of them that is masked to say something."""
LISTED = 12
"""Words in each list."""


def count_masks(
    batches: Iterable[Batch], vocabulary: Vocabulary, special: np.ndarray, stop_words: Collection[str]
) -> dict[str, Any]:
    """Count what was masked.

    Args:
        batches: Masked texts.
        vocabulary: What the ids spell.
        special: Ids that are never masked.
        stop_words: In lower case.

    Returns:
        Plain values. ``tokens`` that could be chosen and ``masked``, how many were; ``rate``, their ratio;
        ``first_rate`` and ``later_rate``, the same of tokens that begin a word and of those that go on with one;
        ``fates``, shares of the masked; ``run``, mean length in tokens of what is masked in one piece; ``untouched``,
        share of texts without a mask; ``whole``, share of the words of several tokens with a mask that are masked
        whole; ``stop_words`` and ``punctuation``, share of these among the words with a mask, and ``all_stop_words``
        and ``all_punctuation`` among all words; ``often`` and ``mostly``: the words masked most often, and those with
        the largest share of their occurrences masked, each as word, number masked, and number of occurrences.
    """
    total: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    hit: Counter[str] = Counter()
    for batch in batches:
        original, masked, text = batch.original.numpy(), batch.masked.numpy(), batch.text.numpy()
        chosen = batch.labels.numpy() >= 0
        words = Words.of(original, text, (text >= 0) & ~np.isin(original, special), vocabulary.subwords)
        here = chosen.ravel()[words.positions]
        first = np.zeros(len(here), dtype=bool)
        first[words.starts[:-1]] = True
        of_word = np.add.reduceat(here, words.starts[:-1]) if len(words) else np.zeros(0, int)
        touched, several = of_word > 0, words.lengths > 1
        spelled = words.surface_forms(original, vocabulary.subwords, lowercase=True)
        seen.update(spelled)
        hit.update(word for word, one in zip(spelled, touched, strict=True) if one)
        follows = np.zeros(text.size, dtype=bool)
        flat, number = chosen.ravel(), text.ravel()
        follows[1:] = flat[1:] & flat[:-1] & (number[1:] == number[:-1])
        total.update(
            tokens=len(here),
            masked=int(here.sum()),
            first=int(first.sum()),
            first_masked=int((here & first).sum()),
            mask=int((chosen & (masked == vocabulary.mask_id)).sum()),
            kept=int((chosen & (masked == original)).sum()),
            runs=int((flat & ~follows).sum()),
            texts=batch.texts,
            touched=len(np.unique(text[chosen])),
            several=int((touched & several).sum()),
            whole=int((several & (of_word == words.lengths)).sum()),
        )
    stops = {word for word in seen if word in stop_words}
    signs = {word for word in seen if word and all(map(is_punctuation, word))}
    later, later_masked = total["tokens"] - total["first"], total["masked"] - total["first_masked"]
    known = [word for word in seen if word and not word.startswith("\0") and word not in signs]
    share = {word: hit[word] / seen[word] for word in known if seen[word] >= SEEN_OFTEN and hit[word]}
    return {
        "tokens": total["tokens"],
        "masked": total["masked"],
        "rate": _ratio(total["masked"], total["tokens"]),
        "first_rate": _ratio(total["first_masked"], total["first"]),
        "later_rate": _ratio(later_masked, later),
        "fates": {
            "mask": _ratio(total["mask"], total["masked"]),
            "random": _ratio(total["masked"] - total["mask"] - total["kept"], total["masked"]),
            "kept": _ratio(total["kept"], total["masked"]),
        },
        "run": _ratio(total["masked"], total["runs"]),
        "untouched": 1 - (_ratio(total["touched"], total["texts"]) or 0),
        "whole": _ratio(total["whole"], total["several"]),
        "stop_words": _ratio(sum(hit[word] for word in stops), hit.total()),
        "all_stop_words": _ratio(sum(seen[word] for word in stops), seen.total()),
        "punctuation": _ratio(sum(hit[word] for word in signs), hit.total()),
        "all_punctuation": _ratio(sum(seen[word] for word in signs), seen.total()),
        "often": _listed(
            sorted((word for word in known if hit[word]), key=lambda word: (-hit[word], word)), hit, seen
        ),
        "mostly": _listed(sorted(share, key=lambda word: (-share[word], -seen[word], word)), hit, seen),
    }


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _listed(words: list[str], hit: Counter[str], seen: Counter[str]) -> list[list[Any]]:
    return [[word, hit[word], seen[word]] for word in words[:LISTED]]
