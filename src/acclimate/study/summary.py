"""Assembling the results of a study from its finished jobs.

Scores of fine-tuned models: means over seeds, paired comparisons, Holm's correction, wins and losses.
"""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Self

import numpy as np

from acclimate.adaptation.replay_options import SelfReplay
from acclimate.base.bounds import ALL
from acclimate.base.device import KERNELS_VARIABLE
from acclimate.base.records import Record, fingerprint, internal, optional
from acclimate.data.task_kinds import find_task_kind
from acclimate.evaluation import calibration
from acclimate.evaluation.prompts import AskedPrompt
from acclimate.evaluation.scoring import Scoring, is_above_chance, make_scoring
from acclimate.evaluation.significance import holm, paired_bootstrap, paired_t_test, permutation_test
from acclimate.results.cells import joined
from acclimate.results.scores import (
    HELPED,
    HURT,
    NOT_LEARNED,
    OF_SIGN,
    WITHHELD,
    Comparison,
    Comparisons,
    ConfidenceBin,
    Interval,
    MetricSummary,
    ScoreRow,
    SearchRow,
    TaskScores,
    VerdictCount,
    sign_of,
)
from acclimate.results.study import JOB_KINDS, QUICK_NOTE, Failure, JobCounts, MethodRow, Sample, StudyResults
from acclimate.study.config import StudyConfig
from acclimate.study.contamination import Contamination
from acclimate.study.inputs import StudyInputs
from acclimate.study.job import HEAD, Job, JobGraph, JobResult, Outcome, StudyView, kinds, used_kinds
from acclimate.study.selection import selection_results

PACKAGES = ("acclimate", "torch", "transformers", "tokenizers", "datasets", "accelerate", "scikit-learn", "numpy")
STATES = ("done", "reused", "failed", "blocked", "missing")
NAMED = 3
"""Maximum number of models, and of domains, that the default title names."""
CHOSEN = "chosen on dev"
"""Replaces the value of a parameter for which a search chose different values on different tasks or models."""


def summarize(
    inputs: StudyInputs,
    graph: JobGraph,
    outcomes: Mapping[str, Outcome],
    out: Path,
    *,
    searches: Sequence[SearchRow] = (),
    contamination: Contamination | None = None,
) -> StudyResults:
    """Return the results of a study.

    Args:
        inputs: Inputs of the study.
        graph: Its jobs, with the chosen settings.
        outcomes: Outcomes of these jobs and of the jobs of a search, by key.
        out: Folder of the study.
        searches: Results of the searches.
        contamination: Dev and test texts found in the training text.
    """
    config, contamination = inputs.config, contamination or Contamination()
    used = used_kinds(config)
    view = StudyView(inputs, graph, outcomes, out)
    methods = {row.label: row for kind in used for row in kind.method_rows(inputs)}
    rows: dict[str, Any] = selection_results(inputs.corpora, inputs.selected)
    own: dict[str, list[Any]] = {}
    for kind in used:
        for name, found in kind.rows(view).items():
            if name not in (*JOB_KINDS.entries, *StudyResults.__dataclass_fields__):
                raise TypeError(f"jobs of kind '{kind.name}' return rows '{name}', which StudyResults does not have")
            (own if name in JOB_KINDS.entries else rows).setdefault(name, []).extend(found)
    rows["tables"] = [table for table in rows["tables"] if table.rows or table.first]
    measured = own.get("capabilities", [])
    own = {kind.name: kind.combine(own[kind.name], inputs) for kind in used if kind.name in own}
    states = [outcome.state for outcome in outcomes.values()]
    return StudyResults(
        name=config.name,
        title=config.title or default_title(config),
        notes=[
            *([QUICK_NOTE] if config.evaluate.quick else []),
            *config.notes,
            *limit_notes(inputs),
            *replay_notes(inputs),
        ],
        samples=[Sample(text=sample.text, label=sample.label) for sample in config.samples],
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
        baseline=config.baseline,
        models=[model.name for model in config.models],
        domains=[domain.name for domain in config.domains],
        methods=[
            MethodRow(label=label, name=row.name, parameters=used_parameters(row.parameters, label, searches))
            for label in config.row_labels
            if (row := methods.get(label))
        ],
        seeds=config.seeds,
        adapt_seeds=config.adapt_seeds,
        shared_adaptation=len(config.adapt_seeds) == 1 and any(not row.head for row in rows.get("adaptations", [])),
        stages=list({stage.stage: stage for kind in kinds() for stage in kind.stages}.values()),
        searches=list(searches),
        contamination=contamination.rows,
        unchecked=contamination.unchecked,
        failures=[
            Failure(job=outcome.job.description, error=outcome.error, state=outcome.state)
            for outcome in outcomes.values()
            if outcome.state in ("failed", "blocked", "missing")
        ],
        jobs=JobCounts(total=len(outcomes), **{state: states.count(state) for state in STATES}),
        config=config.resolved(),
        environment=environment(),
        measured=measured,
        rows={name: found for name, found in own.items() if found},
        **rows,
    )


