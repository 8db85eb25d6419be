"""Probe jobs: what a simple model learns of each task from the states of every model, at several numbers of labels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, cast

from pydantic import BeforeValidator, Field, model_validator

from acclimate.base.bounds import ALL
from acclimate.base.errors import UserError, unknown_name_error, warn_once
from acclimate.base.records import Record, fingerprint, optional
from acclimate.evaluation.significance import PairedPredictions, mean_paired_bootstrap
from acclimate.report.figures import (
    CARD,
    GRID,
    INK,
    MUTED,
    colour_index,
    legend,
    marker,
    panel_grid,
    series,
    styled,
    svg,
)
from acclimate.report.formatting import grouped_tests, metric_name, row_place
from acclimate.report.score_figures import MIN_SPAN, at_least
from acclimate.report.summary import all_or_extremes, describe_method, mean_points
from acclimate.results.cells import (
    DASH,
    Entry,
    Table,
    count_entry,
    interval_entry,
    number_entry,
    p_entry,
    plain,
    signed,
    verdict_entry,
)
from acclimate.results.scores import HELPED, HURT, Interval, TaskScores
from acclimate.results.study import Figure, ProbeResult, StudyResults
from acclimate.study.config import DomainSpec, StudyConfig
from acclimate.study.inputs import Checkpoint, StudyInputs
from acclimate.study.job import (
    Job,
    JobResult,
    Model,
    Place,
    Planner,
    RunContext,
    StudyView,
    Timed,
    extrapolate,
    register,
)
from acclimate.study.jobs.finetune import FinetuneJob, finetune_settings
from acclimate.study.learned import FLOOR, LINEAR, base_labels, is_base_run, probe_run
from acclimate.study.sections import SectionEntry
from acclimate.study.settings import ProbeSection, TaskSpec, as_list
from acclimate.study.summary import (
    TaskResult,
    TaskRuns,
    compare_runs,
    correct_for_multiple_comparisons,
    replicate_groups,
    scoring_of,
    summarize_scores,
)
from acclimate.tasks.options import ProbeOptions

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STATES = "states"
"""Folder in that of the study with the states of all texts of a task, by model, task and length."""
PILOT_ROWS = (16, 128)
"""Train rows of the probes that measure the speed."""


class ProbeSpec(ProbeSection, SectionEntry):
    """The section ``probe``: ``true``, or options of :func:`acclimate.probe`.

    Attributes:
        tasks: Names of the tasks to probe; None for all of which the kind has a probe.
    """

    tasks: Annotated[list[str] | None, BeforeValidator(as_list), Field(min_length=1)] = None

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, value: Any) -> Any:
        return {} if value is True else value

    def includes(self, task: str) -> bool:
        """Return whether the section names a task, or names none."""
        return self.tasks is None or task in self.tasks


def _section(inputs: StudyInputs) -> ProbeSpec | None:
    return next(iter(inputs.config.sections.get("probe", [])), None)


def _probed(inputs: StudyInputs) -> Iterator[tuple[DomainSpec, TaskSpec]]:
    """Yield the tasks to probe with their domains; warn of those of which the kind has no probe."""
    from acclimate.data.task_kinds import find_task_kind

    if (spec := _section(inputs)) is None:
        return
    for domain in inputs.config.domains:
        for task in filter(lambda task: spec.includes(task.name), domain.tasks):
            found = inputs.tasks[domain.name, task.name].task
            try:
                find_task_kind(found).probe(found)
            except UserError as error:
                if spec.tasks is not None:
                    raise UserError(f"study: probe: {error}") from error
                warn_once(f"study: probe: {error}")
            else:
                yield domain, task


class ProbeRow(TaskScores):
    """Scores of a simple model that learns a task from the states of a frozen model, compared with the baseline.

    ``seeds`` are those of the draws of train examples.

    Attributes:
        probe: ``"linear"`` or ``"neighbors"``.
        unit: What a draw counts, such as ``"labels per class"``.
        labels_per_class: Number of these; None for all.
        short: Classes with fewer train examples, with their number.
        interval: The score with its 95 % interval over draws, adaptations and test items; None for one test item.
    """

    probe: str
    unit: str = "labels per class"
    labels_per_class: int | None = None
    short: dict[str, int] = field(default_factory=dict)
    interval: Interval | None = optional()


@register("probe", summary="learn a task from the states of a frozen model")
class ProbeJob(Job):
    """Probe a model on a task.

    Attributes:
        model: The model.
        task: The task.
        settings: Options of :func:`acclimate.probe`, defaults included.
        draws: Seeds of the draws of train examples.
    """

    model: Model
    task: Any
    settings: Mapping[str, Any]
    draws: tuple[int, ...]

    cost: ClassVar[float] = 0.5
    result_type: ClassVar[type[Record]] = ProbeResult
    row_type: ClassVar[type[Record] | None] = ProbeRow
    options_type: ClassVar[type[Any] | None] = ProbeOptions
    section: ClassVar[tuple[str, type[SectionEntry]] | None] = ("probe", ProbeSpec)

    @property
    def price_group(self) -> tuple[str | None, ...]:
        """All probes of a task."""
        return ("probe", self.place.model, self.place.task)

    @property
    def states(self) -> str:
        """Identity of the states of the texts, which are stored."""
        read = {name: self.identity[name] for name in ("model", "task")}
        return fingerprint({**read, "max_length": self.settings["max_length"]})

    def run(self, context: RunContext) -> ProbeResult:
        """Read the texts with the model, unless their states are stored, and fit the probes."""
        states = context.out / STATES / self.states
        found: ProbeResult = context.backend.probe(
            context.path(self.model), self.task, draws=self.draws, states=states, **self.settings
        )
        return found

    def next_pilot(self, model: Checkpoint, timed: Sequence[Timed], seconds: float) -> ProbeJob | None:
        """Return a probe of a few rows, then one of more; their difference is the time per row."""
        from acclimate.tasks.splits import limit_splits

        if len(timed) == len(PILOT_ROWS) or (timed and timed[0].seconds > 2 * seconds):
            return None
        count = PILOT_ROWS[len(timed)]
        return replace(self, model=model, task=limit_splits(self.task, train=count, test=count // 2))

    def expected_seconds(self, timed: Sequence[Timed]) -> float:
        """Return the time of loading, and of reading all rows at the speed of the pilots."""
        return extrapolate(timed, lambda job: len(job.task.train) + len(job.task.test), self)

    @classmethod
    def check(cls, inputs: StudyInputs) -> None:
        """Check that there is one section, and that the tasks that it names exist and can be probed."""
        sections = inputs.config.sections.get("probe", [])
        if len(sections) > 1:
            raise UserError("study: 'probe' is a single section; give one, with all numbers of labels.")
        if sections:
            known = [task.name for domain in inputs.config.domains for task in domain.tasks]
            for name in sections[0].tasks or ():
                if name not in known:
                    raise unknown_name_error("task under 'probe'", name, known)
            list(_probed(inputs))

    @classmethod
    def finish(cls, planner: Planner) -> None:
        """Add a job for each model that is fine-tuned on a task to probe.

        As in fine-tuning, the i-th draw starts from the model of the i-th adaptation, cyclically: adaptations differ
        in their draws, too, so that one group of replicates contains both.
        """
        config = planner.config
        tasks = {(domain.name, task.name): task for domain, task in _probed(planner.inputs)}
        if not tasks or (spec := _section(planner.inputs)) is None:
            return
        options = {**planner.inputs.options[cls.name], **spec.given()}
        count, adaptations = max(options.pop("draws"), len(config.adapt_seeds)), config.adapt_seeds
        known = set[tuple[str, Place]]()
        for job in list(planner.graph.entries):
            task = tasks.get((str(job.place.domain), str(job.place.task)))
            if task is None or not isinstance(job, FinetuneJob) or not job.is_scored or job.place.search is not None:
                continue
            tuned, _ = finetune_settings(planner.inputs, str(job.place.domain), task, str(job.place.model))
            settings = {**options, "negative": task.negative or ()}
            settings["max_length"] = options.get("max_length") or tuned["max_length"]
            seed = job.place.adapt_seed
            first, step = (0, 1) if seed is None else (adaptations.index(seed), len(adaptations))
            made = cls(
                place=replace(job.place, seed=None),
                model=job.model,
                task=job.task,
                settings=settings,
                draws=tuple(range(first, count, step)),
            )
            if (made.key, made.place) not in known:
                known.add((made.key, made.place))
                planner.add(made)

    @classmethod
    def rows(cls, view: StudyView) -> dict[str, list[Any]]:
        """Return a row per model, task, probe, number of labels and row label, compared with the baseline.

        Holm's correction is applied to these comparisons as a separate family.
        """
        config = view.inputs.config
        adaptations = len(config.adapt_seeds)
        found: dict[tuple[Any, ...], list[JobResult[ProbeResult]]] = {}
        for entry in view.find(ProbeResult, lambda job: job.name == cls.name):
            place = entry.job.place
            found.setdefault((place.model, place.domain, place.task, place.method), []).append(entry)
        rows = []
        for model, domain in itertools.product(config.models, config.domains):
            for task in domain.tasks:
                here = (model.name, domain.name, task.name)
                metric = view.inputs.tasks[domain.name, task.name].metric
                entries = {label: found[*here, label] for label in config.row_labels if (*here, label) in found}
                points = dict.fromkeys(
                    (score.probe, score.labels) for own in entries.values() for score in own[0].result.scores
                )
                for probe, labels in sorted(points, key=lambda point: (point[0], point[1] or float("inf"))):
                    runs = {label: _runs(own, probe, labels, adaptations) for label, own in entries.items()}
                    for label, own in entries.items():
                        row = _row(own, probe, labels, metric)
                        if label != config.baseline and (base := runs.get(config.baseline)):
                            row.difference = compare_runs(runs[label], base, metrics=[metric])
                        rows.append(row)
        correct_for_multiple_comparisons(rows)
        return {cls.name: rows}

    @classmethod
    def figures(cls) -> Sequence[Figure]:
        """Return the figures of the rows."""
        return (
            Figure(
                "probe-differences",
                "Learning from frozen states: differences to the baseline",
                "The model is frozen, and a linear model or the nearest neighbours learn from its states. "
                "Differences are paired by draw and test item; lines are 95 % intervals, and the dot is hollow if "
                "the interval includes zero.",
                probe_differences,
            ),
            Figure(
                "probes",
                "Learning from frozen states: scores",
                "Mean over random draws of train examples, the same for all models. Lines are 95 % intervals over "
                "draws, adaptations and test items. Methods share the test items, so a clear difference can have "
                "intervals that overlap.",
                probe_curves,
            ),
        )

    @classmethod
    def tables(cls, results: StudyResults) -> list[Table]:
        """Return the scores of probes by number of labels, with comparisons to the baseline."""
        rows = results.rows[cls.name]
        units = " or ".join(dict.fromkeys(row.unit for row in rows))
        names = ["model", "domain", "task", "probe", units, "method", "difference", "95 % interval", "verdict"]
        minor = ["p (Holm)", "metric", "score", "95 % interval of the score", "draws"]
        note = (
            "Simple models on averaged states of frozen models: linear (logistic or ridge regression), and the "
            "nearest neighbours by cosine similarity. Means over random draws of train examples, the same for all "
            f"models, in percent. Difference: to the baseline ({results.baseline}) in percentage points, paired by "
            "draw and test item. Intervals of 95 % over draws, adaptations and test items; p (Holm) is corrected for "
            "the comparisons of this table alone."
        ) + grouped_tests(rows)
        short = {f"{row.task} at {row.labels_per_class:,} ({_counted(row.short)})": None for row in rows if row.short}
        if short:
            note += f" Classes with fewer train examples, all of which are used: {'; '.join(short)}."
        table = Table("Learning from frozen states", note, [*names, *minor], minor=minor)
        for row in rows:
            level = Entry(
                ALL if row.labels_per_class is None else f"{row.labels_per_class:,}", row.labels_per_class or 1e9
            )
            cells = [Entry(row.model), Entry(row.domain), Entry(row.task), Entry(row.probe), level, Entry(row.method)]
            if entry := row.comparison:
                cells += [Entry(signed(100 * entry.difference), entry.difference), interval_entry(entry)]
                cells += [verdict_entry(entry), p_entry(entry.p_holm)]
            else:
                cells += [Entry("baseline", 0.0) if row.method == results.baseline else DASH, DASH, DASH, DASH]
            spread = DASH
            if found := row.interval:
                spread = Entry(f"{plain(100 * found.low)} to {plain(100 * found.high)}", found.low)
            score = number_entry(row.summaries[row.metric].mean, scale=100)
            table.rows.append([*cells, Entry(metric_name(row.metric)), score, spread, count_entry(len(row.seeds))])
        return [table]

    @classmethod
    def sentences(cls, results: StudyResults) -> list[str]:
        """Describe where methods helped a linear model that learns from the fewest labels and frozen states."""
        linear = [row for row in results.rows[cls.name] if row.probe == "linear" and row.comparison]
        if not linear:
            return []
        fewest = linear[0].labels_per_class
        words = {}
        for method in (method.label for method in results.methods):
            if rows := [row for row in linear if (row.method, row.labels_per_class) == (method, fewest)]:
                words[f"{method}: {describe_method(rows, len({row_place(results, row) for row in rows}))}"] = (
                    mean_points(rows)
                )
        labels = "all labels" if fewest is None else f"{fewest:,} {linear[0].unit}"
        return [f"For a linear model on frozen states, with {labels}, {all_or_extremes(words, 'from {} to {}')}."]


@register("quick", summary="score a linear model on frozen states, instead of fine-tuning")
class QuickJob(FinetuneJob):
    """Fit a linear model on the frozen states of a model, and score it like a fine-tuned one."""

    cost: ClassVar[float] = 0.1
    options_type: ClassVar[type[Any] | None] = None
    setting: ClassVar[str] = "evaluate.quick"

    @property
    def probe(self) -> ProbeJob:
        """The job that fits it."""
        shots, options = self.settings.get("few_shot"), self.settings
        settings = {
            "labels_per_class": (ALL,) if shots is None else (shots,),
            "neighbors": 1,
            "negative": options.get("negative") or (),
            "max_length": options["max_length"],
        }
        return ProbeJob(place=self.place, model=self.model, task=self.task, settings=settings, draws=(self.seed,))

    @property
    def price_group(self) -> tuple[str | None, ...]:
        """All probes of a task."""
        return self.probe.price_group

    @property
    def states(self) -> str:
        """Identity of the states of the texts."""
        return self.probe.states

    def run(self, context: RunContext) -> TaskResult:
        """Read the texts with the model, unless their states are stored, and fit the linear model."""
        found = self.probe.run(context)
        return probe_run(self, found, next(one for one in found.scores if one.probe == LINEAR)).result

    def next_pilot(self, model: Checkpoint, timed: Sequence[Timed], seconds: float) -> Job | None:
        """Return the pilot of a probe."""
        return self.probe.next_pilot(model, timed, seconds)

    def expected_seconds(self, timed: Sequence[Timed]) -> float:
        """Return the estimated duration of the probe."""
        return self.probe.expected_seconds(timed)

    @classmethod
    def check(cls, inputs: StudyInputs) -> None:
        """Check that all tasks can be probed."""
        from acclimate.data.task_kinds import find_task_kind

        super().check(inputs)
        for found in inputs.tasks.values():
            try:
                find_task_kind(found.task).probe(found.task)
            except UserError as error:
                raise UserError(f"--quick needs tasks that a linear model can learn: {error}") from error


@register(FLOOR, summary="learn a task from the states of the base model, which fine-tuning has to beat")
class FloorJob(ProbeJob):
    """Fit a linear model on the frozen states of the base model, with the rows that it is fine-tuned on.

    A study has them for every task that has a probe, unless it says ``probe: false``.
    """

    cost: ClassVar[float] = 0.1
    section: ClassVar[tuple[str, type[SectionEntry]] | None] = None

    @classmethod
    def is_used(cls, config: StudyConfig) -> bool:
        """Return whether tasks are fine-tuned."""
        return not config.evaluate.quick

    @classmethod
    def check(cls, inputs: StudyInputs) -> None:
        """Check nothing: tasks without a probe have no floor."""

    @classmethod
    def finish(cls, planner: Planner) -> None:
        """Add a job for each task that the base model is fine-tuned on."""
        from acclimate.data.task_kinds import find_task_kind

        config = planner.config
        if config.sections.get("probe", [None]) == []:  # probe: false
            return
        tasks = {(domain.name, task.name): task for domain in config.domains for task in domain.tasks}
        known, labels = set[Place](), base_labels(config)
        for job in list(planner.graph.entries):
            if not isinstance(job, FinetuneJob) or not is_base_run(job, labels) or not job.epochs:
                continue
            if (place := replace(job.place, seed=None, adapt_seed=None)) in known:
                continue
            with suppress(UserError):
                find_task_kind(job.task).probe(job.task)
                shots, task = job.settings["few_shot"], tasks[str(place.domain), str(place.task)]
                settings = {
                    **{name: value for name, value in planner.inputs.options[cls.name].items() if name != "draws"},
                    "labels_per_class": (ALL,) if shots is None else (shots,),
                    "negative": task.negative or (),
                    "max_length": job.settings["max_length"],
                }
                draws = (0,) if shots is None else tuple(config.seeds)
                planner.add(cls(place=place, model=job.model, task=job.task, settings=settings, draws=draws))
            known.add(place)

    @classmethod
    def rows(cls, view: StudyView) -> dict[str, list[Any]]:
        """Return no rows: the scores are compared with those of fine-tuning."""
        return {}


def _row(entries: Sequence[JobResult[ProbeResult]], probe: str, labels: int | None, metric: str) -> ProbeRow:
    """Return the scores of a method at one number of labels, with their interval."""
    runs, result = _runs(entries, probe, labels), entries[0].result
    row: ProbeRow = summarize_scores(
        runs,
        metric,
        ProbeRow,
        probe=probe,
        unit=result.unit,
        labels_per_class=labels,
        short=result.short.get(str(labels), {}),
    )
    predicted, first = [run.result.predicted for run in runs], runs[0].result
    if (row.test_units or row.test_items) > 1:
        task = PairedPredictions(first.gold, predicted, None, metric, scoring_of(first))
        row.interval = Interval.from_dict(
            mean_paired_bootstrap([task], seed_groups=replicate_groups([(run.job,) for run in runs])).as_dict()
        )
    return row


def _runs(entries: Sequence[JobResult[ProbeResult]], probe: str, labels: int | None, adaptations: int = 1) -> TaskRuns:
    """Return the fits of a probe as runs whose seed is that of the draw, in the order of the seeds.

    Args:
        entries: Jobs of one row with their results.
        probe: Name of the probe.
        labels: Number of labels; None for all.
        adaptations: Number of adaptations. The only fit on all examples of a model that all adaptations are compared
            with is repeated for each of them.
    """
    runs = []
    for entry, result in entries:
        job = cast(ProbeJob, entry)
        for score in (score for score in result.scores if (score.probe, score.labels) == (probe, labels)):
            seeds = (
                [score.draw]
                if labels is not None
                else [seed for seed in job.draws if seed < adaptations] or job.draws[:1]
            )
            runs += [probe_run(job.at(seed=seed), result, score) for seed in seeds]
    return sorted(runs, key=lambda run: run.job.place.seed or 0)


def probe_curves(results: StudyResults) -> str:
    """Draw the scores of probes over the number of labels, with 95 % intervals; empty without probes."""
    return _draw_probes(results, "probes", "score, %", "Scores of probes on frozen states by number of labels")


def probe_differences(results: StudyResults) -> str:
    """Draw the paired differences of probes to the baseline over the number of labels; empty without any."""
    title = "Differences of probes on frozen states to the baseline by number of labels"
    return _draw_probes(results, "probe-differences", "difference, points", title)


def _draw_probes(results: StudyResults, name: str, ylabel: str, title: str) -> str:
    @styled
    def draw(results: StudyResults) -> str:
        differences = name != "probes"
        rows = [row for row in results.rows.get("probe", []) if row.comparison or not differences]
        if not rows:
            return ""
        panels: dict[str, list[ProbeRow]] = {}
        for row in rows:
            panels.setdefault(f"{row_place(results, row)}, {row.probe}", []).append(row)
        methods = list(dict.fromkeys(row.method for row in rows))
        index = colour_index(results)
        styles = {method: (series(index[method]), marker(index[method])) for method in methods}
        if results.baseline in styles:
            styles[results.baseline] = (MUTED, styles[results.baseline][1])
        unit = " or ".join(dict.fromkeys(row.unit for row in rows))
        figure, grid = panel_grid(list(panels), (3.4, 2.7), unit, ylabel)
        for axes, own in zip(grid, panels.values(), strict=True):
            _probe_panel(axes, own, styles, differences)
        legend(figure, [(shape, colour, method) for method, (colour, shape) in styles.items()])
        return svg(figure, name, title)

    return draw(results)


def _probe_panel(axes: Axes, rows: list[ProbeRow], styles: Mapping[str, tuple[str, str]], differences: bool) -> None:
    """Draw the methods of one probe on one task next to each other; hollow dots are differences that include zero."""
    levels = sorted({row.labels_per_class or math.inf for row in rows})
    if differences:
        axes.axhline(0, color=INK, linewidth=1)
    for number, (method, (colour, shape)) in enumerate(styles.items()):
        shift = 0.6 * ((number + 0.5) / len(styles) - 0.5)
        points = [
            (levels.index(row.labels_per_class or math.inf) + shift, entry)
            for row in rows
            if row.method == method and (entry := row.comparison if differences else row.interval)
        ]
        places, middles = [x for x, _ in points], [100 * entry.difference for _, entry in points]
        if not differences:
            axes.plot(places, middles, color=colour, linewidth=1, alpha=0.6)
        for x, entry in points:
            axes.plot([x, x], [100 * entry.low, 100 * entry.high], color=colour, linewidth=1.6)
            fill = CARD if differences and entry.verdict not in (HELPED, HURT) else colour
            axes.plot([x], [100 * entry.difference], shape, color=colour, markerfacecolor=fill, markersize=5.5)
    axes.set_xticks(range(len(levels)), [ALL if level == math.inf else f"{level:,}" for level in levels])
    axes.set_xlim(-0.6, len(levels) - 0.4)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.locator_params(axis="y", nbins=6)
    if differences:
        axes.set_ylim(*at_least(MIN_SPAN, *axes.get_ylim()))


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name}: {count}" for name, count in counts.items())
