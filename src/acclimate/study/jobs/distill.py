"""Distillation jobs: a student learns a task from a teacher."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from acclimate.base.errors import UserError, unknown_name_error
from acclimate.base.records import Record
from acclimate.base.registry import fill_from_preset
from acclimate.models.checkpoints import load_config
from acclimate.models.kinds import kind_of_checkpoint
from acclimate.report.figures import CARD, GRID, colour_index, marker, method_legend, panel_grid, series, styled, svg
from acclimate.report.formatting import metric_name, row_place
from acclimate.results.cells import DASH, Entry, Table, count_entry, number_entry
from acclimate.results.scores import DistillationRow
from acclimate.results.study import Figure, MethodRow, StageName, StudyResults
from acclimate.study.backend import Backend
from acclimate.study.config import DomainSpec, StudyConfig
from acclimate.study.graph import Choices, extend, plan_chosen
from acclimate.study.inputs import Checkpoint, StudyInputs, TaskInput
from acclimate.study.job import Job, JobGraph, Model, Place, Planner, RunContext, StudyView, register
from acclimate.study.jobs.adapt import adaptation_seconds
from acclimate.study.jobs.finetune import FinetuneJob
from acclimate.study.jobs.teacher import TeacherJob
from acclimate.study.search import Fill, Lists, Search, SearchStage, choices_to_try, search_settings, tasks_with_metric
from acclimate.study.sections import DistillSpec, SectionEntry, count_combinations
from acclimate.study.settings import UNADAPTED, TaskSpec
from acclimate.study.summary import TaskResult
from acclimate.tasks.options import DistillOptions

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TEACHER_OPTIONS = {
    "epochs": "teacher_epochs",
    "learning_rate": "teacher_learning_rate",
    "confidence_penalty": "teacher_penalty",
}
"""Options of ``finetune`` for fine-tuning the teacher, and their names in ``distill``."""
STUDENT_OPTIONS = {"epochs": "student_epochs", "learning_rate": "student_learning_rate"}
"""Options of ``finetune`` for fine-tuning the student before distillation, and their names in ``distill``."""
COMMON_OPTIONS = (
    *("batch_size", "max_length", "warmup", "weight_decay", "max_gradient_norm", "few_shot", "precision", "negative"),
)
"""Options that ``finetune`` and ``distill`` share; they apply to teacher and student."""


class DistillationResult(TaskResult):
    """The result of a distillation: see :class:`acclimate.tasks.distillation.distill.DistillResult`."""

    objective: str = ""
    connector: str = ""
    distilled_epochs: int
    disagreement: list[float]
    units: int
    teacher_metrics: dict[str, Any]
    teacher_dev_metrics: dict[str, Any] | None = None
    teacher_trained: bool = False
    student_metrics: dict[str, Any]
    student_dev_metrics: dict[str, Any] | None = None
    stage_seconds: dict[str, float]


def distill_rows(config: StudyConfig) -> list[DistillSpec]:
    """Return the rows of distillation of a study."""
    return config.sections.get("distill", [])


@register("distill", summary="distill a teacher into a student")
class DistillJob(Job):
    """Fine-tune a student on a task with one seed, then distill the teacher into it.

    Attributes:
        teacher: A model of the task, or the job that trains it.
        student: The base model of the student.
        task: The task.
        settings: Options of ``distill``, defaults included.
        seed: Seed of the student.
        options: The explicit options, passed to ``distill``.
    """

    teacher: Model
    student: Checkpoint
    task: Any
    settings: Mapping[str, Any]
    seed: int
    options: Mapping[str, Any] = field(compare=False)

    cost: ClassVar[float] = 3.0
    result_type: ClassVar[type[Record]] = DistillationResult
    row_type: ClassVar[type[Record] | None] = DistillationRow
    counts_as_score: ClassVar[bool] = True
    options_type: ClassVar[type[Any]] = DistillOptions
    stages: ClassVar[tuple[StageName, ...]] = (
        StageName(
            stage="teacher",
            name="teacher",
            note="Teacher: its adaptation and fine-tuning; an external classifier counts as zero.",
        ),
        StageName(stage="student", name="student before", note="Student before: its fine-tuning before distillation."),
        StageName(
            stage="distillation",
            name="distillation",
            note="Distillation: reading the train split with the teacher, and both training phases.",
        ),
    )
    section: ClassVar[tuple[str, type[SectionEntry]]] = ("distill", DistillSpec)

    def run(self, context: RunContext) -> DistillationResult:
        """Train the student and score it on the test split."""
        models = (context.path(self.teacher), self.student.path)
        result = context.backend.distill(*models, self.task, seed=self.seed, progress=False, **self.options)
        made: DistillationResult = DistillationResult.of(result)
        return made

    def stage_seconds(self, result: DistillationResult, view: StudyView) -> dict[str, float] | None:
        """Return the seconds of the teacher (adaptation included), of the student, and of the distillation."""
        spent = result.stage_seconds
        row = {"student": spent["student"], "distillation": spent["teacher_targets"] + spent["distillation"]}
        if not isinstance(self.teacher, TeacherJob):
            return row
        taught = view.outcomes[self.teacher.key].result
        adapted = adaptation_seconds(self.teacher.model, view)
        if taught is None or adapted is None:
            return None
        return {"teacher": adapted + float(taught.seconds or 0.0), **row}

    @classmethod
    def read(cls, config: StudyConfig, backend: Backend) -> dict[str, Checkpoint]:
        """Validate the rows of distillation; return the teachers that are not models of the study, by path."""
        for row in distill_rows(config):
            _check_names(row, config)
        paths = [row.teacher.path for row in distill_rows(config) if row.teacher.path]
        return {path: Checkpoint.read(path) for path in dict.fromkeys(paths)}

    @classmethod
    def check(cls, inputs: StudyInputs) -> None:
        """Raise UserError for tasks and models that cannot be distilled."""
        from acclimate.tasks.distillation.distill import choose_objective

        for domain in inputs.config.domains:
            rows = [row for row in distill_rows(inputs.config) if row.is_for(domain.name)]
            for row, task in itertools.product(rows, domain.tasks):
                try:
                    loaded = inputs.tasks[domain.name, task.name].task
                    objective = choose_objective(row.settings.get("objective", "auto"), loaded)
                except UserError as error:
                    raise UserError(f"study: {error} Set 'domains' of the row '{row.label}' of distill.") from error
                if objective == "boundary":
                    _check_encoders(row, inputs)
                if task.first is not None:
                    raise UserError(
                        f"study: '{task.name}' has a first task, which distillation does not support; remove 'first'."
                    )

    @classmethod
    def finish(cls, planner: Planner) -> None:
        """Add the teachers and students of all rows.

        One teacher is fine-tuned per adapted model, and the seeds of the students share it as they share the
        adaptation. A teacher without adaptation is fine-tuned with each seed of adaptation. With ``few_shot`` there is
        one teacher per seed, trained on the examples of that seed.
        """
        config = planner.config
        places = ((domain, task, seed) for domain in config.domains for task in domain.tasks for seed in config.seeds)
        for domain, task, seed in places:
            # Rows are the inner loop, so that rows with the same student reuse the fine-tuned student in the cache.
            for row in distill_rows(config):
                if row.is_for(domain.name):
                    _add_row(planner, row, domain, task, seed)

    @classmethod
    def search_stages(cls) -> Sequence[Fill]:
        """Search the settings of teachers, whose models come from the search for methods, then those of distillation.

        The DoKTra paper searches in the same order: fine-tuning of the student, penalty of the teacher, distillation.
        """
        return partial(_search, of_teacher=True), partial(_search, of_teacher=False)

    @classmethod
    def method_rows(cls, inputs: StudyInputs) -> list[MethodRow]:
        """Return one row per row of distillation."""
        return [
            MethodRow(label=row.label, name="distill", parameters=row.settings) for row in distill_rows(inputs.config)
        ]

    @classmethod
    def rows(cls, view: StudyView) -> dict[str, list[Any]]:
        """Return one row per student, task and row of distillation, with means over seeds."""
        order = [row.label for row in distill_rows(view.inputs.config)]
        made = []
        for runs in view.group(DistillationResult).values():
            place, results = runs[0].job.place, [run.result for run in runs]
            metric = view.inputs.tasks[str(place.domain), str(place.task)].metric
            teachers = [view.outcomes[run.job.needs.key].result if run.job.needs else None for run in runs]
            made.append(
                DistillationRow(
                    model=str(place.model),
                    domain=str(place.domain),
                    task=str(place.task),
                    method=str(place.method),
                    metric=metric,
                    teacher=_mean([result.teacher_metrics[metric] for result in results]),
                    before=_mean([result.student_metrics[metric] for result in results]),
                    after=_mean([result.metrics[metric] for result in results]),
                    units=results[0].units,
                    distilled_epochs=results[0].distilled_epochs,
                    disagreement=[
                        _mean(values) for values in zip(*(result.disagreement for result in results), strict=True)
                    ],
                    teacher_seconds=_mean([teacher.seconds if teacher else 0.0 for teacher in teachers]),
                    seconds=_mean([sum(result.stage_seconds.values()) for result in results]),
                )
            )
        return {cls.name: sorted(made, key=lambda row: order.index(row.method))}

    @classmethod
    def figures(cls) -> Sequence[Figure]:
        """Return the figures of the rows."""
        return (
            Figure(
                "agreement",
                "Agreement with the teacher",
                "Share of units of the representation that are active in only one of teacher and student (Eq. 4 of "
                "DoKTra), on train examples without dropout, mean over seeds: before distillation, then after each "
                "epoch. Hollow markers: refinement epochs without the teacher.",
                teacher_agreement,
                teacher_agreement_table,
            ),
        )

    @classmethod
    def tables(cls, results: StudyResults) -> list[Table]:
        """Return the scores of teachers and students, and the number of units on which they disagree."""
        names = ["model", "domain", "task", "method", "metric", "teacher", "student before", "after", "retained"]
        names += ["disagreement: before", "distilled", "at the end", "of"]
        note = (
            "Means over seeds, in percent. Retained: score of the student in percent of that of the teacher "
            "(“Retain” in DoKTra). Disagreement: number of units of the representation that are active in only one "
            "of teacher and student (Eq. 4 of DoKTra)."
        )
        table = Table("Distillation", note, names)
        by_student: dict[tuple[str, str], list[DistillationRow]] = {}
        for row in results.rows[cls.name]:
            curve = row.disagreement
            cells = [
                Entry(row.model),
                Entry(row.domain),
                Entry(row.task),
                Entry(row.method),
                Entry(metric_name(row.metric)),
            ]
            units = [curve[0], curve[row.distilled_epochs], curve[-1], row.units] if curve else [None] * 4
            table.rows.append([*cells, *_retained([row]), *(number_entry(value, 0) for value in units)])
            by_student.setdefault((row.model, row.method), []).append(row)
        for (model, method), rows in by_student.items():
            if len(rows) > 1:
                domains = {row.domain for row in rows}
                domain = domains.pop() if len(domains) == 1 else DASH.text
                cells = [Entry(model), Entry(domain), Entry("mean over tasks"), Entry(method), DASH]
                table.rows.append([*cells, *_retained(rows), *[DASH] * 4])
        return [table]


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def _check_encoders(row: DistillSpec, inputs: StudyInputs) -> None:
    """Raise UserError if a model of a row is a decoder: the first of its tokens does not represent the text."""
    students = row.student_names([model.name for model in inputs.config.models])
    for name in [*students, *([row.teacher.model] if row.teacher.model else ())]:
        path = inputs.checkpoints[name].path
        if not kind_of_checkpoint(load_config(path).architectures, path).uses_masking:
            raise UserError(
                f"study: '{name}' of the row '{row.label}' of distill is a decoder, so the objective cannot be "
                "'boundary'; use 'kl'."
            )


def _check_names(row: DistillSpec, config: StudyConfig) -> None:
    names, labels = [model.name for model in config.models], [method.label for method in config.methods]
    for name in [*(row.students or ()), *([row.teacher.model] if row.teacher.model else ())]:
        if name not in names:
            raise unknown_name_error(f"model in the row '{row.label}' of distill:", name, names)
    domains = [domain.name for domain in config.domains]
    for name in row.domains or ():
        if name not in domains:
            raise unknown_name_error(f"domain in the row '{row.label}' of distill:", name, domains)
    if row.teacher.model and row.teacher.method not in labels:
        raise unknown_name_error(
            f"method of the teacher in the row '{row.label}' of distill:", row.teacher.method, labels
        )
    if not row.students and not set(names) - {row.teacher.model}:
        raise UserError(f"study: the row '{row.label}' of distill has no student; add another model to 'models'.")


class _Settings(NamedTuple):
    """Settings of one row of distillation on one task.

    Attributes:
        teaching: Options of the teacher's fine-tuning, defaults included.
        settings: Options of ``distill`` that determine the result, defaults included.
        options: The explicit options of ``distill``.
    """

    teaching: dict[str, Any]
    settings: dict[str, Any]
    options: dict[str, Any]


def _row_settings(
    planner: Planner, row: DistillSpec, domain: DomainSpec, task: TaskSpec, students: list[str]
) -> dict[str, _Settings]:
    """Return the settings of each student, by name, and of the teacher, under ``""``.

    With a search, the teacher is fine-tuned with the settings chosen for its method. A student is fine-tuned before
    distillation with the settings chosen for the base model.
    """
    config, chosen = planner.config, planner.settings
    unadapted = next((method.label for method in config.methods if method.name == UNADAPTED), "")
    models = {"": (row.teacher.model or "", row.teacher.method), **{name: (name, unadapted) for name in students}}
    given = planner.inputs.tasks[domain.name, task.name]
    found = {}
    for name, (model, method) in models.items():
        choice = chosen.get((model, domain.name, task.name, method))
        tuned = choice.apply_to_task(task) if choice else task
        own = {**row.settings}
        for who in dict.fromkeys(("", name)):
            if choice := chosen.get((who, domain.name, task.name, row.label)):
                own |= choice.section("distill")
        found[name] = _split_settings(config.finetune_settings(tuned), own, given, planner.inputs.options["distill"])
    return found


def _split_settings(
    tuning: Mapping[str, Any], own: Mapping[str, Any], task: TaskInput, defaults: Mapping[str, Any]
) -> _Settings:
    from acclimate.tasks.distillation.distill import choose_objective

    renamed = (*TEACHER_OPTIONS.items(), *STUDENT_OPTIONS.items())
    given = {option: tuning[name] for name, option in renamed if name in tuning}
    given |= {name: tuning[name] for name in (*COMMON_OPTIONS, "select") if name in tuning} | dict(own)
    given = fill_from_preset(DistillOptions, given)
    if given.get("select") == "dev":
        given["metric"] = task.metric
    settings = {**defaults, **given}
    settings["objective"] = choose_objective(settings["objective"], task.task)
    teaching = {name: settings.pop(option) for name, option in TEACHER_OPTIONS.items() if option in settings}
    teaching |= {name: settings[name] for name in COMMON_OPTIONS if name in settings}
    if not task.task.labels:  # a number has no entropy
        teaching["confidence_penalty"] = 0.0
    options = {name: value for name, value in given.items() if name not in TEACHER_OPTIONS.values()}
    return _Settings(teaching, settings, options)


def _teachers(
    planner: Planner, row: DistillSpec, domain: DomainSpec, task: TaskSpec, seed: int
) -> Iterator[FinetuneJob]:
    """Yield the fine-tuning jobs with this task, this seed, and the model that the teacher starts from."""
    wanted = (row.teacher.model, domain.name, row.teacher.method, task.name, seed)
    for job in planner.graph.entries:
        place = job.place
        found = (place.model, place.domain, place.method, place.task, place.seed)
        if isinstance(job, FinetuneJob) and job.is_scored and found == wanted:
            yield job


def _add_row(planner: Planner, row: DistillSpec, domain: DomainSpec, task: TaskSpec, seed: int) -> None:
    """Add the jobs of one row for one task and seed: the students, and the teacher unless it is already trained."""
    from acclimate.data.task_kinds import find_task_kind

    loaded = planner.inputs.tasks[domain.name, task.name].task
    students = row.student_names([model.name for model in planner.config.models])
    settings = _row_settings(planner, row, domain, task, students)
    turn = planner.config.adapt_seeds[planner.config.seeds.index(seed) % len(planner.config.adapt_seeds)]
    if row.teacher.path:
        teacher: Model = planner.inputs.extras["distill"][row.teacher.path]
        place, taught = Place(model=row.teacher.name), turn
    else:
        tuned = next(_teachers(planner, row, domain, task, seed))  # every method is fine-tuned on every task
        teacher, place = tuned.model, tuned.place
        taught = turn if place.adapt_seed is None else place.adapt_seed
    if isinstance(teacher, Job) or not find_task_kind(loaded).is_model_of(teacher.path, loaded):
        teaching = settings[""].teaching
        taught = seed if teaching.get("few_shot") else taught
        full = {**planner.inputs.options[TeacherJob.name], **teaching}
        job = TeacherJob(place=place, model=teacher, task=loaded, settings=full, seed=taught, options=teaching)
        teacher = planner.add(job.at(domain=domain.name, task=task.name, seed=taught))
    for student in students:
        planner.add(
            DistillJob(
                place=Place(model=student, domain=domain.name, method=row.label, task=task.name, seed=seed),
                teacher=teacher,
                student=planner.inputs.checkpoints[student],
                task=loaded,
                settings=settings[student].settings,
                seed=seed,
                options=settings[student].options,
            )
        )


def _distillation_rows(
    inputs: StudyInputs, choices: Choices, of_teacher: bool
) -> Iterator[tuple[DistillSpec, DomainSpec, TaskSpec, str, Lists, JobGraph]]:
    """Yield for each row of distillation and task: row, domain, task, metric, values to try, and graph of base jobs.

    Args:
        inputs: Inputs of the search.
        choices: Settings chosen in earlier stages.
        of_teacher: Select the settings of the teacher, or all others.
    """
    graphs: dict[tuple[str, str], JobGraph] = {}
    for row in distill_rows(inputs.config):
        given = {**search_settings(inputs).distill, **(row.search or {})}
        chosen = {name: values for name, values in given.items() if (name in TEACHER_OPTIONS.values()) == of_teacher}
        lists: Lists = {("distill", name): values for name, values in chosen.items()}
        for domain, task, metric in tasks_with_metric(inputs) if lists else ():
            if not row.is_for(domain.name):
                continue
            place = (domain.name, task.name)
            if place not in graphs:
                part = domain.model_copy(update={"tasks": [task]})
                graphs[place] = plan_chosen(inputs, choices, [part])
            yield row, domain, task, metric, lists, graphs[place]


def _plan_row(
    inputs: StudyInputs, graph: JobGraph, row: DistillSpec, domain: DomainSpec, task: TaskSpec, choices: Choices
) -> JobGraph:
    """Return ``graph`` extended by the jobs of one row of distillation on one task."""
    part = domain.model_copy(update={"tasks": [task]})
    rows = {"distill": [row.model_copy(update={"domains": None})]}
    changes = {"domains": [part], "sections": rows}
    return extend(graph, replace(inputs, config=inputs.config.model_copy(update=changes)), choices)


def _search(stage: SearchStage, inputs: StudyInputs, choices: Choices, *, of_teacher: bool) -> None:
    """Add the searches of settings of teachers, or of distillations, which have one per student."""
    settings, seeds = search_settings(inputs), inputs.config.seeds
    name = "teacher" if of_teacher else "distillation"
    tolerance = settings.teacher_tolerance if of_teacher else settings.tolerance
    for row, domain, task, metric, lists, graph in _distillation_rows(inputs, choices, of_teacher):
        students = row.student_names([model.name for model in inputs.config.models])
        for student in [""] if of_teacher else students:
            place = (student, domain.name, task.name, row.label)
            search = Search(name, [place], metric, tolerance, count_combinations(lists))
            alone = row if of_teacher else row.model_copy(update={"students": [student]})
            for choice in choices_to_try(inputs, lists):
                planned = _plan_row(inputs, graph, alone, domain, task, {**choices, place: choice}).entries
                scored: list[Job] = [job for job in planned if isinstance(job, DistillJob)]
                if of_teacher:  # one entry per seed; none if the teacher already is a classifier of the task
                    teachers = [job for job in planned if isinstance(job, TeacherJob)]
                    pairs = zip(teachers, seeds, strict=False)
                    scored = [job.as_trial(replace(job.place, seed=seed)) for job, seed in pairs]
                if scored:
                    stage.add_trial(search, choice, scored)
            if search.trials:
                stage.searches.append(search)


def _retained(rows: Sequence[DistillationRow]) -> list[Entry]:
    """Return the mean scores over tasks: teacher, student before and after, and the last in percent of the first."""
    teacher, before, after = np.mean([[row.teacher, row.before, row.after] for row in rows], axis=0).tolist()
    retained = after / teacher if teacher else None
    return [number_entry(value, scale=100) for value in (teacher, before, after, retained)]


@styled
def teacher_agreement(results: StudyResults) -> str:
    """Draw the disagreement with the teacher by epoch (Eq. 4 of DoKTra); empty if it was not measured.

    A panel per student and task, a line per distillation. All panels share a y axis that starts at zero.
    """
    panels: dict[str, list[DistillationRow]] = {}
    for row in (row for row in results.rows.get("distill", []) if row.disagreement):
        panels.setdefault(row_place(results, row), []).append(row)
    if not panels:
        return ""
    from matplotlib.ticker import MaxNLocator

    colours = colour_index(results)
    methods = list(dict.fromkeys(row.method for rows in panels.values() for row in rows))
    figure, grid = panel_grid(list(panels), (3.2, 2.4), "epoch", "disagreement, % of units", sharey=True)
    for axes, rows in zip(grid, panels.values(), strict=True):
        for row in rows:
            _draw_agreement(axes, row, marker(methods.index(row.method)), series(colours[row.method]))
        axes.grid(color=GRID, linewidth=0.8)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    grid[0].set_ylim(bottom=0)
    method_legend(figure, methods, colours)
    return svg(figure, "agreement", "Share of units on which teacher and student disagree during training")


def teacher_agreement_table(results: StudyResults) -> Table:
    """Return the disagreement with the teacher before distillation and after each epoch."""
    names = ["task", "method", "epoch", "phase", "units that differ", "of", "%"]
    table = Table("Agreement with the teacher", "", names)
    for row in results.rows.get("distill", []):
        for epoch, (count, percent) in enumerate(zip(row.disagreement, _percentages(row), strict=True)):
            phase = "before" if not epoch else "distillation" if epoch <= row.distilled_epochs else "refinement"
            cells = [Entry(row_place(results, row)), Entry(row.method), count_entry(epoch), Entry(phase)]
            table.rows.append([*cells, number_entry(count), count_entry(row.units), number_entry(percent)])
    return table


def _percentages(row: DistillationRow) -> list[float]:
    return [100 * count / row.units for count in row.disagreement]


def _draw_agreement(axes: Axes, row: DistillationRow, mark: str, colour: str) -> None:
    """Draw one distillation: filled markers during distillation, hollow ones during refinement."""
    percentages, switch = _percentages(row), row.distilled_epochs + 1
    axes.plot(range(len(percentages)), percentages, color=colour, linewidth=1.5)
    for epochs, fill in ((range(switch), colour), (range(switch, len(percentages)), CARD)):
        heights = [percentages[epoch] for epoch in epochs]
        axes.plot(epochs, heights, mark, color=colour, markerfacecolor=fill, markersize=5)