def default_title(config: StudyConfig) -> str:
    """Return the models and domains of a study, or how many there are."""
    models = [model.name for model in config.models]
    domains = [domain.name for domain in config.domains]
    subject = ", ".join(models) if len(models) <= NAMED else f"{len(models)} models"
    return f"{subject} adapted to {', '.join(domains) if len(domains) <= NAMED else f'{len(domains)} domains'}"


def used_parameters(parameters: Mapping[str, Any], label: str, searches: Sequence[SearchRow]) -> dict[str, Any]:
    """Return the parameters that a row was run with: values chosen by a search replace those of the study file."""
    mine = [search for search in searches if label in search.methods]
    tried = {name for search in mine for trial in search.trials for name in trial.settings}
    used = dict(parameters)
    for name in sorted(tried & parameters.keys()):
        values = [search.chosen[name] for search in mine if search.chosen and name in search.chosen]
        used[name] = values[0] if values and all(value == values[0] for value in values) else CHOSEN
    return used


def limit_notes(inputs: StudyInputs) -> list[str]:
    """Return a paragraph for each task with a row limit or a drawn split, and one for probes with few labels."""
    notes = [
        f"Only a random sample of {name} was used, the same for all models and seeds: "
        + " and ".join(f"{kept:,} of {whole:,} rows of {split}" for split, (kept, whole) in task.limited.items())
        + ". Scores cannot be compared with those on the full data."
        for (_, name), task in inputs.tasks.items()
        if task.limited
    ]
    parts = {"dev": "the dev split", **dict.fromkeys(("tune", "confirm"), "one half of the dev split")}
    notes += [
        f"{task.name} is scored on {parts[task.evaluate_on]} ('{task.evaluate_on}'), not on the test split."
        for domain in inputs.config.domains
        for task in domain.tasks
        if task.evaluate_on
    ]
    drawn = [getattr(task.task, "drawn", "") for task in inputs.tasks.values()]
    notes += [f"{line} Scores on it cannot be compared with those on another split." for line in drawn if line]
    learned = [f"'{label}'" for label, method in inputs.methods.items() if method.learns_labels]
    if learned and any(set(probe.labels_per_class) != {ALL} for probe in inputs.config.sections.get("probe", [])):
        notes.append(
            f"{joined(learned)} learned all labels that fine-tuning gets: where a probe gets a few of them, do not "
            "compare it with methods that read text only."
        )
    return list(dict.fromkeys(notes))


def replay_notes(inputs: StudyInputs) -> list[str]:
    """Return a sentence for each text that is mixed in: its share, and the models and methods that read it."""
    if not inputs.mixed_in:
        return []
    from acclimate.adaptation.mix_sources import text_name

    return [
        (
            f"Mix: {text_name(source.text)} is the source '{source.name}'"
            if source.name
            else f"Replay: {100 * source.share:g} % of the training tokens come from {text_name(source.text)}"
        )
        + (
            ", text that each model writes before it is adapted"
            if isinstance(source.text, SelfReplay)
            else ", without the documents that losses are measured on"
        )
        + f" ({', '.join(readers)})."
        for source, readers in inputs.mixed_in
    ]


