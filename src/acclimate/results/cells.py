"""Cells and tables of results, and how their numbers are written."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from acclimate.base.errors import cut
from acclimate.results.scores import Interval, MetricSummary, verdict_word

INTERVAL = "95 % interval"
"""Name of the column of an interval."""
LONGEST_TEXT = 1_000
"""Maximum characters of a cell."""


def signed(value: float, digits: int = 1) -> str:
    """Format with an explicit sign and a Unicode minus; zero after rounding has no sign."""
    text = f"{value:+.{digits}f}".replace("-", "−")
    return text[1:] if not text.strip("+−0.") else text


def plain(value: float, digits: int = 1) -> str:
    """Format with a Unicode minus; zero after rounding has no sign."""
    text = f"{value:.{digits}f}".replace("-", "−")
    return text.lstrip("−") if not text.strip("−0.") else text


def rounded(value: float, *, signed: bool = False) -> str:
    """Format a number of any unit to at least three significant digits, with a Unicode minus."""
    form = ("+" if signed and value else "") + (".0f" if 100 <= abs(value) < 1e15 else ".3g")
    return format(value, form).replace("-", "−")


def rounded_interval(interval: Interval) -> str:
    """Format the bounds of an interval of numbers of any unit."""
    return " to ".join(rounded(end, signed=True) for end in (interval.low, interval.high))


def interval_text(interval: Interval, scale: float = 1.0, digits: int = 1) -> str:
    """Format the bounds of an interval, multiplied by ``scale``."""
    return f"{signed(scale * interval.low, digits)} to {signed(scale * interval.high, digits)}"


def bracket_text(interval: Interval, scale: float = 1.0, digits: int = 1) -> str:
    """Format a difference with its interval in brackets, multiplied by ``scale``."""
    low, high = (signed(scale * end, digits) for end in (interval.low, interval.high))
    return f"{signed(scale * interval.difference, digits)} [{low}, {high}]"


def joined(parts: Sequence[str]) -> str:
    """Join with commas, and with "and" before the last part."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}" if parts else ""


@dataclass
class Entry:
    """A table cell.

    Attributes:
        text: Displayed text.
        value: Sort key; None sorts by the text.
        mark: A verdict, or empty.
    """

    text: str
    value: float | None = None
    mark: str = ""

    def __post_init__(self) -> None:
        """Cut a text from outside, such as the name of a class, that no table can show."""
        self.text = cut(self.text, LONGEST_TEXT)


@dataclass
class Table:
    """A table.

    Attributes:
        title: Heading.
        note: Explanation below the heading.
        columns: Column names.
        rows: Cells.
        minor: Names of the columns that a small screen hides until the reader asks for them.
        grouped: Whether the first column is a heading above rows with the same text in it.
        first: Whether the table stands above the figures of the report.
    """

    title: str
    note: str
    columns: list[str]
    rows: list[list[Entry]] = field(default_factory=list)
    minor: Collection[str] = ()
    grouped: bool = False
    first: bool = False

    @cached_property  # once for all cells of a page
    def numeric(self) -> list[bool]:
        """For each column, whether it holds numbers."""
        columns = zip(*self.rows, strict=True) if self.rows else ((DASH,) for _ in self.columns)
        return [all(entry.value is not None or entry is DASH for entry in column) for column in columns]

    def groups(self) -> list[tuple[str, list[list[Entry]]]]:
        """Return pairs of heading and rows; all rows below an empty heading if the table is not grouped."""
        if not self.grouped:
            return [("", self.rows)]
        found: dict[str, list[list[Entry]]] = {}
        for heading, *cells in self.rows:
            found.setdefault(heading.text, []).append(cells)
        return list(found.items())


DASH = Entry("–")
"""Cell for a missing value."""


def number_entry(value: float | None, digits: int = 1, scale: float = 1.0) -> Entry:
    """Format a number times ``scale``; the cell sorts by the unscaled number."""
    return DASH if value is None else Entry(plain(scale * value, digits), value)


def signed_entry(value: float | None, digits: int = 1, scale: float = 1.0) -> Entry:
    """Format a number times ``scale`` with its sign; the cell sorts by the unscaled number."""
    return DASH if value is None else Entry(signed(scale * value, digits), value)


def count_entry(value: int) -> Entry:
    """Format a count with thousands separators."""
    return Entry(f"{value:,}", value)


def mean_entry(score: MetricSummary | None) -> Entry:
    """Format mean ± standard deviation over seeds, in percent."""
    if score is None:
        return DASH
    spread = "" if score.sd is None else f" ± {100 * score.sd:.1f}"
    return Entry(f"{100 * score.mean:.1f}{spread}", score.mean)


def p_entry(value: float | None) -> Entry:
    """Format a p-value."""
    return DASH if value is None else Entry("< 0.001" if value < 0.001 else f"{value:.3f}", value)


def interval_entry(interval: Interval, scale: float = 100.0, digits: int = 1) -> Entry:
    """Format the bounds of an interval, multiplied by ``scale``."""
    return Entry(interval_text(interval, scale, digits), interval.low)


def verdict_entry(interval: Interval) -> Entry:
    """Return the verdict on a method in words."""
    return Entry(verdict_word(interval), None, interval.verdict)


def minutes_entry(value: float | None) -> Entry:
    """Format minutes."""
    return DASH if value is None else Entry(plain(value, 1 if value >= 1 else 2), value)


def plain_entry(value: Any, digits: int | None = None) -> Entry:
    """Format a text, a number or None; without ``digits``, a number has at least three significant digits."""
    if value is None:
        return DASH
    if isinstance(value, float):
        return Entry(rounded(value) if digits is None else plain(value, digits), value)
    return count_entry(value) if isinstance(value, int) else Entry(str(value))


def is_interval(value: Any) -> bool:
    """Return whether a value is a difference with its interval, as a record or as its JSON."""
    return isinstance(value, Mapping) and {"difference", "low", "high", "verdict"} <= value.keys()


def flat_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the texts and numbers of a row by column; a difference has the name of its field, its ends their own."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        if is_interval(value):
            found |= {name: value["difference"], **{end: value.get(end) for end in ("low", "high", "p", "verdict")}}
        elif not isinstance(value, Mapping | list):
            found[name] = value
    return found


def record_table(title: str, note: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of records with a column for each field that holds texts or numbers, three for an interval."""
    lines: list[dict[str, Entry]] = []
    for row in rows:
        line: dict[str, Entry] = {}
        for name, value in row.items():
            if is_interval(value):
                ends = " to ".join(rounded(value[end], signed=True) for end in ("low", "high"))
                word = Entry(value["verdict"], None, value["verdict"])
                line |= {name: plain_entry(value["difference"]), INTERVAL: Entry(ends, value["low"]), "verdict": word}
            elif not isinstance(value, Mapping | list | None):
                line[name] = plain_entry(value)
        lines.append(line)
    names = list(dict.fromkeys(name for line in lines for name in line))
    cells = [[line.get(name, DASH) for name in names] for line in lines]
    return Table(title, note, [name.replace("_", " ") for name in names], cells)
