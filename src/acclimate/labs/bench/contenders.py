"""Cost of an optimizer step in acclimate and in the ``Trainer`` of transformers, measured while both train."""

from __future__ import annotations

import itertools
import math
import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.method import get
from acclimate.base.device import TF32_CAPABILITY, Precision, default_device, has_capability, malloc_trim
from acclimate.base.progress import silence_transformers
from acclimate.data.fields import MASK_RATE
from acclimate.engine.trainer import LOADER_WORKERS
from acclimate.labs.bench.shapes import MAX_LENGTH, TEXTS_FILE, read_texts
from acclimate.parts.updates import UpdateRule

WARM_UP = 2
"""Steps before the clock starts; operators are counted in the step after them."""
MICRO = 8
"""Texts per forward pass of the ``Trainer`` on a CPU; on a GPU it reads the texts of a step at once."""


@dataclass
class Cost:
    """Cost of an optimizer step.

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

    On a GPU, the end of a step is an event of the GPU, so that the host may run ahead as in any training.

    Attributes:
        operators: See :class:`Cost`.
        stops: See :class:`Cost`.
        kernel_seconds: Duration of all kernels of the counted step, in seconds; None on a CPU.
    """

    operators: int = 0
    stops: int | None = None
    kernel_seconds: float | None = None
    _ends: list[Any] = field(default_factory=list)
    _counting: ExitStack = field(default_factory=ExitStack)

    def step(self) -> None:
        """Record the end of a step."""
        self._counting.close()
        self._ends.append(_now())
        if len(self._ends) == WARM_UP:
            if _on_gpu():
                torch.cuda.synchronize()  # kernels of earlier steps do not count
            self._counting.enter_context(self._count())

    @contextmanager
    def _count(self) -> Iterator[None]:
        if not _on_gpu():
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
        # Other warnings say that this mode is a prototype.
        self.stops = sum("called a synchronizing" in str(warning.message) for warning in caught)
        kernels = [
            event
            for event in profiler.events() or ()
            if event.device_type == torch.autograd.DeviceType.CUDA and not event.is_user_annotation
        ]
        self.operators = len(kernels)
        self.kernel_seconds = sum(event.time_range.elapsed_us() for event in kernels) / 1e6

    def cost(self, tokens_per_step: float) -> Cost:
        """Return the cost of a step, from the steps that were neither warm-up nor counted."""
        ends = self._ends[WARM_UP:]
        if _on_gpu():
            torch.cuda.synchronize()
            spans = [start.elapsed_time(end) / 1_000 for start, end in itertools.pairwise(ends)]
        else:
            spans = [end - start for start, end in itertools.pairwise(ends)]
        seconds = statistics.fmean(spans)
        busy = None if self.kernel_seconds is None else min(1.0, self.kernel_seconds / statistics.median(spans))
        peak = torch.cuda.max_memory_allocated() if _on_gpu() else None
        return Cost(tokens_per_step / seconds, seconds, self.operators, self.stops, busy, peak)


def _on_gpu() -> bool:
    return default_device().type == "cuda"


def _now() -> Any:
    """Return the time in seconds, or an event that the GPU reaches after all that was launched before."""
    if not _on_gpu():
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


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


def time_ours(folder: Path, steps: int, texts: int, precision: Precision) -> Cost:
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
            progress=False,
        )
    return watch.cost(result.tokens / steps)


def time_trainer(folder: Path, steps: int, texts: int, precision: Precision) -> Cost:
    """Train with ``Trainer`` and its masked-LM collator on texts grouped by length, with fast options.

    On a GPU it reads the texts of a step at once, or half of them, a quarter, ... if the memory is too small.
    """
    return _fit_into_memory(folder, _encode(folder, steps * texts), steps, texts, precision)


def time_trainer_on_blocks(folder: Path, steps: int, texts: int, precision: Precision) -> Cost:
    """Train with ``Trainer`` on texts that are joined and cut into blocks, the default of ``run_mlm.py``.

    A step has about as many tokens as ``texts`` texts. Texts of a block attend to each other.
    """
    joined = [token for row in _encode(folder, steps * texts) for token in row]
    blocks = max(1, len(joined) // MAX_LENGTH // steps)
    blocks -= blocks % MICRO if blocks > MICRO else 0
    rows = [joined[MAX_LENGTH * number :][:MAX_LENGTH] for number in range(steps * blocks)]
    return _fit_into_memory(folder, rows, steps, blocks, precision)


def _encode(folder: Path, count: int) -> list[list[int]]:
    """Return the tokens of the first texts."""
    tokenizer = AutoTokenizer.from_pretrained(folder / "model", trust_remote_code=False)
    encoded: list[list[int]] = tokenizer(read_texts(folder)[:count], truncation=True, max_length=MAX_LENGTH)[
        "input_ids"
    ]
    return encoded


def _fit_into_memory(folder: Path, rows: list[list[int]], steps: int, batch: int, precision: Precision) -> Cost:
    """Train with ``Trainer`` with as large a forward pass as memory allows."""
    micro = batch if _on_gpu() else math.gcd(MICRO, batch)
    while True:
        try:
            return _train_with_trainer(folder, rows, steps, batch, micro, precision)
        except torch.OutOfMemoryError:
            if micro % 2:
                raise
            micro //= 2


def _train_with_trainer(
    folder: Path, ids: list[list[int]], steps: int, batch: int, micro: int, precision: Precision
) -> Cost:
    """Train with ``Trainer`` on steps of ``batch`` rows of token ids, of which it reads ``micro`` at once."""
    tokenizer = AutoTokenizer.from_pretrained(folder / "model", trust_remote_code=False)
    rows = [{"input_ids": row, "attention_mask": [1] * len(row)} for row in ids]
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
            gradient_accumulation_steps=batch // micro,
            train_sampling_strategy="group_by_length",
            bf16=precision == "bf16",
            fp16=precision == "fp16",
            tf32=True if precision == "fp32" and has_capability(TF32_CAPABILITY) else None,
            use_cpu=default_device().type == "cpu",
            dataloader_num_workers=LOADER_WORKERS.get(default_device().type, 0),
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            logging_strategy="no",
        )
        arguments._n_gpu = min(1, arguments.n_gpu)  # otherwise it spreads each batch over all visible GPUs
        trainer = Trainer(
            model=AutoModelForMaskedLM.from_pretrained(folder / "model", trust_remote_code=False).train(),
            args=arguments,
            train_dataset=rows,
            data_collator=DataCollatorForLanguageModeling(tokenizer, mlm_probability=MASK_RATE),
            callbacks=[Watching()],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return watch.cost(sum(map(len, ids)) / steps)


def _forget_peak() -> None:
    malloc_trim()
    if _on_gpu():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
