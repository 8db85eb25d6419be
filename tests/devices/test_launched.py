"""The environment that ``torchrun`` and ``accelerate launch`` set."""

from __future__ import annotations

import pytest
import torch
from accelerate.utils import parse_flag_from_env
from transformers import Trainer

from acclimate.base.device import TRUE_VALUES, default_device, preserve_rng_state
from acclimate.tasks.finetune import finetune
from tests.accelerator import emulated
from tests.cases import each
from tests.papers.test_contract import TASK, run, weights

PRECISION = "ACCELERATE_MIXED_PRECISION"


@each(("rank", "devices", "index"), [(1, 1, 0), (3, 1, 0), (3, 4, 3), (0, 4, 0)])
def test_a_process_uses_a_visible_device(rank, devices, index, monkeypatch):
    with emulated(), monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "device_count", lambda: devices)
        patch.setenv("LOCAL_RANK", str(rank))
        assert default_device() == torch.device("cuda", index)


def test_random_state_is_restored_and_no_other_device_is_opened(monkeypatch):
    opened = []
    before = torch.get_rng_state()
    with emulated(), monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "device_count", lambda: 4)
        patch.setattr(torch.cuda, "get_rng_state", lambda device: opened.append(device) or torch.get_rng_state())
        patch.setenv("LOCAL_RANK", "2")
        with preserve_rng_state():
            torch.manual_seed(1)
            torch.rand(3)
    assert opened == [torch.device("cuda", 2)]
    assert torch.equal(torch.get_rng_state(), before)


@each("word", [*TRUE_VALUES, "True"])
def test_the_cpu_is_used_on_request(word, monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_CPU", word)
    with emulated():
        assert parse_flag_from_env("ACCELERATE_USE_CPU")
        assert default_device() == torch.device("cpu")
        monkeypatch.setenv("ACCELERATE_USE_CPU", "no")
        assert default_device().type == "cuda"


@pytest.mark.needs("dga")
def test_training_on_the_cpu_beside_an_accelerator(tiny_bert, tmp_path, monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    with emulated() as accelerator:
        run(tiny_bert, "dga", tmp_path / "out")
        finetune(tiny_bert, TASK, epochs=1, precision="fp32", progress=False)
        assert not accelerator.used


@pytest.mark.parametrize("environment", ["fp16", pytest.param("bf16", marks=pytest.mark.slow)])
@each("asked", ["fp32", "bf16"])
def test_the_launcher_does_not_change_the_precision(environment, asked, tiny_bert, tmp_path, monkeypatch):
    """With fp16 from the environment, the Trainer would use a gradient scaler, which our engine bypasses."""
    seen, train = [], Trainer.train

    def spy(trainer, *args, **options):
        seen.append(trainer.accelerator.mixed_precision)
        return train(trainer, *args, **options)

    monkeypatch.setattr(Trainer, "train", spy)
    with emulated(bf16=True):
        monkeypatch.setenv(PRECISION, environment)
        run(tiny_bert, "mlm", tmp_path / "environment", precision=asked)
        finetune(tiny_bert, TASK, epochs=1, precision=asked, progress=False)
        assert set(seen) == {"no"}  # the engine applies autocast itself
        monkeypatch.delenv(PRECISION)
        run(tiny_bert, "mlm", tmp_path / "alone", precision=asked)
    ours, plain = weights(tmp_path / "environment"), weights(tmp_path / "alone")
    assert all(torch.equal(ours[name], plain[name]) for name in plain)
