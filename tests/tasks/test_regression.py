"""Regression tasks: how they are found and read, and that models learn, save and reload them in any unit."""

from __future__ import annotations

import csv
import json
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from typer.testing import CliRunner

from acclimate.adaptation.adapt import adapt
from acclimate.base.errors import UserError
from acclimate.cli.main import app
from acclimate.data.documents import Corpus
from acclimate.data.task_kinds import find_task_kind, load_task, task_texts
from acclimate.study.compare import compare
from acclimate.tasks.finetune import finetune
from acclimate.tasks.interfaces import item_texts
from acclimate.tasks.kinds.classification.data import Task
from acclimate.tasks.kinds.regression import RegressionTask, read_number
from acclimate.tasks.splits import limit_splits
from tests.cases import each
from tests.tiny import save_tiny

FILLER = ["the", "a", "of", "and", "to", "in", "is", "was", "it", "for", "on", "with"]
QUICK = {"progress": False, "precision": "fp32", "max_length": 24}


def rows(count, scale=1.0, shift=0.5, pair=False, seed=0):
    """Texts whose number is that of "good" among eight words, times ``scale`` plus ``shift``."""
    chance, made = random.Random(seed), []
    for number in range(count):
        good = number % 5
        words = ["good"] * good + ["bad"] * (4 - good) + chance.choices(FILLER, k=3)
        chance.shuffle(words)
        row = {"text": " ".join(words), "label": good * scale + shift}
        made.append({**row, "text": "the food", "text_pair": row["text"]} if pair else row)
    return made


def task_of(**options):
    return load_task(
        {"train": rows(60, **options), "dev": rows(20, seed=1, **options), "test": rows(30, seed=2, **options)}
    )


@each(("values", "kind"), [
    ([0.5, 1.0, 2.0, 3.0], "regression"),
    (["0.5", "1", "2", "-3e-2"], "regression"),
    ([1, 2, 3, 1], "classification"),
    ([1.0, 2.0, 1.0, 2.0], "classification"),
    (["1.0", "2.0", "1.0", "2.0"], "classification"),
    ([True, False, True, False], "classification"),
    (["good", "bad", "good", "bad"], "classification"),
])  # fmt: skip
def test_numbers_with_a_fraction_are_found(values, kind, tmp_path):
    made = [{"text": f"text {n}", "label": values[n % 4]} for n in range(40)]
    assert load_task(made).task_kind == kind
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made))
    assert load_task(tmp_path / "data.jsonl").task_kind == kind


def test_whole_numbers_are_targets_if_the_user_says_so(tmp_path):
    made = [{"sentence1": f"a {n}", "sentence2": f"b {n}", "score": n % 6} for n in range(60)]
    with pytest.raises(UserError, match=r"'score' holds whole numbers.*--label-column score.*--task-kind regression"):
        load_task(made)
    task = load_task(made, task_kind="regression")
    assert task.train[0].text_pair is not None and {e.target for e in task.train} == {0.0, 1.0, 2.0, 3.0, 4.0, 5.0}
    with pytest.raises(UserError, match="Unknown kind of task 'regresion'\\. Did you mean 'regression'"):
        load_task(made, task_kind="regresion")
    with pytest.raises(UserError, match=r"cannot be read as a task of the kind 'qa'.*--pair-column"):
        load_task(made, task_kind="qa")


def test_missing_splits_are_drawn_by_size_with_equal_texts_in_one(caplog):
    made = rows(200, scale=1.5)
    task = load_task([*made, *made])
    assert (len(task.train), len(task.dev), len(task.test)) == (280, 40, 80) and task.drawn in caplog.text
    items = [{example.item for example in split} for split in (task.train, task.dev, task.test)]
    assert not items[0] & items[1] and not items[0] & items[2] and not items[1] & items[2]
    means = [np.mean([example.target for example in split]) for split in (task.train, task.test)]
    assert abs(means[0] - means[1]) < 0.5
    assert load_task([*made, *made], split_seed=1).test != task.test


@each(("change", "words"), [
    ({"label": "high"}, "the label must be a number up to 1e[+]18, not 'high'"),
    ({"label": None}, r"1 without a label .first: test: row 4"),
    ({"label": float("nan")}, r"1 without a label .first: test: row 4"),
    ({"label": True}, "the label must be a number up to 1e[+]18, not True"),
    ({"label": 10**400}, "the label must be a number up to 1e[+]18, not 1000"),
    ({"label": "1e400"}, "the label must be a number up to 1e[+]18, not '1e400'"),
    ({"label": -1e300}, "the label must be a number up to 1e[+]18, not -1e[+]300"),
    ({"text": ""}, r"1 without a text .first: test: row 4"),
])  # fmt: skip
def test_rows_that_cannot_be_used_are_named(change, words):
    made = {"train": rows(20), "test": [*rows(3), {**rows(1)[0], **change}]}
    with pytest.raises(UserError, match=words):
        load_task(made)


def test_equal_numbers_cannot_be_learned():
    with pytest.raises(UserError, match="the same number"):
        load_task({"train": [{"text": f"a {n}", "label": 0.5} for n in range(9)], "test": rows(3)})


@settings(deadline=None, max_examples=60, database=None)
@given(st.one_of(st.text(max_size=8), st.floats(), st.integers(), st.booleans(), st.none(), st.lists(st.integers())))
def test_any_label_is_a_finite_number_or_none(value):
    found = read_number(value)
    assert found is None or (np.isfinite(found) and found == float(value))


