"""The benchmark of the annotator: both orders give the same labels."""

from __future__ import annotations

import json

import pytest

from acclimate.base.errors import UserError
from benchmarks import annotator
from tests.papers.classifiers import LABELS, examples, sharp_classifier


def test_both_orders_give_the_same_labels(tmp_path, tiny_bert, capsys):
    folder, model, file = tmp_path / "task", tmp_path / "model", tmp_path / "result.json"
    folder.mkdir()
    rows = [{"text": row.text, "label": LABELS[row.label]} for row in examples(12)]
    for split in ("train", "test"):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    classifier = sharp_classifier(tiny_bert)
    classifier.model.save_pretrained(model)
    classifier.tokenizer.save_pretrained(model)
    options = ["--task", str(folder), "--rounds", "1", "--texts", "10", "--json", str(file)]
    assert annotator.main(["--model", str(model), *options]) == 0
    result = json.loads(file.read_text())
    assert (result["texts"], result["differing"]) == (10, 0)
    assert 0.05 < result["important"] < 0.95
    assert {"torch", "transformers", "processor", "threads"} <= set(result["machine"])
    assert "0 labels differ" in capsys.readouterr().out
    with pytest.raises(UserError, match="not a classifier of"):
        annotator.main(["--model", str(tiny_bert), *options])
    with pytest.raises(UserError, match="at least 99 single texts"):
        annotator.main(["--model", str(model), *options, "--texts", "99"])
