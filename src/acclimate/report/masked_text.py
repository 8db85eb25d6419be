"""Masked text as HTML and as terminal output."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from acclimate.results.adaptations import MaskedToken, Replacement
from acclimate.results.study import StudyResults

if TYPE_CHECKING:
    from rich.text import Text

REPLACEMENTS: dict[Replacement, str] = {
    "mask": "replaced by the mask token",
    "random": "replaced by a random token",
    "unchanged": "unchanged but predicted",
}
IMPORTANT = "important to the end task, according to the token classifier"
STYLES: dict[Replacement, str] = {
    "": "",
    "mask": "reverse",
    "random": "underline magenta",
    "unchanged": "bold underline",
}
"""Styles of ``rich``."""


def _spans(tokens: Sequence[MaskedToken]) -> Iterable[tuple[MaskedToken, str]]:
    """Yield the first token and the text of each span of equal appearance."""

    def appearance(item: tuple[int, MaskedToken]) -> tuple[str, bool, int]:
        position, token = item
        # Each randomly replaced token is a span of its own, shown with its replacement.
        own = position if token["replacement"] == "random" else -1
        return token["replacement"], token.get("important", False), own

    for _, group in groupby(enumerate(tokens), key=appearance):
        members = [token for _, token in group]
        yield (
            members[0],
            "".join((" " if token["space"] and index else "") + token["text"] for index, token in enumerate(members)),
        )


def as_html(tokens: Sequence[MaskedToken]) -> Markup:
    """Return a masked text as escaped inline HTML, for an element of class ``masked`` (see ``style.css.j2``)."""
    result = Markup()
    for first, text in _spans(tokens):
        how, important = first["replacement"], first.get("important", False)
        result += " " if first["space"] else ""
        if how or important:
            title = "; ".join([*([REPLACEMENTS[how]] if how else []), *([IMPORTANT] if important else [])])
            note = Markup("<small> → {}</small>").format(first["replaced_by"]) if how == "random" else ""
            kind = f"{how} important".strip() if important else how
            result += Markup('<mark class="{}" title="{}">{}{}</mark>').format(kind, title, text, note)
        else:
            result += escape(text)
    return result


def as_rich(tokens: Sequence[MaskedToken]) -> Text:
    """Return a masked text for a terminal: ``[masked]``, ``[replaced→other]``, ``[unchanged=]``, ``*important*``."""
    from rich.text import Text as RichText

    result = RichText()
    for first, text in _spans(tokens):
        how, important = first["replacement"], first.get("important", False)
        result.append(" " if first["space"] else "")
        # Brackets keep the output readable without colours.
        inner = text + {"random": f"→{first['replaced_by']}", "unchanged": "="}.get(how, "")
        inner = f"*{inner}*" if important else inner
        style = f"{STYLES[how]} italic" if important else STYLES[how]
        result.append(f"[{inner}]" if how else inner, style=style)
    return result


@dataclass
class MaskedExamples:
    """The samples of masked text of a study, for the template of the report.

    Attributes:
        texts: Name of each text, with pairs of label and HTML, one per masking strategy.
        legend: Pairs of CSS class and meaning, for the classes that occur.
    """

    texts: list[tuple[str, list[tuple[str, Markup]]]] = field(default_factory=list)
    legend: list[tuple[str, str]] = field(default_factory=list)


def masked_examples(results: StudyResults) -> MaskedExamples | None:
    """Return the samples of masked text of a study; None if it stored none."""
    samples = results.masked
    tokens = [token for sample in samples for masked in sample.maskings.values() for token in masked]
    if not tokens:
        return None
    occurring = {token["replacement"] for token in tokens}
    legend: list[tuple[str, str]] = [(how, meaning) for how, meaning in REPLACEMENTS.items() if how in occurring]
    if any(token.get("important") for token in tokens):
        legend.append(("important", IMPORTANT))
    domains = {sample.domain for sample in samples}
    found = MaskedExamples(legend=legend)
    for number, sample in enumerate(samples, 1):
        maskings = [(label, as_html(masked)) for label, masked in sample.maskings.items()]
        found.texts.append((f"Text {number}" + (f", {sample.domain}" if len(domains) > 1 else ""), maskings))
    return found
