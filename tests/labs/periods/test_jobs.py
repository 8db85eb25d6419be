"""Losses by period in studies: every model is measured on text of each period, and none is adapted to that text."""

from __future__ import annotations

import json

import pytest

from acclimate.base.errors import UserError
from acclimate.study.compare import compare
from acclimate.study.config import StudyConfig
from tests.cases import each
from tests.study.fakes import World, files, study


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Small corpora and tasks; no figures are drawn."""
    monkeypatch.setattr("acclimate.report.write_report", lambda results, path: path)
    return files(tmp_path / "data")


def write_dated(folder, years=(2019, 2020, 2021), each_year=9):
    """Write posts, some of them of the last century; return the file."""
    rows = [
        {"text": f" post {number} of {year}", "day": f"{year}-03-01"} for year in years for number in range(each_year)
    ]
    rows += [{"text": "an old post", "day": "1999"}, {"text": "a post without a date", "day": None}]
    (folder / "posts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder / "posts.jsonl"


def test_every_model_is_measured_on_each_period_and_none_reads_that_text(folder, tmp_path, caplog):
    posts = write_dated(folder)
    domain = {"name": "posts", "corpus": str(posts), "heldout": str(folder / "cs.txt")}
    periods = {"corpus": str(posts), "by": "year", "least": 5, "date_column": "day"}
    config = study(
        folder, methods=["none", "mlm"], domains=[domain], seeds=2, adapt_seeds=2, periods=periods,
        evaluate={"documents": 4}, capabilities={"time": ["period 2021 text"]},
    )  # fmt: skip
    world = World()
    results = compare(config, tmp_path / "out", progress=False, backend=world.backend())
    assert "periods: Periods left out for too few documents: 1999 (1)." in caplog.text
    assert "periods: Not used: 1 without a date" in caplog.text
    read = {text.strip() for call in world.arguments if call["kind"] == "adapt" for text in call["documents"]}
    measured = {text.strip() for call in world.arguments if call["kind"] == "lm_loss" for text in call["texts"]}
    posts = {text for text in measured if text.startswith("post")}
    assert len(posts) == 3 * 4 and len(read) == 3 * 9 + 2 - 12 and not read & posts
    (table,) = [table for table in results.tables if table.title == "Loss by period"]
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert [(row["method"], row["period"], row["texts"]) for row in rows] == [
        ("mlm", year, 4) for year in ("2019", "2020", "2021")
    ]
    for row in rows:
        assert row["after"] - row["before"] == pytest.approx(row["difference"]) and row["from"] < row["to"]
    assert {row.text for row in results.losses} == {"domain", "general"}
    assert [row.measure for row in results.rows["capabilities"]] == ["period 2021 text"]


@each(
    ("changes", "message"),
    [
        ({"by": "yera"}, "year"),
        ({"least": 500, "date_column": "day"}, "500"),
        ({"date_column": "dy"}, "no column 'dy'.*Did you mean 'day'"),
        ({"every": 2}, "unknown key 'periods.*every'"),
        ({"corpus": "nowhere.jsonl"}, "nowhere.jsonl"),
    ],
)
def test_mistakes_in_the_section_are_explained(folder, tmp_path, changes, message):
    periods = {"corpus": str(write_dated(folder)), "least": 5, **changes}
    with pytest.raises(UserError, match=message):
        compare(study(folder, periods=periods), tmp_path / "out", progress=False, backend=World().backend())


def test_relative_paths_start_at_the_study_file(folder):
    (folder / "s.yaml").write_text(
        "models: [model]\nmethods: [none, mlm]\ndomains: [{name: d, corpus: cs.txt}]\nperiods: {corpus: posts.jsonl}\n"
    )
    (spec,) = StudyConfig.load(folder / "s.yaml").sections["periods"]
    assert spec.corpus == [str(folder / "posts.jsonl")]
