"""The ``Trainer`` subclass for adaptation and end tasks: an engine computes the gradients of each optimizer step."""

from __future__ import annotations

import json
import math
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from transformers.utils import SAFE_WEIGHTS_NAME

from acclimate.base.device import default_device, use_single_device
from acclimate.base.errors import Stopped, UserError, postpone_stop
from acclimate.base.files import read_json, translate_disk_errors, write_json
from acclimate.base.progress import Progress
from acclimate.engine.callbacks import (
    Clock,
    ResumableCallback,
    StepCallback,
    check_weight_names,
    find_newest_checkpoint,
    follow,
    log_interval,
    remove_incomplete_checkpoints,
)
from acclimate.engine.diagnosis import StepData, StepEngine, make_divergence_error
from acclimate.engine.distributed import hidden_sharding
from acclimate.engine.micro_batches import LossScaler, make_optimizer
from acclimate.engine.options import OptimizerName
from acclimate.engine.sampler import EpochSteps, describe_sources
from acclimate.engine.schedules import LINEAR, Schedule
from acclimate.models.adapters import adapter_weights
from acclimate.models.families import training_callbacks
from acclimate.models.saving import find_non_finite
from acclimate.parts.updates import UpdateRule, parameter_groups

CLOCK_FILE = "clock.json"
LOG_FILE = "log.jsonl"
ADAPTATION_EPSILON = 1e-6
"""AdamW's epsilon in adaptation, as in BERT and RoBERTa pre-training."""
LOADER_WORKERS, PREFETCHED_STEPS = {"cuda": 2}, 2
"""Processes that prepare batches, by type of device, and the steps that each prepares ahead. A step of a GPU takes as
long as its preparation; on a CPU they would take each other's time."""
CallbackFactory = Callable[["StepTrainer"], TrainerCallback]


