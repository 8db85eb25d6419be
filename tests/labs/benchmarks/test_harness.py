"""Benchmarks of lm-eval; the run itself is skipped without the package."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import replace

import numpy as np
import pytest

from acclimate.base.errors import UserError
from acclimate.evaluation.likelihood import classify_by_likelihood
from acclimate.evaluation.lm_loss import language_model_loss
from acclimate.evaluation.significance import paired_difference
from acclimate.labs.benchmarks import harness as benchmarks
from acclimate.labs.benchmarks.harness import _read_samples, inspect_benchmarks
from acclimate.labs.judge.logs import Scores
from tests.tiny import TEXTS, save_tiny


def sample(number, correct, likelihood, size):
    values = {"acc": correct, "bits_per_byte": (likelihood, size), "word_perplexity": (likelihood, 1), "f1": [1, 0]}
    return {"doc_id": number, "doc_hash": f"h{number:02d}", "filter": "none", "metrics": list(values), **values}


def test_metrics_of_each_item():
    found = _read_samples({"quiz": [sample(0, True, -8.0, 4), sample(1, 0.5, -2.0, 2)]})
    assert found.keys() == {("quiz", "acc"), ("quiz", "bits_per_byte")}
    bits, accuracy = found["quiz", "bits_per_byte"], found["quiz", "acc"]
    assert bits.groups is None
    assert bits.names == ["h00", "h01"] and bits.weights.tolist() == [4, 2]
    np.testing.assert_allclose(bits.values, np.array([2, 1]) / np.log(2))
    assert accuracy.values.tolist() == [1, 0.5] and accuracy.weights is None
    other = [{**sample(0, 1, -1.0, 1), "filter": name} for name in ("strict", "loose")]
    assert {task for task, _ in _read_samples({"quiz": other})} == {"quiz (strict)", "quiz (loose)"}


def test_models_are_compared_item_by_item(monkeypatch, tmp_path):
    names, weights = ["0/h", "1/h", "2/h"], np.array([1.0, 1.0, 2.0])
    values = {"after": np.array([1.0, 0.0, 1.0]), "base": np.array([0.0, 0.0, 1.0])}
    monkeypatch.setattr(
        benchmarks,
        "measure_items",
        lambda model, options: {("quiz", "acc"): Scores(names, values[model], weights=weights)},
    )
    report = inspect_benchmarks("after", "quiz", "base", tmp_path / "out.json")
    (row,) = report["rows"]
    assert (row["after"], row["before"], row["items"]) == (0.75, 0.5, 3)
    assert row["difference"] == paired_difference(values["after"], values["base"], weights).as_dict()
    assert json.loads((tmp_path / "out.json").read_text()) == report
    answers = iter([Scores(names, values["after"]), Scores(names[::-1], values["base"])])
    monkeypatch.setattr(benchmarks, "measure_items", lambda model, options: {("quiz", "acc"): next(answers)})
    with pytest.raises(UserError, match="gave the two models different items"):
        inspect_benchmarks("after", "quiz", "base")


def test_items_about_one_passage_are_one_unit(monkeypatch, tmp_path):
    docs = [{"question": f"q{number}", "passage": f"p{number // 5}", "document": number} for number in range(20)]
    samples = [{**sample(number, number < 11, -1.0, 1), "doc": doc} for number, doc in enumerate(docs)]
    found = _read_samples({"quiz": samples})["quiz", "acc"]
    assert (found.groups, found.group_name) == ([f"p{number // 5}" for number in range(20)], "passage")
    assert _read_samples({"quiz": samples[::5]})["quiz", "acc"].groups is None, "no two items share a passage"
    base = replace(found, values=np.arange(20) % 2.0)
    monkeypatch.setattr(
        benchmarks, "measure_items", lambda model, _: {("quiz", "acc"): {"a": found, "b": base}[model]}
    )
    report = inspect_benchmarks("a", "quiz", "b")
    assert report["rows"][0]["difference"] == paired_difference(
        found.values, base.values, groups=[number // 5 for number in range(20)]).as_dict()  # fmt: skip
    assert "4 passages (20 items)" in str(report)


def test_without_the_package_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(UserError, match=r"pip install 'acclimate\[lm-eval\]'"):
        inspect_benchmarks("model", "quiz")


def test_local_tasks_run_offline(tmp_path, decoders, tiny_bert):
    pytest.importorskip("lm_eval")
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    rows = [{"text": f"{text} {n}", "choices": ["good", "a bad soup"], "gold": 0} for n, text in enumerate(TEXTS)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = f"dataset_path: json\ndataset_kwargs: {{data_files: {{test: {tmp_path}/rows.jsonl}}}}\ntest_split: test\n"
    (tmp_path / "choice.yaml").write_text(
        f"task: local_choice\n{data}output_type: multiple_choice\ndoc_to_text: '{{{{text}}}}'\n"
        "doc_to_choice: '{{choices}}'\ndoc_to_target: gold\nmetric_list: [{metric: acc}, {metric: acc_norm}]\n"
    )
    (tmp_path / "bits.yaml").write_text(
        f"task: local_bits\n{data}output_type: loglikelihood_rolling\ndoc_to_text: ''\ndoc_to_target: '{{{{text}}}}'\n"
        "metric_list: [{metric: bits_per_byte}]\n"
    )
    base = decoders["smollm3"]  # its tokenizer adds no begin token, which lm-eval would predict as well
    other = save_tiny("smollm3", tmp_path / "other", seed=1)
    options = {"include_path": tmp_path}
    report = inspect_benchmarks(other, ["local_choice", "local_bits"], base, **options)
    found = {(row["task"], row["metric"]): row for row in report["rows"]}
    assert found.keys() == {("local_choice", "acc"), ("local_choice", "acc_norm"), ("local_bits", "bits_per_byte")}
    bits = found["local_bits", "bits_per_byte"]
    texts = [row["text"] for row in rows]
    for side, model in (("after", other), ("before", base)):
        assert bits[side] == pytest.approx(
            language_model_loss(model, texts, max_length=128)["bits_per_byte"], rel=1e-4
        )
    pairs = [(text, None) for text in texts]
    ours = classify_by_likelihood(other, pairs, ["good", "a bad soup"], template="{text}", score="sum")
    assert found["local_choice", "acc"]["after"] == ours.predicted.count(0) / len(rows)
    assert bits["difference"]["difference"] == pytest.approx(bits["after"] - bits["before"])
    with pytest.raises(UserError, match="lm-eval has no task 'local_quiz'"):
        inspect_benchmarks(other, "local_quiz", **options)
    with pytest.raises(UserError, match="needs a causal one"):
        inspect_benchmarks(tiny_bert, "local_choice", **options)
