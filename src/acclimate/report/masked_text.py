"""A masked text for people, on a page and in a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

if TYPE_CHECKING:
    from rich.text import Text

    from acclimate.masking.preview import Fate, PreviewToken

FATES: dict[Fate, str] = {
    "mask": "hidden behind the mask token",
    "random": "replaced by a random token",
    "kept": "left as it is, but predicted",
}
IMPORTANT = "important to the end task, as its token classifier says"


def _runs(pieces: Sequence[PreviewToken]) -> Iterable[tuple[Fate, bool, str, bool, str]]:
    """Give each stretch of one look: fate, importance, characters, space before it or not, what replaced it."""

    # Tokens that were replaced are shown one by one, each with what replaced it.
    def look(item: tuple[int, PreviewToken]) -> tuple[str, bool, int]:
        place, piece = item
        return piece["fate"], piece.get("important", False), place if piece["fate"] == "random" else -1

    for _, group in groupby(enumerate(pieces), key=look):
        members = [piece for _, piece in group]
        text = "".join(
            (" " if piece["space"] and index else "") + piece["text"] for index, piece in enumerate(members)
        )
        first = members[0]
        yield first["fate"], first.get("important", False), text, first["space"], first["became"]


def as_html(pieces: Sequence[PreviewToken]) -> Markup:
    """Return a masked text as inline HTML, to be put into an element of the class ``masked``; all text is escaped.

    Its style is in ``style.css.j2``.
    """
    result = Markup()
    for fate, important, text, space, became in _runs(pieces):
        if space:
            result += " "
        if fate or important:
            kind = f"{fate} important".strip() if important else fate
            title = "; ".join([*([FATES[fate]] if fate else []), *([IMPORTANT] if important else [])])
            note = Markup("<small> → {}</small>").format(became) if fate == "random" else ""
            result += Markup('<mark class="{}" title="{}">{}{}</mark>').format(kind, title, text, note)
        else:
            result += escape(text)
    return result


def as_rich(pieces: Sequence[PreviewToken]) -> Text:
    """Return a masked text for a terminal: ``[hidden]``, ``[replaced→other]``, ``[kept=]``, ``*important*``."""
    from rich.text import Text as Made

    styles: dict[Fate, str] = {"": "", "mask": "reverse", "random": "underline magenta", "kept": "bold underline"}
    result = Made()
    for fate, important, text, space, became in _runs(pieces):
        result.append(" " if space else "")
        # Brackets too: a terminal without colours, or a file, shows no highlight.
        inner = f"{text}→{became}" if fate == "random" else f"{text}=" if fate == "kept" else text
        inner = f"*{inner}*" if important else inner
        result.append(f"[{inner}]" if fate else inner, style=f"{styles[fate]} italic" if important else styles[fate])
    return result
