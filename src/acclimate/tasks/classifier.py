"""A classifier made of a checkpoint: loading it, feeding it examples, and asking it for probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from acclimate.backbone.device import Precision, autocast
from acclimate.backbone.head_reading import only_what_the_head_reads
from acclimate.backbone.memory import micro_batch_tokens
from acclimate.backbone.shapes import padding_multiple
from acclimate.tasks.batching import token_budget_batches
from acclimate.tasks.data import Example
from acclimate.tasks.loading import exact_last_layer, load_with_head
from acclimate.tasks.loop import diverged


@dataclass
class Classifier:
    """A sequence classification model with its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    max_length: int
    """Tokens that are read of an example; of a pair the longer text is cut first."""

    def __post_init__(self) -> None:
        """Find out what inputs the model takes."""
        # The model decides, not the tokenizer: that may give segment numbers to a model with one segment or none, or,
        # saved without its class, keep them from a model that was trained with them.
        self._segments = getattr(self.model.config, "type_vocab_size", 0) > 1

    @property
    def multi_label(self) -> bool:
        """Whether the classes do not exclude each other."""
        return self.model.config.problem_type == "multi_label_classification"

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    def features(self, examples: Sequence[Example]) -> list[dict[str, Any]]:
        """Return the model inputs of each example, not padded, with its label.

        A special token that stands in a text, such as ``[SEP]``, is read as the text that it is, as in a corpus.
        In a multi-label task the label is a list of floats, one for each class: one where it holds, else zero.
        """
        texts = [example.text for example in examples]
        seconds = [example.text_pair for example in examples if example.text_pair is not None]
        read = self.tokenizer(
            texts,
            seconds or None,
            truncation="longest_first",
            max_length=self.max_length,
            split_special_tokens=True,
            return_token_type_ids=self._segments,
        )
        names = ["input_ids", "attention_mask"] + ["token_type_ids"] * self._segments
        return [
            {**{name: read[name][place] for name in names}, "labels": self._target(example)}
            for place, example in enumerate(examples)
        ]

    def _target(self, example: Example) -> int | list[float]:
        if not self.multi_label:
            return example.places[0]
        return [float(number in example.places) for number in range(self.model.config.num_labels or 0)]

    def collate(self, rows: list[dict[str, Any]]) -> dict[str, Tensor]:
        """Pad rows to the longest of them, or a little more, and make tensors of them."""
        return DataCollatorWithPadding(self.tokenizer, pad_to_multiple_of=padding_multiple(self.model))(rows)

    def batches(self, rows: Sequence[Sequence[int]]) -> list[list[int]]:
        """Cut rows of token ids into batches to read without a graph; see :func:`token_budget_batches`."""
        return token_budget_batches(rows, micro_batch_tokens(self.model), padding_multiple(self.model))

    @torch.inference_mode()
    def probabilities(self, examples: Sequence[Example], precision: Precision) -> Tensor:
        """Return the softmax over the classes: (examples, classes), fp32 on the CPU, in the order of ``examples``.

        In a multi-label task it is the sigmoid of each.

        The texts are read by length in batches of similar length. What comes out for an example depends on which
        others are asked for with it (in the last bits, through padding), but not on their order.

        Raises:
            UserError: If the model gives something that is not a number.
        """
        rows = self.features(examples)
        result = torch.empty(len(rows), int(self.model.config.num_labels or 0))
        self.model.eval()
        with exact_last_layer(self.model), only_what_the_head_reads(self.model):
            for batch in self.batches([row["input_ids"] for row in rows]):
                inputs = self.collate([rows[place] for place in batch])
                inputs.pop("labels")
                with autocast(precision, self.device):
                    logits = self.model(**{name: value.to(self.device) for name, value in inputs.items()}).logits
                exact = logits.float()
                result[batch] = (exact.sigmoid() if self.multi_label else exact.softmax(-1)).cpu()
        if not bool(result.isfinite().all()):
            raise diverged()
        return result


def load_classifier(
    path: str | Path, labels: Sequence[str], max_length: int, device: torch.device, multi_label: bool = False
) -> Classifier:
    """Load a checkpoint of any kind as a classifier in fp32, on the CPU.

    See :func:`acclimate.tasks.loading.load_with_head`; a checkpoint that already is a classifier with as many classes
    goes on from its head.

    Args:
        path: A model folder, or a name on the hub.
        labels: The classes.
        max_length: Tokens that are read of an example, at most; never more than the model can read.
        device: Where it is going to run, which decides how attention is computed.
        multi_label: Whether an example may have any number of labels: each class then has a sigmoid of its own.

    Raises:
        UserError: If there is no model, or its encoder is incomplete.
    """
    names = dict(enumerate(labels))
    settings = {
        "num_labels": len(names),
        "id2label": names,
        "label2id": {label: place for place, label in names.items()},
        "problem_type": f"{'multi' if multi_label else 'single'}_label_classification",
    }
    return Classifier(
        *load_with_head(AutoModelForSequenceClassification, path, settings, max_length, device, "classifier")
    )