class StepTrainer(Trainer):
    """Trains on the steps of a :class:`StepData` with a :class:`StepEngine` and an update rule."""

    def __init__(
        self,
        engine: StepEngine,
        args: TrainingArguments,
        steps: StepData,
        *,
        rule: UpdateRule | None,
        clock: Clock,
        log_file: Path,
        schedule: Callable[[int], float],
        progress: Progress | None = None,
        save_every: int | None = None,
        appended: int = 0,
        optimizer: OptimizerName = "adamw",
        loader_workers: int = 0,
    ) -> None:
        """Set up training.

        Args:
            engine: Computes loss and gradients.
            args: Arguments of the parent class.
            steps: The micro-batches of each step.
            rule: Update rule, called around each optimizer step.
            clock: Measures the training time.
            log_file: JSON lines file that gets one line per logging interval.
            schedule: Factor of the learning rate, as a function of the number of steps taken.
            progress: Shows the completed share, the loss and the speed.
            save_every: Steps between checkpoints: None for one every five minutes, 0 for none.
            appended: Virtual tokens per text, which do not count as tokens read.
            optimizer: See :func:`acclimate.engine.micro_batches.make_optimizer`.
            loader_workers: Processes that prepare the micro-batches of the next steps; 0 for none.
        """
        self.engine, self.data, self.clock, self.log_file, self.schedule = engine, steps, clock, log_file, schedule
        self.rule = rule or UpdateRule()  # the base class does nothing
        self._appended, self._optimizer_name = appended, optimizer
        self._workers = loader_workers if sys.platform == "linux" else 0
        self.scaler = LossScaler(engine) if engine.precision == "fp16" else None
        self.tokens = 0
        self.loss_sum = 0.0
        self._terms: dict[str, Tensor] = {}
        self._recent: list[dict[str, float]] = []
        self.last_terms: dict[str, float] = {}
        self.kept_step: int | None = None  # the step whose weights the model has, if not the last
        self.lines: list[dict[str, Any]] = []
        super().__init__(model=engine.model, args=args, train_dataset=steps, data_collator=_unwrap_batch)
        # Without ``DistributedDataParallel``: the engine sums the gradients itself.
        self.accelerator.prepare_model = partial(self.accelerator.prepare_model, evaluation_mode=True)
        for callback in (PrinterCallback, ProgressCallback):
            self.remove_callback(callback)
        self.add_callback(StepCallback(self, progress, save_every))

    def get_train_dataloader(self) -> DataLoader:
        """Return the loader of one epoch's steps, in order; the data itself shuffles the texts."""
        ahead: dict[str, Any] = {}
        if self._workers:
            ahead = {
                "num_workers": self._workers,
                "prefetch_factor": PREFETCHED_STEPS,
                "multiprocessing_context": "fork",  # the data is shared, and nothing is pickled
                "worker_init_fn": _leave_signals_to_parent,
            }
        loader: DataLoader = DataLoader(
            self.data,  # type: ignore[arg-type]
            batch_size=1,
            sampler=EpochSteps(self.data.epoch_steps or len(self.data), lambda: self.state.global_step),
            collate_fn=_unwrap_batch,
            **ahead,
        )
        return loader

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """Create the optimizer, with the learning rates of the update rule."""
        if self.optimizer is None:
            rate, factors = self.args.learning_rate, self.rule.learning_rate_factors()
            groups = parameter_groups(self.engine.model, rate, self.args.weight_decay, factors)
            betas = (self.args.adam_beta1, self.args.adam_beta2)
            options = {"lr": rate, "betas": betas, "eps": self.args.adam_epsilon}
            self.optimizer = make_optimizer(self._optimizer_name, groups, **options)
            # A method, as schedulers of the learning rate require.
            self.optimizer.step = MethodType(self._step_with_rule(self.optimizer.step), self.optimizer)  # type: ignore[method-assign]
        return self.optimizer

    def _step_with_rule(self, step: Callable[[], Any]) -> Callable[..., None]:
        """Return a step of the optimizer that follows the update rule.

        Updates of bf16 weights are rounded at random: alike in all processes, whose weights would differ otherwise.
        """
        group = self.engine.group
        rounded = any(parameter.dtype == torch.bfloat16 for parameter in self.engine.model.parameters())

        def step_with_rule(optimizer: torch.optim.Optimizer, closure: None = None) -> None:
            self.rule.steps_taken, self.rule.progress = self.state.global_step, self.engine.progress
            with group.shared_random_state() if rounded else nullcontext():
                self.rule.step(optimizer, step)

        return step_with_rule

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> LambdaLR:
        """Create the learning-rate schedule."""
        if self.lr_scheduler is None:
            self.lr_scheduler = LambdaLR(optimizer or self.create_optimizer(), self.schedule)
        return self.lr_scheduler

    def run(self, saves: bool) -> None:
        """Train, from the newest checkpoint on if there is one.

        Args:
            saves: Whether checkpoints are written, so that a run that is stopped can go on later.
        """
        folder = Path(str(self.args.output_dir))
        checkpoint = find_newest_checkpoint(folder)
        if checkpoint is not None:
            self.load_progress(checkpoint)
        try:
            with postpone_stop():
                self.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        except Stopped as stopped:
            stopped.saved = saves and find_newest_checkpoint(folder) is not None
            raise
        self.check_weights()
        self.engine.group.gather_weights()

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Run the engine on the micro-batches of a step."""
        if not model.training:  # to visit all modules takes a millisecond, as long as a layer of a small model
            model.train()
        device = self.args.device
        self.engine.progress = min(1.0, max(self.state.global_step / len(self.data), self.clock.spent))
        terms = self.engine.step([batch.to(device) for batch in inputs])
        if self.scaler is not None:
            self.scaler.unscale(model)
        self.rule.after_backward()
        self._terms = terms
        self.tokens += self.engine.tokens - self._appended * self.engine.texts
        return terms["loss"]

    def _get_grad_norm(self, *args: Any, **options: Any) -> Any:
        """Return the norm of the gradients; it and the loss are checked before they reach the weights.

        Nothing else of a step makes the host wait for the device.
        """
        measured = torch.as_tensor(super()._get_grad_norm(*args, **options), device=self.args.device)
        norm, *values = torch.stack([measured.float(), *(value.float() for value in self._terms.values())]).tolist()
        terms = dict(zip(self._terms, values, strict=True))
        if not math.isfinite(terms["loss"]):
            raise self._divergence_error(self._terms)
        if self.scaler is not None and self.scaler.skips_step(self.engine.model, norm):
            norm = 0.0
        elif not math.isfinite(norm):
            raise self._divergence_error(self._terms)
        self.loss_sum += terms["loss"]
        self._recent.append(terms)
        return norm

    def _divergence_error(self, terms: dict[str, Tensor], taken: int = 0) -> UserError:
        """Return the error for the step that is being taken, or with ``taken=1`` for the one before."""
        kept = find_newest_checkpoint(Path(str(self.args.output_dir)))
        step, rate = self.state.global_step - taken, self.args.learning_rate
        return make_divergence_error(self.engine, self.data, step, terms, rate, kept)

    def check_weights(self) -> None:
        """Check the weights after a step, since only the loss and the gradients were checked before it.

        Raises:
            UserError: If one is not finite.
        """
        if self._terms and find_non_finite(self.engine.model):
            raise self._divergence_error(self._terms, taken=1)

    def _save_checkpoint(self, *args: Any, **options: Any) -> None:
        """Write a checkpoint; an error leaves the previous checkpoint, and no incomplete one.

        Raises:
            UserError: If a weight is not finite.
            OSError: If the checkpoint cannot be written, for example because the disk is full.
        """
        self.check_weights()
        folder = Path(str(self.args.output_dir)) / f"checkpoint-{self.state.global_step}"
        try:
            with translate_disk_errors(folder):
                super()._save_checkpoint(*args, **options)
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Write the weights of a checkpoint: the adapter's alone if there is one, since no others change."""
        weights = adapter_weights(self.engine.model)
        if weights is None:
            super()._save(output_dir, state_dict)
        elif self.args.should_save:
            folder = Path(str(output_dir))
            folder.mkdir(parents=True, exist_ok=True)
            save_file({name: value.contiguous() for name, value in weights.items()}, folder / SAFE_WEIGHTS_NAME)

    def save_progress(self, checkpoint: Path) -> None:
        """Add to a checkpoint what the parent class does not know: time, tokens, losses and the callbacks' state."""
        write_json(
            checkpoint / CLOCK_FILE,
            {
                "seconds": self.clock.seconds,
                "tokens": self.tokens,
                "processes": self.engine.group.size,
                "loss_sum": self.loss_sum,
                "recent": self._recent,
                **({} if self.scaler is None else {"scaler": self.scaler.state()}),
            },
        )
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, ResumableCallback):
                callback.save(checkpoint)

    def load_progress(self, checkpoint: Path) -> None:
        """Restore what :meth:`save_progress` wrote, possibly with another number of processes."""
        state = read_json(checkpoint / CLOCK_FILE)
        step = int(checkpoint.name.rpartition("-")[2])
        self.engine.group.continue_run(state["processes"], int(self.args.seed) + step)
        self.clock.earlier, self.tokens = state["seconds"], state["tokens"]
        self.loss_sum, self._recent = state["loss_sum"], state["recent"]
        if self.scaler is not None:
            self.scaler.load(state["scaler"])
        self.clock.synchronize()
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, ResumableCallback):
                callback.load(checkpoint)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Refuse a checkpoint whose weights do not match the model; the parent class only warns."""
        weights = adapter_weights(self.engine.model) or self.engine.model.state_dict()
        missing = set(load_result.missing_keys) & weights.keys()
        loaded = {value.data_ptr() for name, value in weights.items() if name not in missing}
        lost = [name for name in missing if weights[name].data_ptr() not in loaded]
        check_weight_names(str(self.args.output_dir), [*lost, *load_result.unexpected_keys])

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Append the mean of each term since the last line to ``log.jsonl``, and pass all of it to the trackers."""
        if self._recent:
            found: dict[str, list[float]] = {}
            for name, value in (item for terms in self._recent for item in terms.items()):
                found.setdefault(name, []).append(value)  # a term may be part of some steps only
            self.last_terms = {name: sum(values) / len(values) for name, values in found.items()}
            self._recent = []
            terms = {name: value for name, value in self.last_terms.items() if name != "loss"}
            epoch = {"epoch": round(self.state.epoch or 0.0, 3)} if self.data.epoch_steps else {}
            line = {
                "step": self.state.global_step,
                **epoch,
                **describe_sources(self.data.mix(self.state.global_step)),
                "tokens": self.tokens,
                "seconds": round(self.clock.seconds, 1),
                "loss": self.last_terms["loss"],
                "terms": terms,
                "learning_rate": logs.get("learning_rate"),
                "grad_norm": logs.get("grad_norm"),
            }
            self.lines.append(line)
            if not self.engine.group.first:
                return super().log(logs, start_time)
            with self.log_file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            logs = {**logs, "tokens": self.tokens, **{f"term_{name}": value for name, value in terms.items()}}
        super().log(logs, start_time)

    def floating_point_ops(self, inputs: Any) -> int:
        """Return 0: the parent class cannot count the operations of a list of micro-batches."""
        return 0


