"""Hyper-parameter search on the dev splits, in stages.

The first stage searches the settings of methods: fine-tuning, adaptation, parameters. Kinds of jobs that build on the
models of the first stage add further stages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from acclimate.base.errors import UserError, warn_once
from acclimate.results.scores import SearchRow, TrialRow
from acclimate.study.config import DomainSpec, MethodSpec
from acclimate.study.graph import Choice, Choices, SearchPlace, narrow, plan, plan_models
from acclimate.study.inputs import StudyInputs
from acclimate.study.job import Job, JobGraph, Outcome, Place, used_kinds
from acclimate.study.method_inputs import check_not_shared, read_method
from acclimate.study.sections import SearchSettings, combinations, count_combinations
from acclimate.study.settings import UNADAPTED, TaskSpec
from acclimate.tasks.recipe import rates_to_try

log = logging.getLogger(__name__)

Lists = dict[tuple[str, str], list[Any]]
"""Values to try, by section and name."""
Fill = Callable[["SearchStage", StudyInputs, Choices], None]
"""Adds the searches of a stage, given the inputs, in which dev replaces test, and the settings chosen so far."""
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
        stage: What is searched: ``"method"``, or a name that a kind of job gives.
        places: The places that get the chosen settings.
        metric: The metric to maximize.
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
class SearchStage:
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
    for stage in search_stages(inputs, found.choices):
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


def search_stages(inputs: StudyInputs, choices: Choices) -> Iterator[SearchStage]:
    """Yield the stages that have searches. After each, the caller adds the chosen settings to ``choices``."""
    for fill in (_search_methods, *(fill for kind in used_kinds(inputs.config) for fill in kind.search_stages())):
        stage = SearchStage()
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
    for domain, task, _ in tasks_with_metric(inputs):
        if search.tune and inputs.has_default_rate(domain.name, task) and not inputs.is_tuned(domain.name, task):
            warn_once(f"The learning rate of '{task.name}' is not searched: the task has no dev split to choose by.")
    for domain, task in inputs.searched_tasks:
        metric = inputs.tasks[domain.name, task.name].metric
        trial = inputs.trial.tasks[domain.name, task.name].task  # raises if there is no dev split
        if metric not in trial.scoring(negative=task.negative).metrics:
            raise UserError(
                f"study: the metric of '{task.name}' is {metric}, which its dev split does not have, so settings "
                "cannot be searched on it; add documents to the dev rows, or choose another metric."
            )
    if search.per != "method" and (search.adapt or any(method.search for method in config.methods)):
        raise UserError(
            f"study: with 'search.per: {search.per}' all methods share the same settings, so only those of "
            "fine-tuning can be searched; search settings of adaptation and of methods with 'per: method'."
        )
    given = [*search.adapt, *(name for method in config.methods if method.search for name in method.search.adapt)]
    check_not_shared(given, "search.adapt")
    for method in config.methods:
        parameters = method.search.parameters if method.search else {}
        lists = {("parameters", name): values for name, values in parameters.items()}
        for combination in combinations(lists, "one-factor", 0) if lists else ():
            read_method(Choice.of(combination).apply_to_method(method))


def search_settings(inputs: StudyInputs) -> SearchSettings:
    """Return the ``search`` section of a study that has one."""
    assert inputs.config.search is not None, "nothing to search"
    return inputs.config.search


def choices_to_try(inputs: StudyInputs, lists: Lists) -> list[Choice]:
    """Return the combinations of values that the study tries."""
    settings = search_settings(inputs)
    return [Choice.of(one) for one in combinations(lists, settings.combinations, settings.seed)]


def tasks_with_metric(inputs: StudyInputs) -> Iterator[tuple[DomainSpec, TaskSpec, str]]:
    """Yield domain, task and primary metric of each task."""
    for domain in inputs.config.domains:
        for task in domain.tasks:
            yield domain, task, inputs.tasks[domain.name, task.name].metric


def _search_methods(stage: SearchStage, inputs: StudyInputs, choices: Choices) -> None:
    config, settings = inputs.config, search_settings(inputs)
    groups: list[tuple[list[MethodSpec], list[str]]] = [([method], [method.label]) for method in config.methods]
    if settings.per == "task":
        groups = [(config.methods, [method.label for method in config.methods])]
    elif settings.per == "base":
        base = next((one for one in config.methods if one.name == UNADAPTED), MethodSpec(name=UNADAPTED))
        groups = [([base], config.row_labels)]
    for model in config.models:
        for domain, task, metric in tasks_with_metric(inputs):
            for group, labels in groups:
                lists = config.search_lists(task, group)
                if inputs.is_tuned(domain.name, task):
                    rates = rates_to_try(inputs.checkpoints[model.name].width)
                    lists.setdefault(("finetune", "learning_rate"), rates)
                if not lists:
                    continue
                places = [(model.name, domain.name, task.name, label) for label in labels]
                search = Search("method", places, metric, settings.tolerance, count_combinations(lists))
                for choice in choices_to_try(inputs, lists):
                    part = plan_models(narrow(inputs, model, domain, task, group, choice))
                    stage.add_trial(search, choice, [job for job in part.entries if job.is_scored])
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


def _decide(search: Search, stage: SearchStage, found: SearchOutcome, guess: bool) -> None:
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


def _search_row(
    search: Search, stage: SearchStage, scored: Sequence[TrialScore], best: TrialScore | None
) -> SearchRow:
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
