"""The preview of masks as a page and in a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from acclimate.inspect.mask_counts import SEEN_OFTEN
from acclimate.report.masked_text import FATES, IMPORTANT, as_html, as_rich
from acclimate.report.pages import fill

if TYPE_CHECKING:
    from rich.console import RenderableType

COLUMNS = {
    "rate": ("masked", "Share of the tokens that could be masked."),
    "first_rate": ("first", "Share masked of the tokens that begin a word."),
    "later_rate": ("later", "Share masked of the tokens that go on with a word."),
    "whole": ("whole", "Of the words of several tokens with a mask, the share that is masked whole."),
    "stop_words": ("stop words", "Share of stop words among the words with a mask."),
    "punctuation": ("signs", "Share of punctuation among the words with a mask."),
    "run": ("run", "Mean length, in tokens, of what is masked in one piece."),
    "untouched": ("unmasked", "Share of the texts without any mask."),
}
SHOWN_IN_TERMINAL = 2
"""Texts in a terminal; the page has all."""
NARROW = ("rate", "first_rate", "later_rate", "whole", "stop_words", "run")
"""Columns in a terminal."""


def render(report: dict[str, Any]) -> str:
    """Return the page: one HTML file that needs nothing else; everything that comes from data is escaped."""
    return fill(
        "acclimate.inspect",
        "masks.html.j2",
        report=report,
        columns=COLUMNS,
        cell=cell,
        all_words=_all_words(report),
        as_html=as_html,
        fates=FATES,
        important=IMPORTANT if "selective" in report else "",
        seen_often=SEEN_OFTEN,
    )


def cell(name: str, value: float | None) -> str:
    """Write a number of the table of counts."""
    if value is None:
        return "–"
    return f"{value:.2f}" if name == "run" else f"{100 * value:.1f} %"


def _all_words(report: dict[str, Any]) -> dict[str, str]:
    """Return the line that the maskings are compared with: what masking every word would give."""
    counts = report["maskings"][0]["counts"]
    return {name: cell(name, counts[f"all_{name}"]) for name in ("stop_words", "punctuation")}


def in_terminal(report: dict[str, Any]) -> list[RenderableType]:
    """Return what a terminal of 80 columns shows: the counts, the most masked words, and some texts."""
    import rich.box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("", overflow="fold")
    for name in NARROW:
        table.add_column(COLUMNS[name][0], justify="right", no_wrap=True)
    for masking in report["maskings"]:
        table.add_row(Text(masking["label"]), *(cell(name, masking["counts"][name]) for name in NARROW))
    every = _all_words(report)
    table.add_row("all words", *(every.get(name, "") for name in NARROW), style="dim")
    notes = "; ".join(f"{COLUMNS[name][0]}: {COLUMNS[name][1][:1].lower()}{COLUMNS[name][1][1:-1]}" for name in NARROW)
    shown: list[RenderableType] = [table, Text(f"{notes}.\n", style="dim")]
    for masking in report["maskings"]:
        words = ", ".join(f"{word} {hit / seen:.0%}" for word, hit, seen in masking["counts"]["mostly"][:8])
        shown.append(Text.assemble((masking["label"], "bold"), f" masks most of the occurrences of {words or '–'}"))
    shown.append(Text("\n[hidden behind the mask token] [replaced→by another] [left as it is, but predicted=]", "dim"))
    if "selective" in report:
        shown.append(Text(f"*{IMPORTANT}*", "dim"))
    for number, sample in enumerate(report["samples"][:SHOWN_IN_TERMINAL], start=1):
        shown.append(Text(f"\nText {number}, {sample['tokens']} tokens", style="bold"))
        for label, pieces in sample["maskings"].items():
            shown.append(Text.assemble((f"{label}: ", "cyan"), as_rich(pieces)))
    return shown
