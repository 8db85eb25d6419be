"""Scores of fine-tuned models: means over seeds, paired comparisons, Holm's correction, wins and losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from acclimate.evaluation import calibration
from acclimate.evaluation.scoring import Scoring, make_scoring
from acclimate.evaluation.statistics import holm, paired_bootstrap, paired_t_test, permutation_test
from acclimate.records import Record, optional
from acclimate.rows import Comparison, Comparisons, ConfidenceBin, MetricSummary, ScoreRow, TaskScores, WinCount
from acclimate.study.jobs.base import HEAD, Job, Measured

SIGNIFICANCE = 0.05


@dataclass(kw_only=True, eq=False)
class TaskResult(Record):
    """The result of a fine-tuning: :class:`acclimate.tasks.result.FinetuneResult` without probabilities."""

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
    precision: str | None = optional()
    kind: str = "single_label"
    scoring: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, result: Any) -> Any:
        """Create a result from an object with the same attributes, such as a ``FinetuneResult``."""
        return cls.from_dict({name: value for name, value in vars(result).items() if name != "probabilities"})


TaskRuns = Sequence[Measured[TaskResult]]
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
    names = _scoring(first).metrics
    summaries = {}
    for name in (*names, *calibration.NAMES):
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
        seeds=[run.job.place.seed for run in runs],
        labels=list(first.labels),
        test_items=len(first.gold),
        train_size=first.train_size,
        precisions=sorted({result.precision for result in results if result.precision}),
        collapsed=sum(_scoring(first).find_collapse(result.gold, result.predicted) is not None for result in results),
        seconds=round(float(np.mean([result.seconds or 0.0 for result in results])), 2),
        summaries=summaries,
        **values,
    )


def pool_confidence(runs: TaskRuns) -> list[ConfidenceBin] | None:
    """Return the confidence bins pooled over all seeds; None if the task has no probabilities."""
    bins = [run.result.metrics["reliability"] for run in runs if "reliability" in run.result.metrics]
    return [ConfidenceBin.from_dict(entry) for entry in calibration.pool_bins(bins)] if bins else None


def _scoring(result: TaskResult) -> Scoring:
    return make_scoring(result.kind, result.scoring)


def compare_runs(runs: TaskRuns, base: TaskRuns) -> Comparisons | None:
    """Compare runs with reference runs, paired by seed, in every metric of the task.

    Args:
        runs: Runs of a method.
        base: Reference runs.

    Returns:
        The comparisons; None if no seed is in both, or the gold answers or metrics differ.
    """
    by_seed = {run.job.place.seed: run for run in base}
    pairs = [(run, by_seed[run.job.place.seed]) for run in runs if run.job.place.seed in by_seed]
    if not pairs:
        return None
    gold, scoring = pairs[0][0].result.gold, _scoring(pairs[0][0].result)
    if any((run.result.gold, _scoring(run.result)) != (gold, scoring) for pair in pairs for run in pair):
        return None
    ours, theirs = ([run.result for run in side] for side in zip(*pairs, strict=True))
    predicted, reference = ([result.predicted for result in side] for side in (ours, theirs))
    groups = replicate_groups([(run.job, other.job) for run, other in pairs])
    compared = Comparisons(seeds=[run.job.place.seed or 0 for run, _ in pairs])
    for metric in scoring.metrics:
        equivalent = scoring.equivalent_metric(metric)
        if equivalent in compared.metrics:
            compared.metrics[metric] = Comparison(**vars(compared.metrics[equivalent]))
            continue
        interval = paired_bootstrap(gold, predicted, reference, metric, groups=groups, scoring=scoring)
        scores = [[float(result.metrics[metric]) for result in side] for side in (ours, theirs)]
        after, before = (float(np.mean(side)) for side in scores)
        compared.metrics[metric] = Comparison(
            **interval.as_dict(),
            before=before,
            after=after,
            p_models=permutation_test(gold, predicted, reference, metric, scoring=scoring),
            p_t=paired_t_test(*scores),
        )
    return compared


def replicate_groups(pairs: Sequence[tuple[Job, Job]]) -> list[int]:
    """Return a group number for each seed; seeds of one group are not independent replicates.

    Two seeds are in one group if their models come from the same adaptation or, without adaptation, from the same
    teacher, on either side of the comparison. A side that uses one adaptation for all seeds is ignored, since the
    variance between adaptations cannot be estimated from it.

    Args:
        pairs: For each seed, the job of the method and the job of the reference.
    """
    groups = list(range(len(pairs)))
    for side in zip(*pairs, strict=True):
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
    """Set ``p_holm`` of the comparison of each row in the metric of its task; all rows are one family (Holm, 1979)."""
    compared = [row.comparison for row in rows if row.comparison]
    for comparison, adjusted in zip(compared, holm([entry.p for entry in compared]), strict=True):
        comparison.p_holm = adjusted


def count_wins(scores: Sequence[ScoreRow]) -> list[WinCount]:
    """Count wins, ties and losses of each model and method over its tasks, by the 95 % intervals."""
    found: dict[tuple[str, str], list[Comparison]] = {}
    for row in scores:
        if row.comparison:
            found.setdefault((row.model, row.method), []).append(row.comparison)
    counts = []
    for (model, method), entries in found.items():
        verdicts = [entry.verdict for entry in entries]
        corrected = [entry.verdict for entry in entries if _is_significant(entry)]
        counts.append(
            WinCount(
                model=model,
                method=method,
                tasks=len(entries),
                **{verdict: verdicts.count(verdict) for verdict in ("win", "tie", "loss")},
                **{f"{verdict}_holm": corrected.count(verdict) for verdict in ("win", "loss")},
                mean=sum(entry.difference for entry in entries) / len(entries),
            )
        )
    return counts


def _is_significant(entry: Comparison) -> bool:
    return (1.0 if entry.p_holm is None else entry.p_holm) < SIGNIFICANCE
