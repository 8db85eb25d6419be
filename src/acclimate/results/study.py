"""Results of a study: the content of ``results.json``, from which reports and model cards are made."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from acclimate.base.bounds import ALL
from acclimate.base.errors import UserError, unknown_name_error
from acclimate.base.files import read_json_object
from acclimate.base.records import Record, build_value, internal, optional, read_record
from acclimate.base.registry import Registry
from acclimate.results.adaptations import AdaptationRow, MaskedSample, SelectionRow
from acclimate.results.cells import Table, flat_row, plain_entry, record_table
from acclimate.results.display import Page, Reported, data_frame
from acclimate.results.requirements import Decision
from acclimate.results.scores import (
    ContaminationRow,
    ForgettingRow,
    Interval,
    LossRow,
    MeanRow,
    ScoreRow,
    SearchRow,
    TaskScores,
    VerdictCount,
    verdict_word,
)

if TYPE_CHECKING:
    import pandas

FORMAT = 4
"""Version of the layout of ``results.json``."""
RESULTS, PAGE, REPORT = "results.json", "results.md", "report.html"
MAX_LINES = 16
"""Maximum lines of the ``repr``."""


class MethodRow(Record):
    """A row label of the study.

    Attributes:
        name: Name of the method, or of the kind of job, such as ``"distill"``.
        parameters: Parameters as they were used, defaults included.
    """

    label: str
    name: str
    parameters: dict[str, Any] = field(default_factory=dict)


class Sample(Record):
    """An example of a task that the study file gives."""

    text: str
    label: str | None = optional()


class Failure(Record):
    """A job without a result.

    Attributes:
        job: Description of the job.
        error: The reason.
        state: ``"failed"``, ``"blocked"`` by a job that failed, or ``"missing"``.
    """

    job: str
    error: str
    state: str


class JobCounts(Record):
    """Number of jobs of a study by state.

    Attributes:
        done: Jobs that this call computed.
        reused: Jobs whose result was stored before.
        failed: Jobs that failed.
        blocked: Jobs that depend on a failed one.
        missing: Jobs that are left to other processes.
        left: Jobs without a result that the study needs.
    """

    total: int = 0
    done: int = 0
    reused: int = 0
    failed: int = 0
    blocked: int = 0
    missing: int = 0
    left: int = 0


class StageName(Record):
    """Name in the report of a stage of :attr:`acclimate.results.scores.ScoreRow.stage_seconds`.

    Attributes:
        stage: Key of the stage.
        name: Title of its column.
        note: Parts that its time includes, a sentence; empty if that is clear.
    """

    stage: str
    name: str
    note: str = ""


class EvaluatedSide(Record):
    """One side of a comparison of finished evaluations, with the files or folders of its runs."""

    name: str
    place: str
    runs: list[str]


class Evaluations(Record):
    """What results of ``acclimate judge`` say that those of ``compare`` do not.

    Attributes:
        sides: The reference and what is compared with it.
        note: How the differences were computed.
        answers: The answers in metrics that are no shares, a sentence each.
        caveats: What the intervals are about, and what limits them.
    """

    sides: list[EvaluatedSide]
    note: str
    answers: list[str] = field(default_factory=list)
    caveats: list[str] = field(default_factory=list)


class ReportTable(Record):
    """A table that a kind of job adds to the report.

    Attributes:
        rows: One list per row, as long as ``columns``: texts, numbers, or None for what does not apply.
        digits: Digits after the decimal point of numbers that are not whole.
        first: Whether the table stands above the figures of the report, where its note is shown also without rows.
    """

    title: str
    note: str = ""
    columns: list[str]
    rows: list[list[Any]] = field(default_factory=list)
    digits: int = 3
    first: bool = False

    def table(self) -> Table:
        """Return the table with formatted cells."""
        cells = [[plain_entry(value, self.digits) for value in row] for row in self.rows]
        return Table(self.title, self.note, list(self.columns), cells, first=self.first)


@dataclass(frozen=True)
class Figure:
    """A figure of the report.

    Attributes:
        name: Element id.
        title: Heading.
        note: Caption.
        draw: Draws the results as SVG, or returns an empty string.
        tabulate: Returns the plotted numbers as a table; only for figures whose numbers are in no other table.
    """

    name: str
    title: str
    note: str
    draw: Callable[[StudyResults], str]
    tabulate: Callable[[StudyResults], Table | None] | None = None


class ResultKind:
    """A kind of rows, with what reports show of them; kinds of jobs inherit from it.

    Reports, model cards and data frames know no kind: they show what these methods return, which is a table with a
    column per field of the rows unless a kind says otherwise.

    Attributes:
        name: Name of the kind, the key of its rows in :attr:`StudyResults.rows`.
        row_type: Class of its rows; None for plain values. A row with a ``model``, a ``domain`` and a ``method`` is
            shown in the card of that model.
        title: Heading of the table; None for the name.
        note: Explanation below the heading.
        on_top: Whether the tables stand above the scores of the study instead of below them.
    """

    name: ClassVar[str]
    row_type: ClassVar[type[Record] | None] = None
    title: ClassVar[str | None] = None
    note: ClassVar[str] = ""
    on_top: ClassVar[bool] = False

    @classmethod
    def figures(cls) -> Sequence[Figure]:
        """Return the figures of the report that show the rows."""
        return ()

    @classmethod
    def tables(cls, results: StudyResults) -> list[Table]:
        """Return the tables of the report; a terminal shows the first columns, since it has room for five."""
        return [record_table(cls.title or cls.name, cls.note, results.rows[cls.name])]

    @classmethod
    def verdict(cls, results: StudyResults) -> str:
        """Return the answer of the study in one sentence; empty if the rows give none."""
        return ""

    @classmethod
    def sentences(cls, results: StudyResults) -> list[str]:
        """Return what the summary of the study says about the rows."""
        return []

    @classmethod
    def caveats(cls, results: StudyResults) -> list[str]:
        """Return what limits the results, in full sentences."""
        return []

    @classmethod
    def describe_rows(cls, results: StudyResults) -> list[str]:
        """Return lines for the ``repr`` of the results."""
        return []


QUICK_NOTE = (
    "A quick answer: the scores are of linear models on the frozen states of the base and the adapted models. "
    "Fine-tuned models were not scored; adaptation may help them more or less."
)
"""What results of ``compare --quick`` say of themselves."""
JOB_KINDS: Registry[Any] = Registry("acclimate.jobs", "kind of job", "kinds of jobs")


def find_kind(name: str) -> type[ResultKind]:
    """Return a kind of rows by its name; rows of a kind that is not installed are shown as they are."""
    if name in JOB_KINDS.names():
        return JOB_KINDS.lookup(name)
    return type("UnknownKind", (ResultKind,), {"name": name})


class StudyResults(Reported, Record, repr=False):
    """All results of a study; :meth:`to_dict` is ``results.json``.

    Attributes:
        baseline: Label of the method that the others are compared with.
        shared_adaptation: Whether all seeds of fine-tuning start from one adaptation.
        stages: Names of the stages behind a score, in the order of the columns.
        searches: Settings that were chosen on dev.
        means: Means over tasks; empty with a single task.
        verdict_counts: On how many tasks each method helped and hurt.
        forgetting: Scores on tasks of other domains.
        contamination: Dev and test texts in corpora and train splits.
        selections: Reports of the selections of text, by domain and method.
        unchecked: Corpora and train splits that should have been searched for dev and test texts but were not.
        rows: Rows of each kind of job that has rows of its own, by its name: see :class:`ResultKind`.
        evaluations: How finished evaluations were compared; None for a study of its own.
        folder: Folder of the study; None if unknown. It is not part of ``results.json``, nor is what follows.
        settings: Changes to the study file in the folder with which the study was run, by dotted path.
        measured: All measurements (:class:`acclimate.study.jobs.capabilities.CapabilityRow`).
        decision: Whether the requirements of ``compare`` are met; None without any.
    """

    format: int = FORMAT
    name: str
    title: str = ""
    notes: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    finished: str = ""
    baseline: str = ""
    models: list[str] = field(default_factory=list)
    domains: list[str] = field(default_factory=list)
    methods: list[MethodRow] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    adapt_seeds: list[int] = field(default_factory=list)
    shared_adaptation: bool = False
    stages: list[StageName] = field(default_factory=list)
    searches: list[SearchRow] = field(default_factory=list)
    scores: list[ScoreRow] = field(default_factory=list)
    means: list[MeanRow] = field(default_factory=list)
    verdict_counts: list[VerdictCount] = field(default_factory=list)
    losses: list[LossRow] = field(default_factory=list)
    forgetting: list[ForgettingRow] = field(default_factory=list)
    contamination: list[ContaminationRow] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    selections: list[SelectionRow] = field(default_factory=list)
    adaptations: list[AdaptationRow] = field(default_factory=list)
    masked: list[MaskedSample] = field(default_factory=list)
    tables: list[ReportTable] = field(default_factory=list)
    rows: dict[str, list[Any]] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    jobs: JobCounts = field(default_factory=JobCounts)
    config: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    evaluations: Evaluations | None = optional()
    folder: Path | None = internal()
    settings: dict[str, Any] | None = internal()
    measured: list[Any] | None = internal()
    decision: Decision | None = internal()

    def document(self) -> dict[str, Any]:
        """Return what ``--json`` prints: where the report and all results are, the scores, and the numbers of jobs."""
        places = {name: self.folder and self.folder / name for name in (REPORT, RESULTS)}
        if self.evaluations:
            return {**places, "evaluations": self.evaluations, "scores": self.scores, "tables": self.tables}
        return {**places, "jobs": self.jobs, "scores": self.scores}

    def describe(self) -> list[str]:
        """Return what was compared, each difference to the baseline with its interval, and where the report is."""
        counts: dict[str, list[Any]] = {
            "models": self.models,
            "domains": self.domains,
            "methods": self.methods,
            "seeds": self.seeds,
        }
        counted = [f"{len(many)} {name[:-1] if len(many) == 1 else name}" for name, many in counts.items() if many]
        lines = [f"Study {self.title or self.name}: {', '.join(counted)}"]
        lines = [self.title, *self.evaluations.answers] if self.evaluations else lines
        for row in self.scores:
            score = f"{row.task}, {row.method}: {row.metric} {100 * row.summaries[row.metric].mean:.1f} %"
            verdict = f": {verdict_word(row.comparison)}" if row.comparison else ""
            lines.append(f"{score}{_describe_interval(row.comparison, 100)}{verdict}")
        for loss in self.losses:
            text = "general text" if loss.text == "general" else f"held-out {loss.domain}"
            lines.append(f"{text}, {loss.method}: {loss.nats:.3f} nats{_describe_interval(loss.difference, 1, 3)}")
        lines += [line for kind in self.kinds for line in kind.describe_rows(self)]
        if len(lines) > MAX_LINES:
            left = len(lines) - MAX_LINES
            lines[MAX_LINES:] = [f"and {left} more rows: to_pandas() and report() have all of them"]
        if self.jobs.left:
            lines.append(f"{self.jobs.left} of {self.jobs.total} jobs are left")
        if self.folder is not None:
            lines.append(f"report: {self.folder / 'report.html'}")
        return lines

    @property
    def kinds(self) -> list[type[ResultKind]]:
        """The kinds with rows of their own, by name."""
        return [find_kind(name) for name in sorted(self.rows) if self.rows[name]]

    def as_results(self) -> StudyResults:
        """Return the results themselves."""
        return self

    def report(self, path: str | Path | None = None) -> Page:
        """Return the report as a page, which a notebook shows; its path is the study's folder.

        Args:
            path: File to write it to; None writes nothing.
        """
        page = super().report(path)
        if page.path is None and self.folder is not None and (self.folder / "report.html").is_file():
            page.path = self.folder / "report.html"
        return page

    def to_pandas(self, table: str | None = None) -> pandas.DataFrame:
        """Return one of the tables as a data frame, with the numbers of ``results.json``, not in percent.

        Args:
            table: ``"scores"`` on the end tasks, with the difference to the baseline and its 95 % interval;
                ``"losses"`` on held-out text, before and after adaptation; ``"forgetting"``, scores on tasks of
                other domains; the name of a kind of job that has rows; or the title of a table of the report that a
                kind of job adds. By default the scores or, without any, the losses.

        Raises:
            UserError: If there is no such table.
        """
        table = table or ("scores" if self.scores or not self.losses else "losses")
        if table == "losses":
            return data_frame([_loss_entries(row) for row in self.losses])
        lists: dict[str, Sequence[Any]] = {"scores": self.scores, "forgetting": self.forgetting, **self.rows}
        titled = {one.title: one for one in self.tables}
        if table in lists:
            return data_frame([_entries(row) for row in lists[table]])
        if table not in titled:
            raise unknown_name_error("table", table, ("losses", *lists, *titled))
        return data_frame([dict(zip(titled[table].columns, row, strict=True)) for row in titled[table].rows])

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], place: str = "") -> Self:
        """Make results as :meth:`Record.from_dict` does, with the rows of each kind in its class."""
        results = super().from_dict(values, place)
        if results is not values:
            for name, rows in results.rows.items():
                if rows and (kind := find_kind(name).row_type):
                    results.rows[name] = build_value(list[kind], rows, f"rows.{name}")  # type: ignore[valid-type]
        return results

    @classmethod
    def load(cls, path: str | Path) -> StudyResults:
        """Read a ``results.json``.

        Raises:
            UserError: If the file is missing or does not contain the results of a study.
        """
        remedy = "give the results.json of a study, or run the study again"
        if (found := read_json_object(path)) is not None and found.get("format") != FORMAT:
            raise UserError(f"'{path}' holds no results of format {FORMAT}; {remedy}.")
        try:
            results = read_record(path, cls, remedy)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
            raise UserError(f"There are no results at '{path}'. Give the results.json of a study.") from error
        results.folder = Path(path).parent
        return results


def _describe_interval(entry: Interval | None, scale: float, digits: int = 1) -> str:
    """Return a difference with its interval and verdict, to be put after a value."""
    if entry is None:
        return ""
    difference, low, high = (f"{scale * value:+.{digits}f}" for value in (entry.difference, entry.low, entry.high))
    return f", {difference} [{low}, {high}]"


def _interval_entries(entry: Interval | None) -> dict[str, Any]:
    names = ("difference", "low", "high", "p", "p_holm")
    return {name: getattr(entry, name, None) for name in names} | {"verdict": entry and verdict_word(entry)}


def _entries(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a row; of scores, each metric has its mean over seeds, and the primary one its spread."""
    if not isinstance(row, TaskScores):
        return flat_row(row)
    own = flat_row({name: row[name] for name in row if name not in TaskScores.__dataclass_fields__})
    place = {"model": row.model, "domain": row.domain, "task": row.task, "method": row.method}
    primary = row.summaries[row.metric]
    shown = {"metric": row.metric, "seeds": len(row.seeds), "mean": primary.mean, "sd": primary.sd}
    others = {name: summary.mean for name, summary in row.summaries.items() if name != row.metric}
    return {**place, **own, **shown, **_interval_entries(row.comparison), **others}


