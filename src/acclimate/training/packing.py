"""Packing texts into rows by best fit, and the account of what a training reads."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from acclimate.corpus import TokenDataset
from acclimate.model_kinds import ModelKind

MEASURED_STEPS = 100
"""Maximum number of steps from which the share of padding is estimated."""


def pack_best_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Assign texts to rows by best fit decreasing (Johnson, 1974): each to the fullest row that has room for it.

    Args:
        lengths: Tokens of each text, longest first.
        capacity: Tokens per row. A longer text is a row by itself.

    Returns:
        The indices of the texts of each row.
    """
    rows: list[list[int]] = []
    free: list[tuple[int, int]] = []  # the room in each row and its index, sorted
    for text, length in enumerate(lengths):
        place = bisect_left(free, (length, 0))
        if place == len(free):
            rows.append([text])
            room, row = capacity, len(rows) - 1
        else:
            room, row = free.pop(place)
            rows[row].append(text)
        if room > length:
            insort(free, (room - length, row))
    return rows


@dataclass(frozen=True)
class RowAccount:
    """What became of the documents of a corpus.

    Attributes:
        documents: Number of documents.
        texts: Number of texts that they were split into.
        tokens: Tokens of all texts, special tokens included.
        split_documents: Documents of more than one text; None if documents are joined.
        unpredicted_tokens: Tokens inside documents that no other token predicts, because a text starts with them; None
            for a masked model.
        dropped_tokens: Tokens of documents that are in no text.
        padding: Share of padding among the tokens of the micro-batches.
    """

    documents: int
    texts: int
    tokens: int
    split_documents: int | None
    unpredicted_tokens: int | None
    dropped_tokens: int
    padding: float

    @classmethod
    def of(cls, rows: TokenDataset, kind: ModelKind, padding: float, *, joined: bool) -> RowAccount:
        """Count what is in the rows of a training text."""
        documents = int(rows.report.get("documents", 0)) or len(np.unique(rows.document))
        first = np.diff(rows.document, prepend=-1) > 0  # the first text of each document that starts one
        continued = len(rows) - int(first.sum())
        split = None if joined else int((np.bincount(np.cumsum(first)) > 1).sum())
        return cls(
            documents,
            len(rows),
            rows.tokens,
            split,
            None if kind.uses_masking else len(rows) - 1 if joined else continued,
            rows.dropped,
            round(padding, 4),
        )

    def summary(self) -> str:
        """Return the account as one line."""
        parts = [f"{self.tokens:,} tokens in {self.texts:,} texts"]
        if self.split_documents:
            parts.append(f"{self.split_documents:,} documents split")
        if self.unpredicted_tokens:
            parts.append(f"{self.unpredicted_tokens:,} tokens not predicted, as they begin a continued text")
        parts += [f"{self.padding:.1%} padding", f"{self.dropped_tokens:,} tokens dropped"]
        return ", ".join(parts)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields that apply as plain values for JSON."""
        return {name: value for name, value in asdict(self).items() if value is not None}
