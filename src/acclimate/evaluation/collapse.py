"""Detection of collapsed models, which predict the same answer for almost every item."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

COLLAPSE_SHARE = 0.99
"""A model has collapsed if it predicts one answer for more than this share of the items."""
MIN_EXCESS_SHARE = 0.05
"""It counts only if the answer is correct less often by more than this share."""
MIN_ITEMS = 20
"""For fewer items equal answers may be a coincidence."""


class Collapse(NamedTuple):
    """The answer, in the form of a prediction, and the number of items that it was predicted for."""

    answer: Any
    items: int


def find_collapse(gold: Sequence[Any], predicted: Sequence[Any]) -> Collapse | None:
    """Return the answer of a collapsed model; None if the model has not collapsed.

    Args:
        gold: The true answer to each item: a class number, a list of class numbers, or a list of texts.
        predicted: The predicted answer to each item, in the same form.
    """
    if len(predicted) < MIN_ITEMS:
        return None
    (key, count), *_ = Counter(map(json.dumps, predicted)).most_common(1)
    correct = sum(json.dumps(value) == key for value in gold)
    if count <= COLLAPSE_SHARE * len(predicted) or count - correct <= MIN_EXCESS_SHARE * len(predicted):
        return None
    return Collapse(json.loads(key), count)
