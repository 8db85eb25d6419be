"""A few texts of an adaptation as its masking hides them, for people to look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from acclimate.backbone.shapes import EXACT
from acclimate.errors import UserError
from acclimate.files import read_json, write_json
from acclimate.masking.preview import Piece, marks_of, masked_pieces
from acclimate.training.batches import Collator
from acclimate.training.run import cache_folder, cache_key

TEXTS = 3
LOOKED_AT = 300
"""Texts among which they are chosen."""
SHORT, LONG = 12, 60
"""Tokens that a text should have to be shown."""


def masked_texts(rows: Sequence[np.ndarray], collator: Collator) -> list[list[Piece]]:
    """Return some texts with what is masked of them, as :func:`acclimate.masking.preview.masked_pieces` gives them.

    Which texts depends on the rows alone, and all maskings get the same chance, so that methods can be laid side by
    side. Nothing of the training changes: its chance comes from elsewhere.

    Args:
        rows: The texts as token ids.
        collator: Of the training.

    Returns:
        At most :data:`TEXTS`; none where the words of the tokenizer are not known.
    """
    order = np.random.default_rng(0).permutation(len(rows))[:LOOKED_AT].tolist()
    chosen = sorted(order, key=lambda index: not SHORT <= len(rows[index]) <= LONG)[:TEXTS]
    collator = replace(collator, rewritings=(), grain=EXACT)  # no padding behind a text alone
    marks, special = marks_of(collator.masking), collator.special.tolist()
    shown: list[list[Piece]] = []
    try:
        for number, index in enumerate(chosen):
            (batch,) = collator([np.asarray(rows[index])], np.random.default_rng([0, number]))
            original, masked, labels = (value[0].numpy() for value in (batch.original, batch.masked, batch.labels))
            important = None if marks is None else marks.of(original) > 0
            shown.append(masked_pieces(original, masked, labels, special, collator.vocabulary, important))
    except UserError:  # this tokenizer marks words in a way of its own
        return []
    return [pieces for pieces in shown if pieces]


def as_account(texts: Sequence[Sequence[Piece]], masking: Any) -> dict[str, Any]:
    """Return the texts with the name of their masking."""
    return {"masking": str(getattr(masking, "name", "") or _inner_name(masking)), "texts": [list(t) for t in texts]}


def remember(config: Mapping[str, Any], account: Mapping[str, Any] | None) -> None:
    """Keep the texts of a run in the cache, for one that asks when the run is long finished."""
    if account is not None:
        write_json(_place(config), account)


def recall(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the texts of a run that was finished before, None if the cache does not have them any more."""
    place = _place(config)
    return read_json(place) if place.is_file() else None


def _place(config: Mapping[str, Any]) -> Path:
    # Not beside the model: a text of the corpus may not be free to go where the model goes.
    return cache_folder() / "masked" / f"{cache_key(config)}.json"


def _inner_name(masking: Any) -> str:
    inner = getattr(masking, "of", None)
    return str(getattr(inner, "name", "")) if inner is not None else type(masking).__name__
