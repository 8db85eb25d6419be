"""The benchmark of the annotator runs, and both orders agree."""

from __future__ import annotations

import json

import pytest

from acclimate.errors import UserError
from benchmarks import annotator
from tests.methods.selective.models import LABELS, examples, sharp_classifier


def test_both_orders_give_the_same_labels(tmp_path, capsys):
    file = tmp_path / "result.json"
    assert annotator.main(["--shape", "tiny", "--texts", "8", "--rounds", "1", "--json", str(file)]) == 0
    result = json.loads(file.read_text())
    assert result["differing"] == 0
    assert 0.05 < result["share"] < 0.95
    assert "0 labels differ" in capsys.readouterr().out


def test_the_texts_and_the_classifier_of_a_task(tmp_path, tiny_bert, capsys):
    folder, model, file = tmp_path / "task", tmp_path / "model", tmp_path / "result.json"
    folder.mkdir()
    rows = [{"text": row.text, "label": LABELS[row.label]} for row in examples(12)]
    for split in ("train", "test"):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    classifier = sharp_classifier(tiny_bert)
    classifier.model.save_pretrained(model)
    classifier.tokenizer.save_pretrained(model)
    given = ["--model", str(model), "--task", str(folder), "--rounds", "1", "--json", str(file)]
    assert annotator.main([*given, "--texts", "10"]) == 0
    result = json.loads(file.read_text())
    assert (result["texts"], result["differing"]) == (10, 0)
    assert 0.05 < result["share"] < 0.95
    assert {"torch", "transformers", "processor", "threads"} <= set(result["machine"])
    with pytest.raises(SystemExit):
        annotator.main(["--task", str(folder)])
    with pytest.raises(UserError, match="no classifier of"):
        annotator.main(["--model", str(tiny_bert), "--task", str(folder), "--texts", "10"])
