"""Masked text as HTML and as terminal output."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from acclimate.results import StudyResults

if TYPE_CHECKING:
    from rich.text import Text

    from acclimate.masking.preview import Fate, PreviewToken

FATES: dict[Fate, str] = {
    "mask": "replaced by the mask token",
    "random": "replaced by a random token",
    "kept": "unchanged but predicted",
}
IMPORTANT = "important to the end task, according to the token classifier"


def _spans(pieces: Sequence[Any]) -> Iterable[tuple[Fate, bool, str, bool, str]]:
    """Yield spans of equal appearance: fate, importance, text, whether a space precedes it, and the replacement."""

    def appearance(item: tuple[int, PreviewToken]) -> tuple[str, bool, int]:
        position, piece = item
        # Each randomly replaced token is a span of its own, shown with its replacement.
        return piece["fate"], piece.get("important", False), position if piece["fate"] == "random" else -1

    for _, group in groupby(enumerate(pieces), key=appearance):
        members = [piece for _, piece in group]
        text = "".join(
            (" " if piece["space"] and index else "") + piece["text"] for index, piece in enumerate(members)
        )
        first = members[0]
        yield first["fate"], first.get("important", False), text, first["space"], first["became"]


def as_html(pieces: Sequence[PreviewToken] | list[dict[str, Any]]) -> Markup:
    """Return a masked text as escaped inline HTML, for an element of class ``masked`` (see ``style.css.j2``)."""
    result = Markup()
    for fate, important, text, space, became in _spans(pieces):
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
    """Return a masked text for a terminal: ``[masked]``, ``[replaced→other]``, ``[kept=]``, ``*important*``."""
    from rich.text import Text as RichText

    styles: dict[Fate, str] = {"": "", "mask": "reverse", "random": "underline magenta", "kept": "bold underline"}
    result = RichText()
    for fate, important, text, space, became in _spans(pieces):
        result.append(" " if space else "")
        # Brackets keep the output readable without colours.
        inner = f"{text}→{became}" if fate == "random" else f"{text}=" if fate == "kept" else text
        inner = f"*{inner}*" if important else inner
        result.append(f"[{inner}]" if fate else inner, style=f"{styles[fate]} italic" if important else styles[fate])
    return result


def masked_samples(results: StudyResults) -> dict[str, Any] | None:
    """Return the samples of masked text of a study, for the template of the report.

    Returns:
        ``texts``: for each text its ``name`` and ``maskings``, pairs of label and HTML; ``legend``: pairs of CSS class
        and meaning, for the classes that occur. None if the study stored no samples.
    """
    samples = results.masked
    pieces = [piece for sample in samples for masked in sample.maskings.values() for piece in masked]
    if not pieces:
        return None
    occurring = {piece["fate"] for piece in pieces}
    legend: list[tuple[str, str]] = [(fate, note) for fate, note in FATES.items() if fate in occurring]
    if any(piece.get("important") for piece in pieces):
        legend.append(("important", IMPORTANT))
    several = len({sample.place for sample in samples}) > 1
    texts: list[dict[str, Any]] = []
    for number, sample in enumerate(samples, 1):
        maskings: list[tuple[str, Markup]] = [(label, as_html(masked)) for label, masked in sample.maskings.items()]
        texts.append({"name": f"Text {number}" + (f", {sample.place}" if several else ""), "maskings": maskings})
    return {"texts": texts, "legend": legend}
