"""The training loop of fine-tuning, the same for every kind of task."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainerCallback,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from acclimate.device import Precision, default_device, use_single_device
from acclimate.errors import UserError
from acclimate.models import kernels_of
from acclimate.models.encoding import skip_unread_tokens
from acclimate.objectives.distillation import confidence_penalty
from acclimate.tasks.batching import LengthGroupedBatches
from acclimate.tasks.options import FinetuneOptions

LOSS_CHECK_STEPS = 50
"""Steps between two looks at the loss: each look waits for the accelerator."""
MAX_TEXTS_IN_ERROR, MAX_WORDS_PER_TEXT = 3, 6
"""Texts that an error names, and words of each."""


@dataclass(frozen=True)
class TrainingResult:
    """What the loop did."""

    steps: int
    epoch: int
    """The epoch whose weights the model has now, counted from one."""
    loss: float
    """Mean over all steps, in nats."""
    log: list[dict[str, Any]] = field(default_factory=list)
    """``step``, ``epoch`` and mean ``loss`` of each stretch of steps, in nats."""


@dataclass(frozen=True)
class TrainingHooks:
    """What differs from plain fine-tuning.

    Attributes:
        loss: From the plain loss of a batch (called with its inputs), the model, the inputs and the number of steps
            that were taken, to the loss. It may take entries out of the inputs.
        factor: From a step to the factor of the learning rate; None falls linearly after the warm-up.
        callbacks: Further callbacks of the trainer.
    """

    loss: Callable[[Callable[[dict[str, Any]], Tensor], Any, dict[str, Any], int], Tensor]
    factor: Callable[[int], float] | None = None
    callbacks: Sequence[TrainerCallback] = ()


def divergence_error() -> UserError:
    """Make the error for a model that gives NaN or infinity after its training."""
    return UserError("The loss of fine-tuning is not a number any more; lower the learning rate.")


def divergence_error_at_step(
    step: int, steps: int, loss: float, texts: Sequence[str], learning_rate: float
) -> UserError:
    """Make the error for training that went to NaN or infinity.

    Args:
        step: The first step with such a loss, from 1.
        steps: All that were planned.
        loss: What it was.
        texts: How the texts of that step begin.
        learning_rate: The peak.
    """
    named = ", ".join(f"'{text} …'" for text in texts[:MAX_TEXTS_IN_ERROR])
    more = f" and {len(texts) - MAX_TEXTS_IN_ERROR} more" if len(texts) > MAX_TEXTS_IN_ERROR else ""
    return UserError(
        f"The loss of fine-tuning is {loss} at step {step} of {steps}, which read {named}{more}; lower the learning "
        f"rate (now {learning_rate:g})."
    )


def train(
    model: PreTrainedModel,
    rows: list[dict[str, Any]],
    collate: Callable[[list[dict[str, Any]]], dict[str, Tensor]],
    options: FinetuneOptions,
    precision: Precision,
    score: Callable[[], float | tuple[float, ...]] | None = None,
    course: TrainingHooks | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    report_to: Sequence[str] = (),
    run_name: str | None = None,
) -> TrainingResult:
    """Train a model in place: AdamW, linear warm-up and decay, gradients clipped to a norm of one.

    Args:
        model: A model that returns a loss.
        rows: Inputs, each with ``input_ids``.
        collate: From rows to a padded batch.
        options: Those of fine-tuning.
        precision: The resolved one.
        score: Measures the model after each epoch, more being better, of several numbers the first that differs; the
            weights of the best epoch, the earliest of equals, are kept. None keeps the last.
        course: What differs from plain fine-tuning.
        tokenizer: Of the model, to name the texts of a step that fails.
        report_to: Trackers of experiments.
        run_name: What they call the run.

    Raises:
        UserError: If the loss is not a number; it names the step and its texts.
    """
    device = default_device()
    steps = options.epochs * math.ceil(len(rows) / options.batch_size)
    best = _BestWeightsCallback(model, score) if score else None
    with tempfile.TemporaryDirectory(prefix="acclimate-") as scratch:
        arguments = use_single_device(
            TrainingArguments(
                output_dir=scratch,
                per_device_train_batch_size=options.batch_size,
                num_train_epochs=options.epochs,
                learning_rate=options.learning_rate,
                lr_scheduler_type="linear",
                warmup_steps=math.ceil(options.warmup * steps),
                weight_decay=options.weight_decay,
                optim="adamw_torch_fused",
                max_grad_norm=1.0,
                bf16=precision == "bf16",
                use_cpu=device.type == "cpu",
                dataloader_pin_memory=device.type == "cuda",
                seed=options.seed,
                save_strategy="no",
                eval_strategy="no",
                logging_strategy="steps" if report_to else "no",
                logging_steps=log_interval(steps),
                report_to=list(report_to) or "none",
                run_name=run_name,
                disable_tqdm=not options.progress,
            )
        )
        trainer = _TaskTrainer(
            model=model,
            args=arguments,
            data_collator=collate,
            train_dataset=rows,
            callbacks=[
                *kernels_of(model).callbacks(),
                *(course.callbacks if course else ()),
                *([best] if best else ()),
            ],
        )
        trainer.course, trainer.penalty = course, options.confidence_penalty
        trainer.error_tokenizer, trainer.pending_losses, trainer.lines = tokenizer, [], []
        trainer.lowered = kernels_of(model).step_context(model, precision)
        trainer.remove_callback(PrinterCallback)
        if options.progress:
            trainer.remove_callback(ProgressCallback)
            trainer.add_callback(_ProgressBar)
        with skip_unread_tokens(model):
            trainer.train()
        loss = trainer.mean_loss()
    if best:
        model.load_state_dict(best.weights)
    return TrainingResult(steps, best.epoch if best else options.epochs, loss, trainer.lines)


def log_interval(steps: int) -> int:
    """Return over how many steps of a training the losses of one line of its log are averaged."""
    return max(1, min(LOSS_CHECK_STEPS, steps // 50))


class _TaskTrainer(Trainer):
    """A trainer with length-grouped batches that stops when the loss is not a number."""

    total: Tensor | float = 0.0
    count = 0
    error_tokenizer: PreTrainedTokenizerBase | None = None
    pending_losses: list[tuple[Tensor, Tensor]]
    """Losses of the steps since the last look at them, and the token ids (rows, tokens) that they read."""
    lines: list[dict[str, Any]]
    """The log so far."""
    course: TrainingHooks | None = None
    penalty = 0.0
    lowered: Callable[[], AbstractContextManager[None]] = nullcontext

    def get_train_dataloader(self) -> DataLoader:
        rows: list[dict[str, Any]] = self.train_dataset  # type: ignore[assignment]
        lengths = [len(row["input_ids"]) for row in rows]
        batches = LengthGroupedBatches(lengths, self.args.train_batch_size, self.args.seed)
        loader: DataLoader = DataLoader(
            rows,  # type: ignore[arg-type]
            batch_sampler=batches,
            collate_fn=self.data_collator,
            pin_memory=self.args.dataloader_pin_memory,
        )
        return self.accelerator.prepare(loader)

    def create_scheduler(self, num_training_steps: int, optimizer: Optimizer | None = None) -> Any:
        if self.course is None or self.course.factor is None:
            return super().create_scheduler(num_training_steps, optimizer)
        chosen: Any = self.optimizer if optimizer is None else optimizer
        self.lr_scheduler = LambdaLR(chosen, self.course.factor)
        return self.lr_scheduler

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        def plain(inputs: dict[str, Any]) -> Tensor:
            loss, outputs = super(_TaskTrainer, self).compute_loss(model, inputs, True, num_items_in_batch)
            if not self.penalty:
                return loss
            several = outputs.logits.shape == inputs["labels"].shape
            return loss + confidence_penalty(outputs.logits, self.penalty, several)

        return plain(inputs) if self.course is None else self.course.loss(plain, model, inputs, self.state.global_step)

    def training_step(self, model: Any, inputs: dict[str, Any], *args: Any, **options: Any) -> Tensor:
        read = inputs["input_ids"]  # a loss of its own may take entries out
        with self.lowered():
            loss = super().training_step(model, inputs, *args, **options)
        self.total = self.total + loss.detach()  # a NaN stays in the sum
        self.count += 1
        self.pending_losses.append((loss.detach(), read))
        if self.count % LOSS_CHECK_STEPS == 0:
            self.mean_loss()
        return loss

    def mean_loss(self) -> float:
        """Return the mean of the losses so far, in nats.

        Raises:
            UserError: If one was not a number; its step is one of those since the last look.
        """
        loss = float(self.total) / self.count
        if not math.isfinite(loss):
            first = self.count - len(self.pending_losses)
            for step, (value, ids) in enumerate(self.pending_losses, first + 1):
                if not math.isfinite(float(value)):
                    raise divergence_error_at_step(
                        step, self.state.max_steps, float(value), self._begin(ids), self.args.learning_rate
                    )
            raise divergence_error()  # the sum was too large, no loss of it
        self._note()
        return loss

    def _note(self) -> None:
        """Write the losses since the last look into the log; one look at the accelerator serves them all."""
        if not self.pending_losses:
            return
        losses = torch.stack([value.float() for value, _ in self.pending_losses]).tolist()
        first, total = self.count - len(losses), max(1, self.state.max_steps)
        length = log_interval(total)
        for start in range(0, len(losses), length):
            part = losses[start : start + length]
            step = first + start + len(part)
            epoch = round(step / total * float(self.args.num_train_epochs), 3)
            self.lines.append({"step": step, "epoch": epoch, "loss": sum(part) / len(part)})
        self.pending_losses.clear()

    def _begin(self, ids: Tensor) -> list[str]:
        """Return how texts begin, in words where the tokenizer is known."""
        rows = ids[:, : 10 * MAX_WORDS_PER_TEXT].tolist()
        if self.error_tokenizer is None:
            return [" ".join(map(str, row[:MAX_WORDS_PER_TEXT])) for row in rows]
        texts = self.error_tokenizer.batch_decode(rows, skip_special_tokens=True)
        return [" ".join(str(text).split()[:MAX_WORDS_PER_TEXT]) for text in texts]


class _ProgressBar(ProgressCallback):
    """The progress bar, without the dictionary that is printed over it at the end."""

    def on_log(self, *_: Any, **__: Any) -> None:
        pass


class _BestWeightsCallback(TrainerCallback):
    """Measures after each epoch and keeps a copy of the best weights in memory."""

    def __init__(self, model: PreTrainedModel, score: Callable[[], float | tuple[float, ...]]):
        self.model, self.measure = model, score
        self.epoch, self.weights = 0, dict[str, Tensor]()
        self.score: tuple[float, ...] = (-math.inf,)

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any) -> None:
        found = self.measure()
        score = found if isinstance(found, tuple) else (found,)
        if score > self.score:
            self.epoch, self.score = round(state.epoch or 0), score
            weights = self.model.state_dict()
            self.weights = {name: value.detach().to("cpu", copy=True) for name, value in weights.items()}
