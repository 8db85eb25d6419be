"""Distillation from the model before the adaptation."""

from __future__ import annotations

import json

import pytest
import torch

from acclimate.adaptation.adapt import adapt
from acclimate.models.loading import load_language_model
from tests.papers.domains import FIRST, SECOND, SHORT
from tests.papers.terms import HELD, run
from tests.tiny import tiny_tokenizer


@pytest.mark.slow
def test_distillation_keeps_hidden_states_close_to_the_base_model(tiny_bert, tmp_path):
    run(tiny_bert, "mlm", tmp_path / "mlm")
    run(tiny_bert, "kd weight=30", tmp_path / "kd")
    ids = tiny_tokenizer()(list(HELD), return_tensors="pt", padding=True)
    with torch.no_grad():
        start, mlm, kd = (
            load_language_model(folder).model.base_model(**ids).last_hidden_state[ids["attention_mask"] > 0]
            for folder in (tiny_bert, tmp_path / "mlm", tmp_path / "kd")
        )
    assert (kd - start).norm() < 0.8 * (mlm - start).norm()


def test_kd_distills_from_the_model_of_the_domain_before(tiny_bert, tmp_path):
    """Without dropout, its term is zero in the first step of the second domain; then the model leaves its teacher."""
    first = adapt(tiny_bert, FIRST, "lm", tmp_path / "1", **SHORT).out
    second = adapt(first, SECOND, "kd", tmp_path / "2", **SHORT, dropout=0.0).out
    lines = [json.loads(line) for line in (second / "log.jsonl").read_text().splitlines()]
    assert abs(lines[0]["terms"]["kd"]) < 1e-6 < lines[1]["terms"]["kd"]
