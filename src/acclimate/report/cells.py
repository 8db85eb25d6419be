"""What a table of the report is made of: entries with what they are sorted by, columns and rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from acclimate.report.words import plain


@dataclass
class Entry:
    """What stands in a cell of a table.

    Attributes:
        text: What is shown.
        value: What is sorted by; None sorts by the text.
        mark: ``"win"``, ``"loss"``, ``"tie"`` or nothing.
    """

    text: str
    value: float | None = None
    mark: str = ""


@dataclass
class Table:
    """A table: its title, an explanation, column names, which columns hold numbers, and rows."""

    title: str
    note: str
    columns: list[str]
    numeric: list[bool]
    rows: list[list[Entry]] = field(default_factory=list)


def mean_entry(score: dict[str, Any] | None) -> Entry:
    """Show mean ± standard deviation over seeds, in points of 100; a dash where there is none."""
    if score is None:
        return Entry("–")
    spread = "" if score["sd"] is None else f" ± {100 * score['sd']:.1f}"
    return Entry(f"{100 * score['mean']:.1f}{spread}", score["mean"])


def p_entry(value: float | None) -> Entry:
    """Show a p-value; a dash where there is none."""
    return Entry("–") if value is None else Entry("< 0.001" if value < 0.001 else f"{value:.3f}", value)


def minutes_entry(value: float | None) -> Entry:
    """Show minutes; a dash where there are none."""
    return Entry("–") if value is None else Entry(plain(value, 1 if value >= 1 else 2), value)
