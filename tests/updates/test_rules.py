"""Frozen rows of a weight, and when update rules run relative to gradient clipping."""

from __future__ import annotations

import json

import pytest
import torch

from acclimate.corpus import Corpus
from acclimate.methods.lm import MLM
from acclimate.models import attach
from acclimate.objectives import LanguageModelling
from acclimate.training import adapt
from acclimate.training.engine import Engine
from acclimate.updates import FreezeOtherRows, UpdateRule
from tests.methods.test_contract import DOCUMENTS, SHORT
from tests.tiny import tiny_model
from tests.training.helpers import micro_batches


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_frozen_rows_do_not_count_towards_the_clipping_norm(precision):
    """Kernels add to ``grad`` directly, so the rule clears it after the whole backward pass."""
    model = tiny_model("bert")
    attach(model)
    model.requires_grad_(False)
    table = model.get_input_embeddings().weight
    table.requires_grad_(True)
    rule = FreezeOtherRows(table, [7, 9])
    Engine(model, [LanguageModelling()], precision).step(micro_batches())
    free = table.grad[[7, 9]].clone()
    assert table.grad[rule.others].norm() > 0 < free.norm()
    rule.after_backward()
    assert (table.grad[rule.others] == 0).all()
    assert torch.equal(table.grad[[7, 9]], free)


def test_after_backward_runs_before_clipping(tiny_bert, tmp_path):
    class ZeroGradients(UpdateRule):
        def __init__(self, model):
            self.model = model

        def after_backward(self):
            self.model.zero_grad()

    class MLMWithoutGradients(MLM):
        def prepare(self, run):
            self.rule = ZeroGradients(run.model)

        def update_rule(self):
            return self.rule

    adapt(tiny_bert, Corpus.of(DOCUMENTS), MLMWithoutGradients(), tmp_path / "out", **SHORT)
    lines = (tmp_path / "out" / "log.jsonl").read_text().splitlines()
    assert {json.loads(line)["grad_norm"] for line in lines} == {0.0}
