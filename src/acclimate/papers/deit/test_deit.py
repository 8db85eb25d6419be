"""Distillation into a virtual token, end to end on a tiny model."""

from __future__ import annotations

import pytest
import torch
import transformers
from safetensors.torch import load_file

from acclimate import finetune
from acclimate.models.loading import virtual_ids
from tests.papers.virtual import TABLE, run
from tests.tasks.test_classification import keyword_task


def test_fine_tuning_trains_virtual_tokens_and_model(tiny_bert, tmp_path):
    run(tiny_bert, "deit", tmp_path / "out")
    finetune(tmp_path / "out", keyword_task(), out=tmp_path / "tuned", epochs=1, learning_rate=1e-3, progress=False)
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("out", "tuned"))
    ids = virtual_ids(transformers.AutoTokenizer.from_pretrained(tmp_path / "tuned"))
    assert ids
    assert not torch.equal(before[TABLE][ids], after[TABLE][ids])
    name = "bert.encoder.layer.0.output.dense.weight"
    assert not torch.equal(before[name], after[name])


@pytest.mark.slow
def test_the_distillation_loss_falls(tiny_bert, tmp_path):
    short = run(tiny_bert, "deit", tmp_path / "short", {"weight": 20.0}, steps=2, warmup=0.0)
    long = run(tiny_bert, "deit", tmp_path / "long", {"weight": 20.0}, steps=40, warmup=0.0)
    assert long.losses["distillation"] < 0.7 * short.losses["distillation"]
