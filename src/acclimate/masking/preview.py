"""One masked text as plain values: what was chosen, what became of it, and what of it is important to a task."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, NotRequired, TypedDict

import numpy as np

from acclimate.masking.base import Vocabulary
from acclimate.masking.token_importance_store import TokenImportanceStore

Fate = Literal["", "mask", "random", "kept"]
CLOSING_PUNCTUATION = set(".,;:!?)]}%")
"""Signs that are shown without a space before them; WordPiece does not know whether there was one."""


class PreviewToken(TypedDict):
    """A token to show.

    Keys:
        text: Its characters.
        space: Whether a space stands before it.
        fate: ``""`` if it was not chosen, else what became of it.
        became: Characters of the token that stands in its place, if its fate is ``random``.
        important: True where a token classifier found it important to the end task; left out elsewhere.
    """

    text: str
    space: bool
    fate: Fate
    became: str
    important: NotRequired[bool]


def preview_tokens(
    original: np.ndarray,
    masked: np.ndarray,
    labels: np.ndarray,
    special: Iterable[int],
    vocabulary: Vocabulary,
    important: np.ndarray | None = None,
) -> list[PreviewToken]:
    """Put a masked text into plain values.

    Args:
        original: Its token ids (tokens).
        masked: The corrupted ids (tokens).
        labels: The original id where the token was chosen, else negative (tokens).
        special: Ids that are never masked; those at the edges of the text are left out.
        vocabulary: What the ids spell.
        important: True where a token is important to the end task (tokens); None where nobody knows.
    """
    apart = set(map(int, special))
    ordinary = np.flatnonzero(~np.isin(original, list(apart)))
    if not len(ordinary):
        return []
    result: list[PreviewToken] = []
    for place in range(ordinary[0], ordinary[-1] + 1):
        token, now = int(original[place]), int(masked[place])
        fate: Fate = ""
        if labels[place] >= 0:
            fate = "mask" if now == vocabulary.mask_id else "kept" if now == token else "random"
        text = format_token(token, vocabulary)
        space = (
            (token in apart or bool(vocabulary.pieces.spaced[token]))
            and text not in CLOSING_PUNCTUATION
            and bool(result)
        )
        became = format_token(now, vocabulary) if fate == "random" else ""
        piece: PreviewToken = {"text": text, "space": space, "fate": fate, "became": became}
        if important is not None and important[place] and token not in apart:
            piece["important"] = True
        result.append(piece)
    return result


def format_token(token: int, vocabulary: Vocabulary) -> str:
    """Return the characters of a token: the name of a special one, and a sign for bytes that are no characters."""
    text = vocabulary.pieces.text[token]
    if text.startswith("\0"):
        name = vocabulary.tokenizer.convert_ids_to_tokens(token) if vocabulary.tokenizer else ""
        return (
            str(name) if token in getattr(vocabulary.tokenizer, "all_special_ids", ()) else "\N{REPLACEMENT CHARACTER}"
        )
    return text


def find_importance_store(masking: Any) -> TokenImportanceStore | None:
    """Return the marks that a masking goes by, also one that is wrapped in others; None if it needs none."""
    while masking is not None:
        if isinstance(found := getattr(masking, "marks", None), TokenImportanceStore):
            return found
        masking = getattr(masking, "of", None)
    return None
