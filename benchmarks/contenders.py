"""The contenders of the benchmark: each trains in a separate process and prints its speed and memory as JSON.

    python -m benchmarks.contenders '{"name": "trainer-by-length", "folder": "inputs", "precision": "bf16", ...}'

:mod:`benchmarks.speed` starts these processes one at a time, so that no two contenders share the machine.
"""

from __future__ import annotations

import itertools
import json
import os
import platform
import re
import resource
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    PreTrainedModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

import acclimate
from acclimate.adaptation.method import get
from acclimate.base.device import Precision, autocast, default_device
from acclimate.engine.steps import Engine
from acclimate.labs.bench.shapes import MAX_LENGTH, TEXTS_FILE, read_texts
from acclimate.parts.objectives import contrastive_loss
from acclimate.parts.updates import UpdateRule

BLOCK = 128
"""Tokens per block where texts are concatenated."""
ENDLESS = 10_000_000
"""A number of steps that no measurement reaches."""
CHEAP_PREPARATION = {"dga": {"importance_tokens": 2_000}}
"""Method parameters that change only what happens before the first step."""
LEARNING_RATE = 1e-4


@dataclass(frozen=True)
class Job:
    """One measurement.

    Attributes:
        name: ``acclimate:METHOD`` or a key of :data:`OTHERS`.
        folder: Folder made by ``write_inputs``.
        precision: ``fp32`` or ``bf16``.
        batch: Rows per optimizer step.
        micro: Rows per forward pass, a divisor of ``batch``. ``acclimate`` chooses its micro-batches itself.
        attention: Attention implementation of ``transformers``; None for its default.
        threads: Threads per operation.
        warm_up: Optimizer steps before the clock starts.
        seconds: Minimum duration; the measurement ends with the first whole step after it.
        steps: Minimum optimizer steps.
        seed: Random seed.
    """

    name: str
    folder: str
    precision: Precision = "fp32"
    batch: int = 64
    micro: int = 8
    attention: str | None = None
    threads: int = 2
    warm_up: int = 1
    seconds: float = 10.0
    steps: int = 3
    seed: int = 0


class Finished(Exception):
    """The measurement is complete."""


class Clock:
    """Counts real tokens (no padding) and time over whole optimizer steps."""

    def __init__(self, warm_up: int, seconds: float, steps: int) -> None:
        self.warm_up, self.seconds, self.enough = warm_up, seconds, steps
        self.steps = self.tokens = 0
        self.elapsed = 0.0
        self._start = time.perf_counter()
        self._done = 0

    def step(self, tokens: int) -> None:
        """Record the end of an optimizer step that read ``tokens`` tokens.

        Raises:
            Finished: If the measurement is complete.
        """
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        now = time.perf_counter()
        self._done += 1
        if self._done <= self.warm_up:
            self._start = now
            return
        self.steps += 1
        self.tokens += tokens
        self.elapsed = now - self._start
        if self.elapsed >= self.seconds and self.steps >= self.enough:
            raise Finished


class TimedRule(UpdateRule):
    """Reports the end of each step to the clock, after the method's own update rule."""

    def __init__(self, rule: UpdateRule | None, clock: Clock, read: deque[int]) -> None:
        self.rule, self.clock, self.read = rule or UpdateRule(), clock, read

    def after_backward(self) -> None:
        self.rule.after_backward()

    def before_step(self) -> None:
        self.rule.before_step()

    def after_step(self) -> None:
        self.rule.after_step()
        self.clock.step(self.read.popleft())


def train_with_acclimate(job: Job, clock: Clock) -> None:
    """Call ``acclimate.adapt`` as a user would; only the counting is added."""
    name = job.name.removeprefix("acclimate:")
    method = get(name, **CHEAP_PREPARATION.get(name, {}))
    read: deque[int] = deque()
    step, make_rule = Engine.step, method.update_rule

    def count_and_step(engine: Engine, batches: Any, **options: Any) -> Any:
        # The vectors that a soft prompt appends to each text do not count as tokens.
        read.append(sum(batch.tokens - method.virtual_tokens * batch.texts for batch in batches))
        return step(engine, batches, **options)

    Engine.step = count_and_step  # type: ignore[method-assign]
    method.update_rule = lambda: TimedRule(make_rule(), clock, read)  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as out:
        try:
            acclimate.adapt(
                Path(job.folder) / "model",
                str(Path(job.folder) / TEXTS_FILE),
                method,
                Path(out) / "adapted",
                steps=ENDLESS,
                batch_size=job.batch,
                max_length=MAX_LENGTH,
                precision=job.precision,
                learning_rate=LEARNING_RATE,
                seed=job.seed,
                save_every=ENDLESS,  # the other contenders write no checkpoints either
                progress=False,
            )
        finally:
            Engine.step = step  # type: ignore[method-assign]


