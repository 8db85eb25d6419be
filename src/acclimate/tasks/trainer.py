"""Training on an end task of any kind: its steps, its loss, and the choice of the best epoch on the dev split."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedModel, TrainerState, TrainingArguments

from acclimate.base.device import Precision
from acclimate.base.files import read_json, write_json
from acclimate.data.chat import plain_ids
from acclimate.data.tokenizing import check_known
from acclimate.engine.batches import describe_text
from acclimate.engine.callbacks import ResumableCallback
from acclimate.engine.diagnosis import StepData, StepEngine
from acclimate.engine.distributed import ProcessGroup
from acclimate.engine.micro_batches import set_gradient_checkpointing
from acclimate.engine.steps import TaskBatch, TaskEngine, TaskLoss
from acclimate.engine.trainer import CallbackFactory
from acclimate.engine.trainer import train as run_trainer
from acclimate.models.batching import machine_memory
from acclimate.models.compiling import compiled_layers
from acclimate.models.encoding import skip_unread_tokens
from acclimate.parts.objectives.distillation import confidence_penalty
from acclimate.tasks.head_model import HeadModel
from acclimate.tasks.interfaces import ResolvedOptions
from acclimate.tasks.recipe import MEASURED_EPOCHS

ADAM_EPSILON = 1e-8
"""The default of ``transformers``, which fine-tuning recipes assume."""
CHECKED_ROWS = 5_000
"""Rows in which unknown tokens are counted."""
Score = float | tuple[float, ...]


@dataclass(frozen=True)
class TrainingResult:
    """The result of a training."""

    steps: int
    epoch: int
    """The epoch whose weights the model has now, counted from one."""
    loss: float
    """Mean over all steps, in nats."""
    log: list[dict[str, Any]] = field(default_factory=list)
    """One entry per logging interval: ``step``, ``epoch``, mean ``loss`` in nats and more."""


@dataclass(frozen=True)
class TrainingHooks:
    """How a training differs from plain fine-tuning.

    Attributes:
        loss: Loss of a batch.
        items: Number of items over which it is a mean, from the inputs on the CPU and the steps taken before; None
            for that of the model (:meth:`HeadModel.loss_items`).
        schedule: Factor of the learning rate, as a function of the step; None for the linear schedule.
        callbacks: Functions that each make a further callback for the trainer.
    """

    loss: TaskLoss
    schedule: Callable[[int], float] | None = None
    items: Callable[[dict[str, Tensor], int], float] | None = None
    callbacks: Sequence[CallbackFactory] = ()


def supervised_loss(head: HeadModel, penalty: float = 0.0) -> TaskLoss:
    """Return the loss of the model's own head, minus ``penalty`` times the entropy of its answers."""

    def loss(model: PreTrainedModel, inputs: dict[str, Tensor], step: int) -> Tensor:
        output: Any = head.run(model, inputs)
        found: Tensor = output.loss
        if not penalty:
            return found
        return found + confidence_penalty(
            head.answer_logits(output.logits, inputs["labels"]), penalty, head.multi_label
        )

    return loss


def train(
    head: HeadModel,
    rows: Sequence[dict[str, Any]],
    options: ResolvedOptions,
    precision: Precision,
    *,
    work: Path | None = None,
    title: str = "fine-tune",
    score: Callable[[], Score] | None = None,
    hooks: TrainingHooks | None = None,
    report_to: Sequence[str] = (),
    run_name: str | None = None,
    group: ProcessGroup | None = None,
) -> TrainingResult:
    """Train a model in place: AdamW, linear warm-up and decay, clipped gradients; with no epochs, do nothing.

    Args:
        head: The model.
        rows: Training rows.
        options: Options of fine-tuning.
        precision: The resolved precision.
        work: Folder for checkpoints, from which a killed training resumes; None for no checkpoints.
        title: Title of the progress bar.
        score: Function that scores the model after an epoch; higher is better, and tuples are compared entry by
            entry. The weights of the best epoch are kept, or of the earliest of equally good ones. With None, those of
            the last epoch are kept.
        hooks: How the training differs from plain fine-tuning.
        report_to: Experiment trackers.
        run_name: Name of the run in the trackers.
        group: The processes that share each step.

    Raises:
        UserError: If all tokens of the text are unknown, or the loss becomes NaN or infinite; the message then names
            the step and its texts.
    """
    head.prepare()
    if not options.epochs:
        return TrainingResult(0, 0, 0.0)
    check_known(plain_ids(np.concatenate([row["input_ids"] for row in rows[:CHECKED_ROWS]])), head.tokenizer)
    hooks = hooks or TrainingHooks(supervised_loss(head, options.confidence_penalty))
    data = TaskSteps(rows, head, options.batch_size, options.epochs, options.seed, group, hooks.items)
    engine, longest = TaskEngine(head.model, hooks.loss, precision, group), max(len(row["input_ids"]) for row in rows)
    run: Any = {"title": title, "report_to": report_to, "run_name": run_name}
    return train_steps(engine, data, head.model, longest, options, work, score, hooks.schedule, hooks.callbacks, **run)


