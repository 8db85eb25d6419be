"""``acclimate bench``: what it measures is checked against counts that are known."""

from __future__ import annotations

import json

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

from acclimate.cli import app
from acclimate.errors import UserError
from acclimate.planning import bench as module
from acclimate.planning.bench import WARM_UP, Cost, StepWatch, bench, describe, peak_of, token_operations, verdict
from tests.cases import each
from tests.tiny import tiny_model


def test_it_measures_both_trainings_of_a_shape():
    arguments = ["bench", "--shape", "tiny", "--batch-size", "4", "--minutes", "0.001", "--json", "--quiet"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    found = json.loads(result.stdout)
    (shape,) = found["shapes"]
    ours, theirs = shape["costs"].values()
    assert (found["device"]["type"], shape["texts"], shape["share_of_peak"]) == ("cpu", 4, None)
    assert shape["speedup"] == pytest.approx(ours["tokens_per_second"] / theirs["tokens_per_second"])
    for cost in (ours, theirs):
        assert 100 < cost["operators"] < 5_000 and cost["tokens_per_second"] > 0 and cost["stops"] is None
        # A step reads 4 texts of 74 tokens on average.
        assert 100 < cost["tokens_per_second"] * cost["step_seconds"] < 4 * 164
    lines = "\n".join(describe(found))
    assert shape["verdict"] in lines and "tiny: 4 texts" in lines and "operators per step" in lines


def test_a_watch_leaves_out_warm_up_and_the_counted_step(monkeypatch):
    times = iter([0.0, 10.0, 30.0, 31.0, 32.0, 33.0])
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(times))
    watch, one = StepWatch(), torch.ones(3)
    for number in range(6):
        if number == WARM_UP:
            one.add(one).mul(one)  # counted
        one.view(3, 1)
        watch.step()
    cost = watch.cost(50.0)
    assert (cost.tokens_per_second, cost.step_seconds, cost.operators) == (50.0, 1.0, 2)


def test_operations_per_token_are_those_that_torch_counts(monkeypatch):
    monkeypatch.setattr(module, "MASK_RATE", 1.0)  # the model itself computes logits for every token
    model = tiny_model("bert", hidden_size=64, intermediate_size=256, num_hidden_layers=3).eval()
    model.set_attn_implementation("eager")  # torch does not count its own attention on a CPU
    with FlopCounterMode(display=False) as counter:
        model(torch.ones(2, 16, dtype=torch.long))
    counted = 3 * counter.get_total_flops() / 32  # the backward pass takes twice as much as the forward pass
    assert token_operations(model, 16) == pytest.approx(counted, rel=0.01)


@each(
    ("name", "peak"),
    [("NVIDIA H100 80GB HBM3", 989), ("NVIDIA H100 PCIe", 756), ("Tesla T4", 65), ("NVIDIA A100-SXM4-40GB", 312)],
)
def test_peaks(name, peak):
    assert peak_of(name) == peak * 1e12


def test_a_device_without_a_known_peak_and_a_shape_that_does_not_exist():
    assert peak_of("Radeon VII") is None
    with pytest.raises(UserError, match=r"Unknown shape 'bases'. Did you mean 'base'"):
        bench(shapes=["bases"], progress=False)


@each(
    ("busy", "said"),
    [(None, "2.0 times as fast as the Trainer."), (0.9, "the GPU is what limits it"), (0.25, "idle 75 % of the time")],
)
def test_the_verdict_says_what_limits_the_training(busy, said):
    assert said in verdict(Cost(200.0, 1.0, 5, 0, busy), Cost(100.0, 1.0, 5))
