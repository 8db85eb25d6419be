"""Paired comparison of finished evaluations: which differences are true, for other items and other runs."""

from __future__ import annotations

import platform
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from acclimate.base.errors import UserError, shorten, unknown_name_error
from acclimate.base.files import check_output_folder
from acclimate.base.options import verb
from acclimate.base.verbs import show_place
from acclimate.base.version import __version__
from acclimate.data.documents import count_units, format_count
from acclimate.data.fields import split_name
from acclimate.evaluation.runs import FEW_UNITS, MIN_UNITS, RunDifference, difference_of_runs
from acclimate.evaluation.significance import holm, number_groups
from acclimate.labs.judge.logs import Run, Scores, read_runs
from acclimate.labs.judge.options import JudgeOptions
from acclimate.results.cells import joined, rounded, rounded_interval
from acclimate.results.requirements import Bounds, check_names, decide, parse_requirements
from acclimate.results.scores import (
    BETTER,
    NO_DIFFERENCE,
    TOO_FEW_GROUPS,
    WITHHELD,
    WORSE,
    Comparison,
    Comparisons,
    MetricSummary,
    ScoreRow,
)
from acclimate.results.study import EvaluatedSide, Evaluations, MethodRow, ReportTable, StudyResults

OWN_UNIT = "Scores in their own unit"
OF_SIGN = {1: BETTER, 0: NO_DIFFERENCE, -1: WORSE}
PERCENT = 20
"""Scores of at least this are no shares: a side that has them is not on the scale of one whose scores are shares."""
MAX_NAMED = 3
"""Maximum items that a message names."""
NOTE = (
    "Scores: in percent, mean ± standard deviation over runs. Difference: to the reference, paired by item, in "
    "percentage points. p: of no true difference, below 0.05 exactly if the interval excludes zero; of zeros and ones "
    "of independent items and one run a side it is McNemar's exact test, else Student's t over items or their groups "
    "and over runs; if all items differ by the same amount, by the share of others that may not. p (Holm): "
    "corrected for all comparisons, in the first metric of each task; the verdict is by it."
)


@dataclass
class Side:
    """The runs of one model.

    Attributes:
        name: Name in the results.
        place: The path or pattern that was given.
        copies: Number of runs that were read, if all have the same scores; they count as one.
    """

    name: str
    place: str
    runs: list[Run]
    copies: int = 1

    @property
    def keys(self) -> dict[tuple[str, str], None]:
        """The tasks and metrics that all its runs have, in their order."""
        return {key: None for key in self.runs[0].scores if all(key in run.scores for run in self.runs)}


class Aligned(NamedTuple):
    """The scores of two sides on the same items.

    Attributes:
        first: Scores of the model that is compared (runs, items).
        second: The same of the reference.
        weights: Weight of each item (items,), or None.
        groups: Number of the group of each item (items,), or None.
        group_name: What such a group is.
        is_error: Whether lower is better.
        is_share: Whether the scores of all sides lie between 0 and 1, and higher is better.
    """

    first: np.ndarray
    second: np.ndarray
    weights: np.ndarray | None
    groups: list[int] | None
    group_name: str
    is_error: bool
    is_share: bool

    def mean(self, runs: np.ndarray) -> MetricSummary:
        """Return the scores of the runs."""
        means = np.average(runs, axis=1, weights=self.weights)
        spread = float(means.std(ddof=1)) if len(means) > 1 else None
        return MetricSummary(mean=float(means.mean()), sd=spread, by_seed=means.tolist())


@dataclass
class Judgement:
    """The comparison of one model with the reference on one task in one metric."""

    task: str
    metric: str
    side: Side
    aligned: Aligned
    found: RunDifference
    entry: Comparison
    is_primary: bool

    @property
    def units(self) -> str:
        """The items, and the groups that they are in."""
        groups = None if self.aligned.groups is None else self.found.units
        return count_units(self.aligned.first.shape[1], groups, self.aligned.group_name)

    @property
    def why(self) -> str:
        """Why there is no verdict; empty if there is one."""
        if not self.found.has_enough_units:
            return f"{TOO_FEW_GROUPS}: {self.units}"
        return "" if self.has_interval else "no variation, so no interval"

    @property
    def has_interval(self) -> bool:
        """Whether the difference varies or is bounded, so that it has an interval."""
        return self.found.varies or self.aligned.is_share


