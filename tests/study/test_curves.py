"""Learning curves from a log, and in the report."""

from __future__ import annotations

import json

import pytest
from scipy import stats

from acclimate.report.curves import curves, values
from acclimate.study import compare
from acclimate.study.jobs.adapt import CURVE_POINTS, read_curves
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
    assert read_curves(tmp_path / "absent") == {"curve": [], "heldout_curve": []}


def test_a_curve_has_the_points_that_have_its_term():
    points = [{"tokens": 1000, "loss": 2.5, "terms": {"mlm": 2.0}}, {"tokens": 2000, "loss": 1.5, "terms": {"x": 1.0}}]
    assert values(points, "mlm") == ([1.0], [2.0])
    assert values(points, "loss") == ([1.0, 2.0], [2.5, 1.5])


@pytest.fixture
def results(folder, tmp_path, no_report):
    return compare(study(folder), tmp_path / "out", progress=False, backend=World().backend())


def test_each_term_has_a_panel_and_held_out_text_a_dashed_line(results):
    plain = curves(results)
    assert "held-out" not in plain and plain.count("stroke-dasharray") == 0
    assert (
        'id="curves-axes_2"' in plain and 'id="curves-axes_3"' not in plain
    )  # what all have, and the contrast of dga
    assert plain.index("masked-LM loss, nats") < plain.index(">contrast<")
    for run in results["adaptations"]:
        run.heldout_curve = run.curve[::10]
    drawn = curves(results)
    assert drawn.count("stroke-dasharray") >= 3  # mlm of both methods, and the contrast of dga
    assert 'id="curves-axes_2"' in drawn and 'id="curves-axes_3"' not in drawn


def test_results_hold_the_t_test_of_the_scores(results):
    base, mlm = (row["accuracy"]["values"] for row in results["scores"][:2])
    difference = results["scores"][1]["difference"]
    assert difference["accuracy"]["p_t"] == pytest.approx(stats.ttest_rel(mlm, base).pvalue)
