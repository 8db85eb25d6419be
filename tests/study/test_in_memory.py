"""Studies that are described by arguments, with texts and tasks in memory."""

from __future__ import annotations

import json

import datasets
import pandas
import pytest
import yaml

from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from acclimate.data.task_kinds import load_task
from acclimate.study.compare import compare
from tests.cases import each
from tests.study.fakes import World, files

TEXTS = [f"document number {number} is about wine" for number in range(60)]
ROWS = [{"review": f"wine {number}", "rating": "good" if number % 2 else "bad"} for number in range(40)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return files(tmp_path_factory.mktemp("models")) / "model"


def run(out, **given):
    world = World()
    given = {"methods": "mlm", "seeds": 2, **given}
    return compare(out=out, progress=False, backend=world.backend(), **given), world


def test_one_line_compares_on_data_in_memory(model, tmp_path, no_report):
    given = {"model": model, "corpus": pandas.DataFrame({"text": TEXTS}), "task": pandas.DataFrame(ROWS)}
    results, world = run(tmp_path / "out", **given, settings={"adapt.steps": 5})
    assert [row.method for row in results.scores] == ["none", "mlm"] and results.scores[0].task == "task"
    (trained,) = {tuple(sorted(one["documents"])) for one in world.arguments if one["kind"] == "adapt"}
    assert set(trained) < set(TEXTS) and len(trained) > 50
    study = yaml.safe_load((tmp_path / "out" / "study.yaml").read_text())
    assert study["adapt"] == {"steps": 5}
    assert [json.loads(line) for line in (tmp_path / "out/data/task.jsonl").read_text().splitlines()] == ROWS

    again, world = run(tmp_path / "out", **given, settings={"adapt.steps": 5})
    assert not world.calls["adapt"] and again.scores[1] == results.scores[1]
    from_file = compare(tmp_path / "out/study.yaml", tmp_path / "out", progress=False, backend=World().backend())
    assert from_file.jobs.done == 0
    with pytest.raises(UserError, match="holds other data than those given"):
        run(tmp_path / "out", **{**given, "task": pandas.DataFrame(ROWS[:30])})


@each("corpus", [Corpus.of(TEXTS), TEXTS, datasets.Dataset.from_dict({"text": TEXTS})])
def test_text_in_memory_is_written_as_it_is(corpus, model, tmp_path, no_report):
    results, _ = run(tmp_path / "out", model=model, corpus=corpus, general=corpus)
    for name in ("corpus", "general"):
        lines = (tmp_path / "out/data" / f"{name}.jsonl").read_text().splitlines()
        assert [json.loads(line)["text"] for line in lines] == TEXTS
    assert results.losses and not results.scores


def test_splits_and_names_of_classes_are_kept(model, tmp_path, no_report):
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["0", "1"])})
    rows = {"text": [f"wine {number}" for number in range(24)], "label": [0, 1] * 10 + [-1] * 4}  # 4 without a label
    part = datasets.Dataset.from_dict(rows, features=features)
    file = tmp_path / "corpus.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    splits = datasets.DatasetDict({"train": part, "validation": part.select(range(4)), "test": part.select(range(8))})
    results, _ = run(tmp_path / "out", model=model, corpus=file, task=splits, methods=["none"])
    assert not (tmp_path / "out/data/corpus.jsonl").exists()
    task = load_task(tmp_path / "out/data/task")
    assert [len(task.train), len(task.dev), len(task.test)] == [20, 4, 8] and task.labels == ["0", "1"]
    assert results.scores[0].task == "task"


@each(
    ("given", "message"),
    [
        ({"model": "m", "out": "x"}, "corpus is missing"),
        ({"out": "x"}, "model and corpus is missing"),
        (
            {"config": "study.yaml", "out": "x", "methods": "lm", "task": pandas.DataFrame(ROWS)},
            "remove task, methods",
        ),
        ({"model": "m", "corpus": Corpus.of(TEXTS)}, "Give an output directory"),
        ({"model": "m", "corpus": Corpus.of(TEXTS), "task": [1, 2], "out": "x"}, "a row is a dictionary"),
    ],
)
def test_what_is_missing_or_wrong_is_said(given, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        compare(**given, progress=False, backend=World().backend())