def _loss_entries(row: LossRow) -> dict[str, Any]:
    place = {"model": row.model, "domain": row.domain, "text": row.text, "method": row.method}
    shown = {"before": row.before, "after": row.nats, "percent": row.percent, "bits_per_byte": row.bits_per_byte}
    return {**place, **shown, **_interval_entries(row.difference)}


def table_results(title: str, tables: Mapping[str, Sequence[Mapping[str, Any]]], **more: Any) -> StudyResults:
    """Return tables as the results of a study, to be shown like these.

    Args:
        title: Title of the page.
        tables: The rows of each table by its title, all with the same keys; a table without rows is left out.
        **more: Further fields of the results.
    """
    made = [
        ReportTable(title=name, columns=list(rows[0]), rows=[list(row.values()) for row in rows], digits=4)
        for name, rows in tables.items()
        if rows
    ]
    return StudyResults(name=title, title=title, tables=made, **more)


class ProbeScore(Record):
    """A simple model that was fitted on one draw of train examples.

    Attributes:
        probe: ``"linear"`` or ``"neighbors"``.
        labels: Train examples per class (of regression, in total); None for all.
        draw: Seed of the draw; zero for all examples.
        train_size: Number of train examples.
        metrics: Scores on the test split; the first is the default primary metric of the task.
        predicted: The predictions, as the scoring of the task expects them.
    """

    probe: str
    labels: int | None
    draw: int
    train_size: int
    metrics: dict[str, float]
    predicted: list[Any]


