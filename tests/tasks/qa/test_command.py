"""Question answering on the command line."""

from __future__ import annotations

import json
import re

from acclimate.evaluation.qa import NAMES
from tests.tasks.qa.toy import squad
from tests.test_cli import call


def test_finetune_prints_question_answering_scores(tiny_bert, tmp_path, monkeypatch, capsys):
    for name in ("food", "before"):
        (tmp_path / name).mkdir()
        for split, count in (("train", 8), ("test", 5)):
            (tmp_path / name / f"{split}.json").write_text(json.dumps(squad(count, name + split)))
    common = ["finetune", "--model", tiny_bert, "--epochs", 1, "--seeds", 2, "--precision", "fp32", "--quiet"]
    code, out, _ = call(
        monkeypatch, capsys, *common, "--task", tmp_path / "food", "--first", tmp_path / "before", "--out",
        tmp_path / "out", "--max-length", 48,
    )  # fmt: skip
    assert code == 0
    for name in NAMES:
        assert len(re.findall(rf"\b{name}:? \d\.\d{{4}}", out)) == 3  # both seeds, and their mean
    written = json.loads((tmp_path / "out" / "seed-1" / "metrics.json").read_text())
    assert (written["kind"], written["first"]) == ("qa", "before")
    code, _, err = call(monkeypatch, capsys, *common, "--task", tmp_path / "food", "--repartition", 0.5)
    assert code == 2
    assert "re-partitioned" in err
    code, _, err = call(monkeypatch, capsys, *common, "--task", tmp_path / "food", "--first-epochs", 2)
    assert code == 2
    assert "needs a first task" in err