def train_with_trainer(job: Job, clock: Clock, sampling: str = "random", blocks: bool = False) -> None:
    """Train with ``transformers.Trainer`` and its masked-LM collator, as ``run_mlm.py`` does.

    Args:
        job: The measurement.
        clock: Counts the steps.
        sampling: ``random`` or ``group_by_length``.
        blocks: Whether texts are concatenated and cut into blocks of 128 tokens. There is no padding then, and texts
            of one block attend to each other.
    """
    collator = CountingCollator(job)
    texts = collator.encode()
    if blocks:
        stream = list(itertools.chain.from_iterable(texts))
        texts = [stream[start : start + BLOCK] for start in range(0, len(stream) - BLOCK + 1, BLOCK)]
    texts = texts[: len(texts) // job.batch * job.batch]  # whole steps only, so that all steps have the same size
    accumulated = job.batch // job.micro
    with tempfile.TemporaryDirectory() as out:
        arguments = TrainingArguments(
            output_dir=out,
            max_steps=ENDLESS,
            per_device_train_batch_size=job.micro,
            gradient_accumulation_steps=accumulated,
            train_sampling_strategy=sampling,
            learning_rate=LEARNING_RATE,
            bf16=job.precision == "bf16",
            use_cpu=default_device().type == "cpu",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            seed=job.seed,
        )
        SpreadTrainer(
            model=load_model(job),
            args=arguments,
            train_dataset=[collator.item(ids) for ids in texts],
            data_collator=collator,
            callbacks=[TimedCallback(clock, collator.read, accumulated)],
        ).train()


def train_naive_dga(job: Job, clock: Clock) -> None:
    """DGA without our engine: three forward passes per micro-batch, gates by hooks.

    Three simplifications work in its favour: it has no soft mask, only one pass computes vocabulary logits, and its
    negatives come from the micro-batch instead of the whole step.
    """
    model = load_model(job).to(default_device())
    gates = HeadGates(model)
    importance = torch.rand(model.config.num_hidden_layers, model.config.num_attention_heads, device=default_device())
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)
    collator = CountingCollator(job)
    texts = sorted(collator.encode(), key=len)  # rows of similar length share a micro-batch
    generator = torch.Generator().manual_seed(job.seed)
    starts = range(0, len(texts) - job.micro + 1, job.micro)
    accumulated, tokens, number = job.batch // job.micro, 0, 0
    while True:
        for place in torch.randperm(len(starts), generator=generator).tolist():
            rows = texts[starts[place] : starts[place] + job.micro]
            batch = {name: value.to(default_device()) for name, value in collator([*map(collator.item, rows)]).items()}
            mask = batch["attention_mask"]
            encoded = {"input_ids": batch["input_ids"], "attention_mask": mask}
            with autocast(job.precision, default_device()):
                output = model(**batch, output_hidden_states=True)
                anchor = mean_pool(output.hidden_states[-1], mask)
                positive = mean_pool(model.base_model(**encoded).last_hidden_state, mask)
                gates.values = importance
                general = mean_pool(model.base_model(**encoded).last_hidden_state, mask)
                gates.values = None
                loss = output.loss + contrastive_loss(anchor, positive, general, 0.05)
            (loss / accumulated).backward()
            tokens += collator.read.popleft()
            number += 1
            if number % accumulated == 0:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                clock.step(tokens)
                tokens = 0


OTHERS: dict[str, Callable[[Job, Clock], None]] = {
    "trainer-random": train_with_trainer,
    "trainer-by-length": partial(train_with_trainer, sampling="group_by_length"),
    "trainer-blocks": partial(train_with_trainer, blocks=True),
    "naive-dga": train_naive_dga,
}


def load_model(job: Job) -> PreTrainedModel:
    """Load the model as ``transformers`` does, in training mode."""
    options: dict[str, Any] = {} if job.attention is None else {"attn_implementation": job.attention}
    return AutoModelForMaskedLM.from_pretrained(Path(job.folder) / "model", **options).train()


class CountingCollator:
    """The masked-LM collator of ``transformers``; ``read`` holds the real tokens of each batch, in order."""

    def __init__(self, job: Job) -> None:
        self.folder = Path(job.folder)
        self.tokenizer = AutoTokenizer.from_pretrained(self.folder / "model")
        self.collate = DataCollatorForLanguageModeling(self.tokenizer, mlm=True, mlm_probability=0.15)
        self.special = set(self.tokenizer.all_special_ids)
        self.read: deque[int] = deque()

    def encode(self) -> list[list[int]]:
        """Return the token ids of all texts."""
        return self.tokenizer(read_texts(self.folder), truncation=True, max_length=MAX_LENGTH)["input_ids"]

    def item(self, ids: list[int]) -> dict[str, list[int]]:
        """Return a row of the data set, with the mask of special tokens that ``run_mlm.py`` stores as well."""
        return {
            "input_ids": ids,
            "attention_mask": [1] * len(ids),
            "special_tokens_mask": [int(token in self.special) for token in ids],
        }

    def __call__(self, items: list[dict[str, list[int]]]) -> Any:
        batch = self.collate(items)
        self.read.append(int(batch["attention_mask"].sum()))
        return batch


