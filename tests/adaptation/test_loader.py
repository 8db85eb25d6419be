"""Batches that other processes prepare are those that this one would make."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import Dataset

from acclimate.engine.trainer import LOADER_WORKERS, StepTrainer
from tests.accelerator import emulated
from tests.cases import each
from tests.kills import killed
from tests.papers.test_contract import run, weights

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes of the loader are forked")


@pytest.mark.needs("infoword")
@each("method", ["lm", "infoword"])
def test_workers_change_nothing(tiny_bert, tmp_path, method):
    run(tiny_bert, method, tmp_path / "alone", steps=5)
    run(tiny_bert, method, tmp_path / "ahead", steps=5, loader_workers=2)
    alone, ahead = weights(tmp_path / "alone"), weights(tmp_path / "ahead")
    assert all(torch.equal(alone[name], ahead[name]) for name in alone)


def test_a_killed_run_with_workers_resumes(tiny_bert, tmp_path):
    run(tiny_bert, "lm", tmp_path / "whole", steps=6)
    with killed(4):
        run(tiny_bert, "lm", tmp_path / "cut", steps=6, save_every=2, loader_workers=1)
    run(tiny_bert, "lm", tmp_path / "cut", steps=6, save_every=2, loader_workers=2)
    whole, cut = weights(tmp_path / "whole"), weights(tmp_path / "cut")
    assert all(torch.equal(whole[name], cut[name]) for name in whole)


def test_steps_are_prepared_while_one_is_taken(tmp_path):
    class Noting(Dataset):
        epoch_steps = None

        def __len__(self):
            return 9

        def __getitem__(self, step):
            (tmp_path / str(step)).touch()
            return [step]

    place = SimpleNamespace(data=Noting(), _workers=2, state=SimpleNamespace(global_step=4))
    steps = iter(StepTrainer.get_train_dataloader(place))
    assert next(steps) == [0], "the parent class skips the steps that were taken"
    end = time.monotonic() + 20
    while not (tmp_path / "3").exists() and time.monotonic() < end:
        time.sleep(0.01)
    assert {file.name for file in tmp_path.iterdir()} >= {"0", "1", "2", "3"}
    assert list(steps) == [[step] for step in range(1, 9)]


def test_a_gpu_has_workers_by_default(tiny_bert, tmp_path, monkeypatch):
    class Made(Exception):
        pass

    def refuse(self, *args, **options):
        raise Made(options["loader_workers"])

    monkeypatch.setattr(StepTrainer, "__init__", refuse)
    workers = LOADER_WORKERS["cuda"]
    for given, expected in ((None, workers), (0, 0)):
        with emulated(), pytest.raises(Made, match=str(expected)):
            monkeypatch.setitem(LOADER_WORKERS, "cuda", workers)
            run(tiny_bert, "lm", tmp_path / "out", loader_workers=given)
    with pytest.raises(Made, match="0"):
        run(tiny_bert, "lm", tmp_path / "out")
    assert workers == 2
