"""Dates of documents: reading them in the forms that people have, and dividing time into periods."""

from __future__ import annotations

import heapq
import itertools
import json
import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple

from acclimate.base.errors import UserError, did_you_mean, shorten, unknown_name_error, warn_once
from acclimate.data.csv_reader import (
    WHOLE_ROW,
    infer_column,
    join_cells,
    missing_column_error,
    split_columns,
    write_row,
)
from acclimate.data.documents import Corpus, as_corpus, format_count, hash_document
from acclimate.data.reading import DEFAULT_TEXT, TextOptions

DATE_NAMES = (
    *("date", "created_at", "created_utc", "timestamp", "datetime", "time", "published", "published_at", "year"),
    *("publication_date", "pub_date", "created", "publication_year", "month"),
)
"""Usual names of the column of the date, in lower case; the order has no meaning."""
UNITS = ("decade", "year", "quarter", "month")
"""Periods of equal length."""
WRITTEN = (
    *("%a, %d %b %Y %H:%M:%S %z", "%a %b %d %H:%M:%S %z %Y", "%d %B %Y", "%d %b %Y", "%B %d, %Y", "%b %d, %Y"),
    *("%B %Y", "%b %Y"),
)
"""Forms with names of months, which cannot be misread; 03/04/2019 can be, and needs a format."""
EPOCH = {1: (9, 10), 10**3: (12, 13), 10**6: (15, 16), 10**9: (18, 19)}
"""Numbers of digits of the time since 1970, by its unit as parts of a second."""
NOT_DATED = ("without a date", "whose date cannot be read", "whose date is less precise than the periods")


class Span(NamedTuple):
    """The first and the last day that a date can mean: ``2019-03`` is all of March."""

    first: date
    last: date


def parse_date(value: Any, form: str | None = None) -> Span | None:
    """Return the days that a date can mean; None if it is not a date.

    Read are dates and times in ISO 8601 (``2019-03-01T10:00``, also with slashes or dots), ``2019-03``, ``2019Q1``,
    ``2019``, ``1880s``, ``20190301``, the time since 1970 in seconds or parts of it (of at least nine digits), and
    forms with the name of the month. ``03/04/2019`` can mean two days and is not read without a format.

    Args:
        value: A text, a number, or an object with a date.
        form: Format of ``strptime``, such as ``%d/%m/%Y``; None for the forms above.
    """
    if isinstance(value, date):  # also datetime and the timestamps of pandas
        return _day(date(value.year, value.month, value.day)) if value == value else None
    if value is None or isinstance(value, bool) or (isinstance(value, float) and not math.isfinite(value)):
        return None
    text = str(int(value) if isinstance(value, float) else value).strip()
    with suppress(ValueError, OverflowError, OSError):
        return _parse_format(text, form) if form else _parse(text)
    return None


