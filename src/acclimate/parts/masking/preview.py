"""A masked text as plain values, to be shown in reports."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from acclimate.parts.masking.base import Vocabulary
from acclimate.parts.masking.token_importance_store import TokenImportanceStore
from acclimate.results.adaptations import MaskedToken, Replacement

CLOSING_PUNCTUATION = set(".,;:!?)]}%")
"""Punctuation that is shown without a space before it, since WordPiece does not record whether there was one."""


def preview_tokens(
    original: np.ndarray,
    masked: np.ndarray,
    labels: np.ndarray,
    special: Iterable[int],
    vocabulary: Vocabulary,
    important: np.ndarray | None = None,
) -> list[MaskedToken]:
    """Return a masked text as plain values.

    Args:
        original: The original ids (tokens,).
        masked: The corrupted ids (tokens,).
        labels: The original ids of the chosen tokens, negative elsewhere (tokens,).
        special: Ids that are never masked; those at the start and the end of the text are left out.
        vocabulary: The vocabulary.
        important: Whether each token is important to the end task (tokens,); None if unknown.
    """
    special_ids = set(map(int, special))
    ordinary = np.flatnonzero(~np.isin(original, list(special_ids)))
    if not len(ordinary):
        return []
    result: list[MaskedToken] = []
    for position in range(ordinary[0], ordinary[-1] + 1):
        old, new = int(original[position]), int(masked[position])
        replacement: Replacement = ""
        if labels[position] >= 0:
            replacement = "mask" if new == vocabulary.mask_id else "unchanged" if new == old else "random"
        text = format_token(old, vocabulary)
        is_spaced = old in special_ids or bool(vocabulary.subwords.spaced[old])
        token: MaskedToken = {
            "text": text,
            "space": is_spaced and text not in CLOSING_PUNCTUATION and bool(result),
            "replacement": replacement,
            "replaced_by": format_token(new, vocabulary) if replacement == "random" else "",
        }
        if important is not None and important[position] and old not in special_ids:
            token["important"] = True
        result.append(token)
    return result


def format_token(token: int, vocabulary: Vocabulary) -> str:
    """Return the characters of a token, or the name of a special token; invalid UTF-8 is shown as U+FFFD."""
    text = vocabulary.subwords.text[token]
    if text.startswith("\0"):
        name = vocabulary.tokenizer.convert_ids_to_tokens(token) if vocabulary.tokenizer else ""
        return (
            str(name) if token in getattr(vocabulary.tokenizer, "all_special_ids", ()) else "\N{REPLACEMENT CHARACTER}"
        )
    return text


def find_importance_store(masking: Any) -> TokenImportanceStore | None:
    """Return the importance store of a masking, or of one that it wraps; None if there is none."""
    while masking is not None:
        if isinstance(found := getattr(masking, "store", None), TokenImportanceStore):
            return found
        masking = getattr(masking, "of", None)
    return None