@dataclass
class Comparing:
    """What is found while two or more sides are compared."""

    sides: list[Side]
    metrics: Sequence[str]
    notes: list[str] = field(default_factory=list)
    found: list[Judgement] = field(default_factory=list)

    def run(self) -> None:
        """Compare all sides with the first, and correct for the number of comparisons."""
        reference, *others = self.sides
        for side in self.sides:
            self._note_rows(side)
        for side in others:
            keys, theirs = reference.keys, side.keys
            shared = [key for key in keys if key in theirs and (not self.metrics or key[1] in self.metrics)]
            if self.metrics:
                shared.sort(key=lambda key: self.metrics.index(key[1]))  # stable
            tasks = dict.fromkeys(task for task, _ in keys if any(task == other for other, _ in shared))
            for task in tasks:
                for number, metric in enumerate(metric for one, metric in shared if one == task):
                    is_share = are_shares(self.sides, task, metric)
                    found = compare_sides(reference, side, task, metric, is_primary=number == 0, is_share=is_share)
                    self.found.append(found)
            self._note_tasks(reference, side, tasks)
        if not self.found:
            every = [sorted({task for run in side.runs for task, _ in run.scores}) for side in self.sides]
            wanted = f" in {joined(self.metrics)}" if self.metrics else ""
            raise UserError(
                f"No task{wanted} is in all runs of '{reference.name}' and of another side: "
                + "; ".join(f"'{side.name}' has {joined(own)}" for side, own in zip(self.sides, every, strict=True))
                + "."
            )
        for is_error, better in ((True, "Lower"), (False, "Higher")):
            own = [one.metric for one in self.found if not one.aligned.is_share and one.aligned.is_error == is_error]
            if own:
                advice = "" if is_error else "; if not, name it with --lower"
                self.notes.append(f"{better} is better of {joined(list(dict.fromkeys(own)))}{advice}.")
        answered = [one for one in self.found if one.is_primary and not one.why]
        for one, p in zip(answered, holm([one.entry.p or 0.0 for one in answered]), strict=True):
            one.entry = Comparison(**{**vars(one.entry), "p_holm": p})

    def _note_rows(self, side: Side) -> None:
        if side.copies > 1:
            self.notes.append(
                f"The {side.copies} runs of '{side.name}' have the same scores, as copies of one evaluation have; "
                "they count as one run."
            )
        for run in side.runs:
            for reason, count in run.left_out.items():
                self.notes.append(f"'{run.place}': {format_count(count, 'item')} {reason} left out.")

    def _note_tasks(self, reference: Side, side: Side, compared: Iterable[str]) -> None:
        for one, other in ((reference, side), (side, reference)):
            every = {task for run in one.runs for task, _ in run.scores}
            theirs = {task for task, _ in other.keys}
            if alone := sorted(every - theirs):
                where = f"all runs of '{other.name}'" if len(other.runs) > 1 else f"'{other.name}'"
                self.notes.append(f"Not compared, since not in {where}: {joined(alone)} of '{one.name}'.")
        both = {task for task, _ in reference.keys} & {task for task, _ in side.keys}
        if rest := sorted(both - set(compared)):
            pair = f"'{reference.name}' and '{side.name}'"
            self.notes.append(f"Not compared, since {pair} share no metric that was asked for: {joined(rest)}.")


@verb(JudgeOptions)
def judge(options: JudgeOptions) -> StudyResults:
    """Compare finished evaluations with a reference, item by item, over items, their groups and runs.

    Several runs of a side are its seeds or adaptations. If both sides have the same seeds, runs are paired by seed;
    else they are independent. A side with one run is this one model: the interval says nothing about another training
    of it. See :func:`acclimate.evaluation.runs.difference_of_runs`. There is no verdict with fewer than ten items or
    groups, or if one group has more than half of the items.

    Returns:
        The results, as of :func:`acclimate.compare`. With ``out`` the folder has ``report.html``, ``results.json``,
        ``results.md``, ``results.csv`` and ``results.tex``. ``results.decision`` says whether what you ``require`` is
        met.

    Raises:
        UserError: If a log cannot be read, a side lacks items of the other or was evaluated with other settings, or
            no task is in both.
    """
    requirements = parse_requirements(options.require)
    out = None if options.out is None else Path(options.out)
    check_output_folder(out)
    comparing = Comparing(read_sides(options.logs, options.lower), options.metrics)
    comparing.run()
    results = make_results(comparing, options)
    if requirements:
        named = name_bounds(comparing.found, len(comparing.sides) > 2)
        check_names(requirements, named)
        results.decision = decide(requirements, named)
    if out is not None:
        from acclimate.report import write_results

        out.mkdir(parents=True, exist_ok=True)
        results.folder = out
        write_results(results, out)
    return results