def train_steps(
    engine: StepEngine,
    data: StepData,
    body: PreTrainedModel | None,
    longest: int,
    options: ResolvedOptions,
    work: Path | None,
    score: Callable[[], Score] | None,
    schedule: Callable[[int], float] | None = None,
    callbacks: Sequence[CallbackFactory] = (),
    **run: Any,
) -> TrainingResult:
    """Train the model of an engine in place; its transformer ``body`` reads rows of at most ``longest`` tokens.

    The other arguments are those of :func:`train` and :class:`TrainingHooks`.
    """
    epochs = len(data) // (data.epoch_steps or len(data))
    best = BestWeightsCallback(engine.model, score, epochs) if score else None
    compiled = [body] if options.compile and body is not None else []
    with ExitStack() as stack:
        if body is not None:
            wanted = options.gradient_checkpointing
            set_gradient_checkpointing(body, engine.precision, wanted, longest, options.progress)
            stack.enter_context(skip_unread_tokens(body))
        stack.enter_context(compiled_layers(compiled, progress=options.progress))
        trainer = run_trainer(
            engine,
            data,
            work,
            seed=options.seed,
            learning_rate=options.learning_rate,
            progress=options.progress,
            weight_decay=options.weight_decay,
            max_gradient_norm=options.max_gradient_norm,
            schedule=schedule or phase_schedule(0, len(data), options.warmup),
            adam_epsilon=ADAM_EPSILON,
            callbacks=[*callbacks, *([lambda _: best] if best else [])],
            **run,
        )
    if best:
        engine.model.load_state_dict(best.weights)
    loss = float(trainer.loss_sum) / len(data)
    return TrainingResult(len(data), best.epoch if best else epochs, loss, trainer.lines)


def phase_schedule(switch: int, steps: int, warmup: float) -> Callable[[int], float]:
    """Return the factor of the learning rate for training in two phases, each with its own schedule.

    In each phase it rises from 0 over the share ``warmup`` of the steps and then falls linearly to 0.

    Args:
        switch: Number of steps of the first phase; 0 for a single phase.
        steps: Number of steps of both phases together.
        warmup: Share of the steps of a phase, 0 to 1.
    """

    def factor(step: int) -> float:
        start, end = (0, switch) if step < switch else (switch, steps)
        rising = math.ceil(warmup * (end - start))
        if step - start < rising:
            return (step - start) / rising
        return max(0.0, (end - step) / max(1, end - start - rising))

    return factor


class TaskSteps(Dataset):
    """The batches of every step of a training on an end task (a ``StepData``)."""

    def __init__(
        self,
        rows: Sequence[dict[str, Any]],
        head: HeadModel,
        batch_size: int,
        epochs: int,
        seed: int,
        group: ProcessGroup | None = None,
        items: Callable[[dict[str, Tensor], int], float] | None = None,
    ) -> None:
        """Plan the steps.

        Args:
            rows: Training rows.
            head: The model, which pads them.
            batch_size: Rows per step, in all processes together.
            epochs: Passes over the rows.
            seed: Random seed of the order.
            group: The processes that share each step.
            items: See :class:`TrainingHooks`.
        """
        self.rows, self.head, self.group = rows, head, group or ProcessGroup()
        self._items = items or (lambda inputs, step: head.loss_items(inputs))
        self.epoch_steps: int | None = math.ceil(len(rows) / batch_size)
        self._steps = epochs * math.ceil(len(rows) / batch_size)
        self._batches = LengthGroupedBatches([len(row["input_ids"]) for row in rows], batch_size, seed)

    def __len__(self) -> int:
        return self._steps

    def __getitem__(self, step: int) -> list[TaskBatch]:
        return self._batch(step, self.group.share(self.indices(step)))

    def indices(self, step: int) -> list[int]:
        """Return the indices of the rows of a step, in all processes together."""
        epoch, place = divmod(step, len(self._batches))
        return self._batches.epoch(epoch)[place]

    def alone(self, step: int, index: int) -> list[TaskBatch]:
        """Return a batch of one row."""
        return self._batch(step, [index])

    def mix(self, steps: int) -> list[dict[str, Any]]:
        """Return an empty list: the rows are those of one task."""
        return []

    def describe(self, index: int) -> str:
        """Return the number of a row, counted from 1, and its first words."""
        return describe_text(
            f"row {index + 1:,}", plain_ids(np.asarray(self.rows[index]["input_ids"])).tolist(), self.head.tokenizer
        )

    def _batch(self, step: int, indices: Sequence[int]) -> list[TaskBatch]:
        if not indices:  # a short batch may have fewer rows than there are processes
            return []
        parts = map(self.head.collate, self.head.micro_batches([self.rows[index] for index in indices]))
        batches = [TaskBatch(inputs, step, self._items(inputs, step)) for inputs in parts]
        return [batch for batch in batches if batch.items]  # the mean over nothing is no number


