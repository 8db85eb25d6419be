"""Rows that train and rows that do not: what the others' gradients may do."""

from __future__ import annotations

import json

import pytest
import torch

from acclimate.corpus import Corpus
from acclimate.methods.mlm import MLM
from acclimate.models import attach
from acclimate.objectives import LanguageModelling
from acclimate.training import adapt
from acclimate.training.engine import Engine
from acclimate.updates import FreezeOtherRows
from acclimate.updates.base import UpdateRule
from tests.methods.test_contract import DOCUMENTS, SHORT
from tests.tiny import tiny_model
from tests.training.helpers import micro_batches


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_rows_that_do_not_train_have_no_gradient_to_clip(precision):
    """Lookups and lowered weights add to the gradient on a way of their own, so it is cleared when all are there."""
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


def test_a_rule_sees_the_gradients_before_they_are_clipped(tiny_bert, tmp_path):
    class Forget(UpdateRule):
        def __init__(self, model):
            self.model = model

        def after_backward(self):
            self.model.zero_grad()

    class Forgetful(MLM):
        def prepare(self, run):
            self.rule = Forget(run.model)

        def update_rule(self):
            return self.rule

    adapt(tiny_bert, Corpus.of(DOCUMENTS), Forgetful(), tmp_path / "out", **SHORT)
    lines = (tmp_path / "out" / "log.jsonl").read_text().splitlines()
    assert {json.loads(line)["grad_norm"] for line in lines} == {0.0}
