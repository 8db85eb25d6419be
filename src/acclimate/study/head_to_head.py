"""Adapted models against their base model: the settings of each side searched, and those of one side on both.

Jeong et al. (2024) search prompts for each model and find that most adapted medical models tie with their base model
or lose. With prompts that suit the adapted model alone, most of them seem to win.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from acclimate.evaluation.significance import number_groups, paired_difference, share_interval
from acclimate.results.comparisons import HeadToHeadRow
from acclimate.results.scores import Comparison, Interval
from acclimate.study.graph import Choice
from acclimate.study.job import JobResult, Planner, StudyView
from acclimate.study.summary import TaskRuns, compare_runs, pair_by_seed, test_of

BORROWED = "settings of another row"
"""Role of a fine-tuning of the baseline with the settings that were chosen for another row."""
SETTINGS, PROMPTS = "fine-tuning settings", "prompts"
Place = tuple[str, str, str, str]
"""Model, domain, task and row label."""


def add_borrowed(planner: Planner, change: Any) -> None:
    """Add fine-tunings of the baseline with the settings of each other row, if the study asks for them.

    Args:
        planner: The planner, with the jobs of all rows.
        change: Function of a job and a :class:`Choice` that returns the job with the settings of fine-tuning.
    """
    config = planner.config
    if config.search is None or not config.search.biased:
        return
    for job in [job for job in planner.graph.entries if job.is_scored and job.place.method == config.baseline]:
        for label in (method.label for method in config.methods):
            place = (str(job.place.model), str(job.place.domain), str(job.place.task), label)
            choice: Choice | None = planner.settings.get(place)
            if label != config.baseline and choice and choice.section("finetune"):
                planner.add(change(job, choice).at(method=label, role=BORROWED))


def compare_settings(view: StudyView, runs: Mapping[Any, TaskRuns], result_type: type[Any]) -> list[HeadToHeadRow]:
    """Return the wins over tasks with the settings of each side, and with those of the adapted side on both.

    Args:
        view: The finished jobs.
        runs: Scored runs by model, domain, task and row label.
        result_type: Type of their results.

    Returns:
        Two rows per model and row label, the fair one first; none if the study does not search both.
    """
    borrowed: dict[Place, Sequence[JobResult[Any]]] = {}
    for group in view.group(result_type, lambda job: job.place.role == BORROWED).values():
        one = group[0].job.place
        borrowed[str(one.model), str(one.domain), str(one.task), str(one.method)] = group
    found: dict[tuple[str, str, bool], list[tuple[Comparison, str]]] = {}
    for place, theirs in borrowed.items():
        base = runs.get((*place[:3], view.inputs.config.baseline), ())
        metric = view.inputs.tasks[place[1], place[2]].metric
        for biased, reference in ((False, base), (True, theirs)):
            if compared := compare_runs(runs.get(place, ()), reference, metrics=[metric]):
                tested = compared.metrics[metric], test_of(runs[place])
                found.setdefault((place[0], place[3], biased), []).append(tested)
    return [count_head_to_head(*place, SETTINGS, entries) for place, entries in found.items()]


def compare_prompts(runs: Mapping[Any, Sequence[JobResult[Any]]], metric: str) -> list[HeadToHeadRow]:
    """Return the same for prompts.

    Args:
        runs: Runs by model, domain, task and row label, None for the base model. Their results have the predictions
            with all prompts.
        metric: The metric.
    """
    found: dict[tuple[str, str, bool], list[tuple[Comparison, str]]] = {}
    for (model, domain, task, method), ours in runs.items():
        base = runs.get((model, domain, task, None), ())
        if method is None or not base:
            continue
        pairs: list[tuple[JobResult[Any], JobResult[Any]]] = pair_by_seed(ours, base)
        theirs = [JobResult(other.job, other.result.with_prompt(run.result.chosen)) for run, other in pairs]
        for biased, reference in ((False, base), (True, theirs)):
            if compared := compare_runs(ours, reference, metrics=[metric]):
                found.setdefault((model, str(method), biased), []).append((compared.metrics[metric], test_of(ours)))
    return [count_head_to_head(*place, PROMPTS, entries) for place, entries in found.items()]


def count_head_to_head(
    model: str, method: str, biased: bool, searched: str, compared: Sequence[tuple[Comparison, str]]
) -> HeadToHeadRow:
    """Return wins, ties and losses over tasks, with intervals over tasks; those of one test set are one unit.

    Args:
        model: Name of the base model.
        method: Row label.
        biased: Whether the base model has the settings of the adapted one.
        searched: What was searched.
        compared: The comparison on each task, with the identity of its test set.
    """
    entries = [entry for entry, _ in compared]
    verdicts = [entry.verdict for entry in entries]
    counts = {verdict: verdicts.count(verdict) for verdict in ("win", "tie", "loss")}
    answered = sum(counts.values())
    wins = [(entry.verdict == "win", test) for entry, test in compared if entry.is_answered]
    low, high = (
        share_interval([win for win, _ in wins], number_groups([test for _, test in wins])) if wins else (0.0, 1.0)
    )
    differences, sets = [entry.difference for entry in entries], number_groups([test for _, test in compared])
    several = len(set(sets)) > 1
    mean = paired_difference(differences, [0.0] * len(sets), groups=sets).as_dict() if several else None
    return HeadToHeadRow(
        model=model,
        method=method,
        searched=searched,
        biased=biased,
        tasks=len(entries),
        unanswered=len(entries) - answered,
        win_low=low,
        win_high=high,
        test_sets=len(set(sets)),
        difference=None if mean is None else Interval.from_dict(mean),
        **counts,
    )
