"""Models that give nearly every item the same answer: they have not learnt the task, whatever they score."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

COLLAPSE_SHARE = 0.99
"""A model has one answer if it gives it to more than this share of the items."""
MIN_EXCESS_SHARE = 0.05
"""That is only odd if the answer is right for a share that is smaller by more than this."""
MIN_ITEMS = 20
"""Items below which equal answers may be luck."""


class Collapse(NamedTuple):
    """The answer, as an entry of what was predicted, and how many items got it."""

    answer: Any
    items: int


def find_collapse(gold: Sequence[Any], predicted: Sequence[Any]) -> Collapse | None:
    """Return the one answer that a model has, or None if it has several, as the items do.

    Args:
        gold: What is true of each item, as results keep it.
        predicted: The same, as predicted: a class number, a list of them, or texts.
    """
    if len(predicted) < MIN_ITEMS:
        return None
    (key, count), *_ = Counter(map(json.dumps, predicted)).most_common(1)
    right = sum(json.dumps(value) == key for value in gold)
    if count <= COLLAPSE_SHARE * len(predicted) or count - right <= MIN_EXCESS_SHARE * len(predicted):
        return None
    return Collapse(json.loads(key), count)