def read_sides(logs: Sequence[str], lower: Collection[str] = ()) -> list[Side]:
    """Read the runs of each side, and name it: as given, else by the model in the logs, else by the file or folder.

    Args:
        logs: The sides.
        lower: Metrics of which lower is better, besides those that are known.

    Raises:
        UserError: If a log cannot be read, two sides have one name, or no log has a metric of ``lower``.
    """
    given = [split_name(one) for one in logs]
    runs = [[_with_directions(run, lower) for run in read_runs(place)] for _, place in given]
    measured = dict.fromkeys(metric for own in runs for run in own for _, metric in run.scores)
    if unknown := [metric for metric in lower if metric not in measured]:
        raise unknown_name_error("metric", unknown[0], measured)
    models = ["/".join(dict.fromkeys(run.model for run in own if run.model)) for own in runs]
    choices = [models, [Path(place).stem or place for _, place in given], [place for _, place in given]]
    names = next((own for own in choices if all(own) and len(set(own)) == len(own)), choices[-1])
    names = [name or other for (name, _), other in zip(given, names, strict=True)]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UserError(f"Two sides have the name '{twice}'; give each its own as NAME=PATH.")
    return [
        Side(name, place, own[:1], len(own)) if _are_copies(own) else Side(name, place, own)
        for name, (_, place), own in zip(names, given, runs, strict=True)
    ]


def _with_directions(run: Run, lower: Collection[str]) -> Run:
    scores = {key: replace(one, is_error=one.is_error or key[1] in lower) for key, one in run.scores.items()}
    return replace(run, scores=scores)


def _are_copies(runs: Sequence[Run]) -> bool:
    """Return whether all runs have the same scores of all items, of which there are several."""
    first = runs[0].scores
    return len(runs) > 1 and all(
        run.scores.keys() == first.keys()
        and all(
            one.names == first[key].names and np.array_equal(one.values, first[key].values)
            for key, one in run.scores.items()
        )
        for run in runs[1:]
    )


def are_shares(sides: Sequence[Side], task: str, metric: str) -> bool:
    """Return whether the scores of all sides lie between 0 and 1, and higher is better.

    Raises:
        UserError: If those of one side do, and those of another go to 20 or more, as percentages do.
    """
    found = {
        run.place: run.scores[task, metric] for side in sides for run in side.runs if (task, metric) in run.scores
    }
    if any(one.is_error for one in found.values()):
        return False
    within = {place: bool(one.values.min() >= 0 and one.values.max() <= 1) for place, one in found.items()}
    large = [place for place, one in found.items() if one.values.max() >= PERCENT]
    if large and any(within.values()):
        small = next(place for place, is_small in within.items() if is_small)
        raise UserError(
            f"'{small}' has scores between 0 and 1 in '{metric}' of task '{task}', and '{large[0]}' scores up to "
            f"{found[large[0]].values.max():g}. Give both on one scale."
        )
    return all(within.values())


def compare_sides(
    reference: Side, side: Side, task: str, metric: str, *, is_primary: bool, is_share: bool
) -> Judgement:
    """Compare a side with the reference on a task.

    Raises:
        UserError: If a run lacks items of another, or was evaluated with other settings.
    """
    paired = are_paired(reference, side)
    aligned = align(reference, side, task, metric, paired=paired, is_share=is_share)
    limit = 1.0 if is_share else None
    found = difference_of_runs(*aligned[:4], paired=paired, is_error=aligned.is_error, limit=limit)
    interval, means = found.interval, [aligned.mean(runs) for runs in (aligned.second, aligned.first)]
    low, high = interval.low, interval.high
    if aligned.is_share:
        low, high = max(low, -1.0), min(high, 1.0)
    entry = Comparison(
        difference=interval.difference,
        low=low,
        high=high,
        p=interval.p,
        verdict=OF_SIGN[-interval.sign if aligned.is_error else interval.sign],
        before=means[0].mean,
        after=means[1].mean,
    )
    judgement = Judgement(task, metric, side, aligned, found, entry, is_primary)
    if judgement.why:
        judgement.entry = entry.without_verdict(WITHHELD if found.has_enough_units else TOO_FEW_GROUPS)
    return judgement


