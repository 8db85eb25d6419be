"""What models are measured on before they are merged: labelled tasks, or text for language models."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from acclimate.base.device import default_device, to_device
from acclimate.base.errors import UserError
from acclimate.base.options import build
from acclimate.data.documents import Corpus, as_corpus, subsample_documents
from acclimate.data.task_kinds import find_task_kind, open_task, task_texts
from acclimate.evaluation.lm_loss import TargetRow, language_model_loss, read_targets
from acclimate.merging.base import Answering, Measured
from acclimate.merging.options import MergeOptions
from acclimate.models.checkpoints import load_config
from acclimate.models.kinds import class_names, find_kind
from acclimate.models.loading import LanguageModel, load_language_model
from acclimate.tasks.interfaces import LabelledTask, Learner, resolve_options
from acclimate.tasks.options import FinetuneOptions


class MeasuredText:
    """Text on which language models are measured."""

    name = "the text"
    measure = "negative bits per byte"

    def __init__(self, corpus: Corpus, options: MergeOptions) -> None:
        """Set the text, of which ``options.documents`` are read."""
        self._corpus, self._documents, self._max_length = corpus, options.documents, options.max_length

    def fingerprint(self) -> str:
        """Return the hash of the text."""
        return self._corpus.fingerprint

    def texts(self) -> list[str]:
        """Return the documents that are read."""
        return subsample_documents(self._corpus, self._documents)

    def _load(self, model: str | Path) -> tuple[LanguageModel, list[str]]:
        loaded = load_language_model(model)
        if loaded.absent_head:
            raise UserError(f"'{model}' has no language-model head, so it cannot be measured on text.")
        to_device(loaded.model)
        return loaded, self.texts()

    def open(self, model: str | Path) -> Answering:
        """Load a language model and read the rows of the text; an answer is a predicted token.

        Raises:
            UserError: If it has no language-model head.
        """
        loaded, texts = self._load(model)
        documents = read_targets(loaded.model, loaded.tokenizer, texts, self._max_length)

        def answer(row: TargetRow) -> Tensor:
            ids = torch.from_numpy(row.ids)[None].to(loaded.model.device)
            places = torch.from_numpy(np.flatnonzero(row.labels >= 0)).to(ids.device)
            logits = loaded.model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
            return cast(Tensor, logits[0, places].float())

        return Answering(loaded.model, [partial(answer, row) for document in documents for row in document.rows])

    def score(self, model: str | Path) -> float:
        """Return the negative loss on the text in bits per byte, which compares models of all tokenizers.

        Raises:
            UserError: If the model has no language-model head.
        """
        loaded, texts = self._load(model)
        found = language_model_loss(loaded.model, texts, tokenizer=loaded.tokenizer, max_length=self._max_length)
        return -float(found["bits_per_byte"])


class MeasuredTask:
    """A labelled task on which its fine-tuned models are measured."""

    def __init__(self, task: LabelledTask, options: MergeOptions, metric: str | None) -> None:
        """Set the task, of which ``options.documents`` train examples are read, and the metric; None for its first.

        Raises:
            UserError: If it has no such metric.
        """
        self.task, self.name, self._examples = task, f"the dev split of '{task.name}'", options.documents
        given = build(FinetuneOptions, "model", task, metric=metric, progress=False)
        self._options, _ = resolve_options(given, task)
        self.measure = self._options.metric

    def fingerprint(self) -> str:
        """Return the hash of the task."""
        return self.task.fingerprint()

    def texts(self) -> list[str]:
        """Return the first texts of the train examples."""
        return task_texts(self.task)[: self._examples]

    def _load(self, model: str | Path) -> Learner:
        kind = find_task_kind(self.task)
        if not (kind.own_training or kind.is_model_of(model, self.task)):
            raise UserError(
                f"'{model}' is not a model of the task '{self.task.name}' with its labels; fine-tune it on the task, "
                "or give the task that it was fine-tuned on."
            )
        learner: Learner = kind.learner(model, self.task, self._options, default_device())
        to_device(learner.head.model)
        return learner

    def open(self, model: str | Path) -> Answering:
        """Load a model of the task and read a sample of the train examples.

        Raises:
            UserError: If it was not fine-tuned on the task, or has no answers with probabilities.
        """
        learner = self._load(model)
        head, examples = learner.head, self.task.train
        if getattr(head, "answer_logits", None) is None:
            raise UserError(f"A model of the task '{self.task.name}' has no answers with probabilities to measure.")
        order = np.random.default_rng(0).permutation(len(examples))[: self._examples]

        def answer(row: dict[str, Any]) -> Tensor:
            inputs = head.collate([row])
            labels, *_ = [inputs.pop(name) for name in head.targets]
            moved = {name: value.to(head.device) for name, value in inputs.items()}
            output = head.read_output(head.run(head.model, moved))
            return cast(Tensor, head.answer_logits(output.float(), labels))

        rows = learner.rows([examples[place] for place in sorted(order)])
        return Answering(head.model, [partial(answer, rows[place]) for place in range(len(rows))], head.multi_label)

    def score(self, model: str | Path) -> float:
        """Return the metric on the dev split.

        Raises:
            UserError: If the task has no dev split, or the model was not fine-tuned on it.
        """
        if not self.task.dev:
            raise UserError(f"The task '{self.task.name}' has no dev split to select models by; add one.")
        return float(self._load(model).measure("dev", "fp32").metrics[self.measure])


def open_data(data: Any, model: str, options: MergeOptions, metric: str | None = None) -> Measured:
    """Return text for a language model, or a labelled task for a model of an end task.

    Args:
        data: What a user gave: a task, a corpus, or a source of either.
        model: The model that is measured on it.
        options: The options of the merge.
        metric: Metric of a task; None for its first one.

    Raises:
        UserError: If the data cannot be read.
    """
    if isinstance(data, Corpus) or (
        not hasattr(data, "task_kind") and any(map(find_kind, class_names(load_config(model).architectures)))
    ):
        return MeasuredText(as_corpus(data, options), options)
    return MeasuredTask(open_task(data, options, text_column=None), options, metric)
