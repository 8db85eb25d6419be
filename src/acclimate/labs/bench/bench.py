"""``acclimate bench``: how fast this machine trains, what limits it, and how the ``Trainer`` of transformers compares.

The models have common shapes and random weights, and the texts are made at random, so that nothing is downloaded.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForMaskedLM, PreTrainedModel

from acclimate.base.device import Precision, choose_precision, default_device
from acclimate.base.errors import UserError
from acclimate.base.options import verb
from acclimate.base.progress import Progress
from acclimate.base.version import __version__
from acclimate.data.fields import MASK_RATE
from acclimate.engine.distributed import RANK_VARIABLES, ProcessGroup, join_process_group
from acclimate.labs.bench.contenders import WARM_UP, Cost, time_ours, time_trainer, time_trainer_on_blocks
from acclimate.labs.bench.options import BenchOptions
from acclimate.labs.bench.shapes import draw_lengths, find_shape, write_inputs
from acclimate.models.batching import token_bytes, training_tokens
from acclimate.models.families import describe_computation
from acclimate.models.probe import attach

FEWEST_STEPS, MOST_STEPS = 3, 200
STATE_BYTES = 16
"""Bytes per weight in fp32: the weight, its gradient, and two moments of AdamW."""
PEAKS = {
    "H100 PCIe": 756,
    "H100": 989,
    "H200": 989,
    "B200": 2_250,
    "A100": 312,
    "A10G": 70,
    "A10": 125,
    "L40S": 362,
    "L4": 121,
    "T4": 65,
    "V100": 125,
    "RTX 4090": 165,
    "RTX 3090": 71,
}
"""Dense products of half precision with sums in fp32, in TFLOP/s, from the data sheets; the first name that fits."""
BUSY = 0.8
"""Share of the time that a GPU computes, below which the host is what limits it."""


CONTENDERS: dict[str, Callable[..., Cost]] = {
    "acclimate": time_ours,
    "Trainer, grouped by length": time_trainer,
    "Trainer, joined blocks": time_trainer_on_blocks,
}


@verb(BenchOptions)
def bench(options: BenchOptions) -> dict[str, Any]:
    """Time the training of models with common shapes on this machine, and compare it with the ``Trainer``.

    Under ``torchrun``, half of the time measures one process alone, and the other half a step of all processes with
    as many texts for each of them (weak scaling).

    Returns:
        Plain values: ``device``, ``precision``, ``processes``, and for each of ``shapes`` its ``name``, ``texts`` and
        ``tokens`` per step, ``kernels``, the ``costs`` of each contender (:class:`Cost`), ``speedup``,
        ``share_of_peak``, ``expected_bytes``, ``verdict`` and, with several processes, ``scaling``: the cost of a step
        of all processes, and its ``efficiency``, the tokens per second as a share of what as many single ones reach.
        Empty in all processes but the first.

    Raises:
        UserError: If a shape is unknown.
    """
    device, group = default_device(), join_process_group()
    precision = choose_precision(options.precision, device)
    names = options.shapes or (("minilm", "base") if device.type == "cuda" else ("minilm",))
    for name in names:
        find_shape(name)
    texts = options.batch_size or (256 if device.type == "cuda" else 32)
    if group.size > 1:
        return _bench_together(replace(options, shapes=names, batch_size=texts), precision, group)
    seconds = 60 * options.minutes / (len(names) * len(CONTENDERS))
    found = [_bench_shape(name, texts, precision, seconds, device, options.progress) for name in names]
    return {
        "acclimate": __version__,
        "torch": torch.__version__,
        "device": _describe_device(device),
        "precision": precision,
        "processes": 1,
        "shapes": found,
    }


def show_speed(found: Mapping[str, Any], options: BenchOptions) -> Iterator[str]:
    """Yield what ``acclimate bench`` prints."""
    yield from describe(found)


def _bench_shape(
    name: str, texts: int, precision: Precision, seconds: float, device: torch.device, progress: bool
) -> dict[str, Any]:
    """Measure all contenders on a shape, each for about as many seconds, loading included."""
    costs: dict[str, Cost] = {}
    with tempfile.TemporaryDirectory() as place, Progress(f"bench {name}", len(CONTENDERS), enabled=progress) as bar:
        folder = Path(place)
        for number, (contender, run) in enumerate(CONTENDERS.items()):
            costs[contender] = _measure(run, folder, name, texts, precision, seconds)
            bar.update(number + 1)
        model = AutoModelForMaskedLM.from_pretrained(folder / "model", trust_remote_code=False).to(device)
        attach(model)
        tokens = int(sum(draw_lengths(10_000, np.random.default_rng(0))) / 10_000 * texts)
        ours, theirs, *_ = costs.values()  # which do the same computation
        peak = peak_of(_describe_device(device)["name"]) if precision != "fp32" else None
        return {
            "name": name,
            "texts": texts,
            "tokens": tokens,
            "kernels": describe_computation(model),
            "costs": {contender: asdict(cost) for contender, cost in costs.items()},
            "speedup": ours.tokens_per_second / theirs.tokens_per_second,
            "share_of_peak": peak and ours.tokens_per_second * token_operations(model) / peak,
            "expected_bytes": expected_bytes(model, tokens, precision),
            "verdict": verdict(ours, theirs),
        }


def _measure(
    run: Callable[..., Cost],
    folder: Path,
    name: str,
    texts: int,
    precision: Precision,
    seconds: float,
    group: ProcessGroup | None = None,
) -> Cost:
    """Measure a contender on a shape, with as many steps as fit into the time."""
    fewest, started = WARM_UP + 1 + FEWEST_STEPS, time.perf_counter()
    write_inputs(folder, name, fewest * texts, seed=0)
    cost = run(folder, fewest, texts, precision)
    left = seconds - (time.perf_counter() - started)
    steps = min(MOST_STEPS, fewest + int(left / (2 * cost.step_seconds)))
    steps = int((group or ProcessGroup()).broadcast_value(steps))
    if steps <= 2 * fewest:  # the first measurement has taken the time
        return cost
    write_inputs(folder, name, steps * texts, seed=0)
    return run(folder, steps, texts, precision)


def _bench_together(options: BenchOptions, precision: Precision, group: ProcessGroup) -> dict[str, Any]:
    """Measure one process alone, then steps of all processes; return both in the first process."""
    assert options.batch_size is not None
    found = _bench_alone(options) if group.first else {}
    group.all(True)  # the others wait
    for number, name in enumerate(options.shapes):
        seconds = 30 * options.minutes / len(options.shapes)
        with tempfile.TemporaryDirectory() as place:
            texts = options.batch_size * group.size
            cost = _measure(time_ours, Path(place), name, texts, precision, seconds, group)
        if group.first:
            shape = found["shapes"][number]
            alone = shape["costs"]["acclimate"]["tokens_per_second"]
            shape["scaling"] = {**asdict(cost), "efficiency": cost.tokens_per_second / (group.size * alone)}
    return {**found, "processes": group.size} if group.first else {}


def _bench_alone(options: BenchOptions) -> dict[str, Any]:
    """Run the benchmark in a process of its own, on the device of this one."""
    command = [sys.executable, "-m", "acclimate", "bench", "--json", "--quiet", f"--minutes={options.minutes / 2}"]
    command += [f"--batch-size={options.batch_size}", f"--precision={options.precision}"]
    command += [f"--shape={name}" for name in options.shapes]
    environment = {name: value for name, value in os.environ.items() if name not in RANK_VARIABLES}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"The measurement of one process failed: {(done.stderr.strip() or 'no message')[-500:]}")
    found: dict[str, Any] = json.loads(done.stdout)["result"]
    return found


def _describe_device(device: torch.device) -> dict[str, Any]:
    if device.type != "cuda":
        name = platform.processor() or platform.machine()
        return {"type": device.type, "name": name, "threads": torch.get_num_threads()}
    properties = torch.cuda.get_device_properties(device)
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = None
    with suppress(OSError, subprocess.SubprocessError):
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout
        driver = next(iter(answer.split()), None)
    toolkit = torch.version.cuda or torch.version.hip
    return {
        "type": device.type,
        "name": properties.name,
        "memory": properties.total_memory,
        "driver": driver,
        "toolkit": toolkit,
    }


def peak_of(device: str) -> float | None:
    """Return the peak of a GPU in operations per second in half precision; None if it is unknown."""
    return next((1e12 * peak for name, peak in PEAKS.items() if set(name.split()) <= set(_words(device))), None)


def _words(name: str) -> list[str]:
    return name.replace("-", " ").split()


def token_operations(model: PreTrainedModel, length: int = 74) -> float:
    """Return the operations per token of a training step: multiplications and additions, forward and backward.

    Args:
        model: A masked language model.
        length: Mean tokens per text, for attention.
    """
    config, base = model.config, model.base_model
    tables = sum(part.weight.numel() for part in base.modules() if isinstance(part, torch.nn.Embedding))
    weights = sum(part.numel() for part in base.parameters() if part.dim() > 1) - tables
    attention = 2 * config.num_hidden_layers * config.hidden_size * length
    head = MASK_RATE * config.hidden_size * (config.vocab_size + config.hidden_size)
    return float(6 * (weights + head + attention))


def expected_bytes(model: PreTrainedModel, tokens: int, precision: str) -> int:
    """Return the memory that the formulas of :mod:`acclimate.models.batching` expect in a step.

    Args:
        model: The model, on its device.
        tokens: Tokens of the step.
        precision: Precision of the forward pass; in half precision a graph takes half as much.
    """
    size = token_bytes(model.config, eager_attention=describe_computation(model)["eager_attention"])
    at_once = min(tokens, training_tokens(model))
    weights = sum(part.numel() for part in model.parameters())
    return int(STATE_BYTES * weights + at_once * size / (1 if precision == "fp32" else 2))


def verdict(ours: Cost, theirs: Cost) -> str:
    """Return one line that says how the training compares, and what limits it."""
    ratio = ours.tokens_per_second / theirs.tokens_per_second
    compared = f"acclimate trains {ratio:.1f} times as fast as the Trainer"
    if ours.busy is None:
        return f"{compared}."
    idle = f"the GPU is idle {100 * (1 - ours.busy):.0f} % of the time"
    waits = f"{idle}, waiting for the host: use more texts per step"
    limit = "the GPU is what limits it" if ours.busy >= BUSY else waits
    return f"{compared}; {limit}."


def describe(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the text for a terminal.

    Args:
        found: From :func:`bench`.
    """
    device = found["device"]
    more = f"driver {device['driver']}" if "driver" in device else f"threads: {device['threads']}"
    if found["processes"] > 1:
        more += f"; {found['processes']} processes"
    yield f"{device['name']}, {more}; {found['precision']}; torch {found['torch']}; acclimate {found['acclimate']}"
    for shape in found["shapes"]:
        used = [name.replace("_", " ") for name, value in shape["kernels"].items() if value is True]
        yield ""
        yield f"{shape['name']}: {shape['texts']} texts, about {shape['tokens']:,} tokens per step"
        yield f"  kernels: {', '.join(used) or 'only from torch'}"
        for contender, cost in shape["costs"].items():
            parts = [f"{cost['tokens_per_second']:,.0f} tokens per second"]
            parts += [f"{cost['operators']:,} operators per step"]
            parts += [] if cost["stops"] is None else [f"{cost['stops']} stops"]
            parts += [] if cost["busy"] is None else [f"GPU busy {100 * cost['busy']:.0f} %"]
            parts += [] if cost["peak_bytes"] is None else [f"peak {cost['peak_bytes'] / 1e6:,.0f} MB"]
            yield f"  {contender}: {', '.join(parts)}"
        if shape["share_of_peak"]:
            yield f"  share of the peak of the GPU: {100 * shape['share_of_peak']:.0f} %"
        yield f"  memory that the formula expects: {shape['expected_bytes'] / 1e6:,.0f} MB"
        yield f"  {shape['verdict']}"
        if scaling := shape.get("scaling"):
            yield (
                f"  {found['processes']} processes, {shape['texts']} texts each: {scaling['tokens_per_second']:,.0f} "
                f"tokens per second, {scaling['efficiency']:.0%} of {found['processes']} times one process"
            )
