"""Learning curves read from a log: training and held-out lines, broken lines, and many lines."""

from __future__ import annotations

import json

import pytest
from scipy import stats

from acclimate.results.adaptations import CURVE_POINTS, read_curves
from acclimate.study.compare import compare
from tests.study.fakes import World, study


def test_both_kinds_of_lines_are_distinguished(tmp_path):
    log = tmp_path / "log.jsonl"
    entries = [{"step": step, "tokens": 10 * step, "loss": 3.0, "terms": {"mlm": 3.0}} for step in range(1, 501)]
    aside = [{"step": step, "tokens": 10 * step, "heldout": {"loss": 4.0, "terms": {"mlm": 4.0}}} for step in (0, 500)]
    text = [json.dumps(entry) for entry in (aside[0], *entries, aside[1])]
    log.write_text("\n".join([*text, "{broken", ""]))
    found = read_curves(log)
    assert len(found["curve"]) == CURVE_POINTS and found["curve"][0] == entries[0]
    assert found["heldout_curve"] == [
        {"step": step, "tokens": 10 * step, "loss": 4.0, "terms": {"mlm": 4.0}} for step in (0, 500)
    ]
    assert read_curves(tmp_path / "absent") == {"curve": [], "heldout_curve": [], "general_curve": []}


@pytest.fixture
def results(folder, tmp_path, no_report):
    values = study(folder, adapt_seeds=None)
    return compare(values, tmp_path / "out", progress=False, backend=World().backend())


def test_results_hold_the_t_test_of_the_scores(results):
    base, mlm = (row["accuracy"]["by_seed"] for row in results["scores"][:2])
    difference = results["scores"][1]["difference"]
    assert difference["accuracy"]["p_t"] == pytest.approx(stats.ttest_rel(mlm, base).pvalue)
