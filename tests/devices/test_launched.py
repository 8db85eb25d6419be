"""What ``torchrun`` and ``accelerate launch`` say by the environment."""

from __future__ import annotations

import pytest
import torch
from tests.accelerator import emulated
from tests.methods.test_contract import TASK, run, weights
from transformers import Trainer

from acclimate.tasks import finetune

PRECISION = "ACCELERATE_MIXED_PRECISION"


@pytest.mark.parametrize("told", ["fp16", "bf16"])
@pytest.mark.parametrize("asked", ["fp32", "bf16"])
def test_the_precision_of_a_run_is_its_own(told, asked, tiny_bert, tmp_path, monkeypatch):
    """One of fp16 would ask for a scaler that no loss of ours goes through."""
    seen, train = [], Trainer.train

    def spy(trainer, *args, **options):
        seen.append(trainer.accelerator.mixed_precision)
        return train(trainer, *args, **options)

    monkeypatch.setattr(Trainer, "train", spy)
    with emulated(bf16=True):
        monkeypatch.setenv(PRECISION, told)
        run(tiny_bert, "mlm", tmp_path / "told", precision=asked)
        assert set(seen) == {"no"}  # the engine has an autocast of its own
        seen.clear()
        finetune(tiny_bert, TASK, epochs=1, precision=asked, progress=False)
        assert set(seen) == {"bf16" if asked == "bf16" else "no"}
        monkeypatch.delenv(PRECISION)
        run(tiny_bert, "mlm", tmp_path / "alone", precision=asked)
    ours, plain = weights(tmp_path / "told"), weights(tmp_path / "alone")
    assert all(torch.equal(ours[name], plain[name]) for name in plain)