def are_paired(reference: Side, side: Side) -> bool:
    """Return whether the runs of both sides have the same seeds, each once, and more than one."""
    seeds = [[run.seed for run in one.runs] for one in (reference, side)]
    is_known = all(seed is not None for own in seeds for seed in own)
    one, other = (set(own) for own in seeds)
    return is_known and one == other and 1 < len(one) == len(seeds[0]) == len(seeds[1])


def align(reference: Side, side: Side, task: str, metric: str, *, paired: bool, is_share: bool) -> Aligned:
    """Return the scores of two sides in the order of the items, and of the seeds, of the reference.

    Raises:
        UserError: If items are missing, or the settings, groups, weights or directions differ.
    """
    runs = [list(reference.runs), list(side.runs)]
    if paired:
        order = {run.seed: place for place, run in enumerate(reference.runs)}
        runs[1].sort(key=lambda run: order[run.seed])
    first = runs[0][0]
    names = first.scores[task, metric].names
    values: list[list[np.ndarray]] = [[], []]
    groups: list[str] | None = None
    group_name, weights = "item", first.scores[task, metric].weights
    for number, run in [*((0, run) for run in runs[0]), *((1, run) for run in runs[1])]:
        own = run.scores[task, metric]
        _check_items(first, run, task, metric)
        _check_settings(first, run, task)
        place = {name: position for position, name in enumerate(own.names)}
        order_of_items = [place[name] for name in names]
        values[number].append(own.values[order_of_items])
        if own.groups is not None:
            labels = [own.groups[position] for position in order_of_items]
            if groups is not None and number_groups(labels) != number_groups(groups):
                raise UserError(
                    f"'{run.place}' and '{first.place}' have different groups of the items of task '{task}'."
                )
            groups, group_name = labels, own.group_name
        same = first.scores[task, metric]
        if own.is_error != same.is_error or not _same_weights(own, order_of_items, weights):
            raise UserError(
                f"'{run.place}' and '{first.place}' measure '{metric}' of task '{task}' in different ways."
            )
    numbers = None if groups is None else number_groups(groups)
    is_error = first.scores[task, metric].is_error
    return Aligned(np.stack(values[1]), np.stack(values[0]), weights, numbers, group_name, is_error, is_share)


def _same_weights(scores: Scores, order: list[int], weights: np.ndarray | None) -> bool:
    if scores.weights is None or weights is None:
        return scores.weights is weights
    return bool(np.allclose(scores.weights[order], weights))


def _check_items(first: Run, run: Run, task: str, metric: str) -> None:
    """Refuse a run that lacks items, or has more, with their number."""
    own, theirs = (dict.fromkeys(one.scores[task, metric].names) for one in (run, first))
    for lacking, has, place, other in ((own, theirs, run, first), (theirs, own, first, run)):
        if missing := [name for name in has if name not in lacking]:
            named = joined([shorten(name) for name in missing[:MAX_NAMED]])
            raise UserError(
                f"'{place.place}' lacks {len(missing):,} of the {format_count(len(has), 'item')} of task '{task}' in "
                f"'{other.place}', such as {named}; evaluate both on the same items."
            )


def _check_settings(first: Run, run: Run, task: str) -> None:
    """Refuse a run that was evaluated in another way, as far as the logs say."""
    ours, theirs = first.settings.get(task, {}), run.settings.get(task, {})
    if different := [name for name in ours if name in theirs and ours[name] != theirs[name]]:
        shown = [
            f"{name} {shorten(theirs[name])} and {shorten(ours[name])}" for name in different if name != "prompts"
        ]
        shown += ["the prompts differ"] * ("prompts" in different)  # known by a hash only
        raise UserError(
            f"'{run.place}' and '{first.place}' evaluate task '{task}' in different ways: "
            f"{joined(shown).replace('_', ' ')}. Evaluate both in the same way."
        )


