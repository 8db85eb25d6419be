"""The fine-tuned classifier whose confidence decides which tokens are important (stage "Finetune BERT").

It is compared with chance after fine-tuning, and scores token buffers in fp32.
"""

from __future__ import annotations

import copy
import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from scipy.stats import binomtest
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from acclimate.api import (
    Classifier,
    Precision,
    PrecisionName,
    Task,
    UserError,
    check_finite,
    default_device,
    encode_texts,
    finetune,
    load_classifier,
    micro_batch_tokens,
    to_device,
    token_budget_batches,
    values,
)
from acclimate.papers.selective.command_options import AnnotatorOptions
from acclimate.papers.selective.importance_rule import Unit


@dataclass(frozen=True)
class SpecialTokenFrame:
    """The special tokens that a tokenizer puts around a text or around and between the texts of a pair.

    Attributes:
        before: Ids before the (first) text.
        between: Ids between two texts; empty for a single text.
        after: Ids after the last text.
        segments: Segment ids (token types) of the five parts: before, first text, between, second text, after.
    """

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    segments: tuple[tuple[int, ...], int, tuple[int, ...], int, tuple[int, ...]]

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, pair: bool) -> SpecialTokenFrame:
        """Derive the frame from what the tokenizer adds to two probe texts.

        Raises:
            UserError: If the tokenizer does not keep the tokens of the texts together.
        """
        for first, second in (("a", "b"), ("1", "2"), ("the", "of")):
            one, two = encode_texts(tokenizer, [first, second])
            texts = (first, second) if pair else (first,)
            full = copy.deepcopy(tokenizer)(*texts, truncation=False, padding=False, return_token_type_ids=True)
            ids, kinds = list(full["input_ids"]), list(full.get("token_type_ids") or [0] * len(full["input_ids"]))
            start = _find_subsequence(ids, one, 0)
            end = -1 if start < 0 else start + len(one)
            second_start = _find_subsequence(ids, two, end) if pair and start >= 0 else end
            if not one or second_start < 0:
                continue
            second_end = second_start + (len(two) if pair else 0)
            bounds = [
                (0, start),
                (start, end),
                (end, second_start),
                (second_start, second_end),
                (second_end, len(ids)),
            ]
            types = [tuple(kinds[a:b]) for a, b in bounds]
            parts = [tuple(ids[a:b]) for a, b in bounds]
            segments = (types[0], types[1][0], types[2], (types[3] or (0,))[0], types[4])
            return cls(parts[0], parts[2], parts[4], segments)
        raise UserError(
            f"The tokenizer {type(tokenizer).__name__} does not put its special tokens around the text, so important "
            "tokens cannot be found with it; use a model with another tokenizer."
        )

    @property
    def specials(self) -> int:
        """Number of special tokens that the frame adds."""
        return len(self.before) + len(self.between) + len(self.after)

    def around(self, first: Sequence[int], second: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return the token ids and segment ids of a row."""
        head, one, middle, two, tail = self.segments
        ids = [*self.before, *first, *self.between, *second, *self.after]
        return ids, [*head, *[one] * len(first), *middle, *[two] * len(second), *tail]


class ClassifierConfidence:
    """Class probabilities of a fine-tuned classifier, in fp32 so that rounding does not decide a token."""

    def __init__(self, classifier: Classifier, pair: bool, tokens: int | None = None) -> None:
        """Set up the classifier.

        Args:
            classifier: The classifier, on its device.
            pair: Whether its rows have a second text.
            tokens: Maximum tokens per forward pass, padding included; by default chosen for the device.
        """
        self.classifier, self.frame = classifier, SpecialTokenFrame.of(classifier.tokenizer, pair)
        self.tokens = tokens or micro_batch_tokens(classifier.model)
        self.read = 0
        """Number of real tokens processed so far."""

    @torch.inference_mode()
    def __call__(self, requests: Sequence[tuple[Unit, Sequence[int]]]) -> np.ndarray:
        """Return the class probabilities (requests, classes)."""
        rows = [self.frame.around(buffer, unit.second or ()) for unit, buffer in requests]
        batches = token_budget_batches([ids for ids, _ in rows], self.tokens)
        self.classifier.model.eval()
        # A single transfer to the CPU, so that an accelerator need not synchronise after every batch.
        logits = torch.cat([self._predict([rows[index] for index in batch]) for batch in batches])
        found = logits.cpu().double().softmax(-1).numpy()
        check_finite([torch.from_numpy(found)])
        result = np.empty_like(found)
        result[np.concatenate([np.array(batch) for batch in batches])] = found
        return result

    def _predict(self, rows: Sequence[tuple[list[int], list[int]]]) -> Tensor:
        width = max(len(ids) for ids, _ in rows)
        pad = int(self.classifier.tokenizer.pad_token_id or 0)
        ids = torch.tensor([[*row, *[pad] * (width - len(row))] for row, _ in rows])
        lengths = torch.tensor([len(row) for row, _ in rows])
        self.read += int(lengths.sum())
        inputs: dict[str, Any] = {
            "input_ids": ids,
            "attention_mask": (torch.arange(width)[None, :] < lengths[:, None]).long(),
        }
        if self.classifier.reads_segments:
            inputs["token_type_ids"] = torch.tensor([[*kinds, *[0] * (width - len(kinds))] for _, kinds in rows])
        device = self.classifier.device
        logits = self.classifier.model(**{name: value.to(device) for name, value in inputs.items()}).logits
        return logits


def _find_subsequence(ids: Sequence[int], part: Sequence[int], start: int) -> int:
    """Return the first index from ``start`` on at which ``part`` occurs in ``ids``, or -1."""
    indices = range(start, len(ids) - len(part) + 1)
    return next((index for index in indices if list(ids[index : index + len(part)]) == list(part)), -1)


log = logging.getLogger(__name__)
CHANCE_ALPHA = 0.05
"""Significance level of the test whether a classifier is better than always predicting the majority class."""


def check_task(task: Any) -> Task:
    """Return the task if it has one label per text or pair of texts.

    Raises:
        UserError: If it is another kind of task.
    """
    if not hasattr(task, "scoring") or task.scoring().name != "single_label":
        raise UserError("Selective masking needs a task with one label per text; give such a task.")
    found: Task = task
    return found


def fine_tune_annotator(
    model: str | Path,
    task: Task,
    out: Path,
    options: AnnotatorOptions,
    *,
    seed: int,
    precision: Precision,
    progress: bool = False,
) -> dict[str, Any]:
    """Fine-tune a classifier, save it to ``out``, and return a summary as JSON values.

    Logs a warning if the classifier is no better than chance.
    """
    start, tuning = time.perf_counter(), values(options, AnnotatorOptions)
    result = finetune(
        model,
        task,
        seed=seed,
        out=out,
        select="dev" if task.dev else "last",
        metric="accuracy",
        precision=cast(PrecisionName, precision),
        progress=progress,
        **tuning,
    )
    split, metrics = ("dev", result.dev_metrics) if task.dev else ("test", result.metrics)
    assert metrics is not None
    summary = {
        "options": tuning,
        "seed": seed,
        "epoch": result.epoch,
        **compare_with_chance(split, [example.label for example in getattr(task, split)], metrics["accuracy"]),
        "minutes": (time.perf_counter() - start) / 60,
    }
    warn_if_at_chance(summary)
    return summary


def compare_with_chance(split: str, gold: Any, accuracy: float) -> dict[str, Any]:
    """Compare an accuracy with the accuracy of always predicting the most frequent label (one-sided binomial test).

    Args:
        split: Name of the evaluated split.
        gold: Labels of the split.
        accuracy: Share of correct predictions.

    Returns:
        JSON values; ``p_value`` tests accuracy above the majority.
    """
    (_, most_frequent), *_ = Counter(gold).most_common(1)
    items = len(gold)
    majority = most_frequent / items
    correct = round(accuracy * items)
    p_value = binomtest(correct, items, majority, alternative="greater").pvalue if majority < 1 else 1.0
    return {
        "split": split,
        "items": items,
        "accuracy": accuracy,
        "majority": majority,
        "p_value": float(p_value),
        "better_than_chance": bool(p_value < CHANCE_ALPHA),
    }


def warn_if_at_chance(summary: dict[str, Any]) -> None:
    """Log a warning if a classifier is no better than chance, since its important tokens are then noise."""
    if not summary["better_than_chance"]:
        log.warning(
            "The classifier that finds important tokens is no better than chance: accuracy %.3f on the %d items of "
            "%s, against %.3f for always predicting the most frequent label (p = %.2f). Its important tokens are not "
            "meaningful; train it longer or on more texts.",
            summary["accuracy"],
            summary["items"],
            summary["split"],
            summary["majority"],
            summary["p_value"],
        )


def load_annotator(folder: str | Path, task: Task, max_length: int) -> Classifier:
    """Load a fine-tuned classifier onto the default device."""
    device = default_device()
    classifier = load_classifier(folder, task.labels, max_length, device)
    to_device(classifier.model).eval()
    return classifier
