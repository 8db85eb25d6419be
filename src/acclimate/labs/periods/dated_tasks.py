"""Labelled tasks whose rows have dates: their examples by period, and trainings on them that are kept on disk."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from acclimate.base.errors import UserError
from acclimate.base.files import check_output_folder, read_json_object, write_json
from acclimate.base.options import recorded, values
from acclimate.base.records import fingerprint, read_kept
from acclimate.base.version import __version__
from acclimate.data.reading import EDITS, default_task_name, find_task
from acclimate.data.sources import is_hub_name, load_hub, parse_hub_name
from acclimate.data.task_kinds import find_task_kind, load_task
from acclimate.evaluation.scoring import Scoring
from acclimate.labs.periods.dates import DateReport, Period, Periods, check_date_format, choose_date_column
from acclimate.labs.periods.decay import Column, TemporalReport
from acclimate.labs.periods.options import TemporalTaskOptions
from acclimate.models.checkpoints import model_fingerprint
from acclimate.tasks.drawing import draw_places, draw_rows, link_rows
from acclimate.tasks.finetune import finetune
from acclimate.tasks.interfaces import resolve_options
from acclimate.tasks.options import SupervisedOptions
from acclimate.tasks.readers import fold_text
from acclimate.tasks.sources import read_tables, refuse_broken

REPORT = "periods.json"
"""The file of an output directory that says what wrote it, and at the end holds the report."""
PAGE = "report.html"


@dataclass(frozen=True)
class PlacedRows:
    """The examples of a task with their periods.

    Attributes:
        task: All examples, as train and as test, so that classes have the same numbers in all periods.
        periods: The period of each example.
        report: How many rows each period has.
    """

    task: Any
    periods: Sequence[Period]
    report: DateReport

    def part(self, train: Sequence[Any], test: Sequence[Any]) -> Any:
        """Return a task with some of the examples."""
        return replace(self.task, train=list(train), test=list(test), dev=[])


@dataclass(frozen=True)
class DatedTask:
    """The examples of a task by period.

    Attributes:
        placed: All examples.
        train: What can be learned from, by period, in order of time.
        test: What models are tested on; no text is in both, or in two periods.
        notes: Lines on what is not used.
    """

    placed: PlacedRows
    train: Mapping[Period, Sequence[Any]]
    test: Mapping[Period, Sequence[Any]]
    notes: Sequence[str]

    @property
    def task(self) -> Any:
        """All examples as one task."""
        return self.placed.task

    @property
    def report(self) -> DateReport:
        """Number of rows per period."""
        return self.placed.report

    @property
    def periods(self) -> list[Period]:
        """The periods, in order."""
        return list(self.train)

    @property
    def tested(self) -> list[Any]:
        """The test examples of all periods, one period after the other."""
        return [example for examples in self.test.values() for example in examples]

    def places(self, period: Period) -> slice:
        """Return where the test examples of a period are in :attr:`tested`."""
        start = sum(len(examples) for other, examples in self.test.items() if other < period)
        return slice(start, start + len(self.test[period]))

    def column(self, period: Period, runs: Sequence[Sequence[Mapping[str, Any]]], metric: str) -> Column:
        """Return what models score on the test examples of one period.

        Args:
            period: The period.
            runs: For each model, and each of its seeds, ``gold`` and ``predicted`` for :attr:`tested`.
            metric: The metric.
        """
        own = self.places(period)
        scoring = self.placed.part(self.task.train, self.test[period]).scoring()
        made = [
            [scoring.resampler(run["gold"][own], run["predicted"][own], metric) for run in seeds] for seeds in runs
        ]
        return Column(made[0][0][0], [[score for _, score in seeds] for seeds in made], self.unit_names(period))

    def unit_names(self, period: Period) -> list[Hashable] | None:
        """Return the names of the groups of a period, which other periods may share; None if no row has a group."""
        groups = [getattr(one, "group", None) for one in self.test[period]]
        named = [group or (period, place) for place, group in enumerate(groups)]
        return list(dict.fromkeys(named)) if any(groups) else None


def place_rows(options: Any) -> PlacedRows:
    """Read the rows of all splits of a task that have usable dates.

    Args:
        options: The task, its dates and its periods (:class:`acclimate.labs.periods.options.PeriodOptions`).

    Raises:
        UserError: If the task cannot be read as rows, has no column of dates, or no row has a usable date.
    """
    check_date_format(options.date_format)
    report = DateReport(Periods.parse(options.by))
    source, column = options.task, None
    if hasattr(source, "task_kind"):
        raise UserError("A loaded task has no dates any more; give its folder, its file, or its rows.")
    name = default_task_name(source) if isinstance(source, str | Path) else "task"
    if is_hub_name(source):
        column, source = parse_hub_name(source)[3], load_hub(source)
    elif isinstance(source, str | Path):
        source, column = find_task(source)
    reading = replace(options, text_column=column) if column else options
    tables = read_tables(source, name, reading)
    refuse_broken(tables)
    rows = [row for table in tables.values() for _, row in table.rows]
    column = choose_date_column(name, options.date_column, list(dict.fromkeys(key for row in rows for key in row)))
    placed = [(row, period) for row in rows if (period := report.place(row.get(column), options.date_format))]
    if not placed:
        report.keep(1, 1, "row")  # raises
    own = [{name: value for name, value in row.items() if name != column} for row, _ in placed]
    names = ("text_column", "pair_column", "label_column", "group_column", "task_kind", *EDITS)
    columns = {key: getattr(reading, key) for key in names}
    task = load_task({"train": own, "test": own}, name=name, strict=True, **columns)
    if len(task.train) != len(own) or len(task.test) != len(own):
        raise UserError(
            f"The task '{name}' is of the kind '{task.task_kind}', whose rows are no single items, so they cannot be "
            "divided by date; give a task of classes, numbers, entities or multiple choice."
        )
    return PlacedRows(task, [period for _, period in placed], report)


def read_dated_task(options: TemporalTaskOptions, needed: int = 2) -> DatedTask:
    """Read a task, and divide its examples by period and at random into train and test.

    Args:
        options: The task, its dates and its periods.
        needed: Fewest periods with enough rows.

    Raises:
        UserError: If the task cannot be read, or has fewer periods.
    """
    placed = place_rows(options)
    task, report = placed.task, placed.report
    kind, seen, repeated = find_task_kind(task), dict[str, Period](), 0
    members: dict[Period, list[Any]] = {}
    for place in sorted(range(len(placed.periods)), key=lambda place: placed.periods[place]):
        example, period = task.train[place], placed.periods[place]
        text = fold_text(kind.item_text(example))
        if seen.setdefault(text, period) != period:
            repeated += 1
            report.counts[period] -= 1
            continue
        members.setdefault(period, []).append(example)
    train, test = dict[Period, list[Any]](), dict[Period, list[Any]]()
    kept = report.keep(options.least, needed, "row")
    # One draw for all periods, each of whose classes keeps its share: a patient of several periods is not tested on by
    # a model that has learned from another period.
    every = [(period, one) for period in kept for one in members[period]]
    links = link_rows([one for _, one in every], [fold_text(kind.item_text(one)) for _, one in every])
    labels = [[(period.name, label) for label in getattr(one, "places", (0,)) or ("none",)] for period, one in every]
    drawn = set(draw_rows(links, labels, {"test": options.test_share}, options.split_seed)["test"])
    for period in kept:
        examples = [(place, one) for place, (own, one) in enumerate(every) if own == period]
        train[period] = [one for place, one in examples if place not in drawn]
        test[period] = [one for place, one in examples if place in drawn]
        if not test[period] or not train[period]:
            raise UserError(
                f"The {len(examples)} rows of the period {period.name} cannot be divided into train and test; raise "
                "--least, or change --test-share."
            )
    notes = report.describe()
    if repeated:
        notes.append(f"Not used: {repeated:,} with the same text as one of an earlier period.")
    return DatedTask(placed, train, test, notes)


def sample(examples: Sequence[Any], count: int, seed: str) -> list[Any]:
    """Return ``count`` of the examples at random, or all if there are fewer, in their order, of many groups."""
    drawn = draw_places(examples, range(len(examples)), count, random.Random(seed))
    return [examples[place] for place in sorted(drawn)]


def choose_metric(options: TemporalTaskOptions, task: Any) -> tuple[str, Scoring]:
    """Return the metric that models are compared by, and the scoring; raise a UserError if there is no such metric."""
    return (found := resolve_options(options, task))[0].metric, found[1]


def open_output(out: str | Path | None, what: str) -> Path | None:
    """Return an output directory that can be resumed, and mark it; None if nothing is saved.

    Raises:
        UserError: If it cannot be written, or holds something else.
    """
    if out is None:
        return None
    folder = Path(out)
    check_output_folder(folder)
    known = (read_json_object(folder / REPORT) or {}).get("command")
    if folder.exists() and known != what and any(folder.iterdir()):
        raise UserError(f"'{folder}' is not empty, and 'periods {what}' did not write it; choose another folder.")
    folder.mkdir(parents=True, exist_ok=True)
    if known is None:
        write_json(folder / REPORT, {"command": what, "acclimate": __version__})
    return folder


def write_report(
    folder: Path | None, what: str, title: str, content: Mapping[str, Any], lines: Sequence[str], tables: Any
) -> TemporalReport:
    """Return what was measured, written to ``periods.json`` and as a page if there is an output directory.

    Args:
        folder: The output directory; None writes nothing.
        what: The command.
        title: Title of the page.
        content: Entries of the report.
        lines: What matters, in a few lines.
        tables: The rows of each table by its title.
    """
    report = TemporalReport({"command": what, "acclimate": __version__, **content}, lines, title, tables)
    if folder is not None:
        write_json(folder / REPORT, dict(report))
        report.report(folder / PAGE)
    return report


def show_periods(report: TemporalReport, options: Any) -> Iterator[Any]:
    """Yield the summary of a report on periods, and where it is."""
    yield from report.describe()
    if options.out is not None:
        yield f"Report: {Path(options.out) / PAGE}; numbers: {Path(options.out) / REPORT}"


@dataclass(frozen=True)
class Trainings:
    """Fine-tunings whose predictions are kept, so that a command that was interrupted does not repeat them.

    Attributes:
        options: The command's options.
        folder: The output directory; None keeps nothing.
    """

    options: TemporalTaskOptions
    folder: Path | None

    def identity(self, model: str | Path, task: Any, seed: int) -> list[Any]:
        """Return everything that determines a training."""
        own = recorded(self.options, [name for name in vars(self.options) if name not in _SUPERVISED] + ["seed"])
        return [__version__, model_fingerprint(str(model)), task.fingerprint(), own, seed]

    def kept(self, identity: Sequence[Any], compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return a result that is kept, or compute and keep it."""
        kept = None if self.folder is None else self.folder / "runs" / f"{fingerprint(list(identity))}.json"
        found = read_kept(kept, dict[str, list[Any]]) if kept else None
        if found is not None and {"gold", "predicted"} <= found.keys():
            return dict(found)
        found = json.loads(json.dumps(compute()))  # as it is read again
        if kept:
            kept.parent.mkdir(exist_ok=True)
            write_json(kept, found)
        return found

    def train(self, model: str | Path, task: Any, seed: int, out: Path | None = None) -> dict[str, Any]:
        """Fine-tune a model; return ``gold`` and ``predicted`` for the test split."""
        result = finetune(model, task, out=out, **values(self.options, SupervisedOptions) | {"seed": seed})
        return {"gold": result.gold, "predicted": result.predicted}

    def run(self, model: str | Path, task: Any, seed: int) -> dict[str, Any]:
        """Fine-tune a model, or return what is kept of that; see :meth:`train`."""
        return self.kept(self.identity(model, task, seed), lambda: self.train(model, task, seed))


_SUPERVISED = frozenset(values(SupervisedOptions()))
