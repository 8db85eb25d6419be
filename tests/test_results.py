"""Results of a study as dataclasses: the keys of their JSON are stable, and a round trip returns equal dataclasses."""

from __future__ import annotations

import json
from dataclasses import fields
from functools import cache
from types import UnionType
from typing import Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.base.errors import UserError
from acclimate.base.files import write_json
from acclimate.base.records import Record
from acclimate.results import adaptations as adaptation_rows
from acclimate.results import scores as rows
from acclimate.results import study as results
from acclimate.results.adaptations import AdaptationRow, CurvePoint
from acclimate.results.scores import Comparison, LossRow, MetricSummary, ScoreRow
from acclimate.results.study import ReportTable, StudyResults
from acclimate.study.compare import compare
from tests.cases import each
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
    assert written == {**values, "tables": []}
    first, second = results.scores[:2]
    assert isinstance(second, ScoreRow) and first.difference is None and "difference" not in first
    assert isinstance(second.summaries["macro_f1"], MetricSummary) and second.comparison is not None
    assert isinstance(second.difference.metrics["accuracy"], Comparison)
    assert second["macro_f1"]["by_seed"] == second.summaries["macro_f1"].by_seed
    assert isinstance(results.losses[0], LossRow) and isinstance(results.adaptations[0], AdaptationRow)
    assert isinstance(results.adaptations[0].curve[0], CurvePoint)


def records() -> list[type[Record]]:
    return [
        cls
        for module in (rows, adaptation_rows, results)
        for cls in vars(module).values()
        if isinstance(cls, type)
        and issubclass(cls, Record)
        and cls.__module__ == module.__name__
        and cls is not StudyResults  # its rows are tested one by one
    ]


@cache
def values_of(hint) -> st.SearchStrategy:
    """Values of a type hint as a row has them, which JSON keeps."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return st.one_of(*map(values_of, arguments))
    if origin is list:
        return st.lists(values_of(arguments[0]), max_size=2)
    if origin is dict:
        return st.dictionaries(st.sampled_from(["accuracy", "x y", ""]), values_of(arguments[1]), max_size=2)
    if is_typeddict(hint):
        return st.fixed_dictionaries({name: values_of(kind) for name, kind in get_type_hints(hint).items()})
    if isinstance(hint, type) and issubclass(hint, Record):
        hints = get_type_hints(hint)
        return st.builds(hint, **{field.name: values_of(hints[field.name]) for field in fields(hint)})
    if origin is Literal:
        return st.sampled_from(arguments)
    numbers = st.floats(allow_nan=False)
    known = {
        type(None): st.none(),
        str: st.text(max_size=3),
        int: st.integers(-(2**63), 2**63),
        float: numbers,
        bool: st.booleans(),
    }
    return known[hint] if hint in known else st.none() | st.text(max_size=3)


@each("cls", records())
@settings(max_examples=4, deadline=None)
@given(data=st.data())
def test_every_row_survives_the_round_trip(cls, data):
    row = data.draw(values_of(cls))
    again = cls.from_dict(json.loads(json.dumps(row.to_dict())))
    assert again == row
    for field in fields(cls):
        assert type(getattr(again, field.name)) is type(getattr(row, field.name)), field.name


def test_a_record_reads_like_its_json():
    row = ReportTable(title="Extra", columns=["a"], rows=[[1]])
    assert row == {"title": "Extra", "note": "", "columns": ["a"], "rows": [[1]], "digits": 3, "first": False}
    assert {**row}["title"] == row["title"] == row.get("title") and row.get("absent", 7) == 7
    loss = LossRow(model="m", domain="d", text="general", method="mlm", nats=2.0)
    assert "task" not in loss and loss.get("task") is None and loss["percent"] is None
    with pytest.raises(KeyError):
        loss["before"]
    assert "by_seed" in loss and "kind" not in loss


def test_files_that_hold_no_results(tmp_path):
    for name, text in (("a", "{"), ("b", "[]"), ("c", '{"format": 99}'), ("d", '{"format": 4}')):
        (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match="There are no results at"):
        StudyResults.load(tmp_path / "absent.json")
    for name, message in (("a", "damaged"), ("b", "must be an object"), ("c", "no results"), ("d", "name is missing")):
        with pytest.raises(UserError, match=message):
            StudyResults.load(tmp_path / name)
    path = write_json(tmp_path / "e", {"format": 4, "name": "small", "of a later version": 3})
    assert StudyResults.load(path).name == "small"
