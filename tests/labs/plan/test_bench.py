"""``acclimate bench``: what it measures is checked against counts that are known."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

from acclimate.base.errors import UserError
from acclimate.cli.main import app
from acclimate.labs.bench import bench as bench_module
from acclimate.labs.bench import contenders as module
from acclimate.labs.bench.bench import bench, describe, peak_of, token_operations, verdict
from acclimate.labs.bench.contenders import WARM_UP, Cost, StepWatch
from tests.accelerator import emulated
from tests.cases import each
from tests.tiny import tiny_model


def test_it_measures_both_trainings_of_a_shape():
    arguments = ["bench", "--shape", "tiny", "--batch-size", "4", "--minutes", "0.001", "--json", "--quiet"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    found = json.loads(result.stdout)["result"]
    (shape,) = found["shapes"]
    ours, theirs, on_blocks = shape["costs"].values()
    assert (found["device"]["type"], shape["texts"], shape["share_of_peak"]) == ("cpu", 4, None)
    assert shape["speedup"] == pytest.approx(ours["tokens_per_second"] / theirs["tokens_per_second"])
    for cost in (ours, theirs, on_blocks):
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


class FakeProfiler:
    """A profiler of an accelerator, which saw two kernels, a copy of an annotation and an event of the host."""

    def __init__(self, activities):
        assert activities == [torch.profiler.ProfilerActivity.CUDA]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        warnings.warn(
            "Synchronization debug mode is a prototype and does not detect all synchronizing operations", stacklevel=1
        )
        warnings.warn("called a synchronizing CUDA operation", stacklevel=1)

    def events(self):
        device = torch.autograd.DeviceType
        kinds = [(device.CUDA, False), (device.CUDA, False), (device.CUDA, True), (device.CPU, False)]
        span = SimpleNamespace(elapsed_us=lambda: 250)
        return [SimpleNamespace(device_type=kind, is_user_annotation=own, time_range=span) for kind, own in kinds]


class FakeEvent:
    """An event of an accelerator, in the time of the host."""

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        self.time = time.perf_counter()

    def elapsed_time(self, end):
        return 1_000 * (end.time - self.time)


@pytest.mark.slow
def test_the_branch_for_gpus_on_an_emulated_one(monkeypatch):
    """Every line of it runs; what it would measure is fake."""
    modes, train = [], module._train_with_trainer

    def with_little_memory(folder, rows, steps, batch, micro, *more):
        micros.append(micro)
        if micro > 4:
            raise torch.OutOfMemoryError
        return train(folder, rows, steps, batch, micro, *more)

    micros = []
    with emulated(bf16=True):
        fakes = {
            "Event": FakeEvent,
            "set_sync_debug_mode": modes.append,
            "max_memory_allocated": lambda: 10**9,
            "reset_peak_memory_stats": lambda: None,
            "get_device_name": lambda *_: "NVIDIA H100 80GB HBM3",
        }
        for name, fake in fakes.items():
            monkeypatch.setattr(torch.cuda, name, fake)
        device = SimpleNamespace(total_memory=8 * 2**30, name="NVIDIA H100 80GB HBM3", major=9, minor=0)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: device)
        monkeypatch.setattr(torch.profiler, "profile", FakeProfiler)
        monkeypatch.setattr(module, "_train_with_trainer", with_little_memory)
        found = bench(shapes=["tiny"], batch_size=8, minutes=0.001, progress=False)
    (shape,) = found["shapes"]
    assert found["device"] | {"driver": None} == {
        "type": "cuda", "name": device.name, "memory": device.total_memory, "driver": None, "toolkit": None
    }  # fmt: skip
    assert micros == [8, 4, 3] and modes == ["warn", "default"] * 3
    for cost in shape["costs"].values():
        assert (cost["operators"], cost["stops"], cost["peak_bytes"]) == (2, 1, 10**9)
        assert cost["busy"] == pytest.approx(500e-6 / cost["step_seconds"], rel=0.9) and cost["tokens_per_second"] > 0
    assert 0 < shape["share_of_peak"] < 1e-3 and "the GPU is idle" in shape["verdict"]
    lines = "\n".join(describe(found))
    assert "1 stops, GPU busy" in lines and "share of the peak" in lines and "peak 1,000 MB" in lines


@pytest.mark.slow
def test_processes_show_weak_scaling(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["-m", "acclimate", "bench", "--shape=tiny", "--batch-size=4", "--minutes=0.01", "--quiet"]
    environment = {**os.environ, "ACCLIMATE_CACHE": str(tmp_path)}
    done = subprocess.run([*command, "--json"], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["result"]
    (shape,) = found["shapes"]
    alone, scaling = shape["costs"]["acclimate"], shape["scaling"]
    assert found["processes"] == 2 and scaling.keys() == alone.keys() | {"efficiency"}
    # A step of both reads 8 texts of 74 tokens on average.
    assert 200 < scaling["tokens_per_second"] * scaling["step_seconds"] < 8 * 164
    share = scaling["tokens_per_second"] / 2 / alone["tokens_per_second"]
    assert scaling["efficiency"] == pytest.approx(share) and 0 < share < 3
    assert "2 processes, 4 texts each: " in "\n".join(describe(found))


def test_operations_per_token_are_those_that_torch_counts(monkeypatch):
    monkeypatch.setattr(bench_module, "MASK_RATE", 1.0)  # the model itself computes logits for every token
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