class LengthGroupedBatches:
    """Random batches of rows of similar length; every row once per epoch.

    An epoch shuffles the rows, cuts them into pools, sorts each pool by length, cuts it into batches and shuffles the
    batches. A pool is 50 batches, or a quarter of the data if that is less: with a single pool over a small dataset
    the same rows would share a batch in every epoch. The order depends on the seed and the number of the epoch alone.
    All batches are full, except for at most one, which can be anywhere in the epoch.
    """

    def __init__(self, lengths: Sequence[int], size: int, seed: int, pool: int = 50) -> None:
        """Plan batches.

        Args:
            lengths: Tokens of each row.
            size: Rows per batch.
            seed: Random seed.
            pool: Maximum number of batches per pool.
        """
        self.lengths, self.size, self.seed = lengths, size, seed
        self.pool = size * max(1, min(pool, len(self) // 4))
        self.epoch = lru_cache(maxsize=1)(self._epoch)

    def __len__(self) -> int:
        """Return the number of batches per epoch."""
        return -(-len(self.lengths) // self.size)

    def _epoch(self, number: int) -> list[list[int]]:
        """Return the indices of the rows of each batch of an epoch."""
        rng = random.Random(f"{self.seed}/{number}")
        rows = list(range(len(self.lengths)))
        rng.shuffle(rows)
        batches: list[list[int]] = []
        for start in range(0, len(rows), self.pool):
            pool = sorted(rows[start : start + self.pool], key=self.lengths.__getitem__)
            batches += [pool[first : first + self.size] for first in range(0, len(pool), self.size)]
        rng.shuffle(batches)
        return batches


BEST_SHARE = 0.1
"""Share of the memory of a device that the copy of the best weights may take; a larger one is kept on the CPU."""


class BestWeightsCallback(ResumableCallback):
    """Measures the model after each epoch and keeps a copy of the best weights in memory and in checkpoints.

    Of more than :data:`MEASURED_EPOCHS` epochs, about so many are measured, the last among them.
    """

    WEIGHTS_FILE, SCORE_FILE = "best.safetensors", "best.json"

    def __init__(self, model: PreTrainedModel, score: Callable[[], Score], epochs: int) -> None:
        self._model, self._measure, self._epochs = model, score, epochs
        self.epoch, self.weights = 0, dict[str, Tensor]()
        self.score: tuple[float, ...] = (-math.inf,)

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any) -> None:
        """Keep the weights if their score is higher than all before."""
        if (self._epochs - round(state.epoch or 0)) % -(-self._epochs // MEASURED_EPOCHS):
            return
        found = self._measure()
        score = found if isinstance(found, tuple) else (found,)
        if score > self.score:
            self.epoch, self.score = round(state.epoch or 0), score
            weights = self._model.state_dict()
            size = sum(value.nbytes for value in weights.values())
            device = self._model.device
            place = device if size <= BEST_SHARE * machine_memory(device) else torch.device("cpu")
            self.weights = {name: value.detach().to(place, copy=True) for name, value in weights.items()}

    def save(self, checkpoint: Path) -> None:
        """Write the best weights so far, with their epoch and score."""
        if self.epoch:
            save_file({n: w.contiguous() for n, w in self.weights.items()}, checkpoint / self.WEIGHTS_FILE)
            write_json(checkpoint / self.SCORE_FILE, {"epoch": self.epoch, "score": self.score})

    def load(self, checkpoint: Path) -> None:
        """Restore what :meth:`save` wrote; do nothing if the checkpoint was written in the first epoch."""
        if (checkpoint / self.SCORE_FILE).is_file():
            state = read_json(checkpoint / self.SCORE_FILE)
            self.epoch, self.score = state["epoch"], tuple(state["score"])
            self.weights = load_file(checkpoint / self.WEIGHTS_FILE)