def environment() -> dict[str, str]:
    """Return the versions of Python and the main packages, the system, the processor and the GPU, if there is one."""
    found = {"python": platform.python_version(), **_versions()}
    found["system"] = f"{platform.system()} {platform.machine()}"
    found["processor"] = f"{_processor()}, {os.cpu_count()} logical cores"
    if kernels := os.environ.get(KERNELS_VARIABLE):
        found["kernels"] = kernels
    accelerator = _accelerator()
    return {**found, "accelerator": accelerator} if accelerator else found


@cache
def _versions() -> dict[str, str]:
    """Return the versions of the main packages; finding one reads the disk, and they cannot change in a process."""
    found = {}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _accelerator() -> str:
    import torch

    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else ""


class TaskResult(Record):
    """The result of a fine-tuning: :class:`acclimate.tasks.result.FinetuneResult` without probabilities.

    ``scores`` are the probabilities of one label, if a study reviews it. A stored result has no times of its stages.
    ``prompts`` are those of a decoder that is not trained, if there were several; ``chosen`` is the number of one.
    """

    task: str = ""
    seed: int = 0
    metrics: dict[str, Any]
    dev_metrics: dict[str, Any] | None = None
    gold: list[Any]
    predicted: list[Any]
    labels: list[str] = field(default_factory=list)
    seconds: float = 0.0
    train_size: int | None = None
    steps: int | None = None
    epoch: int | None = None
    train_loss: float | None = None
    losses: list[float] | None = optional()
    precision: str | None = optional()
    kind: str = "single_label"
    scoring: dict[str, Any] = field(default_factory=dict)
    scores: list[float] | None = optional()
    prompts: list[AskedPrompt] | None = optional()
    chosen: int | None = optional()
    training_seconds: float | None = internal()
    evaluation_seconds: float | None = internal()

    @classmethod
    def of(cls, result: Any) -> Any:
        """Create a result from an object with the same attributes, such as a ``FinetuneResult``."""
        return cls.from_dict({name: value for name, value in vars(result).items() if name != "probabilities"})

    def with_prompt(self, number: int) -> Self:
        """Return the result with another prompt that test was asked with."""
        prompt = (self.prompts or [])[number]
        return replace(self, predicted=prompt.predicted or [], metrics=prompt.metrics or {}, chosen=number)


TaskRuns = Sequence[JobResult[TaskResult]]
"""Runs that differ only in their seeds."""


def summarize_scores(runs: TaskRuns, metric: str, kind: type[Any], **values: Any) -> Any:
    """Return a row with the mean and standard deviation of each metric over seeds.

    Args:
        runs: Runs of one method on one task.
        metric: The primary metric of the task.
        kind: Class of the row.
        **values: Further fields of the row.
    """
    place, first, results = runs[0].job.place, runs[0].result, [run.result for run in runs]
    scoring = scoring_of(first)
    names, errors = scoring.metrics, scoring.errors
    summaries = {}
    for name in (*names, *errors, *calibration.NAMES):
        found = [float(result.metrics[name]) for result in results if name in result.metrics]
        if found:
            spread = float(np.std(found, ddof=1)) if len(found) > 1 else None
            summaries[name] = MetricSummary(mean=float(np.mean(found)), sd=spread, by_seed=found)
    return kind(
        model=place.model,
        domain=place.domain,
        task=place.task,
        method=place.method,
        metric=metric,
        kind=first.kind,
        metrics=list(names),
        errors=list(errors),
        seeds=[run.job.place.seed for run in runs],
        labels=list(first.labels),
        test_items=len(first.gold),
        test_units=None if scoring.groups is None else max(scoring.groups) + 1,
        group_name=None if scoring.groups is None else scoring.group_name,
        test_set=test_of(runs),
        train_size=first.train_size,
        precisions=sorted({result.precision for result in results if result.precision}),
        collapsed=sum(
            scoring_of(first).find_collapse(result.gold, result.predicted) is not None for result in results
        ),
        seconds=round(float(np.mean([result.seconds or 0.0 for result in results])), 2),
        summaries=summaries,
        **values,
    )


def pool_confidence(runs: TaskRuns) -> list[ConfidenceBin] | None:
    """Return the confidence bins pooled over all seeds; None if the task has no probabilities."""
    bins = [run.result.metrics["reliability"] for run in runs if "reliability" in run.result.metrics]
    return [ConfidenceBin.from_dict(entry) for entry in calibration.pool_bins(bins)] if bins else None


