"""Results of a study as dataclasses: the keys of their JSON are stable, and a round trip returns equal dataclasses."""

from __future__ import annotations

import json

import pytest

from acclimate.errors import UserError
from acclimate.files import write_json
from acclimate.results import Section, StudyResults
from acclimate.rows import AdaptationRow, Comparison, CurvePoint, LossRow, MetricSummary, ScoreRow
from acclimate.study import compare
from tests.study.fakes import World, files, study


@pytest.fixture
def stored(tmp_path, monkeypatch):
    monkeypatch.setattr("acclimate.report.write_report", lambda results, path: path)
    compare(study(files(tmp_path / "data")), tmp_path / "out", progress=False, backend=World().backend())
    return tmp_path / "out" / "results.json"


def test_results_of_a_study_survive_the_round_trip(stored):
    values = json.loads(stored.read_text())
    results = StudyResults.load(stored)
    written = json.loads(json.dumps(results.to_dict()))
    assert written == StudyResults.from_dict(written).to_dict()
    for row in values["losses"]:
        row.setdefault("percent", None)
    assert written == {**values, "sections": []}
    first, second = results.scores[:2]
    assert isinstance(second, ScoreRow) and first.difference is None and "difference" not in first
    assert isinstance(second.summaries["macro_f1"], MetricSummary) and second.comparison is not None
    assert isinstance(second.difference.metrics["accuracy"], Comparison)
    assert second["macro_f1"]["values"] == second.summaries["macro_f1"].by_seed
    assert isinstance(results.losses[0], LossRow) and isinstance(results.adaptations[0], AdaptationRow)
    assert isinstance(results.adaptations[0].curve[0], CurvePoint)


def test_a_record_reads_like_its_json():
    row = Section(title="Extra", columns=["a"], rows=[[1]])
    assert row == {"title": "Extra", "note": "", "columns": ["a"], "rows": [[1]], "digits": 3}
    assert {**row}["title"] == row["title"] == row.get("title") and row.get("absent", 7) == 7
    loss = LossRow(model="m", domain="d", text="general", method="mlm", nats=2.0)
    assert "task" not in loss and loss.get("task") is None and loss["percent"] is None
    with pytest.raises(KeyError):
        loss["before"]
    assert "values" in loss and "by_seed" not in loss


def test_files_that_hold_no_results(tmp_path):
    for name, text in (("a", "{"), ("b", "[]"), ("c", '{"format": 99}'), ("d", '{"format": 1}')):
        (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match="There are no results at"):
        StudyResults.load(tmp_path / "absent.json")
    for name, message in (("a", "not JSON"), ("b", "no results"), ("c", "no results"), ("d", "no 'name'")):
        with pytest.raises(UserError, match=message):
            StudyResults.load(tmp_path / name)
    path = write_json(tmp_path / "e", {"format": 1, "name": "small", "of a later version": 3})
    assert StudyResults.load(path).name == "small"
