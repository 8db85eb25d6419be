"""Domain-adversarial training next to a labelled task."""

from __future__ import annotations

import json

import numpy as np
import pytest

from acclimate.tasks.kinds.classification.data import Task
from tests.papers.test_labelled import ROWS, run


@pytest.mark.slow
def test_labels_are_learned_beside_the_adversary(tiny_bert, tmp_path):
    result = run(tiny_bert, tmp_path / "out", lm_weight=0, adversary_weight=0.3)
    assert set(result.losses) == {"classification", "adversary", "loss"}
    assert result.losses["classification"] < 0.35 < np.log(2)


def test_the_language_model_is_learned_by_default(tiny_bert, tmp_path):
    run(tiny_bert, tmp_path / "out", options={"steps": 4})
    lines = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    assert set(lines[0]["terms"]) == {"mlm", "classification", "adversary"}


def test_long_examples_are_cut_and_counted(tiny_bert, tmp_path, capsys):
    """The message may be wrapped."""
    rows = [*ROWS, {"text": "the food " * 60, "label": "bad"}]
    run(tiny_bert, tmp_path / "out", task=Task.of("long", rows, ROWS[:4]), options={"steps": 1, "progress": True})
    assert "cut to 24 tokens: 1" in " ".join(capsys.readouterr().err.split())
