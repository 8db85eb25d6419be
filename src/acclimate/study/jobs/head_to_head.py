"""Adapted models against their base model: the settings of each side searched, and those of one side on both.

Jeong et al. (2024) search prompts for each model and find that most adapted medical models tie with their base model
or lose. With prompts that suit the adapted model alone, most of them seem to win.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, ClassVar

from acclimate.base.records import Record, optional
from acclimate.evaluation.significance import number_groups, paired_difference, share_interval
from acclimate.results.cells import DASH, Entry, Table, count_entry, interval_entry, signed_entry
from acclimate.results.scores import HELPED, HURT, NO_DIFFERENCE, Comparison, Interval
from acclimate.results.study import StudyResults
from acclimate.study.graph import Choice
from acclimate.study.job import Job, JobResult, Planner, StudyView, register
from acclimate.study.jobs.finetune import FinetuneJob, scored_runs
from acclimate.study.summary import TaskResult, compare_runs, pair_by_seed, test_of

BORROWED = "settings of another row"
"""Role of a fine-tuning of the baseline with the settings that were chosen for another row."""
SETTINGS, PROMPTS = "fine-tuning settings", "prompts"
Place = tuple[str, str, str, str]
"""Model, domain, task and row label."""
NOTE = (
    "Number of tasks on which the 95 % interval lies above zero, includes zero, or lies below zero. First with what "
    "was searched on dev for each side; then, as a warning, with what was chosen for the method on both sides, which "
    "favors the method. Share helped: Wilson interval over tasks. Mean difference: in percentage points, with an "
    "interval over tasks, so about other tasks of this kind."
)


class HeadToHeadRow(Record):
    """On how many tasks an adapted model beats its base model, if the settings of each side were searched.

    Attributes:
        searched: What was searched on dev: ``"fine-tuning settings"`` or ``"prompts"``.
        biased: Whether the base model has the settings that were chosen for the adapted one, which favors the latter.
        tasks: Tasks with a comparison.
        unanswered: Tasks without a verdict.
        helped: Tasks whose 95 % interval lies above zero.
        hurt: Tasks whose interval lies below zero.
        helped_low: Lower end of the 95 % interval of the share of tasks on which it helped, over tasks (Wilson).
        helped_high: Upper end of that interval.
        difference: Mean over tasks of the difference in the metric of each, with a 95 % interval over tasks, so about
            other tasks of this kind; None for a single test set.
        test_sets: Number of distinct test sets; tasks of one are resampled together.
    """

    model: str
    method: str
    searched: str
    biased: bool
    tasks: int
    unanswered: int
    helped: int
    hurt: int
    helped_low: float
    helped_high: float
    difference: Interval | None = optional()
    test_sets: int = 0


@register("head_to_head", summary="wins with settings or prompts that were searched for each side")
class HeadToHead(Job):
    """Plans fine-tunings of the baseline with the settings of other rows; there are no jobs of this kind."""

    row_type: ClassVar[type[Record] | None] = HeadToHeadRow
    on_top: ClassVar[bool] = True

    @classmethod
    def finish(cls, planner: Planner) -> None:
        """Add fine-tunings of the baseline with the settings of each other row, if the study asks for them."""
        config, inputs = planner.config, planner.inputs
        if config.search is None or not config.search.biased:
            return
        tasks = {(domain.name, task.name): task for domain in config.domains for task in domain.tasks}
        for job in list(planner.graph.entries):
            if not isinstance(job, FinetuneJob) or not job.is_scored or job.place.method != config.baseline:
                continue
            model, home, name = str(job.place.model), str(job.place.domain), str(job.place.task)
            for label in (method.label for method in config.methods if method.label != config.baseline):
                choice: Choice | None = planner.settings.get((model, home, name, label))
                if choice and choice.section("finetune"):
                    task = choice.apply_to_task(tasks[home, name])
                    changed = FinetuneJob.of(inputs, home, task, job.seed, job.place, job.model)
                    planner.add(changed.at(method=label, role=BORROWED))

    @classmethod
    def rows(cls, view: StudyView) -> dict[str, list[Any]]:
        """Return two rows per model and row label: with the settings of each side, and of the adapted side on both."""
        runs = scored_runs(view)
        borrowed: dict[Place, Sequence[JobResult[Any]]] = {}
        for group in view.group(TaskResult, lambda job: job.place.role == BORROWED).values():
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
        rows = [count_head_to_head(*place, SETTINGS, entries) for place, entries in found.items()]
        baseline = view.inputs.config.baseline
        asked = {
            (*place[:3], None if place[3] == baseline else place[3]): own
            for place, own in runs.items()
            if all(run.result.chosen is not None for run in own)
        }
        metrics = {place: view.inputs.tasks[str(place[1]), str(place[2])].metric for place in asked}
        return {cls.name: rows + compare_prompts(asked, metrics)}

    @classmethod
    def tables(cls, results: StudyResults) -> list[Table]:
        """Return the verdicts over tasks, with what was searched for each side, and for the adapted side alone."""
        names = ["model", "method", "searched", "chosen for", "tasks", HELPED, NO_DIFFERENCE, HURT]
        names += ["share helped, 95 %", "mean difference", "95 % interval"]
        table = Table("Head-to-head", NOTE, names)
        for row in results.rows[cls.name]:
            cells = [Entry(row.model), Entry(row.method), Entry(row.searched)]
            cells.append(Entry("the method alone (biased)" if row.biased else "each side"))
            same = row.tasks - row.unanswered - row.helped - row.hurt
            cells += map(count_entry, (row.tasks, row.helped, same, row.hurt))
            cells.append(Entry(f"{100 * row.helped_low:.0f} to {100 * row.helped_high:.0f} %", row.helped_low))
            entry = row.difference
            shown = (
                entry and isfinite(entry.low) and [signed_entry(entry.difference, scale=100), interval_entry(entry)]
            )
            table.rows.append([*cells, *(shown or [DASH, DASH])])
        return [table]

    @classmethod
    def caveats(cls, results: StudyResults) -> list[str]:
        """Warn where a search for the adapted model alone would show more wins than a search for each side."""
        fair = {(row.model, row.method, row.searched): row for row in results.rows[cls.name] if not row.biased}
        found = []
        for row in results.rows[cls.name]:
            other = fair.get((row.model, row.method, row.searched))
            if row.biased and other and (row.helped, row.hurt) != (other.helped, other.hurt):
                found.append(
                    f"With {row.searched} that were chosen for '{row.method}' alone, it helped on {row.helped} of "
                    f"{row.tasks} tasks and hurt on {row.hurt}, instead of {other.helped} and {other.hurt}: a "
                    "comparison without a search for the base model would be misleading."
                )
        return found


def compare_prompts(runs: Mapping[Any, Sequence[JobResult[Any]]], metrics: Mapping[Any, str]) -> list[HeadToHeadRow]:
    """Return the same for prompts.

    Args:
        runs: Runs by model, domain, task and row label, None for the base model, whose results have the predictions
            with all prompts.
        metrics: The metric of each.
    """
    found: dict[tuple[str, str, bool], list[tuple[Comparison, str]]] = {}
    for place, ours in runs.items():
        model, domain, task, method = place
        metric, base = metrics[place], runs.get((model, domain, task, None), ())
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
    """Return the verdicts over tasks, with intervals over tasks; those of one test set are one unit.

    Args:
        model: Name of the base model.
        method: Row label.
        biased: Whether the base model has the settings of the adapted one.
        searched: What was searched.
        compared: The comparison on each task, with the identity of its test set.
    """
    entries = [entry for entry, _ in compared]
    answered = [(entry.verdict, test) for entry, test in compared if entry.is_answered]
    verdicts, tests = zip(*answered, strict=True) if answered else ((), ())
    hits = [verdict == HELPED for verdict in verdicts]
    low, high = share_interval(hits, number_groups(tests)) if answered else (0.0, 1.0)
    differences, sets = [entry.difference for entry in entries], number_groups([test for _, test in compared])
    several = len(set(sets)) > 1
    mean = paired_difference(differences, [0.0] * len(sets), groups=sets).as_dict() if several else None
    return HeadToHeadRow(
        model=model,
        method=method,
        searched=searched,
        biased=biased,
        tasks=len(entries),
        unanswered=len(entries) - len(answered),
        helped_low=low,
        helped_high=high,
        test_sets=len(set(sets)),
        difference=None if mean is None else Interval.from_dict(mean),
        **{verdict: verdicts.count(verdict) for verdict in (HELPED, HURT)},
    )
