"""Precision on accelerators: float16 with a scaled loss on older ones, TF32 for fp32 on newer ones."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch

from acclimate.base.device import autocast, choose_precision, tf32_products
from acclimate.base.errors import UserError
from acclimate.base.files import read_json
from acclimate.engine.micro_batches import FIRST_SCALE, LossScaler
from acclimate.engine.trainer import StepTrainer
from acclimate.tasks.finetune import finetune
from tests.accelerator import emulated
from tests.cases import each
from tests.kills import killed
from tests.papers.test_contract import TASK, run, weights
from tests.tiny import save_tiny

OLD = {"bf16": False, "capability": (7, 5)}


@each(("bf16", "capability", "expected"), [(True, (9, 0), "bf16"), (False, (7, 5), "fp16"), (False, (6, 1), "fp32")])
def test_the_best_precision_of_a_gpu(bf16, capability, expected):
    with emulated(bf16=bf16, capability=capability):
        assert choose_precision() == expected


def test_fp16_is_refused_on_a_cpu():
    with pytest.raises(UserError, match="for GPUs"):
        choose_precision("fp16", torch.device("cpu"))


@each(("capability", "expected"), [((8, 0), "high"), ((7, 5), "highest")])
def test_products_of_float32_use_tf32_within_a_step(capability, expected):
    before = torch.get_float32_matmul_precision()
    with emulated(bf16=False, capability=capability):
        torch.set_float32_matmul_precision("highest")
        with tf32_products(enabled=True):
            assert torch.get_float32_matmul_precision() == expected
        assert torch.get_float32_matmul_precision() == "highest"
    torch.set_float32_matmul_precision(before)


def test_training_in_fp16_is_close_to_fp32(tmp_path):
    model = save_tiny("bert", tmp_path / "model", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    with emulated(**OLD):
        run(model, "lm", tmp_path / "half", precision="auto")
        assert read_json(tmp_path / "half" / "acclimate.json")["precision"] == "fp16"
        run(model, "lm", tmp_path / "full", precision="fp32")
    half, full = weights(tmp_path / "half"), weights(tmp_path / "full")
    assert all(torch.allclose(half[name], full[name], atol=2e-3) for name in full)
    assert any(not torch.equal(half[name], full[name]) for name in full)


def overflow_at(monkeypatch, chosen):
    """Make gradients infinite at some steps; return the scales after each step."""
    scales, unscale = [], LossScaler.unscale

    def spied(self, model):
        unscale(self, model)
        if len(scales) in chosen:
            next(model.parameters()).grad.fill_(math.inf)
        scales.append(self.engine.loss_scale)

    monkeypatch.setattr(LossScaler, "unscale", spied)
    return scales


def test_a_step_that_overflows_changes_no_weight_and_halves_the_scale(tiny_bert, tmp_path, monkeypatch):
    scales, before, step = overflow_at(monkeypatch, {1}), [], StepTrainer.training_step

    def watched(self, model, *args, **kwargs):
        before.append({name: value.clone() for name, value in model.state_dict().items()})
        return step(self, model, *args, **kwargs)

    monkeypatch.setattr(StepTrainer, "training_step", watched)
    with emulated(**OLD):
        run(tiny_bert, "lm", tmp_path / "out", steps=4, precision="auto")
    same = [all(torch.equal(a[name], b[name]) for name in a) for a, b in pairwise(before)]
    assert same == [False, True, False]
    assert scales == [FIRST_SCALE, FIRST_SCALE, FIRST_SCALE / 2, FIRST_SCALE / 2]


def test_a_killed_training_in_fp16_resumes_with_its_scale(tiny_bert, tmp_path, monkeypatch):
    overflow_at(monkeypatch, {0})
    with emulated(**OLD):
        with killed(3):
            run(tiny_bert, "lm", tmp_path / "out", steps=5, save_every=2, precision="auto")
        seen = overflow_at(monkeypatch, set())
        run(tiny_bert, "lm", tmp_path / "out", steps=5, save_every=2, precision="auto")
    assert set(seen) == {FIRST_SCALE / 2}


def test_an_end_task_in_fp16(tiny_bert):
    with emulated(**OLD):
        result = finetune(tiny_bert, TASK, epochs=2, batch_size=8, progress=False)
    assert result.precision == "fp16" and math.isfinite(result.metrics["macro_f1"])


def test_autocast_has_the_type_of_the_precision():
    with emulated(**OLD), autocast("fp16", torch.device("cuda")):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float16
