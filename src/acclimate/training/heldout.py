"""Loss terms on held-out text, measured during training, and the similarity that sentence encoders show after it."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from acclimate.corpus import Corpus, tokenize
from acclimate.corpus.documents import subsample_documents
from acclimate.corpus.tokenizing import Framing
from acclimate.device import preserve_rng_state
from acclimate.errors import UserError, check_positive
from acclimate.evaluation.embeddings import (
    SentencePairs,
    SimilarityChange,
    compare_encoders,
    import_sentence_transformers,
    is_sentence_encoder,
    neighbor_pairs,
)
from acclimate.models.batching import machine_memory
from acclimate.objectives import Batch
from acclimate.options.steps import HELDOUT_EVERY
from acclimate.training.batches import Collator
from acclimate.training.distributed import ProcessGroup
from acclimate.training.engine import Engine
from acclimate.training.inputs import TextInput, as_corpus
from acclimate.training.method import cache_folder
from acclimate.training.task_kinds import find_task_kind, open_task
from acclimate.training.trainer import StepTrainer


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
    """Held-out text, and the number of steps between two measurements."""

    corpus: Corpus
    every: int

    @classmethod
    def of(
        cls, text: TextInput | None, every: int | None, text_column: str, encoding: str | None = None
    ) -> HeldOutText | None:
        """Create it from the user's options; None if there is no held-out text.

        Raises:
            UserError: If only the interval is given, or it is not positive.
        """
        if text is None:
            if every is not None:
                raise UserError("'heldout_every' needs held-out text; give it with --heldout.")
            return None
        every = HELDOUT_EVERY if every is None else every
        check_positive(heldout_every=every)
        return cls(as_corpus(text, text_column, encoding), every)

    def identity(self) -> dict[str, Any]:
        """Return the entry of the configuration that is recorded."""
        return {"text": self.corpus.fingerprint, "every": self.every}

    def make_callback(
        self,
        tokenizer: PreTrainedTokenizerBase,
        collator: Collator,
        max_length: int,
        framing: Framing,
        batch_size: int,
        seed: int,
    ) -> Callable[[StepTrainer], TrainerCallback]:
        """Tokenize and mask the text once; return a function that makes the callback for a trainer."""
        folder = cache_folder() / "rows"
        rows = tokenize(self.corpus, tokenizer, max_length, framing=framing, cache=folder, progress=False)
        rng = np.random.default_rng([seed, 5])
        texts = [np.asarray(row) for row in rows]
        steps = [collator(texts[start : start + batch_size], rng) for start in range(0, len(texts), batch_size)]
        return lambda trainer: _HeldOutCallback(trainer, steps, self.every, seed)


HELDOUT_SHARE = 0.05
"""Share of the memory of a GPU that held-out text may take; more is copied again for each measurement."""


class _HeldOutCallback(TrainerCallback):
    """Writes the terms to the log, measured before the first step, at each interval and after the last step."""

    def __init__(self, trainer: StepTrainer, steps: list[list[Batch]], every: int, seed: int) -> None:
        self._trainer, self._steps, self._every, self._seed = trainer, steps, every, seed
        device = trainer.args.device
        size = sum(batch.text.nbytes * (4 + 2 * len(batch.rewritten)) for step in steps for batch in step)
        if device.type != "cpu" and size <= HELDOUT_SHARE * machine_memory(device):
            self._steps = [[batch.to(device) for batch in step] for step in steps]

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
        if last or state.global_step % self._every == 0:
            self._measure(state)

    def _measure(self, state: TrainerState) -> None:
        trainer = self._trainer
        started = time.monotonic()
        engine: Any = trainer.engine
        found = measure_heldout_terms(engine, self._steps, self._seed)
        loss = found.pop("loss")
        if trainer.engine.group.first:
            line = {"step": state.global_step, "tokens": trainer.tokens, "heldout": {"loss": loss, "terms": found}}
            with trainer.log_file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        # Measuring does not count as training time, neither in a time budget nor in the reported speed.
        trainer.clock.earlier -= time.monotonic() - started


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
