"""One masked text, for people: what was chosen, what became of it, in a terminal and on a page."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import TYPE_CHECKING, Literal, TypedDict

import numpy as np
from markupsafe import Markup, escape

from acclimate.masking import Vocabulary

if TYPE_CHECKING:
    from rich.text import Text

Fate = Literal["", "mask", "random", "kept"]
FATES: dict[Fate, str] = {
    "mask": "hidden behind the mask token",
    "random": "replaced by a random token",
    "kept": "left as it is, but predicted",
}
CLOSING = set(".,;:!?)]}%")
"""Signs that are shown without a space before them; WordPiece does not know whether there was one."""
STYLE = Markup("""
.masked { overflow-wrap: anywhere; }
.masked mark { color: inherit; border-radius: 4px; padding: .05em .2em; background: none;
  -webkit-box-decoration-break: clone; box-decoration-break: clone; }
.masked mark.mask { background: var(--mask-back); color: var(--mask); }
.masked mark.random { background: var(--random-back); color: var(--random); text-decoration: underline dotted; }
.masked mark.kept { outline: 1px solid var(--kept); outline-offset: -1px; }
.masked mark small { font-size: .8em; font-weight: 600; }
""")
"""CSS of :func:`as_html`; the page sets ``--mask``, ``--mask-back``, ``--random``, ``--random-back``, ``--kept``."""


class Piece(TypedDict):
    """A token to show.

    Keys:
        text: Its characters.
        space: Whether a space stands before it.
        fate: ``""`` if it was not chosen, else what became of it.
        became: Characters of the token that stands in its place, if its fate is ``random``.
    """

    text: str
    space: bool
    fate: Fate
    became: str


def masked_pieces(
    original: np.ndarray, masked: np.ndarray, labels: np.ndarray, special: Iterable[int], vocabulary: Vocabulary
) -> list[Piece]:
    """Put a masked text into plain values.

    Args:
        original: Its token ids (tokens).
        masked: The corrupted ids (tokens).
        labels: The original id where the token was chosen, else negative (tokens).
        special: Ids that are never masked; those at the edges of the text are left out.
        vocabulary: What the ids spell.
    """
    apart = set(map(int, special))
    ordinary = np.flatnonzero(~np.isin(original, list(apart)))
    if not len(ordinary):
        return []
    result: list[Piece] = []
    for place in range(ordinary[0], ordinary[-1] + 1):
        token, now = int(original[place]), int(masked[place])
        fate: Fate = ""
        if labels[place] >= 0:
            fate = "mask" if now == vocabulary.mask_id else "kept" if now == token else "random"
        text = shown(token, vocabulary)
        space = (token in apart or bool(vocabulary.pieces.spaced[token])) and text not in CLOSING and bool(result)
        result.append(
            {"text": text, "space": space, "fate": fate, "became": shown(now, vocabulary) if fate == "random" else ""}
        )
    return result


def shown(token: int, vocabulary: Vocabulary) -> str:
    """Return the characters of a token: the name of a special one, and a sign for bytes that are no characters."""
    text = vocabulary.pieces.text[token]
    if text.startswith("\0"):
        name = vocabulary.tokenizer.convert_ids_to_tokens(token) if vocabulary.tokenizer else ""
        return (
            str(name) if token in getattr(vocabulary.tokenizer, "all_special_ids", ()) else "\N{REPLACEMENT CHARACTER}"
        )
    return text


def _runs(pieces: list[Piece]) -> Iterable[tuple[Fate, str, bool, str]]:
    """Give each stretch of the same fate: fate, characters, whether a space stands before it, what replaced it."""
    # Tokens that were replaced are shown one by one, each with what replaced it.
    for (fate, _), group in groupby(
        enumerate(pieces), key=lambda item: (item[1]["fate"], item[0] if item[1]["fate"] == "random" else -1)
    ):
        members = [piece for _, piece in group]
        text = "".join(
            (" " if piece["space"] and index else "") + piece["text"] for index, piece in enumerate(members)
        )
        yield fate, text, members[0]["space"], members[0]["became"]


def as_html(pieces: list[Piece]) -> Markup:
    """Return a masked text as inline HTML, to be put into an element of the class ``masked``; all text is escaped."""
    result = Markup()
    for fate, text, space, became in _runs(pieces):
        if space:
            result += " "
        if fate:
            note = Markup("<small> → {}</small>").format(became) if fate == "random" else ""
            result += Markup('<mark class="{}" title="{}">{}{}</mark>').format(fate, FATES[fate], text, note)
        else:
            result += escape(text)
    return result


def as_rich(pieces: list[Piece]) -> Text:
    """Return a masked text for a terminal: ``[hidden]``, ``[replaced→other]``, ``[kept=]``."""
    from rich.text import Text as Made

    styles: dict[Fate, str] = {"": "", "mask": "reverse", "random": "underline magenta", "kept": "bold underline"}
    result = Made()
    for fate, text, space, became in _runs(pieces):
        result.append(" " if space else "")
        # Brackets too: a terminal without colours, or a file, shows no highlight.
        inner = f"{text}→{became}" if fate == "random" else f"{text}=" if fate == "kept" else text
        result.append(f"[{inner}]" if fate else text, style=styles[fate])
    return result
