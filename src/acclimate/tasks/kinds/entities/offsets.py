"""Offsets of entities that count something else than characters, or whose end is the last character.

Tools in JavaScript count UTF-16 units, in which a character above U+FFFF, such as an emoji, is two. Others count bytes
of UTF-8. Python, and this package, count characters, and the end of a span is the position after its last character.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from acclimate.base.errors import warn_once
from acclimate.data.rows import LeftOut, RowError
from acclimate.tasks.kinds.entities.data import WORD, Entity, RawSentence

MAX_SHARE = 0.25
"""Another unit is taken if it leaves at most this share of the entities that do not fit as characters."""
MAX_MISFITS = 0.1
"""Share of entities that do not begin and end at words above which a warning says so."""


def convert_offsets(
    name: str, rows: Mapping[str, Sequence[RawSentence]], left: LeftOut
) -> dict[str, list[RawSentence]]:
    """Return rows whose spans count characters, with an exclusive end; report it if they did not, or many do not fit.

    An entity fits if it begins and ends where a word does, and is the text that the file shows for it, if any.

    Args:
        name: Name of the task, for messages.
        rows: The rows of each split.
        left: Takes the rows with a span that is not the text that the file shows for it.
    """
    found = {split: list(part) for split, part in rows.items()}
    total = sum(len(row.spans) for part in found.values() for row in part)
    for unit, convert in READINGS.items():
        converted = {split: [convert(row) for row in part] for split, part in found.items()}
        pairs = [
            pair for split in found for pair in zip(found[split], converted[split], strict=True) if pair[0] != pair[1]
        ]
        wrong, still = (sum(_misfits(pair, side) for pair in pairs) for side in (0, 1))
        if wrong and still <= MAX_SHARE * wrong and (convert is not _include_end or 2 * wrong > total):
            warn_once(
                f"The spans of the task '{name}' {unit}: {wrong:,} entities would not be at words if they counted "
                f"characters and the end were exclusive, {still:,} are not now."
            )
            found = converted
            break
    every = [row for part in found.values() for row in part]
    misfits = [count for row in every if (count := _misfits((row, _include_end(row)), 0))]
    if sum(misfits) > MAX_MISFITS * total:
        odd = next(row for row in every if _misfits((row, _include_end(row)), 0))
        shown = [(odd.text or "")[max(start, 0) : end] for start, end, _ in odd.spans]
        warn_once(
            f"{sum(misfits):,} of {total:,} entities of the task '{name}' do not begin and end at words, such as in "
            f"{odd.where}: {', '.join(map(repr, shown)):.80}. Offsets count characters of the text from 0, each line "
            "end and combining mark included, and the end is exclusive."
        )
    return {split: left.read(split, part, _check_shown) for split, part in found.items()}


def _check_shown(row: RawSentence) -> RawSentence:
    text = row.text or ""
    for (start, end, _), shown in zip(row.spans, row.shown, strict=False):
        if shown is not None and text[start:end].strip() != shown.strip():
            what = (
                f"the entity '{shown:.40}' is not at {start} to {end}, where the text is '{text[start:end]:.40}'. "
                "Offsets count characters from 0, and the end is exclusive"
            )
            raise RowError(row.where, "with an entity that cannot be used", what)
    return row


def _include_end(row: RawSentence) -> RawSentence:
    """Return a row whose spans end with their last character, with spans that end after it."""
    return replace(row, spans=[Entity(start, end + 1, name) for start, end, name in row.spans])


def _convert(row: RawSentence, encoding: str, size: int) -> RawSentence:
    """Return a row whose spans count units of ``size`` bytes in an encoding, with spans that count characters."""
    text = row.text or ""
    if not row.spans or text.isascii() or (size == 2 and max(text) <= "\uffff"):
        return row
    places, at = {0: 0}, 0
    for number, character in enumerate(text, 1):
        at += len(character.encode(encoding, "surrogatepass")) // size
        places[at] = number
    outside = len(text) + 1  # also within a character
    spans = [Entity(places.get(start, outside), places.get(end, outside), name) for start, end, name in row.spans]
    return replace(row, spans=spans)


def _merge_line_ends(row: RawSentence) -> RawSentence:
    """Return a row whose spans count a line end as two characters, with spans that count one."""
    text = row.text or ""
    if "\n" not in text or "\r" in text:
        return row
    places = [place for place, character in enumerate(text) for _ in range(1 + (character == "\n"))] + [len(text)]

    def place(at: int) -> int:
        return places[at] if 0 <= at < len(places) else len(text) + 1

    return replace(row, spans=[Entity(place(start), place(end), name) for start, end, name in row.spans])


def _misfits(pair: tuple[RawSentence, RawSentence], side: int) -> int:
    """Return how many of the entities that differ in two readings of a row do not fit in one of them."""
    row, text = pair[side], pair[side].text or ""
    words = [match.span() for match in WORD.finditer(text)]
    starts, ends = {start for start, _ in words}, {end for _, end in words}
    count = 0
    for number, (span, other) in enumerate(zip(row.spans, pair[1 - side].spans, strict=True)):
        surface = text[max(span.start, 0) : span.end]
        first, stop = (
            span.start + len(surface) - len(surface.lstrip()),
            span.end - len(surface) + len(surface.rstrip()),
        )
        shown = row.shown[number] if row.shown else None
        is_shown = shown is None or surface.strip() == shown.strip()
        count += span != other and not (first in starts and stop in ends and is_shown)
    return count


READINGS: dict[str, Callable[[RawSentence], RawSentence]] = {
    "count UTF-16 units, as JavaScript does": partial(_convert, encoding="utf-16-le", size=2),
    "count bytes of UTF-8": partial(_convert, encoding="utf-8", size=1),
    "count line ends as two characters": _merge_line_ends,
    "end with their last character": _include_end,
}
"""Other readings of spans, in the order in which they are tried."""