def _parse(text: str) -> Span | None:
    """Return the days of a date in one of the known forms; raise a ValueError if it does not exist."""
    if found := re.fullmatch(r"(\d{3})0s", text):
        return _months(int(found[1]) * 10, 1, 120)
    if found := re.fullmatch(r"(\d{4})[-/. ]?Q([1-4])", text, flags=re.I):
        return _months(int(found[1]), 3 * int(found[2]) - 2, 3)
    if re.fullmatch(r"\d{4}(\.0)?", text):  # pandas writes years as 2019.0 if some are missing
        return _months(int(text[:4]), 1, 12)
    if found := re.fullmatch(r"(\d{4})(?:[-/.](\d{1,2})|(\d\d))", text):
        return _months(int(found[1]), int(found[2] or found[3]), 1)
    if found := re.match(r"(\d{4})([-/.])(\d{1,2})\2(\d{1,2})(?=$|[T ,])|(\d{4})(\d\d)(\d\d)(?:T|$)", text):
        return _day(date(*(int(part) for part in (found[1] or found[5], found[3] or found[6], found[4] or found[7]))))
    if found := re.fullmatch(r"(-?)(\d{9,19})(?:\.\d*)?", text):
        unit = next((unit for unit, digits in EPOCH.items() if len(found[2]) in digits), None)
        moment = None if unit is None else timedelta(seconds=int(found[1] + found[2]) // unit)
        return None if moment is None else _day((datetime(1970, 1, 1, tzinfo=UTC) + moment).date())
    for form in WRITTEN:
        with suppress(ValueError):
            return _parse_format(text, form)
    return None


def check_date_format(form: str | None) -> None:
    """Check a format of dates.

    Raises:
        UserError: If ``strptime`` cannot read it, or it has no year.
    """
    if form is None:
        return
    moment = datetime(2001, 2, 3, tzinfo=UTC)
    try:
        datetime.strptime(moment.strftime(form), form)
    except ValueError as error:
        raise UserError(f"'{form}' is not a format of dates: {error}. Write one such as %d/%m/%Y.") from error
    if not re.search("%[YyGcx]", form):
        raise UserError(f"The format '{form}' of dates has no year; write one such as %d/%m/%Y.")


def _parse_format(text: str, form: str) -> Span:
    found = datetime.strptime(text, form).date()
    if re.search(r"%[djxcuw]", form):
        return _day(found)
    return _months(found.year, found.month, 1) if re.search(r"%[mbB]", form) else _months(found.year, 1, 12)


def _day(day: date) -> Span:
    return Span(day, day)


def _months(year: int, month: int, count: int) -> Span:
    first, after = date(year, month, 1), year * 12 + month - 1 + count
    return Span(first, date(after // 12, after % 12 + 1, 1) - timedelta(days=1))


@dataclass(frozen=True, order=True)
class Period:
    """A stretch of time.

    Attributes:
        index: Its place in time; the difference of two is their distance, in years for years.
        name: Its name, which is also a valid name of a file.
    """

    index: int
    name: str = field(compare=False)


@dataclass(frozen=True)
class Periods:
    """A division of time into periods.

    Attributes:
        unit: One of :data:`UNITS`, or ``"period"`` for cuts.
        cuts: First days of all periods but the first.
        names: Names of the periods between cuts.
    """

    unit: str
    cuts: tuple[date, ...] = ()
    names: tuple[str, ...] = ()

    @classmethod
    def parse(cls, by: str) -> Periods:
        """Read one of :data:`UNITS`, or dates at which a new period begins, as in ``2008,2016-07``.

        Raises:
            UserError: If it is neither, or the dates are not in order.
        """
        if by in UNITS:
            return cls(by)
        given = [part.strip() for part in by.split(",") if part.strip()]
        if not given or not any(character.isdigit() for character in by):
            raise unknown_name_error("kind of period", by, UNITS)
        if wrong := [part for part in given if parse_date(part) is None]:
            raise UserError(f"'{wrong[0]}' is not a date at which a period begins; write 2019, 2019-07 or 2019-07-15.")
        cuts = [span.first for part in given if (span := parse_date(part)) is not None]
        if cuts != sorted(set(cuts)):
            raise UserError(f"The dates at which periods begin must ascend, but are {', '.join(given)}.")
        clean = [part.replace("/", "-") for part in given]
        between = [f"{start}-to-{end}" for start, end in itertools.pairwise(clean)]
        return cls("period", tuple(cuts), (f"before-{clean[0]}", *between, f"from-{clean[-1]}"))

    def find(self, span: Span) -> Period | None:
        """Return the period of a date; None if the date is less precise than the periods."""
        first, last = self._period(span.first), self._period(span.last)
        return first if first == last else None

    def _period(self, day: date) -> Period:
        if self.cuts:
            place = bisect_right(self.cuts, day)
            return Period(place, self.names[place])
        return self.at(
            {
                "decade": day.year // 10,
                "year": day.year,
                "quarter": 4 * day.year + (day.month - 1) // 3,
                "month": 12 * day.year + day.month - 1,
            }[self.unit]
        )

    def at(self, index: int) -> Period:
        """Return the period at a place in time."""
        if self.cuts:
            return Period(index, self.names[index])
        year = {"decade": index * 10, "year": index, "quarter": index // 4, "month": index // 12}[self.unit]
        part = {"decade": "s", "year": "", "quarter": f"-Q{index % 4 + 1}", "month": f"-{index % 12 + 1:02d}"}
        return Period(index, f"{year:04d}{part[self.unit]}")

    def between(self, found: Collection[Period]) -> list[Period]:
        """Return all periods from the first to the last of those found."""
        return [self.at(index) for index in range(min(found).index, max(found).index + 1)] if found else []


def choose_date_column(where: object, given: str | None, names: Collection[str]) -> str:
    """Return the column of the date: the one given, the one called ``date``, or the only one with a usual name.

    Args:
        where: Name of the source, for messages.
        given: The column that the user named.
        names: The columns that exist.

    Raises:
        UserError: If there is no such column, or several could be meant.
    """
    if (wanted := given or "date") in names:
        return wanted
    usual = [name for name in names if name.lower() in DATE_NAMES]
    if given is None and len(usual) == 1:
        warn_once(f"'{where}' has its dates in '{usual[0]}'.")
        return usual[0]
    which = f"several columns that can hold dates ({', '.join(usual)})" if usual else "no column of dates"
    if given is not None:
        which = f"no column '{given}'"
    raise UserError(
        f"'{where}' has {which}.{did_you_mean(given or '', names)} Its columns are "
        f"{shorten(', '.join(names) or 'none')}: name the right one with --date-column (date_column= in Python)."
    )


@dataclass
class DateReport:
    """Counts of dated documents per period, and of documents without a usable date.

    Attributes:
        periods: The division of time.
        counts: Documents per period.
        undated: Documents by what is wrong with their dates, one of :data:`NOT_DATED`.
        examples: A date of each of them that is there but cannot be used.
        least: Minimum documents of a period that is used.
    """

    periods: Periods
    counts: Counter[Period] = field(default_factory=Counter)
    undated: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    least: int = 1

    @property
    def left_out(self) -> dict[str, int]:
        """Periods with too few documents, by name, with their documents."""
        return {period.name: count for period, count in sorted(self.counts.items()) if 0 < count < self.least}

    def place(self, value: Any, form: str | None) -> Period | None:
        """Count a document with a date; return its period, or None if the date cannot be used."""
        missing = value is None or value != value or (isinstance(value, str) and not value.strip())
        span = None if missing else parse_date(value, form)
        period = None if span is None else self.periods.find(span)
        if period is not None:
            self.counts[period] += 1
            return period
        reason = NOT_DATED[0 if missing else 1 if span is None else 2]
        self.undated[reason] += 1
        if not missing:
            self.examples.setdefault(reason, shorten(value))
        return None

    def keep(self, least: int, needed: int, what: str = "document") -> list[Period]:
        """Return the periods with at least ``least`` documents, in order; the others are left out.

        Args:
            least: Minimum documents of a period.
            needed: Minimum number of periods.
            what: What a document is, for messages.

        Raises:
            UserError: If there are fewer periods than needed.
        """
        self.least = least
        kept = sorted(period for period, count in self.counts.items() if count >= least)
        if not self.counts:
            reasons = {NOT_DATED[1]: "Give their format with --date-format, such as %d/%m/%Y",
                       NOT_DATED[2]: "Choose longer periods with --by"}  # fmt: skip
            hint = next((hint for reason, hint in reasons.items() if self.undated[reason]), None)
            raise UserError(
                f"No {what} has a date that can be used{self._describe_undated(': ')}. "
                f"{hint or 'Name the column of the dates with --date-column'}."
            )
        if len(kept) < needed:
            found = ", ".join(f"{period.name}: {count:,}" for period, count in sorted(self.counts.items())[:12])
            raise UserError(
                f"{format_count(needed, 'period')} of at least {format_count(least, what)} "
                f"{'is' if needed == 1 else 'are'} needed, but there {'is' if len(kept) == 1 else 'are'} {len(kept)} "
                f"({found}{self._describe_undated('; ')}). Choose longer periods (--by) or a lower --least."
            )
        return kept

    def _describe_undated(self, before: str) -> str:
        shown = {reason: f" (such as {example})" for reason, example in self.examples.items()}
        parts = [f"{count:,} {reason}{shown.get(reason, '')}" for reason, count in self.undated.items()]
        return f"{before}{', '.join(parts)}" if parts else ""

    def describe(self) -> list[str]:
        """Return lines on what is not used: periods with too few or no documents, and documents without a date."""
        lines = []
        if self.left_out:
            few = ", ".join(f"{name} ({count:,})" for name, count in self.left_out.items())
            lines.append(f"Periods left out for too few documents: {few}.")
        if empty := [period.name for period in self.periods.between(self.counts) if not self.counts[period]]:
            lines.append(f"Empty periods: {', '.join(empty[:12])}{', ...' if len(empty) > 12 else ''}.")
        if undated := self._describe_undated(""):
            lines.append(f"Not used: {undated}.")
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Return the counts, ready for JSON."""
        counts = {period.name: count for period, count in sorted(self.counts.items())}
        return {
            "unit": self.periods.unit,
            "documents": counts,
            "left_out": self.left_out,
            "undated": dict(self.undated),
        }


class DatedDocument(NamedTuple):
    """A document with its period and its row; ``day`` is None if only a longer time is known."""

    text: str
    period: Period
    day: date | None
    row: dict[str, Any]


class DatedCorpus:
    """Documents with dates, streamed from every source of rows that a corpus can have.

    A text that occurs several times counts once, with its first usable date in the order of the sources.
    """

    def __init__(
        self,
        text: Any,
        periods: Periods,
        *,
        date_column: str | None = None,
        date_format: str | None = None,
        reading: TextOptions = DEFAULT_TEXT,
        whole_rows: bool = False,
    ) -> None:
        """Set the sources; nothing is read.

        Args:
            text: The text.
            periods: The periods.
            date_column: Column of the dates; None to find it.
            date_format: Format of the dates; None to find it.
            reading: How the text is read.
            whole_rows: Whether rows of the same text differ if another column than the date does, such as the label.

        Raises:
            UserError: If a source does not exist, or the format of the dates is wrong.
        """
        self._whole_rows = whole_rows
        check_date_format(date_format)
        self._corpus: Corpus = as_corpus(text, TextOptions(text_column=WHOLE_ROW, encoding=reading.encoding))
        self._columns = reading.text_column, date_column
        self._edits = reading.edits
        self._form = date_format
        self.report = DateReport(periods)
        self.duplicates = self.textless = 0

    def __iter__(self) -> Iterator[DatedDocument]:
        """Yield the documents with a usable date; the others are counted in ``report``.

        Raises:
            UserError: If a source cannot be read, or has no such columns.
        """
        self.report, self.duplicates, self.textless = DateReport(self.report.periods, least=self.report.least), 0, 0
        chosen: dict[int, tuple[list[str], str]] = {}
        seen: set[bytes] = set()
        for line, source in self._corpus.with_sources():
            row = _read_row(line, name := self._corpus.report.sources[source])
            if source not in chosen:
                chosen[source] = self._choose(name, row)
            parts, date_column = chosen[source]
            text = self._edits.of(join_cells([*map(row.get, parts)]))
            if not isinstance(text, str) or not text.strip():
                self.textless += 1
                continue
            more = write_row(_without(row, (*parts, date_column))) if self._whole_rows else ""
            if (digest := hash_document(f"{text}{more}".encode("utf-8", "surrogatepass"))) in seen:
                self.duplicates += 1
                continue
            value = row.get(date_column)
            if (period := self.report.place(value, self._form)) is not None:
                seen.add(digest)
                span = parse_date(value, self._form)
                day = span.first if span and span.first == span.last else None
                yield DatedDocument(text, period, day, {"text": text} | _without(row, parts))

    def _choose(self, name: str, row: Mapping[str, Any]) -> tuple[list[str], str]:
        text_column = infer_column(name, self._columns[0], row)
        if text_column is None:
            raise missing_column_error(name, self._columns[0], row)
        return split_columns(text_column, row), choose_date_column(name, self._columns[1], list(row))

    def describe(self) -> list[str]:
        """Return lines on the documents that were not used in the last pass."""
        lines, read = self.report.describe(), self._corpus.report
        problems = {"without a text": self.textless + read.empty, "that cannot be read": read.broken}
        problems["with the same text as another"] = self.duplicates + read.duplicates
        if left := [f"{count:,} {what}" for what, count in problems.items() if count]:
            first = f" First problem: {read.problems[0]}." if read.problems else ""
            lines.append(f"Not used: {', '.join(left)}.{first}")
        return lines


def sample_texts(texts: Iterable[tuple[Period, str]], most: Mapping[Period, int]) -> dict[Period, list[str]]:
    """Return a pseudo-random sample of the texts of each period that does not depend on their order.

    Args:
        texts: Texts with their periods, read once; memory holds at most three times the sample.
        most: The periods to sample, with the maximum number of texts.
    """
    found: dict[Period, list[tuple[bytes, str]]] = {period: [] for period in most}
    for period, text in texts:
        if period in found:
            found[period].append((hash_document(text.encode("utf-8", "surrogatepass")), text))
            if len(found[period]) > 3 * most[period]:
                found[period] = heapq.nsmallest(most[period], found[period])
    return {period: [text for _, text in heapq.nsmallest(most[period], entries)] for period, entries in found.items()}


def _read_row(line: str, name: str) -> dict[str, Any]:
    with suppress(ValueError):
        row = json.loads(line)
        if isinstance(row, dict):
            return row
    raise UserError(
        f"'{name}' has texts without columns, so without dates; give a table such as JSON lines with the columns text "
        "and date, and name the column of the text with --text-column (text_column= in Python)."
    )


def _without(row: Mapping[str, Any], columns: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in (*columns, "text")}