def _leave_signals_to_parent(_: int) -> None:
    """Let a process of the loader end with its parent, which decides what a signal means."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _unwrap_batch(items: Any) -> Any:
    """Collate a batch of one: return the item itself."""
    return items[0]


def _make_arguments(
    work: Path,
    engine: StepEngine,
    steps: int,
    seed: int,
    report_to: Sequence[str],
    run_name: str | None,
    **rates: float,
) -> TrainingArguments:
    """Return the arguments of the parent class, which neither saves nor prints by itself."""
    return use_single_device(
        TrainingArguments(
            output_dir=str(work),
            use_cpu=default_device().type == "cpu",
            max_steps=steps,
            logging_steps=log_interval(steps),
            logging_nan_inf_filter=False,
            save_strategy="no",
            seed=seed,
            disable_tqdm=True,
            report_to=list(report_to) or "none",
            run_name=run_name,
            remove_unused_columns=False,
            # ``Trainer`` writes it into the configuration, which is saved with the model.
            use_cache=bool(getattr(engine.model.config, "use_cache", False)),
            **rates,  # type: ignore[arg-type]
        )
    )


def train(
    engine: StepEngine,
    data: StepData,
    work: Path | None,
    *,
    seed: int,
    learning_rate: float,
    title: str,
    progress: bool,
    rule: UpdateRule | None = None,
    weight_decay: float = 0.0,
    max_gradient_norm: float = 1.0,
    schedule: Callable[[int], float] | Schedule = LINEAR,
    adam_epsilon: float = ADAPTATION_EPSILON,
    minutes: float | None = None,
    save_every: int | None = None,
    appended: int = 0,
    optimizer: OptimizerName = "adamw",
    loader_workers: int | None = 0,
    callbacks: Sequence[CallbackFactory] = (),
    report_to: Sequence[str] = (),
    run_name: str | None = None,
    trainer_class: type[StepTrainer] = StepTrainer,
) -> StepTrainer:
    """Train with AdamW and clipped gradients; resume from the newest complete checkpoint in ``work``.

    Args:
        engine: Computes loss and gradients.
        data: The micro-batches of each step.
        work: Folder for checkpoints and the log; None for no checkpoints and a temporary log.
        seed: Random seed.
        learning_rate: Peak learning rate.
        title: Title of the progress bar.
        progress: Whether to show it.
        rule: Update rule, called around each optimizer step.
        weight_decay: AdamW weight decay, on matrices only.
        max_gradient_norm: Norm to which larger gradients are scaled; 0 leaves them as they are.
        schedule: Schedule of the learning rate, or its factor as a function of the step.
        adam_epsilon: AdamW's epsilon.
        minutes: Time budget in minutes; None for none.
        save_every: Steps between checkpoints; None for one every five minutes.
        appended: Virtual tokens per text, which do not count as tokens read.
        optimizer: See :func:`acclimate.engine.micro_batches.make_optimizer`.
        loader_workers: Processes that prepare batches ahead; None for the number that suits the device.
        callbacks: Functions that each make a callback for the trainer.
        report_to: Experiment trackers.
        run_name: Name of the run in the trackers.
        trainer_class: The class of the trainer.

    Returns:
        The trainer, with the number of tokens, the losses and the lines of the log.

    Raises:
        UserError: If the loss, a gradient or a weight becomes NaN or infinite, or a checkpoint does not fit the run.
    """
    with hidden_sharding(), ExitStack() as stack:
        if work is None:
            work, save_every = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="acclimate-"))), 0
        work.mkdir(parents=True, exist_ok=True)
        if engine.group.first:
            remove_incomplete_checkpoints(work)
        engine.group.wait()
        set_seed(seed)
        rates = {"learning_rate": learning_rate, "weight_decay": weight_decay, "adam_epsilon": adam_epsilon}
        args = _make_arguments(
            work, engine, len(data), seed, report_to, run_name, max_grad_norm=max_gradient_norm, **rates
        )
        clock = Clock(None if minutes is None else 60 * minutes, engine.group)
        bar = stack.enter_context(Progress(title, 1.0, enabled=progress, delay=0, persistent=True))
        trainer = trainer_class(
            engine,
            args,
            data,
            rule=rule,
            clock=clock,
            log_file=work / LOG_FILE,
            schedule=follow(schedule, len(data), clock) if isinstance(schedule, Schedule) else schedule,
            progress=bar,
            save_every=save_every,
            appended=appended,
            optimizer=optimizer,
            loader_workers=LOADER_WORKERS.get(args.device.type, 0) if loader_workers is None else loader_workers,
        )
        engine.group.copy_from_first([*engine.model.parameters(), *engine.model.buffers()])  # now on its device
        for callback in (*training_callbacks(engine.model), *(make(trainer) for make in callbacks)):
            trainer.add_callback(callback)
        trainer.run(saves=save_every != 0)
    # The caller gets the model without the gradients of the last step.
    nn.Module.zero_grad(engine.model, set_to_none=True)
    return trainer
