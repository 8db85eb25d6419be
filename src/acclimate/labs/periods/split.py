"""`acclimate periods split`: dated rows as one file per period."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from acclimate.base.errors import UserError
from acclimate.base.files import (
    atomic_folder,
    check_replaceable,
    check_writable,
    read_json_object,
    record_files,
    write_json,
)
from acclimate.base.options import values, verb
from acclimate.base.progress import Progress
from acclimate.base.verbs import Next
from acclimate.base.version import __version__
from acclimate.data.documents import format_count
from acclimate.data.reading import text_options
from acclimate.labs.periods.dates import DatedCorpus, Periods
from acclimate.labs.periods.options import PeriodsSplitOptions
from acclimate.results.study import Measurements

MANIFEST = "periods.json"
MAX_FILES = 500
"""Maximum number of periods that are written; most systems let a process open about a thousand files."""


def open_dated(text: Any, options: Any, *, whole_rows: bool = False) -> DatedCorpus:
    """Return the dated text of a verb of periods."""
    return DatedCorpus(
        text,
        Periods.parse(options.by),
        date_column=options.date_column,
        date_format=options.date_format,
        reading=text_options(values(options)),
        whole_rows=whole_rows,
    )


@verb(PeriodsSplitOptions)
def periods_split(options: PeriodsSplitOptions) -> Measurements:
    """Write dated rows as one file of JSON lines per period, ``PERIOD.jsonl``.

    The rows keep all their columns, so the files of a labelled table are tasks. Rows that differ in nothing but the
    date are written once. The text is read twice, and not held in memory.

    Returns:
        ``periods``, a row per period with its ``documents`` and ``file``; and what was not used: ``left_out``, periods
        with too few documents, and ``undated``, documents by what is wrong with their dates.

    Raises:
        UserError: If a source cannot be read, there is no column of dates, or no period has enough documents.
    """
    out = Path(options.out)
    if "command" in (read_json_object(out / MANIFEST) or {}):
        raise UserError(f"'{out}' holds what another command of periods wrote; choose another folder.")
    check_replaceable(out, MANIFEST, "a split by period")
    check_writable(out)
    dated = open_dated(options.corpus, options, whole_rows=True)
    for _ in dated:
        pass
    kept = {period: f"{period.name}.jsonl" for period in dated.report.keep(options.least, 1)}
    if len(kept) > MAX_FILES:
        raise UserError(f"{len(kept):,} periods are more than {MAX_FILES} files; choose longer periods with --by.")
    total = sum(dated.report.counts.values())
    with (
        atomic_folder(out) as folder,
        ExitStack() as stack,
        Progress("Writing periods", total, unit="documents", enabled=options.progress) as bar,
    ):
        files = {
            period: stack.enter_context((folder / name).open("w", encoding="utf-8")) for period, name in kept.items()
        }
        for number, document in enumerate(dated, 1):
            if document.period in files:
                files[document.period].write(json.dumps(document.row) + "\n")
            bar.update(number)
        stack.close()
        counts = dated.report.to_dict()
        rows: list[dict[str, Any]] = [
            {"period": period.name, "documents": dated.report.counts[period], "file": str(out / name)}
            for period, name in kept.items()
        ]
        lines = [f"{row['period']}: {format_count(row['documents'], 'document')}, {row['file']}" for row in rows]
        report = {"acclimate": __version__, **counts, "periods": rows}
        write_json(folder / MANIFEST, report)
        record_files(folder, MANIFEST)
    return Measurements(report, [*lines, *dated.describe()], "Documents by period", rows)


def show_split(report: Any, options: PeriodsSplitOptions) -> Iterator[Any]:
    """Yield what ``acclimate periods split`` prints."""
    yield from report.describe()
    last = report["periods"][-1]["file"]
    yield Next(["adapt", "--model", "MODEL", "--corpus", last, "--out", "adapted"], "to the latest period")
