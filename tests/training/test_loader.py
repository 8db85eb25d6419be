"""Batches that other processes prepare are those that this one would make."""

from __future__ import annotations

import sys

import pytest
import torch

from tests.cases import each
from tests.kills import killed
from tests.methods.test_contract import run, weights

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes of the loader are forked")


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
