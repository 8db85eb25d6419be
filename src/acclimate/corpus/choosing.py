"""Some documents of many, the same ones whatever their order."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable


def choose_texts(corpus: Iterable[str], count: int) -> list[str]:
    """Choose ``count`` documents as if by chance, whatever their order; memory holds no more than these.

    The choice depends on the texts alone: documents with the smallest hashes are taken, so the first file of
    several has no advantage and the same text is always judged.
    """
    ranked = (
        (hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), text) for text in corpus
    )
    return [text for _, text in heapq.nsmallest(count, ranked)]