class SpreadTrainer(Trainer):
    """``Trainer`` that takes the steps of ``group_by_length`` in an order in which short and long texts alternate.

    The sampler of ``transformers`` begins with the longest texts and takes many steps to reach the shortest, so a few
    steps would not be representative. Which texts share a step and a micro-batch is unchanged.
    """

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        sampler = super()._get_train_sampler(train_dataset)
        if self.args.train_sampling_strategy != "group_by_length":
            return sampler
        indices, batch = list(sampler), self.args.train_batch_size * self.args.gradient_accumulation_steps
        steps = [indices[start : start + batch] for start in range(0, len(indices), batch)]
        steps.sort(key=lambda step: sum(len(self.train_dataset[index]["input_ids"]) for index in step))
        return [index for place in spread(len(steps)) for index in steps[place]]


def spread(count: int) -> list[int]:
    """Return the numbers below ``count`` in an order of which every prefix covers the whole range evenly."""
    return sorted(range(count), key=lambda place: (0.5 + place * 0.618034) % 1)


class TimedCallback(TrainerCallback):
    """Reports the end of each optimizer step to the clock; the loader may have read ahead."""

    def __init__(self, clock: Clock, read: deque[int], accumulated: int) -> None:
        self.clock, self.read, self.accumulated = clock, read, accumulated

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.clock.step(sum(self.read.popleft() for _ in range(self.accumulated)))


class HeadGates:
    """Multiplies the output of each attention head by ``values`` (layers, heads), unless that is None."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.values: Tensor | None = None
        encoder: Any = model.base_model.encoder
        for number, layer in enumerate(encoder.layer):
            layer.attention.output.dense.register_forward_pre_hook(partial(self._apply, number))

    def _apply(self, number: int, _: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        if self.values is None:
            return None
        gates = self.values[number]
        context = inputs[0].unflatten(-1, (len(gates), -1)) * gates[:, None].to(inputs[0].dtype)
        return (context.flatten(-2), *inputs[1:])


def mean_pool(hidden: Tensor, mask: Tensor) -> Tensor:
    """Average hidden states over real tokens: (texts, width)."""
    weights = mask[:, :, None].to(hidden.dtype)
    return (hidden * weights).sum(1) / weights.sum(1)


def find_allocator() -> str:
    """Name the memory allocator of this process."""
    try:
        mapped = Path("/proc/self/maps").read_text(encoding="utf-8")
    except OSError:
        return platform.system()
    other = re.search(r"/lib(tcmalloc|jemalloc|mimalloc)[^/\s]*", mapped)
    tunables = os.environ.get("GLIBC_TUNABLES")
    return other[0][1:] if other else " ".join(platform.libc_ver()) + (f", {tunables}" if tunables else "")


def allocator_policy(job: Job) -> str:
    """Say how ``acclimate.adapt`` sets the allocator while it trains; the others leave it as it is."""
    ours = job.name.startswith("acclimate:") and default_device().type == "cpu"
    return " with a raised mmap threshold" if ours else ""


def measure(job: Job) -> dict[str, Any]:
    """Train until the clock ends the measurement.

    Returns:
        ``tokens_per_second``, ``steps``, ``peak_bytes`` (beyond what was in use after the imports; on an accelerator
        the peak of its allocator), and the ``allocator``.
    """
    torch.set_num_threads(job.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    before = peak_memory()
    clock = Clock(job.warm_up, job.seconds, job.steps)
    try:
        if job.name.startswith("acclimate:"):
            train_with_acclimate(job, clock)
        else:
            OTHERS[job.name](job, clock)
    except Finished:
        pass
    accelerated = torch.cuda.is_available()
    peak = torch.cuda.max_memory_allocated() if accelerated else peak_memory() - before
    return {
        "tokens_per_second": clock.tokens / clock.elapsed,
        "steps": clock.steps,
        "peak_bytes": peak,
        "allocator": find_allocator() + allocator_policy(job),
    }


def peak_memory() -> int:
    """Return the peak resident memory of this process so far, in bytes."""
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        return 1_024 * int(re.findall(r"VmHWM:\s+(\d+)", status)[0])  # ru_maxrss would include the peak of the parent
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1_024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


if __name__ == "__main__":
    print(json.dumps(measure(Job(**json.loads(sys.argv[1])))))
