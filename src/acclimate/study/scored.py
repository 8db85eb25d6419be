"""Scores of the cells of one place of a study: their means, and how they differ from those of another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from acclimate.evaluation import calibration
from acclimate.evaluation.collapse import find_collapse
from acclimate.evaluation.scoring import Scoring, make_scoring
from acclimate.evaluation.statistics import holm, paired_bootstrap, paired_t_test, permutation_test
from acclimate.study.cells import Cell
from acclimate.study.luck import draws

SINGLE = "single_label"


def describe(found: Sequence[tuple[Cell, dict[str, Any]]]) -> dict[str, Any]:
    """Mean and standard deviation over seeds of each metric, the values themselves, and pooled bins of confidence."""
    first = found[0][1]
    names = _scoring(first).metrics
    row: dict[str, Any] = {
        "kind": first.get("kind", SINGLE),
        "metrics": list(names),
        "seeds": [cell.labels["seed"] for cell, _ in found],
        "labels": list(first.get("labels", [])),
        "test_items": len(first["gold"]),
        "train_size": first.get("train_size"),
        "precisions": sorted({result["precision"] for _, result in found if "precision" in result}),
        "one_answer": sum(find_collapse(result["gold"], result["predicted"]) is not None for _, result in found),
        "seconds": round(float(np.mean([result.get("seconds") or 0.0 for _, result in found])), 2),
    }
    for metric in (*names, *calibration.NAMES):
        values = [float(result["metrics"][metric]) for _, result in found if metric in result["metrics"]]
        if values:
            spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
            row[metric] = {"mean": float(np.mean(values)), "sd": spread, "values": values}
    bins = [result["metrics"]["reliability"] for _, result in found if "reliability" in result["metrics"]]
    if bins:
        row["reliability"] = calibration.pool_bins(bins)
    return row


def _scoring(result: dict[str, Any]) -> Scoring:
    """Return how the predictions of a cell are scored; cells from before there were kinds have one label an item."""
    return make_scoring(result.get("kind", SINGLE), result.get("scoring", {}))


def against(
    found: Sequence[tuple[Cell, Any]], base: Sequence[tuple[Cell, Any]], cells: Mapping[str, Cell]
) -> dict[str, Any] | None:
    """Compare with the baseline on the seeds that both have; means of those are ``before`` and ``after``.

    Args:
        found: Cells of the method with their results.
        base: Those of the baseline.
        cells: All cells of the study by key: what the seeds share on the way to these results.
    """
    other = {cell.labels["seed"]: (cell, result) for cell, result in base}
    both = [((cell, result), other[cell.labels["seed"]]) for cell, result in found if cell.labels["seed"] in other]
    pairs = [(cell, result, reference) for (cell, result), (_, reference) in both]
    if not pairs:
        return None
    gold, scoring = pairs[0][1]["gold"], _scoring(pairs[0][1])
    if any((result["gold"], _scoring(result)) != (gold, scoring) for pair in pairs for result in pair[1:]):
        return None
    ours = [result["predicted"] for _, result, _ in pairs]
    theirs = [reference["predicted"] for _, _, reference in pairs]
    groups = draws([(mine[0], theirs[0]) for mine, theirs in both], cells)
    compared: dict[str, Any] = {"seeds": [cell.labels["seed"] for cell, _, _ in pairs]}
    for metric in scoring.metrics:
        equivalent_metric = scoring.equivalent_metric(metric)
        if equivalent_metric in compared:  # the same number, and the same luck
            compared[metric] = dict(compared[equivalent_metric])
            continue
        interval = paired_bootstrap(gold, ours, theirs, metric, groups=groups, scoring=scoring)
        p_models = permutation_test(gold, ours, theirs, metric, scoring=scoring)
        scores = [[float(result["metrics"][metric]) for result in side] for side in list(zip(*pairs, strict=True))[1:]]
        after, before = (float(np.mean(side)) for side in scores)
        told = {"before": before, "after": after, "p_models": p_models, "p_t": paired_t_test(*scores)}
        compared[metric] = {**interval.as_dict(), **told}
    return compared


def correct(rows: list[dict[str, Any]]) -> None:
    """Add Holm's correction over all comparisons in the rows, by each task's own metric."""
    compared = [row["difference"][row["metric"]] for row in rows if row.get("difference")]
    for difference, adjusted in zip(compared, holm([entry["p"] for entry in compared]), strict=True):
        difference["p_holm"] = adjusted
