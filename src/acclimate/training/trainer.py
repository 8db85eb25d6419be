"""The ``Trainer`` of transformers with our engine inside: one step is one item of the data set.

One training with checkpoints, from a data set of steps to its end.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments, set_seed
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from acclimate.device import default_device, use_single_device
from acclimate.errors import UserError
from acclimate.files import read_json, translate_disk_errors, write_json, write_text
from acclimate.objectives import Batch
from acclimate.progress import Progress
from acclimate.training.batches import StepDataset
from acclimate.training.checkpoints import find_newest_checkpoint, mark_complete, remove_incomplete_checkpoints
from acclimate.training.diagnosis import make_divergence_error
from acclimate.training.distributed import ProcessGroup
from acclimate.training.engine import Engine
from acclimate.updates import UpdateRule

SECONDS_BETWEEN_CHECKPOINTS = 300


class Clock:
    """Seconds of training, over all the runs that it took; and how much of a time budget they used."""

    def __init__(self, budget: float | None = None, group: ProcessGroup | None = None) -> None:
        """Start at zero, with ``budget`` seconds to spend or none."""
        self.budget, self.earlier, self._start = budget, 0.0, time.monotonic()
        self._group, self._agreed = group or ProcessGroup(), 0.0

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        return self.earlier + time.monotonic() - self._start

    @property
    def spent(self) -> float:
        """Share of the budget that is used up; 0 without a budget.

        Learning rates follow it, so with several processes it is what the first one's clock said at the last look.
        """
        if self.budget is None:
            return 0.0
        return self.seconds / self.budget if self._group.size == 1 else self._agreed

    def look(self, device: torch.device) -> None:
        """Let all processes agree on the time."""
        if self.budget is not None and self._group.size > 1:
            self._agreed = self._group.broadcast_value(self.seconds / self.budget, device)


class StepTrainer(Trainer):
    """Trains on the steps of a :class:`StepDataset` data set with an :class:`Engine` and an update rule."""

    def __init__(
        self,
        engine: Engine,
        args: TrainingArguments,
        steps: StepDataset,
        *,
        rule: UpdateRule | None,
        clock: Clock,
        log_file: Path,
        warmup: float,
        progress: Progress | None = None,
        save_every: int | None = None,
        appended: int = 0,
    ) -> None:
        """Wire the parts.

        Args:
            engine: Computes loss and gradients.
            args: Of the parent.
            steps: The micro-batches of each step.
            rule: What happens around each optimiser step.
            clock: Counts the time.
            log_file: Gets a line for each stretch.
            warmup: Share of the training in which the learning rate rises.
            progress: Shows the share done, the loss and the speed.
            save_every: Steps between checkpoints; by default they come by time.
            appended: Tokens of each text that do not count as text.
        """
        self.engine, self.clock, self.log_file, self._warmup = engine, clock, log_file, warmup
        self.rule = rule or UpdateRule()  # which does nothing
        self._appended = appended
        self.tokens = 0
        self._terms: dict[str, Tensor] = {}
        self._recent: list[dict[str, Tensor]] = []
        self.last_terms: dict[str, float] = {}
        model = engine.readers["student"]
        super().__init__(model=model, args=args, train_dataset=steps, data_collator=_unwrap_batch)
        for callback in (PrinterCallback, ProgressCallback):
            self.remove_callback(callback)
        self.add_callback(_StepCallback(self, progress, save_every))

    def get_train_dataloader(self) -> DataLoader:
        """Return the loader of steps, in order: the order of texts is the data set's business."""
        loader: DataLoader = DataLoader(
            self.train_dataset,  # type: ignore[arg-type]
            batch_size=1,
            shuffle=False,
            collate_fn=_unwrap_batch,
        )
        return loader

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """Make a fused AdamW; weight decay spares biases and normalisation layers."""
        if self.optimizer is None:
            chosen = [p for p in self.model.parameters() if p.requires_grad]  # type: ignore[union-attr]
            groups = [
                {"params": [p for p in chosen if p.dim() > 1], "weight_decay": self.args.weight_decay},
                {"params": [p for p in chosen if p.dim() <= 1], "weight_decay": 0.0},
            ]
            self.optimizer = torch.optim.AdamW(
                [group for group in groups if group["params"]],
                lr=self.args.learning_rate,
                betas=(self.args.adam_beta1, self.args.adam_beta2),
                eps=self.args.adam_epsilon,
                fused=True,
            )
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> LambdaLR:
        """Make the linear schedule with warm-up; under a time budget its progress is the time spent."""
        if self.lr_scheduler is None:

            def factor(step: int) -> float:
                done = max(step / num_training_steps, self.clock.spent)
                if done < self._warmup:
                    # The first step must not be lost: its rate is that of the end of the step.
                    return min(1.0, max(done, 1 / num_training_steps) / self._warmup)
                return max(0.0, (1 - done) / max(1e-9, 1 - self._warmup))

            self.lr_scheduler = LambdaLR(optimizer or self.create_optimizer(), factor)
        return self.lr_scheduler

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Run the engine over the micro-batches of a step.

        Raises:
            UserError: If the loss is not a finite number; it names the step, the term and the texts.
        """
        model.train()
        batches: list[Batch] = [batch.to(self.args.device) for batch in inputs]
        terms = self.engine.step(batches)
        if not math.isfinite(terms["loss"].item()):
            raise self._divergence_error(terms)
        self.rule.after_backward()
        self._terms = terms
        text = sum(batch.tokens - self._appended * batch.texts for batch in batches)
        read = torch.tensor(text, device=self.args.device)
        self.tokens += int(self.engine.group.add([read])[0])
        self._recent.append(terms)
        return terms["loss"]

    def _get_grad_norm(self, *args: Any, **options: Any) -> Any:
        """Stop before a gradient that is not finite spoils the weights."""
        norm = super()._get_grad_norm(*args, **options)
        if not math.isfinite(norm):
            raise self._divergence_error(self._terms)
        return norm

    def _divergence_error(self, terms: dict[str, Tensor]) -> Exception:
        data: Any = self.train_dataset
        kept = Path(str(self.args.output_dir))
        return make_divergence_error(self.engine, data, self.state.global_step, terms, self.args.learning_rate, kept)

    def _save_checkpoint(self, *args: Any, **options: Any) -> None:
        """Write a checkpoint; a disk that is full leaves none behind, and weights that are not finite give none.

        Raises:
            UserError: If a weight is not finite: the checkpoint before is worth more.
            OSError: If it cannot be written.
        """
        parameters = self.engine.readers["student"].parameters()
        if not all(bool(parameter.isfinite().all()) for parameter in parameters):
            raise self._divergence_error(self._terms)
        folder = Path(str(self.args.output_dir)) / f"checkpoint-{self.state.global_step}"
        try:
            with translate_disk_errors(folder):
                super()._save_checkpoint(*args, **options)
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    @property
    def recent(self) -> list[dict[str, float]]:
        """The terms of the steps since the last line of the log."""
        return [{name: float(value) for name, value in terms.items()} for terms in self._recent]

    @recent.setter
    def recent(self, told: list[dict[str, float]]) -> None:
        device = self.args.device
        self._recent = [{name: torch.tensor(value, device=device) for name, value in terms.items()} for terms in told]

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Refuse a checkpoint whose weights do not all find their place, where the parent only warns.

        Raises:
            UserError: If weights are missing, those aside that are tied to others, or have no place.
        """
        weights = self.model.state_dict()  # type: ignore[union-attr]
        missing = set(load_result.missing_keys)
        loaded = {value.data_ptr() for name, value in weights.items() if name not in missing}
        lost = [name for name in missing if weights[name].data_ptr() not in loaded]
        if wrong := sorted([*lost, *load_result.unexpected_keys]):
            raise UserError(
                f"The checkpoint in '{self.args.output_dir}' is not one of this model ({len(wrong)} weights differ by "
                f"name, such as {wrong[0]}); remove that folder to begin anew."
            )

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Append the mean of each term since the last line to ``log.jsonl``."""
        if self._recent:
            self.last_terms = {
                name: float(torch.stack([terms[name].float() for terms in self._recent]).mean())
                for name in self._recent[0]
            }
            self._recent = []
            line = {
                "step": self.state.global_step,
                "tokens": self.tokens,
                "seconds": round(self.clock.seconds, 1),
                "loss": self.last_terms["loss"],
                "terms": {name: value for name, value in self.last_terms.items() if name != "loss"},
                "learning_rate": logs.get("learning_rate"),
                "grad_norm": logs.get("grad_norm"),
            }
            if not self.engine.group.first:
                return super().log(logs, start_time)
            with self.log_file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            # Trackers see every term and the tokens, too.
            terms = {f"term_{name}": value for name, value in self.last_terms.items()}
            logs = {**logs, "tokens": self.tokens, **terms}
        super().log(logs, start_time)

    def floating_point_ops(self, inputs: Any) -> int:
        """Count nothing: the micro-batches are not what the parent expects."""
        return 0


class _StepCallback(TrainerCallback):
    """The update rule around the step; the clock; checkpoints by time."""

    def __init__(self, trainer: StepTrainer, progress: Progress | None, save_every: int | None) -> None:
        self.trainer, self.progress, self.save_every = trainer, progress, save_every
        self._saved = time.monotonic()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        # A resumed run forgets the lines after its checkpoint: those steps are made again.
        trainer = self.trainer
        group = trainer.engine.group
        if group.size > 1 and state.global_step == 0:
            # Dropout must differ between processes; on resume each has its own state back.
            torch.manual_seed(int(args.seed) + 7_919 * group.rank)
        if group.first and trainer.log_file.is_file():
            lines = trainer.log_file.read_text(encoding="utf-8").splitlines(keepends=True)
            kept = [line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= state.global_step]
            write_text(trainer.log_file, "".join(kept))
        self._saved = time.monotonic()

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.trainer.rule.before_step()

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.trainer.rule.after_step()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        trainer = self.trainer
        trainer.clock.look(args.device)
        if trainer.clock.spent >= 1:
            control.should_training_stop = True
            control.should_log = True
        if self.progress is not None:
            share = max(state.global_step / state.max_steps, trainer.clock.spent)
            loss = f"loss {trainer.last_terms['loss']:.3f}, " if trainer.last_terms else ""
            speed = trainer.tokens / max(1e-9, trainer.clock.seconds)
            self.progress.update(min(1.0, share), f"{loss}{speed:,.0f} tokens/s")
        late = time.monotonic() - self._saved > SECONDS_BETWEEN_CHECKPOINTS
        due = bool(trainer.engine.group.broadcast_value(float(late), args.device))
        if due if self.save_every is None else state.global_step % self.save_every == 0:
            control.should_save = state.global_step < state.max_steps

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._saved = time.monotonic()
        self.trainer.engine.group.wait()  # each process writes the state of its own dropout
        if not self.trainer.engine.group.first:
            return
        folder = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
        group = self.trainer.engine.group
        so_far = {"seconds": self.trainer.clock.seconds, "tokens": self.trainer.tokens, "processes": group.size}
        write_json(folder / "clock.json", {**so_far, "recent": self.trainer.recent})
        mark_complete(folder)


def restore_clock(checkpoint: Path, trainer: StepTrainer) -> None:
    """Go on counting time and tokens from where a checkpoint stopped.

    Raises:
        UserError: If another number of processes made it: each had its own dropout, and a share of every step.
    """
    file = checkpoint / "clock.json"
    if file.is_file():
        state, group = read_json(file), trainer.engine.group
        if state.get("processes", group.size) != group.size:
            raise UserError(
                f"This run was begun with {state['processes']} processes and is to go on with {group.size}; start as "
                f"many as before, or remove '{checkpoint.parent.parent}' to begin anew."
            )
        trainer.clock.earlier, trainer.tokens = state["seconds"], state["tokens"]
        trainer.recent = state.get("recent", [])
        trainer.clock.look(trainer.args.device)


def _unwrap_batch(items: Any) -> Any:
    """Collate a batch of one: the item itself."""
    return items[0]


def train(
    engine: Engine,
    data: StepDataset,
    work: Path,
    *,
    rule: UpdateRule | None,
    seed: int,
    learning_rate: float,
    title: str,
    progress: bool,
    weight_decay: float = 0.0,
    warmup: float = 0.1,
    minutes: float | None = None,
    save_every: int | None = None,
    appended: int = 0,
    callbacks: Sequence[Callable[[StepTrainer], TrainerCallback]] = (),
    report_to: Sequence[str] = (),
    run_name: str | None = None,
) -> StepTrainer:
    """Train with checkpoints in ``work``; go on from the last whole one if there is one."""
    work.mkdir(parents=True, exist_ok=True)
    if engine.group.first:
        remove_incomplete_checkpoints(work)
    engine.group.wait()
    set_seed(seed)
    args = use_single_device(
        TrainingArguments(
            output_dir=str(work),
            use_cpu=default_device().type == "cpu",
            max_steps=len(data),
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            adam_epsilon=1e-6,
            max_grad_norm=1.0,
            logging_steps=max(1, min(50, len(data) // 50)),
            logging_nan_inf_filter=False,
            save_strategy="no",
            seed=seed,
            disable_tqdm=True,
            report_to=list(report_to) or "none",
            run_name=run_name,
            remove_unused_columns=False,
        )
    )
    with Progress(title, 1.0, enabled=progress, delay=0, persistent=True) as bar:
        trainer = StepTrainer(
            engine,
            args,
            data,
            rule=rule,
            clock=Clock(None if minutes is None else 60 * minutes, engine.group),
            log_file=work / "log.jsonl",
            warmup=warmup,
            progress=bar,
            save_every=save_every,
            appended=appended,
        )
        for callback in (*engine.kernels.callbacks(), *(make(trainer) for make in callbacks)):
            trainer.add_callback(callback)
        checkpoint = find_newest_checkpoint(work)
        if checkpoint is not None:
            restore_clock(checkpoint, trainer)
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    # Left over from the last step, it would be in the way of whatever the caller does with the model.
    engine.readers["student"].zero_grad(set_to_none=True)
    return trainer