def scoring_of(result: TaskResult) -> Scoring:
    """Return how the predictions of a result are scored."""
    return make_scoring(result.kind, result.scoring)


def test_of(runs: Sequence[JobResult[TaskResult]]) -> str:
    """Return the identity of the test set of runs: that of its texts, where they are known, and of its groups."""
    job, first = runs[0].job, runs[0].result
    task: Any = getattr(job, "task", None)
    known = hasattr(task, "test")
    texts = list(map(find_task_kind(task).item_text, task.test)) if known else first.gold
    return fingerprint([texts, scoring_of(first).groups])


def units_of_test(runs: Sequence[JobResult[TaskResult]], metric: str) -> list[frozenset[Any]] | str:
    """Return the texts of each unit of the test set of runs, which other test sets may share; else its identity."""
    task: Any = getattr(runs[0].job, "task", None)
    first = runs[0].result
    if not hasattr(task, "test") or len(rows := task.scored_rows("test")) != len(first.gold):
        return test_of(runs)
    kind, numbers = find_task_kind(task), scoring_of(first).unit_of(metric) or range(len(rows))
    seen, found = Counter[Any](), dict[int, set[Any]]()
    for row, number in zip(rows, numbers, strict=True):
        texts = tuple(kind.texts(row))
        found.setdefault(number, set()).add((texts, seen[texts]))  # a text can be there several times
        seen[texts] += 1
    return [frozenset(found[number]) for number in range(len(found))]


def compare_runs(
    runs: TaskRuns, base: TaskRuns, n: int = 2000, metrics: Sequence[str] | None = None
) -> Comparisons | None:
    """Compare runs with reference runs, paired by seed, in every metric and error of the task.

    Args:
        runs: Runs of a method.
        base: Reference runs.
        n: Number of resamples of the statistics.
        metrics: The metrics to compare; None for all of the task.

    Returns:
        The comparisons, without verdict and p-values unless the trainings are replicated and a model has learned the
        task; None if no seed is in both, or the gold answers or metrics differ.
    """
    if not (pairs := pair_by_seed(runs, base)):
        return None
    gold, scoring = pairs[0][0].result.gold, scoring_of(pairs[0][0].result)
    ours, theirs = ([run.result for run in side] for side in zip(*pairs, strict=True))
    predicted, reference = ([result.predicted for result in side] for side in (ours, theirs))
    jobs = [(run.job, other.job) for run, other in pairs]
    groups = replicate_groups(jobs)
    compared = Comparisons(seeds=[run.job.place.seed or 0 for run, _ in pairs])
    for metric in metrics or (*scoring.metrics, *scoring.errors):
        equivalent = scoring.equivalent_metric(metric)
        if equivalent in compared.metrics:
            compared.metrics[metric] = Comparison(**vars(compared.metrics[equivalent]))
            continue
        interval = paired_bootstrap(gold, predicted, reference, metric, n=n, seed_groups=groups, scoring=scoring)
        scores = [[float(result.metrics[metric]) for result in side] for side in (ours, theirs)]
        entry = Comparison(
            **interval.as_dict(),
            before=float(np.mean(scores[1])),
            after=float(np.mean(scores[0])),
            p_models=permutation_test(gold, predicted, reference, metric, n=n, scoring=scoring),
            p_t=paired_t_test(*scores),
        )
        if not is_above_chance(gold, [*predicted, *reference], scoring.learned_by(metric), scoring):
            entry = entry.without_verdict(NOT_LEARNED)
        elif not is_replicated(jobs):
            entry = entry.without_verdict(WITHHELD)
        compared.metrics[metric] = entry
    return compared


def pair_by_seed(runs: TaskRuns, base: TaskRuns) -> list[tuple[JobResult[TaskResult], JobResult[TaskResult]]]:
    """Return the runs with a seed that the reference has, each with its reference; none if they are not comparable."""
    by_seed = {run.job.place.seed: run for run in base}
    pairs = [(run, by_seed[run.job.place.seed]) for run in runs if run.job.place.seed in by_seed]
    read = [(run.result.gold, scoring_of(run.result)) for pair in pairs for run in pair]
    return pairs if all(one == read[0] for one in read) else []


