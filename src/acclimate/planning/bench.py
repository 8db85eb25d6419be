"""``acclimate bench``: how fast this machine trains, what limits it, and how the ``Trainer`` of transformers compares.

The models have common shapes and random weights, and the texts are made at random, so that nothing is downloaded.
"""

from __future__ import annotations

import math
import platform
import statistics
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    PreTrainedModel,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from acclimate.device import Precision, choose_precision, default_device
from acclimate.models import attach, describe_computation
from acclimate.models.batching import token_bytes, training_tokens
from acclimate.options import verb
from acclimate.options.inspection import BenchOptions
from acclimate.planning.shapes import MAX_LENGTH, TEXTS_FILE, draw_lengths, find_shape, read_texts, write_inputs
from acclimate.progress import Progress, silence_transformers
from acclimate.training import adapt, get
from acclimate.updates import UpdateRule
from acclimate.version import __version__

WARM_UP = 2
"""Steps before the clock starts; operators are counted in the step after them."""
FEWEST_STEPS, MOST_STEPS = 3, 200
MICRO = 8
"""Texts per forward pass of the ``Trainer`` on a CPU; on a GPU it reads the texts of a step at once."""
MASK_RATE = 0.15
STATE_BYTES = 16
"""Bytes per weight in fp32: the weight, its gradient, and two moments of AdamW."""
PEAKS = {
    "H100 PCIe": 756,
    "H100": 989,
    "H200": 989,
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


@dataclass
class Cost:
    """What an optimizer step costs.

    Attributes:
        tokens_per_second: Real tokens read per second; padding does not count.
        step_seconds: Duration of a step.
        operators: Operators per step; on a GPU, kernels.
        stops: How often the host waits for the GPU in a step; None on a CPU.
        busy: Share of the time that the GPU computes; None on a CPU.
        peak_bytes: Maximum memory in use; None on a CPU.
    """

    tokens_per_second: float
    step_seconds: float
    operators: int
    stops: int | None = None
    busy: float | None = None
    peak_bytes: int | None = None


@dataclass
class StepWatch:
    """Times steps, and counts what one of them does.

    Attributes:
        ends: When each step ended, in seconds.
    """

    ends: list[float] = field(default_factory=list)
    operators: int = 0
    stops: int | None = None
    kernel_seconds: float | None = None
    _counting: ExitStack = field(default_factory=ExitStack)

    def step(self) -> None:
        """Record the end of a step."""
        self._counting.close()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.ends.append(time.perf_counter())
        if len(self.ends) == WARM_UP:
            self._counting.enter_context(self._count())

    @contextmanager
    def _count(self) -> Iterator[None]:
        if not torch.cuda.is_available():
            with _OperatorCount() as counted:
                yield
            self.operators = counted.operators
            return
        from torch.profiler import ProfilerActivity, profile

        with warnings.catch_warnings(record=True) as caught, profile(activities=[ProfilerActivity.CUDA]) as profiler:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                yield
            finally:
                torch.cuda.set_sync_debug_mode("default")
            torch.cuda.synchronize()
        self.stops = sum("synchroniz" in str(warning.message) for warning in caught)
        kernels = [event for event in profiler.events() or () if event.device_type == torch.autograd.DeviceType.CUDA]
        self.operators = len(kernels)
        self.kernel_seconds = sum(event.time_range.elapsed_us() for event in kernels) / 1e6

    def cost(self, tokens_per_step: float) -> Cost:
        """Return the cost of a step, from the steps that were neither warm-up nor counted."""
        spans = np.diff(self.ends[WARM_UP:])
        seconds = float(spans.mean())
        busy = None if self.kernel_seconds is None else min(1.0, self.kernel_seconds / statistics.median(spans))
        peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None
        return Cost(tokens_per_step / seconds, seconds, self.operators, self.stops, busy, peak)


class _OperatorCount(TorchDispatchMode):
    """Counts operators other than views, of the forward and the backward pass."""

    operators = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_view = any(value.alias_info and not value.alias_info.is_write for value in func._schema.returns)
        self.operators += not is_view
        return func(*args, **(kwargs or {}))


class _Watched(UpdateRule):
    def __init__(self, watch: StepWatch) -> None:
        self._watch = watch

    def after_step(self) -> None:
        self._watch.step()


def time_ours(folder: Path, steps: int, texts: int, precision: Precision, seed: int = 0) -> Cost:
    """Adapt the model of a folder with method ``lm``, as a user would."""
    watch, method = StepWatch(), get("lm")
    method.update_rule = lambda: _Watched(watch)  # type: ignore[method-assign]
    _forget_peak()
    with tempfile.TemporaryDirectory() as out:
        result = adapt(
            folder / "model",
            str(folder / TEXTS_FILE),
            method,
            Path(out) / "adapted",
            steps=steps,
            batch_size=texts,
            max_length=MAX_LENGTH,
            precision=precision,
            save_every=10**6,
            seed=seed,
            progress=False,
        )
    return watch.cost(result.tokens / steps)


def time_trainer(folder: Path, steps: int, texts: int, precision: Precision, seed: int = 0) -> Cost:
    """Train with ``Trainer`` and its masked-LM collator on texts grouped by length, as ``run_mlm.py`` does."""
    on_cpu = default_device().type == "cpu"
    micro = math.gcd(MICRO, texts) if on_cpu else texts
    tokenizer = AutoTokenizer.from_pretrained(folder / "model", trust_remote_code=False)
    encoded = tokenizer(read_texts(folder)[: steps * texts], truncation=True, max_length=MAX_LENGTH)
    rows = [{"input_ids": ids, "attention_mask": [1] * len(ids)} for ids in encoded["input_ids"]]
    watch = StepWatch()
    _forget_peak()

    class Watching(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            watch.step()

    with tempfile.TemporaryDirectory() as out, silence_transformers():
        arguments = TrainingArguments(
            output_dir=out,
            max_steps=steps,
            per_device_train_batch_size=micro,
            gradient_accumulation_steps=texts // micro,
            train_sampling_strategy="group_by_length",
            bf16=precision == "bf16",
            fp16=precision == "fp16",
            use_cpu=on_cpu,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            logging_strategy="no",
            seed=seed,
        )
        trainer = Trainer(
            model=AutoModelForMaskedLM.from_pretrained(folder / "model", trust_remote_code=False).train(),
            args=arguments,
            train_dataset=rows,
            data_collator=DataCollatorForLanguageModeling(tokenizer, mlm_probability=MASK_RATE),
            callbacks=[Watching()],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return watch.cost(sum(len(row["input_ids"]) for row in rows) / steps)


def _forget_peak() -> None:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


CONTENDERS: dict[str, Callable[..., Cost]] = {"acclimate": time_ours, "Trainer, grouped by length": time_trainer}


def _bench(options: BenchOptions) -> dict[str, Any]:
    """Time the training of models with common shapes on this machine, and compare it with the ``Trainer``.

    Returns:
        Plain values: ``device``, ``precision``, and for each of ``shapes`` its ``name``, ``texts`` and ``tokens`` per
        step, ``kernels``, the ``costs`` of each contender (:class:`Cost`), ``speedup``, ``share_of_peak``,
        ``expected_bytes`` and ``verdict``.

    Raises:
        UserError: If a shape is unknown.
    """
    device = default_device()
    precision = choose_precision(options.precision, device)
    names = options.shapes or (("minilm", "base") if device.type == "cuda" else ("minilm",))
    texts = options.batch_size or (256 if device.type == "cuda" else 32)
    seconds = 60 * options.minutes / (len(names) * len(CONTENDERS))
    found = [_bench_shape(name, texts, precision, seconds, device, options.progress) for name in names]
    return {
        "acclimate": __version__,
        "torch": torch.__version__,
        "device": _describe_device(device),
        "precision": precision,
        "shapes": found,
    }


bench = verb(BenchOptions, _bench)


def _bench_shape(
    name: str, texts: int, precision: Precision, seconds: float, device: torch.device, progress: bool
) -> dict[str, Any]:
    """Measure all contenders on a shape, each for about as many seconds, loading included."""
    find_shape(name)
    costs: dict[str, Cost] = {}
    with tempfile.TemporaryDirectory() as place, Progress(f"bench {name}", len(CONTENDERS), enabled=progress) as bar:
        folder, fewest = Path(place), WARM_UP + 1 + FEWEST_STEPS
        write_inputs(folder, name, fewest * texts, seed=0)
        for number, (contender, run) in enumerate(CONTENDERS.items()):
            started = time.perf_counter()
            cost = run(folder, fewest, texts, precision)
            left = seconds - (time.perf_counter() - started)
            steps = min(MOST_STEPS, fewest + int(left / (2 * cost.step_seconds)))
            if steps > 2 * fewest:  # else the first measurement has taken the time
                write_inputs(folder, name, steps * texts, seed=0)
                cost = run(folder, steps, texts, precision)
            costs[contender] = cost
            bar.update(number + 1)
        model = AutoModelForMaskedLM.from_pretrained(folder / "model", trust_remote_code=False).to(device)
        attach(model)
        tokens = int(sum(draw_lengths(10_000, np.random.default_rng(0))) / 10_000 * texts)
        ours, theirs = costs.values()
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


def _describe_device(device: torch.device) -> dict[str, Any]:
    if device.type == "cpu":
        return {"type": "cpu", "name": platform.processor() or platform.machine(), "threads": torch.get_num_threads()}
    properties = torch.cuda.get_device_properties(device)
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = None
    with suppress(OSError, subprocess.SubprocessError):
        driver = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout.split()[0]
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
    yield f"{device['name']}, {more}; {found['precision']}; torch {found['torch']}; acclimate {found['acclimate']}"
    for shape in found["shapes"]:
        used = [name.replace("_", " ") for name, value in shape["kernels"].items() if value is True]
        yield ""
        yield f"{shape['name']}: {shape['texts']} texts, about {shape['tokens']:,} tokens per step"
        yield f"  kernels: {', '.join(used) or 'those of torch'}"
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