def make_results(comparing: Comparing, options: JudgeOptions) -> StudyResults:
    """Return the comparisons as the results of a study, so that reports and tables look the same."""
    reference, *others = comparing.sides
    names = [side.name for side in others]
    shares = [one for one in comparing.found if one.aligned.is_share]
    tables = [_own_units([one for one in comparing.found if not one.aligned.is_share], reference)]
    if options.power is not None:
        tables.append(_needed(comparing.found, options.power))
    title = f"{joined(names)} compared with {reference.name}"
    return StudyResults(
        name="judge",
        title=title,
        notes=comparing.notes,
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
        baseline=reference.name,
        methods=[MethodRow(label=side.name, name=side.name) for side in comparing.sides],
        scores=_score_rows(comparing.sides, shares),
        tables=[table for table in tables if table.rows],
        config={"reference": reference.place, "compared": [side.place for side in others]},
        environment={"acclimate": __version__, "python": platform.python_version()},
        evaluations=Evaluations(
            sides=[
                EvaluatedSide(name=side.name, place=side.place, runs=[run.place for run in side.runs])
                for side in comparing.sides
            ],
            note=NOTE,
            answers=[_in_words(one) for one in comparing.found if one.is_primary and not one.aligned.is_share],
            caveats=[*_about(reference, others), *_few_units(comparing.found)],
        ),
    )


def _score_rows(sides: Sequence[Side], found: Sequence[Judgement]) -> list[ScoreRow]:
    """Return a row for each task and side, the reference first."""
    rows = []
    for task in dict.fromkeys(one.task for one in found):
        own = [one for one in found if one.task == task]
        metric = next((one.metric for one in own if one.is_primary), own[0].metric)
        metrics = list(dict.fromkeys([metric, *(one.metric for one in own)]))
        for side in sides:
            mine = [one for one in own if one.side is side]
            if side is not sides[0] and not mine:
                continue
            shown = mine or own
            aligned = shown[0].aligned
            rows.append(
                ScoreRow(
                    model="",
                    domain="",
                    task=task,
                    method=side.name,
                    metric=metric,
                    kind="evaluation",
                    metrics=metrics,
                    seeds=list(range(1, len(side.runs) + 1)),
                    test_items=aligned.first.shape[1],
                    test_units=None if aligned.groups is None else shown[0].found.units,
                    group_name=None if aligned.groups is None else aligned.group_name,
                    summaries={
                        one.metric: one.aligned.mean(one.aligned.first if mine else one.aligned.second)
                        for one in shown
                    },
                    difference=_comparisons(mine, len(sides[0].runs)) if mine else None,
                )
            )
    return rows


def _comparisons(found: Sequence[Judgement], reference_runs: int) -> Comparisons:
    runs = max(reference_runs, len(found[0].side.runs))
    return Comparisons(seeds=list(range(1, runs + 1)), metrics={one.metric: one.entry for one in found})


def _own_units(found: Sequence[Judgement], reference: Side) -> ReportTable:
    """Return the comparisons in metrics that are no shares, such as losses; a terminal shows the first columns."""
    note = f"Differences are to {reference.name}, in the unit of the metric. Of errors and losses, lower is better."
    columns = ["task", "model", "difference [95 % interval]", "verdict", reference.name, "score"]
    rows = []
    for one in found:
        entry = one.entry
        ends = [entry.low, entry.high] if one.has_interval else [None, None]
        low, high = (rounded(end, signed=True) for end in (entry.low, entry.high))
        interval = f"[{low}, {high}]" if one.has_interval else "(no interval)"
        shown = f"{rounded(entry.difference, signed=True)} {interval}"
        numbers = [entry.before, entry.after, entry.difference, *ends, entry.p, entry.p_holm]
        rows.append([f"{one.task} ({one.metric})", one.side.name, shown, entry.verdict, *numbers])
    columns += ["difference", "low", "high", "p", "p (Holm)"]
    return ReportTable(title=OWN_UNIT, note=note, columns=columns, rows=rows, digits=4)


