"""Loss terms on held-out text, measured during training, and the similarity that sentence encoders show after it."""

from __future__ import annotations

import json
import logging
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

from acclimate.adaptation.inputs import as_corpus
from acclimate.adaptation.method import cache_folder
from acclimate.adaptation.options import AdaptOptions
from acclimate.adaptation.step_options import HELDOUT_EVERY, MEASURING_OPTIONS
from acclimate.base.device import preserve_rng_state
from acclimate.base.errors import UserError, check_positive
from acclimate.base.files import read_json, translate_disk_errors, write_json
from acclimate.base.progress import print_message
from acclimate.data.documents import Corpus, subsample_documents
from acclimate.data.task_kinds import find_task_kind, open_task
from acclimate.data.tokenizing import Framing, tokenize
from acclimate.engine.batches import Collator
from acclimate.engine.callbacks import ResumableCallback, copy_folder
from acclimate.engine.distributed import ProcessGroup
from acclimate.engine.steps import Engine
from acclimate.engine.trainer import StepTrainer
from acclimate.evaluation.dips import find_best
from acclimate.evaluation.embeddings import (
    SentencePairs,
    SimilarityChange,
    compare_encoders,
    import_sentence_transformers,
    is_sentence_encoder,
    neighbor_pairs,
)
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
                items = {term.name: sum(int(term.count(batch)) for batch in batches) for term in engine.additive}
                items |= {term.name: texts for term in engine.over_batch}
                terms = engine.step(batches, backward=False)
                for name, count in items.items():
                    part = terms[name].double() * count
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
    def of(cls, options: AdaptOptions) -> HeldOutText | None:
        """Create it from the user's options; None if there is no held-out text.

        Raises:
            UserError: If options of measurements are given without held-out text, or the interval is not positive.
        """
        column, encoding = options.text_column, options.encoding
        if options.heldout is None:
            for name in ("heldout_every", "general", *MEASURING_OPTIONS):
                if getattr(options, name) not in (None, False):
                    raise UserError(f"'{name}' needs held-out text; give it with --heldout.")
            return None
        every = options.heldout_every
        every = HELDOUT_EVERY if every is None and not options.monitor else every
        if every is not None:
            check_positive(heldout_every=every)
        general = None if options.general is None else as_corpus(options.general, column, encoding)
        best = options.keep_best or options.patience is not None
        text = as_corpus(options.heldout, column, encoding)
        return cls(text, every, general, options.monitor, best, options.patience)

    def identity(self) -> dict[str, Any]:
        """Return the entry of the configuration that is recorded."""
        given = {name: value for name in MEASURING_OPTIONS if (value := getattr(self, name))}
        text = {} if self.general is None else {"general": self.general.fingerprint}
        return {"text": self.corpus.fingerprint, "every": self.every, **text, **given}

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
        if self._text.keep_best:
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
        if self._text.keep_best and self._best_step != state.global_step:
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


NO_SIMILARITY = "none"
"""Value of the option ``similarity`` with which nothing is measured."""
NEIGHBOR_DOCUMENTS = 2_000
"""Maximum number of documents that neighbouring sentences are taken from."""

log = logging.getLogger(__name__)


def open_pairs(given: Any) -> SentencePairs:
    """Return the pairs of sentences of a task, in any of its forms.

    Raises:
        UserError: If the task cannot be read or has no pairs, or ``sentence-transformers`` is not installed.
    """
    import_sentence_transformers()
    task = open_task(given)
    pairs: SentencePairs | None = find_task_kind(task).sentence_pairs(task)
    if pairs is None:
        raise UserError(f"'{task.name}' has no pairs of sentences; give pairs, with or without scores.")
    return pairs


@dataclass(frozen=True)
class SimilarityCheck:
    """The pairs on which a sentence encoder is measured before and after its adaptation.

    Attributes:
        base: The base model.
        pairs: Given pairs; None for neighbouring sentences.
        texts: Text with neighbouring sentences, by name.
    """

    base: str
    pairs: SentencePairs | None
    texts: dict[str, Corpus]

    @classmethod
    def of(cls, model: str, given: Any, texts: dict[str, Corpus], becomes: bool = False) -> SimilarityCheck | None:
        """Create it from the user's options; None if nothing is measured.

        Args:
            model: The base model.
            given: A task with pairs, :data:`NO_SIMILARITY`, or None.
            texts: Text with neighbouring sentences, by name, for the case that no pairs are given.
            becomes: Whether the adaptation makes a sentence encoder of any model; before it, one that is none is
                measured by the mean over tokens.

        Raises:
            UserError: If pairs are given for a model that is no sentence encoder, ``sentence-transformers`` is
                missing, or the task has no pairs.
        """
        if isinstance(given, str) and given == NO_SIMILARITY:
            return None
        if not (becomes or is_sentence_encoder(model)):
            if given is None:
                return None
            raise UserError(
                f"'similarity' measures sentence encoders, and '{model}' has no modules.json of "
                "sentence-transformers; remove it, or give such a model, or a method that makes one, such as tsdae."
            )
        if given is not None:
            return cls(model, open_pairs(given), {})
        try:
            import_sentence_transformers()
        except UserError as error:
            log.warning("The similarity that the embeddings show is not measured. %s", error)
            return None
        return cls(model, None, texts)

    def measure(self, folder: Path) -> list[SimilarityChange]:
        """Measure the base model and the one in a folder; a failure is a warning, since the model is made."""
        sets = [self.pairs] if self.pairs else []
        for name, corpus in self.texts.items():
            found = neighbor_pairs(name, subsample_documents(corpus, NEIGHBOR_DOCUMENTS))
            if found is None:
                log.warning(
                    "Too few documents of the %s have several sentences, so similarity is not measured on it; give "
                    "pairs with --similarity.",
                    name,
                )
            else:
                sets.append(found)
        try:
            return compare_encoders(self.base, folder, sets) if sets else []
        except UserError as error:
            log.warning("The similarity that the embeddings show was not measured. %s", error)
            return []
