"""Loss terms on held-out text, measured during training."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from acclimate.adaptation.options import AdaptOptions
from acclimate.adaptation.run import Feature, Run
from acclimate.adaptation.step_options import HELDOUT_EVERY, MEASURING_OPTIONS
from acclimate.base.device import in_full, preserve_rng_state
from acclimate.base.errors import UserError, check_positive
from acclimate.base.files import cache_folder, read_json, translate_disk_errors, write_json
from acclimate.base.progress import print_message
from acclimate.data.documents import Corpus, as_corpus
from acclimate.data.tokenizing import Framing, tokenize
from acclimate.engine.batches import Collator
from acclimate.engine.callbacks import ResumableCallback, copy_folder
from acclimate.engine.distributed import ProcessGroup
from acclimate.engine.steps import Engine
from acclimate.engine.trainer import CallbackFactory, StepTrainer
from acclimate.evaluation.dips import find_best
from acclimate.models.batching import machine_memory
from acclimate.parts.objectives import Batch


def measure_heldout_terms(engine: Engine, steps: Sequence[Sequence[Batch]], seed: int = 0) -> dict[str, float]:
    """Compute all terms of a method on held-out text, without dropout or gradients and always with the same masks.

    Terms over tokens or texts are means over all of them, however they are split into steps. A term that compares the
    texts of a step with each other is a mean over steps, weighted by their number of texts. Without dropout, views of
    a text that differ only in their dropout mask are equal, so a term that compares them is lower than in training.

    Args:
        engine: The engine in training; its state and the random generators are left unchanged.
        steps: Micro-batches of each step.
        seed: Random seed of terms that draw random numbers.

    Returns:
        Each term by name, and their weighted sum as ``"loss"``.
    """
    student = engine.readers["student"]
    device = next(student.parameters()).device
    training, group = student.training, engine.group
    student.eval()
    engine.group = ProcessGroup()  # every process measures all of the text, which is short
    totals: dict[str, Tensor] = {}
    counts: dict[str, int] = {}
    try:
        with preserve_rng_state():
            torch.manual_seed(seed)
            for step in steps:
                batches = [batch.to(device) for batch in step]
                texts = sum(batch.texts for batch in batches)
                terms = engine.step(batches, backward=False)
                items = {term.name: sum(int(term.count(batch)) for batch in batches) for term in engine.additive}
                items |= {term.name: texts for term in engine.over_batch}
                for name, count in items.items():
                    part = in_full(terms[name]) * count
                    totals[name] = totals[name] + part if name in totals else part
                    counts[name] = counts.get(name, 0) + count
            sums = torch.stack(list(totals.values())).tolist() if totals else []  # the host waits once
    finally:
        engine.group = group
        student.train(training)
    means = {name: total / max(1, counts[name]) for name, total in zip(totals, sums, strict=True)}
    weights = engine.weights
    return {**means, "loss": sum(weights[name] * value for name, value in means.items())}


@dataclass(frozen=True)
class HeldOutText:
    """Held-out text, general text that is measured with it, and when and what for.

    Attributes:
        corpus: The held-out text.
        every: Steps between two measurements; None for none at regular distances.
        general: General text; None for none.
        monitor: Whether to measure after the steps of :func:`is_log_spaced`.
        keep_best: Whether the model of the best measured step is the result.
        patience: Measurements without a lower loss after which the training ends; None to train to the end.
    """

    corpus: Corpus
    every: int | None
    general: Corpus | None = None
    monitor: bool = False
    keep_best: bool = False
    patience: int | None = None

    @classmethod
    def of(cls, options: AdaptOptions) -> HeldOutText:
        """Create it from the user's options.

        Raises:
            UserError: If options of measurements are given without held-out text, or the interval is not positive.
        """
        if options.heldout is None:
            for name in ("heldout_every", *MEASURING_OPTIONS):
                if getattr(options, name) not in (None, False):
                    raise UserError(f"'{name}' needs held-out text; give it with --heldout.")
        every = options.heldout_every
        every = HELDOUT_EVERY if every is None and not options.monitor else every
        if every is not None:
            check_positive(heldout_every=every)
        general = None if options.general is None else as_corpus(options.general, options)
        best = options.keep_best or options.patience is not None
        text = as_corpus(options.heldout, options)
        return cls(text, every, general, options.monitor, best, options.patience)

    def identity(self) -> dict[str, Any]:
        """Return the hashes of the texts, and when and what for they are measured."""
        values = {name: getattr(self, name) for name in MEASURING_OPTIONS}
        general = self.general and self.general.fingerprint
        return {"heldout": self.corpus.fingerprint, "heldout_every": self.every, "general": general, **values}

    def make_callback(
        self,
        tokenizer: PreTrainedTokenizerBase,
        collator: Collator,
        max_length: int,
        framing: Framing,
        batch_size: int,
        seed: int,
    ) -> Callable[[StepTrainer], TrainerCallback]:
        """Tokenize and mask the texts once; return a function that makes the callback for a trainer."""
        folder = cache_folder() / "rows"
        steps: dict[str, list[list[Batch]]] = {}
        for name, corpus in (("heldout", self.corpus), ("general", self.general)):
            if corpus is not None:
                rows = tokenize(corpus, tokenizer, max_length, framing=framing, cache=folder, progress=False)
                rng = np.random.default_rng([seed, 5])
                texts = [np.asarray(row) for row in rows]
                size = batch_size
                steps[name] = [collator(texts[at : at + size], rng) for at in range(0, len(texts), size)]
        return lambda trainer: _HeldOutCallback(trainer, steps, self, seed)

    def is_due(self, step: int) -> bool:
        """Return whether to measure after a step."""
        return bool(self.every and step % self.every == 0) or (self.monitor and is_log_spaced(step))


def is_log_spaced(step: int) -> bool:
    """Return whether a step is a rounded power of the root of 2: 1, 2, 3, 4, 6, 8, 11, 16 and so on."""
    return step > 0 and round(2 ** (round(2 * math.log2(step)) / 2)) == step


HELDOUT_SHARE = 0.05
"""Share of the memory of a GPU that held-out text may take; more is copied again for each measurement."""
BEST_FOLDER, HISTORY_FILE = "best", "heldout.json"


class _HeldOutCallback(ResumableCallback):
    """Writes the terms to the log, measured before the first step, when they are due and after the last step.

    It also keeps the weights of the best step, and ends the training, if that is wanted.
    """

    def __init__(
        self, trainer: StepTrainer, steps: dict[str, list[list[Batch]]], text: HeldOutText, seed: int
    ) -> None:
        self._trainer, self._steps, self._text, self._seed = trainer, steps, text, seed
        self._folder = Path(str(trainer.args.output_dir)).parent / BEST_FOLDER
        self._losses: dict[str, list[float]] = {name: [] for name in steps}
        self._best_step = 0
        device = trainer.args.device
        every = [batch for text_steps in steps.values() for step in text_steps for batch in step]
        if device.type != "cpu" and sum(map(_size, every)) <= HELDOUT_SHARE * machine_memory(device):
            self._steps = {
                name: [[batch.to(device) for batch in step] for step in found] for name, found in steps.items()
            }

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.global_step == 0:
            if self._trainer.engine.group.first:  # from a run that was killed before its first checkpoint
                self._trainer.log_file.unlink(missing_ok=True)
            self._measure(state)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        last = state.global_step >= state.max_steps or control.should_training_stop
        if not last and not self._text.is_due(state.global_step):
            return
        self._measure(state)
        if not self._trainer.rule.is_complete:  # only later steps are compared with the first measurement
            for found in self._losses.values():
                found.pop()
        elif self._text.keep_best:
            losses = self._losses["heldout"]
            best, later = find_best(losses, *(found for name, found in self._losses.items() if name != "heldout"))
            if best == len(losses) - 1:
                self._keep(state.global_step)
            if self._text.patience is not None and later >= self._text.patience and not last:
                control.should_training_stop = control.should_log = True
                print_message(
                    f"The held-out loss has not fallen since step {self._best_step:,}; the training ends after step "
                    f"{state.global_step:,}.",
                    enabled=self._trainer.engine.group.first,
                )

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._text.keep_best and self._best_step not in (0, state.global_step):
            self._trainer.engine.group.wait()
            self._trainer._load_from_checkpoint(str(self._folder / str(self._best_step)))
            self._trainer.kept_step = self._best_step

    def save(self, checkpoint: Path) -> None:
        if self._text.keep_best:
            write_json(checkpoint / HISTORY_FILE, {"losses": self._losses, "best_step": self._best_step})
            if self._best_step:
                copy_folder(self._folder, checkpoint / BEST_FOLDER)

    def load(self, checkpoint: Path) -> None:
        if self._text.keep_best:
            found = read_json(checkpoint / HISTORY_FILE)
            self._losses, self._best_step = found["losses"], found["best_step"]
            if self._trainer.engine.group.first:
                shutil.rmtree(self._folder, ignore_errors=True)
                if self._best_step:
                    copy_folder(checkpoint / BEST_FOLDER, self._folder)
            self._trainer.engine.group.wait()

    def _keep(self, step: int) -> None:
        """Write the weights after a step, and remove those of the best step before; files may be linked elsewhere."""
        with translate_disk_errors(self._folder):
            self._trainer.save_model(str(self._folder / str(step)), _internal_call=True)
        if self._trainer.engine.group.first and self._best_step not in (0, step):
            shutil.rmtree(self._folder / str(self._best_step), ignore_errors=True)
        self._best_step = step

    def _measure(self, state: TrainerState) -> None:
        trainer = self._trainer
        started = time.monotonic()
        engine: Any = trainer.engine
        line: dict[str, Any] = {"step": state.global_step, "tokens": trainer.tokens}
        for name, steps in self._steps.items():
            found = measure_heldout_terms(engine, steps, self._seed)
            line[name] = {"loss": found.pop("loss"), "terms": found}
            self._losses[name].append(line[name]["loss"])
        if trainer.engine.group.first:
            with trainer.log_file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        # Measuring does not count as training time, neither in a time budget nor in the reported speed.
        trainer.clock.earlier -= time.monotonic() - started


def _size(batch: Batch) -> int:
    """Return the bytes of the tensors of a micro-batch."""
    return int(batch.text.nbytes) * (4 + 2 * len(batch.rewritten))


class HeldOut(Feature):
    """Held-out text whose loss is measured during the training."""

    def __init__(self, run: Run) -> None:
        self.text = HeldOutText.of(run.options)
        if self.text.patience is not None and run.method.without_patience:
            why = run.method.without_patience
            raise UserError(f"Method '{run.method.name}' does not end early: {why}. Remove 'patience'.")
        run.named_texts = {"held-out text": self.text.corpus}

    def identity(self) -> dict[str, Any]:
        """Return the hashes of the texts, and when and what for they are measured."""
        return self.text.identity()

    def callbacks(self, run: Run) -> list[CallbackFactory]:
        """Return what makes the callback that measures."""
        about = run.loaded.tokenizer, run.alike, run.length, run.framing, run.batch_size, run.options.seed
        return [self.text.make_callback(*about)]