def _needed(found: Sequence[Judgement], points: float) -> ReportTable:
    """Return how many items and runs would show a difference; a terminal shows the first columns."""
    found = [one for one in found if one.is_primary and not one.why]
    rows: list[list[Any]] = []
    for one in found:
        effect = points / 100 if one.aligned.is_share else points
        units, runs = one.found.units_needed(effect), one.found.runs_needed(effect)
        shown = ["no number suffices" if number is None else f"{number:,}" for number in (units, runs)]
        shown = shown if one.found.varies else ["unknown: no variation"] * 2
        shown[1] = shown[1] if one.found.sides else "unknown: one run"
        present = min((side.runs for side in one.found.sides), default=1)
        name = one.task if one.aligned.is_share else f"{one.task} ({one.metric})"
        rows.append([name, one.side.name, *shown, one.units, present])
    unit = " or ".join(dict.fromkeys("items" if one.aligned.groups is None else "groups" for one in found))
    kinds = {one.aligned.is_share for one in found}
    size = f"{points:g} percentage point{'' if points == 1 else 's'}" if kinds == {True} else f"{points:g}"
    of = {1: "", 2: ", in percentage points of shares and the unit of other scores,"}[len(kinds or {0})]
    note = (
        f"To see a true difference of {size}{of} with a probability of 80 %, from the variances of this "
        f"comparison: {unit} that are needed with the present runs, and runs that are needed with the present items, "
        "of the side with the fewest if both have several."
    )
    columns = ["task", "model", f"{unit} needed", "runs needed", "now", "runs now"]
    return ReportTable(title=f"Needed to see {size}", note=note, columns=columns, rows=rows)


def _about(reference: Side, others: Sequence[Side]) -> list[str]:
    """Say what the intervals are about."""
    found: dict[str, list[str]] = {}
    for side in others:
        one, other = (len(runs) == 1 for runs in (reference.runs, side.runs))
        if one and other:
            text = "is about these two models and other items: each has one run, and another training may differ"
        elif are_paired(reference, side):
            text = f"is about other items and other seeds: the {len(side.runs)} runs of both sides are paired by seed"
        elif one or other:
            single, many = (reference, side) if one else (side, reference)
            text = (
                f"is about other items and other runs of {many.name} ({len(many.runs)} here); {single.name} is this "
                "one model, since it has one run"
            )
        else:
            text = (
                f"is about other items and other runs of both sides ({len(side.runs)} of {side.name} and "
                f"{len(reference.runs)} of {reference.name}, which are independent)"
            )
        found.setdefault(text, []).append(side.name)
    if len(found) == 1:
        return [f"The interval of a difference {next(iter(found))}."]
    return [f"The interval of {joined(names)} {text}." for text, names in found.items()]


def _few_units(found: Sequence[Judgement]) -> list[str]:
    """Name tasks with few items or groups."""
    none = dict.fromkeys(f"{one.task} has {one.units}" for one in found if not one.found.has_enough_units)
    same = [f"{one.side.name} on {one.task} ({one.metric})" for one in found if not one.has_interval]
    few = dict.fromkeys(f"{one.task} has {one.units}" for one in found if not one.why and one.found.units < FEW_UNITS)
    least = f"a verdict needs at least {MIN_UNITS} items or groups, of which none has more than half of the items"
    return [
        *([f"Too few groups: {joined(list(none))}; {least}."] if none else []),
        *([f"With fewer than {FEW_UNITS} items or groups intervals are rough: {joined(list(few))}."] if few else []),
        *([f"No variation, so no interval: all items of {joined(same)} differ by the same amount."] if same else []),
    ]


def _in_words(one: Judgement) -> str:
    interval = rounded_interval(one.entry) if one.has_interval else "no variation, so no interval"
    change = f"{rounded(one.entry.difference, signed=True)} ({interval})"
    return f"On {one.task} ({one.metric}), {one.side.name}: {one.entry.verdict}, {change}."


def name_bounds(found: Sequence[Judgement], several: bool) -> dict[str, list[Bounds]]:
    """Return what can be required: each task in its first metric, and ``TASK:METRIC``."""
    named: dict[str, list[Bounds]] = {}
    for one in found:
        is_share = one.aligned.is_share
        bounds = Bounds(
            of=one.side.name if several else "",
            estimate=one.entry.difference,
            low=one.entry.low,
            high=one.entry.high,
            why=one.why,
            scale=100.0 if is_share else 1.0,
            unit="points" if is_share else "",
            is_error=one.aligned.is_error,
        )
        for name in [one.task] * one.is_primary + [f"{one.task}:{one.metric}"]:
            named.setdefault(name, []).append(bounds)
    return named


def show_judge(results: StudyResults, options: JudgeOptions) -> Iterator[Any]:
    """Yield what ``acclimate judge`` prints."""
    from acclimate.report import results_table, summarize

    yield from results_table(results)
    summary = summarize(results)
    yield summary.headline
    yield from summary.caveats
    yield from results.notes
    yield from show_place("Full report", results.folder and results.folder / "report.html")
