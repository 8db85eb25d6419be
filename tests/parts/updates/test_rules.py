"""Frozen rows of a weight, and when update rules run relative to gradient clipping."""

from __future__ import annotations

import itertools
import json
import re

import pytest
import torch

from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.methods.lm import MLM
from acclimate.data.documents import Corpus
from acclimate.engine.steps import Engine
from acclimate.models.probe import attach
from acclimate.parts.modules.new_rows import TrainNewRows
from acclimate.parts.objectives import LanguageModelling
from acclimate.parts.updates import CombinedRules, FreezeOtherRows, PullToStart, StaticSparsity, UpdateRule
from tests.adaptation.helpers import micro_batches
from tests.papers.test_contract import DOCUMENTS, SHORT
from tests.tiny import tiny_model


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


def test_gradients_are_removed_after_all_that_is_added_whatever_the_order_of_rules():
    """So that clipping leaves out what does not move; every rule of the core that changes gradients is here."""
    model = tiny_model("bert")
    table = model.get_input_embeddings().weight
    sparse = StaticSparsity(model, 0.5, "magnitude")
    pull = PullToStart(model, 3.0)
    rules = [sparse, FreezeOtherRows(table, [7]), pull, TrainNewRows([table], [7])]
    own = {kind for kind in _subclasses(UpdateRule) if "after_backward" in vars(kind)}
    core = {kind for kind in own if re.match(r"acclimate\.(?!papers\.)", kind.__module__)}
    assert core == {
        *map(type, rules),
        CombinedRules,
        UpdateRule,
    }
    for parameter in model.parameters():
        parameter.data += 0.01
    found = []
    for order in itertools.permutations(rules):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        CombinedRules([order[0], CombinedRules(order[1:])]).after_backward()
        assert not any((weight.grad * ~kept).any() for weight, kept in sparse.kept)
        assert not table.grad[8:].any() and table.grad[7].all()
        found.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.equal(a, b) for each in found for a, b in zip(each, found[0], strict=True))


def _subclasses(kind):
    return {kind}.union(*(_subclasses(each) for each in kind.__subclasses__()))


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
