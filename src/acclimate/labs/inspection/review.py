"""`acclimate inspect review`: classifiers where their label is rare, and what a budget of reviews finds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from acclimate.base.errors import UserError, unknown_name_error
from acclimate.base.files import check_report_file, read_json_object, read_lines, write_json
from acclimate.base.options import verb
from acclimate.base.version import __version__
from acclimate.evaluation.review import RankedItems, measure_review, resample_classes, review_measures
from acclimate.labs.inspection.effect_options import InspectReviewOptions
from acclimate.results.scores import judge
from acclimate.results.study import Measurements


@verb(InspectReviewOptions)
def inspect_review(options: InspectReviewOptions) -> Measurements:
    """Score classifiers as if their label had another prevalence, and count what reviewing their best texts finds.

    Test splits are often curated to have many texts of a rare label. Precision, F1 and average precision on them are
    then far above those in use (Tonneau et al., 2024). Here they are corrected for the prevalence in use, and recall
    is given for budgets of human review. Intervals are bootstrap percentiles over the test items, drawn within each
    class and the same for all results, or over groups of items such as documents, if the task has any; differences to
    the first result are paired by item. They are about these trained models and do not contain the variance between
    seeds.

    Returns:
        ``rows``: one per result and measure (:func:`acclimate.evaluation.review.measure_review`), with ``value`` and
        its 95 % interval, and for all but the first result the ``difference`` to the first with its own; ``share``:
        the prevalence in the test split.

    Raises:
        UserError: If a folder has no predictions of a classification with probabilities, the label is unknown or on
            all or none of the test items, or the results have different test items.
    """
    check_report_file(options.out)
    folders = dict(cast(Mapping[str, Any], options.results))  # the class of options makes it a mapping
    read = {name: read_predictions(folder, options.positive) for name, folder in folders.items()}
    truth, first = _shared_items(read, options.positive)
    names = review_measures(options.budgets)
    drawn: dict[tuple[str, str], list[np.ndarray]] = {}
    for weights in resample_classes(truth, options.resamples, options.seed, read[first].groups):
        for name, items in read.items():
            for measure in names:
                found = measure_review(items, options.prevalence, measure, weights)
                drawn.setdefault((name, measure), []).append(found)
    rows = []
    for name, items in read.items():
        for measure in names:
            ours, theirs = (np.concatenate(drawn[side, measure]) for side in (name, first))
            value, base = (float(measure_review(one, options.prevalence, measure)) for one in (items, read[first]))
            low, high = np.percentile(ours, [2.5, 97.5]).tolist()
            row = {"result": name, "measure": measure, "value": value, "low": low, "high": high}
            rows.append(row | _difference(value - base, ours, theirs, name != first))
    share = float(truth.mean())
    report = {"acclimate": __version__, "positive": options.positive, "prevalence": options.prevalence}
    report |= {"share": share, "items": len(truth), "positives": int(truth.sum()), "rows": rows}
    if options.out is not None:
        write_json(options.out, report)
    lines = [
        f"'{options.positive}': {share:.1%} of the {len(truth):,} test texts, corrected to {options.prevalence:.3%}"
    ]
    for row in rows:
        shown = f"{row['result']}, {row['measure']}: {row['value']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"
        if row["difference"] is not None:
            interval = f"[{row['difference low']:+.3f}, {row['difference high']:+.3f}]"
            shown += f"; to {first} {row['difference']:+.3f} {interval}: {row['verdict']}"
        lines.append(shown)
    return Measurements(report, lines, f"'{options.positive}' at a prevalence of {options.prevalence:g}", rows)


def _shared_items(read: Mapping[str, RankedItems], positive: str) -> tuple[np.ndarray, str]:
    """Return which test items have the label, and the name of the first result; check that all have the same items."""
    first = next(iter(read))
    truth = read[first].is_positive
    for name, items in read.items():
        if not np.array_equal(items.is_positive, truth):
            raise UserError(
                f"'{name}' and '{first}' do not have the same test items; give results on the same test split."
            )
    if truth.all() or not truth.any():
        raise UserError(
            f"The test split needs texts with and without the label '{positive}'; all of its "
            f"{len(truth):,} texts {'have' if truth.any() else 'lack'} it."
        )
    return truth, first


def _difference(difference: float, ours: np.ndarray, theirs: np.ndarray, compared: bool) -> dict[str, Any]:
    if not compared:
        return {"difference": None, "difference low": None, "difference high": None, "verdict": None}
    low, high = np.percentile(ours - theirs, [2.5, 97.5]).tolist()
    verdict = judge(low, high)
    return {"difference": difference, "difference low": low, "difference high": high, "verdict": verdict}


def read_predictions(folder: str | Path, positive: str) -> RankedItems:
    """Read the predictions on the test split that ``finetune`` wrote.

    Args:
        folder: Folder of a fine-tuned classifier.
        positive: The label to rank by.

    Raises:
        UserError: If there are none with a probability per label, or the label is unknown.
    """
    path = Path(folder)
    labels = (read_json_object(path / "metrics.json") or {}).get("labels")
    try:
        lines = read_lines(path / "predictions.jsonl")
        found = [json.loads(line) for line in lines]
        if not isinstance(labels, list) or not found:
            raise ValueError
        scores = np.array([[item["probabilities"][label] for label in labels] for item in found], dtype=float)
        if scores.shape != (len(found), len(labels)) or not np.isfinite(scores).all():
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError) as error:
        seed = next((str(one) for one in sorted(path.glob("seed-*")) if one.is_dir()), "tuned/seed-0")
        raise UserError(
            f"'{folder}' has no predictions with a probability per label; give the folder of one seed that 'acclimate "
            f"finetune' made on a classification, such as '{seed}'."
        ) from error
    if positive not in labels:
        raise unknown_name_error("label", positive, labels)
    truth, shown = (
        np.array([positive in (value if isinstance(value, list) else [value]) for value in side])
        for side in ([item.get("gold") for item in found], [item.get("predicted") for item in found])
    )
    groups = [item["group"] for item in found] if "group" in found[0] else None
    return RankedItems(scores[:, labels.index(positive)], truth, shown, groups)
