"""Hyper-parameter search on the dev splits, in stages.

The first stage searches the settings of methods: fine-tuning, adaptation, parameters. The second searches the settings
of teachers, whose models come from the first stage; the third those of distillation, which needs the teachers. The
DoKTra paper searches in the same order: fine-tuning of the student, penalty of the teacher, distillation.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from acclimate.errors import UserError
from acclimate.rows import SearchRow, TrialRow
from acclimate.study.config import DomainSpec, MethodSpec, TaskSpec
from acclimate.study.graph import Choice, Choices, SearchPlace, extend, narrow, plan, plan_chosen, plan_models
from acclimate.study.inputs import StudyInputs, check_not_shared, read_method
from acclimate.study.jobs.base import Job, JobGraph, Outcome, Place
from acclimate.study.jobs.distill import TEACHER_OPTIONS, DistillJob
from acclimate.study.jobs.finetune import FinetuneJob
from acclimate.study.jobs.teacher import TeacherJob
from acclimate.study.sections import DistillSpec, SearchSettings, combinations, count_combinations

log = logging.getLogger(__name__)

Lists = dict[tuple[str, str], list[Any]]
"""Values to try, by section and name."""
Execute = Callable[[JobGraph], Mapping[str, Outcome]]
"""Computes the jobs of a graph, or looks up their stored results, and returns the outcomes by key."""


@dataclass(frozen=True)
class Trial:
    """A combination of settings, and the keys of the jobs that measure its dev scores, one per seed and method."""

    choice: Choice
    keys: list[str]


@dataclass
class Search:
    """The search for the best settings of one place, or of several that share their settings.

    Attributes:
        stage: ``"method"``, ``"teacher"`` or ``"distillation"``.
        places: The places that get the chosen settings.
        metric: The metric to maximise.
        tolerance: See :class:`acclimate.study.sections.SearchSettings`.
        possible: Number of possible combinations.
        trials: The combinations to try.
    """

    stage: str
    places: list[SearchPlace]
    metric: str
    tolerance: float
    possible: int
    trials: list[Trial] = field(default_factory=list)


@dataclass
class Stage:
    """Searches that do not depend on each other, and the graph of their jobs."""

    graph: JobGraph = field(default_factory=JobGraph)
    searches: list[Search] = field(default_factory=list)

    def add_trial(self, search: Search, choice: Choice, scored: Sequence[Job]) -> None:
        """Add a trial, the jobs that measure its scores, and the jobs that these need."""
        for job in scored:
            for link in (*reversed(job.chain[1:]), job.at(search=choice.text)):
                if link.key not in self.graph.jobs:
                    self.graph.add(link)
        search.trials.append(Trial(choice, [job.key for job in scored]))


@dataclass
class SearchOutcome:
    """The outcome of all searches of a study.

    Attributes:
        choices: The chosen settings.
        rows: One row per search, for the results.
        outcomes: Outcomes of all jobs of the searches, by key.
        complete: Whether settings were chosen in every search.
        ignored: Keys of jobs that failed or were blocked, in searches that chose another combination.
    """

    choices: dict[SearchPlace, Choice] = field(default_factory=dict)
    rows: list[SearchRow] = field(default_factory=list)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    complete: bool = True
    ignored: set[str] = field(default_factory=set)


def run_search(inputs: StudyInputs, execute: Execute, *, guess: bool = False) -> SearchOutcome:
    """Run all searches of a study.

    In their tasks dev replaces test, so no job of a search can read a test split. No seed of a search is scored.

    Args:
        inputs: Inputs of the study.
        execute: Computes the jobs of a stage.
        guess: Where no settings can be chosen yet, continue with the first combination, to count the later jobs.
    """
    found = SearchOutcome()
    if inputs.config.search is None:
        return found
    for stage in stages(inputs, found.choices):
        found.outcomes |= execute(stage.graph)
        for search in stage.searches:
            _decide(search, stage, found, guess)
        if not (found.complete or guess):
            break
    return found


def final_graph(inputs: StudyInputs, found: SearchOutcome) -> JobGraph:
    """Return the jobs of a study with the settings that the search chose; empty if the search is not complete."""
    if not found.complete:
        return JobGraph()
    return plan(inputs, found.choices if found.rows else None)


def stages(inputs: StudyInputs, choices: Choices) -> Iterator[Stage]:
    """Yield the stages that have searches. After each, the caller adds the chosen settings to ``choices``."""
    for fill in (_search_methods, _search_teachers, _search_distillations):
        stage = Stage()
        fill(stage, inputs.trial, choices)
        if stage.searches:
            yield stage


def check_search(inputs: StudyInputs) -> None:
    """Validate the names and values of a search before any job runs.

    Raises:
        UserError: If a setting or value is wrong, or a task has no dev split.
    """
    config = inputs.config
    if (search := config.search) is None:
        return
    if not any(domain.tasks for domain in config.domains):
        raise UserError("study: there is no task to search settings on; give a domain 'tasks', or remove 'search'.")
    for domain, task in config.searched_tasks:
        metric = inputs.tasks[domain.name, task.name].metric
        trial = inputs.trial.tasks[domain.name, task.name].task  # raises if there is no dev split
        if metric not in trial.scoring(negative=task.negative).metrics:
            raise UserError(
                f"study: '{task.name}' is evaluated on {metric}, which its dev split does not have, so nothing can be "
                "searched on it; add documents to its dev rows, or choose another metric."
            )
    if search.per == "task" and (search.adapt or any(method.search for method in config.methods)):
        raise UserError(
            "study: with search.per: task all methods share their settings, and not all have parameters or an "
            "adaptation; search these with per: method."
        )
    given = [*search.adapt, *(name for method in config.methods if method.search for name in method.search.adapt)]
    check_not_shared(given, "search.adapt")
    for method in config.methods:
        parameters = method.search.parameters if method.search else {}
        lists = {("parameters", name): values for name, values in parameters.items()}
        for combination in combinations(lists, "one-factor", 0) if lists else ():
            read_method(Choice.of(combination).apply_to_method(method))


def _settings(inputs: StudyInputs) -> SearchSettings:
    assert inputs.config.search is not None, "nothing to search"
    return inputs.config.search


def _choices(inputs: StudyInputs, lists: Lists) -> list[Choice]:
    settings = _settings(inputs)
    return [Choice.of(one) for one in combinations(lists, settings.combinations, settings.seed)]


def _tasks(inputs: StudyInputs) -> Iterator[tuple[DomainSpec, TaskSpec, str]]:
    """Yield domain, task and primary metric of each task."""
    for domain in inputs.config.domains:
        for task in domain.tasks:
            yield domain, task, inputs.tasks[domain.name, task.name].metric


def _search_methods(stage: Stage, inputs: StudyInputs, choices: Choices) -> None:
    config, settings = inputs.config, _settings(inputs)
    groups: list[list[MethodSpec]] = (
        [config.methods] if settings.per == "task" else [[method] for method in config.methods]
    )
    for model in config.models:
        for domain, task, metric in _tasks(inputs):
            for group in groups:
                if not (lists := config.search_lists(task, group)):
                    continue
                places = [(model.name, domain.name, task.name, method.label) for method in group]
                search = Search("method", places, metric, settings.tolerance, count_combinations(lists))
                for choice in _choices(inputs, lists):
                    part = plan_models(narrow(inputs, model, domain, task, group, choice))
                    scored = [job for job in part.entries if type(job) is FinetuneJob and job.place.role is None]
                    stage.add_trial(search, choice, scored)
                stage.searches.append(search)


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
    for row in inputs.config.distill:
        given = {**_settings(inputs).distill, **(row.search or {})}
        chosen = {name: values for name, values in given.items() if (name in TEACHER_OPTIONS.values()) == of_teacher}
        lists: Lists = {("distill", name): values for name, values in chosen.items()}
        for domain, task, metric in _tasks(inputs) if lists else ():
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
    changes = {"domains": [part], "distill": [row.model_copy(update={"domains": None})]}
    return extend(graph, replace(inputs, config=inputs.config.model_copy(update=changes)), choices)


def _search_teachers(stage: Stage, inputs: StudyInputs, choices: Choices) -> None:
    for row, domain, task, metric, lists, graph in _distillation_rows(inputs, choices, of_teacher=True):
        place = ("", domain.name, task.name, row.label)
        search = Search("teacher", [place], metric, _settings(inputs).teacher_tolerance, count_combinations(lists))
        for choice in _choices(inputs, lists):
            part = _plan_row(inputs, graph, row, domain, task, {**choices, place: choice})
            teachers = [job for job in part.entries if isinstance(job, TeacherJob)]  # one entry per seed
            scored = [_as_trial(job, seed) for job, seed in zip(teachers, inputs.config.seeds, strict=False)]
            if scored:  # empty if the teacher already is a classifier of the task and is not fine-tuned
                stage.add_trial(search, choice, scored)
        if search.trials:
            stage.searches.append(search)


def _as_trial(job: TeacherJob, seed: int) -> FinetuneJob:
    return job.as_trial(replace(job.place, seed=seed))


def _search_distillations(stage: Stage, inputs: StudyInputs, choices: Choices) -> None:
    for row, domain, task, metric, lists, graph in _distillation_rows(inputs, choices, of_teacher=False):
        for student in row.student_names([model.name for model in inputs.config.models]):
            place = (student, domain.name, task.name, row.label)
            search = Search("distillation", [place], metric, _settings(inputs).tolerance, count_combinations(lists))
            alone = row.model_copy(update={"students": [student]})
            for choice in _choices(inputs, lists):
                part = _plan_row(inputs, graph, alone, domain, task, {**choices, place: choice})
                stage.add_trial(search, choice, [job for job in part.entries if isinstance(job, DistillJob)])
            stage.searches.append(search)


@dataclass(frozen=True)
class TrialScore:
    """The dev scores of a trial.

    Attributes:
        choice: The settings.
        state: ``"done"``, ``"failed"`` or ``"missing"``.
        by_seed: Score of each job of the trial; empty unless done.
        ece: Mean expected calibration error; None if a job has none.
        errors: Messages of the failed jobs.
    """

    choice: Choice
    state: str
    by_seed: list[float]
    ece: float | None = None
    errors: tuple[str, ...] = ()

    @property
    def score(self) -> float:
        """Mean score of the jobs."""
        return float(np.mean(self.by_seed))


def _decide(search: Search, stage: Stage, found: SearchOutcome, guess: bool) -> None:
    scored = [_score(trial, stage.graph, found.outcomes, search.metric) for trial in search.trials]
    best = choose(scored, search.tolerance)
    failed = [trial for trial, one in zip(search.trials, scored, strict=True) if one.state == "failed"]
    if best is None:
        found.complete = False
    else:
        links = {link.key for trial in failed for key in trial.keys for link in stage.graph.jobs[key].chain}
        found.ignored |= {key for key in links if found.outcomes[key].result is None}
        for one in scored:
            if one.state == "failed":
                log.warning("Search: %s failed and is not compared: %s", one.choice.text, one.errors[0])
    taken = search.trials[0].choice if best is None and guess else best.choice if best else None
    if taken is not None:
        found.choices |= dict.fromkeys(search.places, taken)
    found.rows.append(_search_row(search, stage, scored, best))


def _score(trial: Trial, graph: JobGraph, outcomes: Mapping[str, Outcome], metric: str) -> TrialScore:
    results = [outcomes[key].result for key in trial.keys]
    if any(result is None for result in results):
        links = [outcomes[link.key] for key in trial.keys for link in graph.jobs[key].chain]
        failed = [link.error for link in links if link.state == "failed"]  # the cause, not the jobs it blocked
        return TrialScore(trial.choice, "failed" if failed else "missing", [], errors=tuple(failed))
    metrics = [result.metrics for result in results]
    errors = [float(entry["ece"]) for entry in metrics if "ece" in entry]
    ece = float(np.mean(errors)) if len(errors) == len(metrics) else None
    return TrialScore(trial.choice, "done", [float(entry[metric]) for entry in metrics], ece)


def choose(scored: Sequence[TrialScore], tolerance: float) -> TrialScore | None:
    """Return the best trial; None if a trial is still missing, or all failed.

    Of the trials whose mean score is at most ``tolerance`` below the best, the one with the lowest expected
    calibration error is chosen. Ties, and trials without calibration error, are decided by score, then by order.
    """
    done = [one for one in scored if one.state == "done"]
    if not done or any(one.state == "missing" for one in scored):
        return None
    best = max(one.score for one in done)
    near = [one for one in done if one.score >= best - tolerance - 1e-12]
    return min(near, key=lambda one: (0.0 if one.ece is None else one.ece, -one.score))


def _search_row(search: Search, stage: Stage, scored: Sequence[TrialScore], best: TrialScore | None) -> SearchRow:
    model, domain, task, _ = search.places[0]
    trials = [
        TrialRow(
            settings=one.choice.settings,
            state=one.state,
            score=one.score if one.state == "done" else None,
            by_seed=one.by_seed if one.state == "done" else None,
            ece=one.ece,
            chosen=one is best,
        )
        for one in scored
    ]
    places: list[Place] = [stage.graph.jobs[key].place for key in search.trials[0].keys]
    return SearchRow(
        stage=search.stage,
        model=model,
        domain=domain,
        task=task,
        methods=[place[3] for place in search.places],
        metric=search.metric,
        tolerance=search.tolerance,
        seeds=sorted({place.seed for place in places if place.seed is not None}),
        possible=search.possible,
        tried=len(scored),
        chosen=None if best is None else best.choice.settings,
        trials=trials,
    )
