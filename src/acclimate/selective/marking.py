"""The stage "In-domain Mask": the token classifier reads the text of the domain once."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from acclimate.backbone.device import Precision
from acclimate.corpus.progress import Progress
from acclimate.masking.marks import Marks, ranked
from acclimate.selective.annotating import FEWEST, MOST
from acclimate.selective.token_classifier import TokenClassifier

log = logging.getLogger(__name__)
MARKED_AT_ONCE = 200_000
"""Tokens that are sorted by length together: enough for rows of like length to meet, little to keep."""


def mark_rows(
    classifier: TokenClassifier,
    rows: Sequence[np.ndarray],
    folder: Path,
    *,
    precision: Precision,
    progress: bool = False,
) -> dict[str, Any]:
    """Write which tokens of each row are important, in one pass with flat memory.

    A token is important if its class is 1 (paper); among those of a row the score of class 1, a logit, decides the
    rank, which a cap goes by (code). Special tokens never are.

    Args:
        classifier: Of tokens.
        rows: Token ids with special tokens.
        folder: An existing folder, for :class:`acclimate.masking.marks.Marks`.
        precision: Of the forward.
        progress: Show a bar.

    Returns:
        What is to be said (plain values).
    """
    special = np.array(sorted(classifier.tokenizer.all_special_ids))
    counts = np.zeros(3, dtype=np.int64)

    def marked() -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
        read = 0
        total = getattr(rows, "tokens", None)
        with Progress("Finding important tokens", total, unit="tokens", enabled=progress) as bar:
            for part in _parts(rows):
                for ids, logits in zip(
                    part, classifier.predict([ids.tolist() for ids in part], precision), strict=True
                ):
                    allowed = ~np.isin(ids, special)
                    ranks = ranked((logits[:, 1] > logits[:, 0]) & allowed, logits[:, 1])
                    counts[:] += (allowed.sum(), (ranks > 0).sum(), not ranks.any())
                    yield ids, ranks, int(allowed.sum())
                    read += len(ids)
                bar.at(read)

    Marks.write(folder, marked())
    tokens, important, without = map(int, counts)
    return {
        "texts": len(rows),
        "tokens": tokens,
        "important": important,
        "share": important / max(1, tokens),
        "texts_without": without,
    }


def warn(account: dict[str, Any]) -> None:
    """Say so if the token classifier finds next to nothing, or nearly everything; finding nothing is an error."""
    if not account["important"] or FEWEST <= account["share"] <= MOST:
        return
    few = account["share"] < FEWEST
    log.warning(
        "The token classifier finds %d of the %d tokens of the text important (%.2f %%): %s. %d of %d texts have no "
        "important token.",
        account["important"],
        account["tokens"],
        100 * account["share"],
        "there is hardly anything to learn from" if few else "masked, they leave hardly anything to predict them from",
        account["texts_without"],
        account["texts"],
    )


def _parts(rows: Sequence[np.ndarray]) -> Iterator[list[np.ndarray]]:
    part: list[np.ndarray] = []
    size = 0
    for index in range(len(rows)):
        row = np.asarray(rows[index])
        part.append(row)
        size += len(row)
        if size >= MARKED_AT_ONCE:
            yield part
            part, size = [], 0
    if part:
        yield part