def test_texts_and_copies_of_a_task():
    task = task_of(pair=True)
    assert task_texts(task)[0] == "the food" and len(item_texts(task)["test"]) == len({e.item for e in task.test})
    assert find_task_kind(task).answer(task.test[1], task) == f"{task.test[1].target:g}"
    assert len(limit_splits(task, train=10).train) == 10 and len(task.few_shot(5, 0)) == 5
    for wrong in (lambda: task.few_shot(1, 0), lambda: task.scoring(negative=["a"])):
        with pytest.raises(UserError):
            wrong()
    assert task.fingerprint() == task_of(pair=True).fingerprint() != task_of().fingerprint()


@pytest.mark.parametrize(
    ("kind", "scale", "shift"), [("bert", 1000.0, 5000.5), pytest.param("llama", 1.0, 0.5, marks=pytest.mark.slow)]
)
def test_a_model_learns_any_unit_and_its_folder_predicts_in_it(kind, scale, shift, tmp_path):
    task = task_of(scale=scale, shift=shift, pair=kind == "bert")
    model = save_tiny(kind, tmp_path / "model")
    options = {**QUICK, "epochs": 10, "learning_rate": 5e-3, "batch_size": 8, "select": "dev"}
    result = finetune(model, task, out=tmp_path / "out", **options)
    assert result.kind == "regression" and result.metrics["spearman"] > 0.6
    assert result.metrics["rmse"] < 1.3 * scale and result.labels == []
    made = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    for example, predicted in list(zip(task.test, result.predicted, strict=True))[:5]:
        texts = [text for text in (example.text, example.text_pair) if text is not None]
        with torch.inference_mode():
            output = made(**tokenizer(*texts, return_tensors="pt")).logits.item()
        assert output == pytest.approx(predicted, rel=1e-3, abs=1e-3 * scale)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "rmse" in card and f"{result.metrics['rmse']:.4g}" in card and "errors in the unit of the target" in card
    # The head of such a folder is kept.
    again = finetune(tmp_path / "out", task, **{**options, "epochs": 1, "learning_rate": 1e-9, "select": "last"})
    assert again.predicted == pytest.approx(result.predicted, rel=1e-3, abs=1e-2 * scale)


def test_constant_predictions_are_reported(tiny_bert, caplog):
    finetune(tiny_bert, task_of(), epochs=1, learning_rate=1e-12, **QUICK)
    assert "the same answer" in caplog.text


def test_what_does_not_apply_is_an_error(tiny_bert):
    task = task_of()
    classes = Task.of("c", [{"text": "a", "label": "x"}, {"text": "b", "label": "y"}], [{"text": "a", "label": "x"}])
    with pytest.raises(UserError, match="same kind"):
        finetune(tiny_bert, task, first=classes, **QUICK)
    with pytest.raises(UserError, match="no classes"):
        finetune(tiny_bert, task, confidence_penalty=0.1, **QUICK)


@pytest.mark.slow
def test_in_a_study_and_on_the_command_line(tiny_bert, tmp_path):
    folder = tmp_path / "task"
    folder.mkdir()
    for number, split in enumerate(("train", "dev", "test")):
        text = "".join(json.dumps(row) + "\n" for row in rows(40, scale=0.7, seed=number))
        (folder / f"{split}.jsonl").write_text(text)
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(row["text"] for row in rows(80, seed=5)))
    study = {
        "name": "numbers", "models": [str(tiny_bert)], "methods": ["none", "lm"], "seeds": 1,
        "domains": [{"name": "d", "corpus": str(corpus), "tasks": [str(folder)]}],
        "adapt": {"steps": 2, "batch_size": 4, "max_length": 16}, "finetune": {"max_length": 16, "epochs": 1},
        "evaluate": {"max_length": 16},
    }  # fmt: skip
    (tmp_path / "study.json").write_text(json.dumps(study))
    results = compare(tmp_path / "study.json", tmp_path / "out", progress=False)
    assert not results.failures
    row = results.scores[0]
    assert row.metric == "spearman" and row.kind == "regression" and {"pearson", "rmse", "mae"} <= set(row.summaries)
    adapted = results.scores[1]
    assert adapted.comparison is not None and adapted.errors == ["rmse", "mae"] and "rmse" not in adapted.metrics
    changes = {name: adapted.summaries[name].mean - row.summaries[name].mean for name in adapted.errors}
    assert all(adapted.difference.metrics[name].difference == pytest.approx(changes[name]) for name in changes)
    (table,) = [table for table in results.tables if table.title == "Errors in the unit of the target"]
    assert [line[3:6] for line in table.rows][2:] == [
        ["lm", name, pytest.approx(adapted.summaries[name].mean)] for name in ("rmse", "mae")
    ]
    lines = list(csv.DictReader((tmp_path / "out" / "results.csv").open()))
    (line,) = [line for line in lines if (line["method"], line["measure"]) == ("lm", "rmse")]
    assert float(line["value"]) == adapted.summaries["rmse"].mean
    assert float(line["difference"]) == adapted.difference.metrics["rmse"].difference
    assert "spearman" in (tmp_path / "out" / "report.html").read_text().lower()
    run = CliRunner().invoke(
        app, ["finetune", "--model", str(tiny_bert), "--task", str(folder), "--epochs", "1", "--max-length", "16"]
    )
    assert run.exit_code == 0 and "spearman" in run.output and "rmse" in run.output
    leak = CliRunner().invoke(app, ["inspect", "leakage", "--corpus", str(corpus), "--task", str(folder)])
    assert leak.exit_code == 0, leak.output
    adapt(
        tiny_bert, None, "tapt", tmp_path / "tapt", task=folder, steps=1, batch_size=4, max_length=16, progress=False
    )
    assert isinstance(load_task(folder), RegressionTask) and Corpus.of(task_texts(load_task(folder)))