def is_replicated(runs: Sequence[Sequence[Job]]) -> bool:
    """Return whether the variance between trainings can be estimated: see :func:`replicate_groups`."""
    return len(set(replicate_groups(runs))) > 1 and not any(map(has_single_origin, zip(*runs, strict=True)))


def has_single_origin(jobs: Sequence[Job]) -> bool:
    """Return whether the models of all jobs come from one adaptation or teacher."""
    origins = {_origin(job) for job in jobs}
    return len(origins) == 1 and origins != {None}


def replicate_groups(runs: Sequence[Sequence[Job]]) -> list[int]:
    """Return a group number for each seed; seeds of one group are not independent replicates.

    Two seeds are in one group if their models come from the same adaptation or, without adaptation, from the same
    teacher, on either side of the comparison. A side that uses one adaptation for all seeds joins none: the variance
    between adaptations cannot be estimated, and :func:`is_replicated` is false.

    Args:
        runs: For each seed, the jobs of both sides, of one task or of several.
    """
    groups = list(range(len(runs)))
    for side in zip(*runs, strict=True):
        origins = [_origin(job) for job in side]
        if len(set(origins)) == 1:
            continue
        first: dict[str, int] = {}
        for seed, origin in enumerate(origins):
            if origin is not None:
                old, new = groups[seed], groups[first.setdefault(origin, seed)]
                groups = [new if group == old else group for group in groups]
    return groups


def _origin(job: Job) -> str | None:
    """Return the key of the first adaptation or teacher behind the model that a job reads; None for a base model."""
    made = [link.key for link in job.chain[1:] if link.place.method != HEAD]  # all seeds share the warm-up of a head
    return made[-1] if made else None


def correct_for_multiple_comparisons(rows: Sequence[TaskScores]) -> None:
    """Correct the comparison of each row in the metric of its task; all rows are one family (Holm, 1979)."""
    compared = [row.comparison for row in rows if row.comparison and row.comparison.p is not None]
    for comparison, adjusted in zip(compared, holm([entry.p or 0.0 for entry in compared]), strict=True):
        comparison.correct(adjusted)


def count_verdicts(scores: Sequence[ScoreRow]) -> list[VerdictCount]:
    """Count on how many tasks each model and method helped and hurt, before and after Holm's correction."""
    found: dict[tuple[str, str], list[Comparison]] = {}
    sets: dict[tuple[str, str], set[Hashable]] = {}
    for row in scores:
        if row.comparison:
            found.setdefault((row.model, row.method), []).append(row.comparison)
            sets.setdefault((row.model, row.method), set()).add(row.test_set or (row.domain, row.task))
    counts = []
    for (model, method), entries in found.items():
        verdicts = [entry.verdict for entry in entries]
        signs = [sign_of(entry.low, entry.high) for entry in entries if entry.is_answered]
        counts.append(
            VerdictCount(
                model=model,
                method=method,
                tasks=len(entries),
                test_sets=len(sets[model, method]),
                unanswered=sum(not entry.is_answered for entry in entries),
                above=signs.count(1),
                below=signs.count(-1),
                **{verdict: verdicts.count(verdict) for verdict in (HELPED, HURT)},
            )
        )
    return counts


def summarize_numbers(results: StudyResults) -> dict[str, float]:
    """Return each difference with its interval and verdict as numbers, for experiment trackers.

    The verdict is 1 (helped), 0 (no difference shown) or -1 (hurt); it is left out where there is none.
    """
    rows: list[tuple[str, str, str, str, Interval | None]] = [
        (row.model, row.domain, row.task, row.method, row.comparison) for row in results.scores
    ]
    rows += [(row.model, row.domain, f"loss of {row.text} text", row.method, row.difference) for row in results.losses]
    several, signs = len({row[:2] for row in rows}) > 1, {verdict: sign for sign, verdict in OF_SIGN.items()}
    found: dict[str, float] = {}
    for *place, method, one in rows:
        if one is not None:
            name = "/".join([*(place if several else place[2:]), method])
            verdict = signs.get(one.verdict)
            ends = {end: getattr(one, end) for end in ("difference", "low", "high")}
            found |= {f"{name}/{end}": float(value) for end, value in ends.items()}
            found |= {} if verdict is None else {f"{name}/verdict": float(verdict)}
    return found
