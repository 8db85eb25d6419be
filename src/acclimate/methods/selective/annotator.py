"""What a fine-tuned classifier thinks of buffers: token ids in, probabilities out, always in fp32.

The stage "Finetune BERT": the classifier whose confidence decides, and whether it is any good.
"""

from __future__ import annotations

import copy
import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import binomtest
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from acclimate.corpus.tokenizing import encode
from acclimate.device import default_device, to_device
from acclimate.errors import UserError
from acclimate.methods.selective.importance_rule import Unit
from acclimate.models.batching import micro_batch_tokens
from acclimate.tasks import Task, finetune
from acclimate.tasks.classification.classifier import Classifier, load_classifier
from acclimate.tasks.head_model import check_finite, token_budget_batches


@dataclass(frozen=True)
class SpecialTokenFrame:
    """The special tokens that a tokenizer puts around a text, or around and between two.

    Attributes:
        before: Ids before the (first) text.
        between: Ids between two texts; none for a single text.
        after: Ids after the last text.
        segments: Segment numbers of the five stretches before, first text, between, second text, after.
    """

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    segments: tuple[tuple[int, ...], int, tuple[int, ...], int, tuple[int, ...]]

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, pair: bool) -> SpecialTokenFrame:
        """Find the frame by what encoding with special tokens adds to two probes.

        Raises:
            UserError: If the tokenizer does something else with a text.
        """
        for first, second in (("a", "b"), ("1", "2"), ("the", "of")):
            one, two = encode(tokenizer, [first, second])
            texts = (first, second) if pair else (first,)
            full = copy.deepcopy(tokenizer)(*texts, truncation=False, padding=False, return_token_type_ids=True)
            ids, kinds = list(full["input_ids"]), list(full.get("token_type_ids") or [0] * len(full["input_ids"]))
            start = _find_subsequence(ids, one, 0)
            behind = -1 if start < 0 else start + len(one)
            later = _find_subsequence(ids, two, behind) if pair and start >= 0 else behind
            if not one or later < 0:
                continue
            end = later + (len(two) if pair else 0)
            cuts = [(0, start), (start, behind), (behind, later), (later, end), (end, len(ids))]
            numbers = [tuple(kinds[a:b]) for a, b in cuts]
            parts = [tuple(ids[a:b]) for a, b in cuts]
            middle = (numbers[0], numbers[1][0], numbers[2], (numbers[3] or (0,))[0], numbers[4])
            return cls(parts[0], parts[2], parts[4], middle)
        raise UserError(
            f"The tokenizer {type(tokenizer).__name__} does not put its special tokens around the text: "
            "important tokens cannot be found with it."
        )

    @property
    def specials(self) -> int:
        """How many tokens the frame adds."""
        return len(self.before) + len(self.between) + len(self.after)

    def around(self, first: Sequence[int], second: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return ids and segment numbers of a row."""
        head, one, middle, two, tail = self.segments
        ids = [*self.before, *first, *self.between, *second, *self.after]
        return ids, [*head, *[one] * len(first), *middle, *[two] * len(second), *tail]


class ClassifierConfidence:
    """The probabilities of a fine-tuned classifier, in fp32: a token must not be decided by a rounding."""

    def __init__(self, classifier: Classifier, pair: bool, tokens: int | None = None) -> None:
        """Prepare.

        Args:
            classifier: On its device.
            pair: Whether its rows have a second text.
            tokens: Tokens that one forward reads, padding included; by default what suits the device.
        """
        self.classifier, self.frame = classifier, SpecialTokenFrame.of(classifier.tokenizer, pair)
        self.tokens = tokens or micro_batch_tokens(classifier.model)
        self.read = 0
        """Real tokens that were read so far."""

    @torch.inference_mode()
    def __call__(self, requests: Sequence[tuple[Unit, Sequence[int]]]) -> np.ndarray:
        """Return the softmax over the classes (requests, classes)."""
        rows = [self.frame.around(buffer, unit.second or ()) for unit, buffer in requests]
        batches = token_budget_batches([ids for ids, _ in rows], self.tokens)
        self.classifier.model.eval()
        # One transfer for all batches: an accelerator is not waited for in between.
        found = torch.cat([self._read([rows[place] for place in batch]) for batch in batches]).cpu().numpy()
        check_finite([torch.from_numpy(found)])
        result = np.empty_like(found)
        result[np.concatenate([np.array(batch) for batch in batches])] = found
        return result

    def _read(self, rows: Sequence[tuple[list[int], list[int]]]) -> Tensor:
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
        return logits.double().softmax(-1)


def _find_subsequence(ids: Sequence[int], part: Sequence[int], start: int) -> int:
    """Return where ``part`` begins in ``ids``, from ``start`` on; -1 if nowhere."""
    places = range(start, len(ids) - len(part) + 1)
    return next((place for place in places if list(ids[place : place + len(part)]) == list(part)), -1)


log = logging.getLogger(__name__)
CHANCE_ALPHA = 0.05
"""A classifier is no better than chance if the majority class alone would be as often right with this probability."""


@dataclass(frozen=True)
class FineTuningOptions:
    """How the classifier is fine-tuned (appendix B.2). The defaults are the paper's.

    Attributes:
        epochs: Passes; the weights of the best accuracy on dev are kept, those of the last pass without a dev split.
        learning_rate: The peak.
        batch_size: Texts a step.
        max_length: Tokens of a text, special ones included.
    """

    epochs: int = 10
    learning_rate: float = 2e-5
    batch_size: int = 64
    max_length: int = 256


def check_task(task: Any) -> Task:
    """Return the task if its important tokens can be found.

    Raises:
        UserError: If it is none of one label for each text or pair of texts.
    """
    if getattr(task, "kind", None) != "single_label":
        raise UserError("Important tokens are found for tasks with one label for each text; give such a task.")
    found: Task = task
    return found


def fine_tune_annotator(
    model: str | Path,
    task: Task,
    out: Path,
    options: FineTuningOptions,
    *,
    seed: int,
    precision: str,
    progress: bool = False,
) -> dict[str, Any]:
    """Fine-tune a classifier, save it to ``out``, and return what is to be said of it (plain values).

    A warning says so if it is no better than chance.
    """
    begin = time.perf_counter()
    result = finetune(
        model,
        task,
        seed=seed,
        out=out,
        select="dev" if task.dev else "last",
        metric="accuracy",
        precision=precision,
        progress=progress,
        **asdict(options),
    )
    split, metrics = ("dev", result.dev_metrics) if task.dev else ("test", result.metrics)
    assert metrics is not None
    account = {
        "options": asdict(options),
        "seed": seed,
        "epoch": result.epoch,
        **compare_with_chance(split, [example.label for example in getattr(task, split)], metrics["accuracy"]),
        "minutes": (time.perf_counter() - begin) / 60,
    }
    warn_if_at_chance(account)
    return account


def compare_with_chance(split: str, gold: Any, accuracy: float) -> dict[str, Any]:
    """Compare an accuracy with that of always giving the most frequent label (one-sided binomial test).

    Args:
        split: Which split was measured.
        gold: Its labels.
        accuracy: The share that was right.
    """
    (_, most), *_ = Counter(gold).most_common(1)
    items = len(gold)
    chance = most / items
    doubt = binomtest(round(accuracy * items), items, chance, alternative="greater").pvalue if chance < 1 else 1.0
    return {
        "split": split,
        "items": items,
        "accuracy": accuracy,
        "majority": chance,
        "doubt": float(doubt),
        "better_than_chance": bool(doubt < CHANCE_ALPHA),
    }


def warn_if_at_chance(account: dict[str, Any]) -> None:
    """Say so if a classifier is no better than chance: what it holds important is then noise."""
    if not account["better_than_chance"]:
        log.warning(
            "The classifier that finds important tokens is no better than chance: accuracy %.3f on the %d items of "
            "%s, where always giving the most frequent label has %.3f (p = %.2f). The tokens that it holds important "
            "mean little; train it longer or on more texts.",
            account["accuracy"],
            account["items"],
            account["split"],
            account["majority"],
            account["doubt"],
        )


def load_annotator(folder: str | Path, task: Task, max_length: int) -> Classifier:
    """Load a fine-tuned classifier onto the default device."""
    device = default_device()
    classifier = load_classifier(folder, task.labels, max_length, device)
    to_device(classifier.model).eval()
    return classifier