class ProbeResult(Reported, Record, repr=False):
    """Scores of simple models that learned a task from the states of a frozen model: see :func:`acclimate.probe`.

    Attributes:
        gold: The true answer to each test item.
        labels: The classes.
        kind: Name of the scoring.
        scoring: Further values that the scoring needs to score the predictions again.
        unit: Unit that a draw counts, such as ``"labels per class"``.
        scores: The fitted models.
        short: By number of labels, the classes that have fewer train examples, with their number.
        notes: Omissions and changes, in sentences.
        features: Number of features per example.
        seconds: Duration.
    """

    task: str
    gold: list[Any]
    labels: list[str] = field(default_factory=list)
    kind: str
    scoring: dict[str, Any] = field(default_factory=dict)
    unit: str
    scores: list[ProbeScore] = field(default_factory=list)
    short: dict[str, dict[str, int]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    features: int = 0
    seconds: float = 0.0

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per probe and number of labels: means over draws, and the spread of the first metric."""
        groups: dict[tuple[str, int | None], list[ProbeScore]] = {}
        for score in self.scores:
            groups.setdefault((score.probe, score.labels), []).append(score)
        rows = []
        for (probe, labels), own in sorted(groups.items(), key=lambda item: item[0][0]):
            primary, *others = own[0].metrics
            found = [score.metrics[primary] for score in own]
            size = statistics.mean(score.train_size for score in own)
            row: dict[str, Any] = {"probe": probe, self.unit: ALL if labels is None else labels}
            row["train examples"] = round(size)
            row |= {"draws": len(own), primary: statistics.mean(found)}
            row["sd"] = statistics.stdev(found) if len(found) > 1 else None
            rows.append(row | {name: statistics.mean(score.metrics[name] for score in own) for name in others})
        return rows

    def describe(self) -> list[str]:
        """Return the primary metric of each probe by number of labels in a line, and what was left out."""
        metric = next(iter(self.scores[0].metrics))
        lines: dict[str, list[str]] = {}
        for row in self.rows():
            spread = "" if row["sd"] is None else f" ± {row['sd']:.4f}"
            lines.setdefault(row["probe"], []).append(f"{row[self.unit]}: {row[metric]:.4f}{spread}")
        head = f"{self.task}, from frozen states of {self.features:,} features: {metric} by {self.unit}"
        return [head, *(f"{probe}: {', '.join(points)}" for probe, points in lines.items()), *self.notes]

    def as_results(self) -> StudyResults:
        """Return the rows, as the results of a study."""
        title = f"Frozen states on {self.task}"
        return table_results(title, {title: self.rows()}, notes=self.notes)

    def to_pandas(self) -> pandas.DataFrame:
        """Return a row per probe and number of labels as a data frame."""
        return data_frame([{"task": self.task, **row} for row in self.rows()])


class Measurements(dict[str, Any], Reported):
    """Measurements as a dictionary, with the table that they are shown as."""

    def __init__(self, values: Mapping[str, Any], lines: Sequence[str], title: str, rows: Sequence[Mapping[str, Any]]):
        """Make the dictionary.

        Args:
            values: Its entries.
            lines: Summary, in a few lines.
            title: Title of the table.
            rows: The rows of the table, all with the same keys.
        """
        super().__init__(values)
        self._lines, self._title, self._rows = list(lines), title, [dict(row) for row in rows]

    __repr__ = Reported.__repr__

    def describe(self) -> list[str]:
        """Return what matters, in a few lines."""
        return self._lines

    def as_results(self) -> StudyResults:
        """Return the table."""
        return table_results(self._title, {self._title: self._rows})

    def to_pandas(self) -> pandas.DataFrame:
        """Return the table as a data frame."""
        return data_frame(self._rows)
