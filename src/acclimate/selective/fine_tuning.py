"""The stage "Finetune BERT": the classifier whose confidence decides, and whether it is any good."""

from __future__ import annotations

import logging
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scipy.stats import binomtest

from acclimate.backbone.device import default_device, to_device
from acclimate.errors import UserError
from acclimate.tasks import Task, finetune
from acclimate.tasks.classifier import Classifier, load_classifier

log = logging.getLogger(__name__)
DOUBT = 0.05
"""A classifier is no better than chance if the majority class alone would be as often right with this probability."""


@dataclass(frozen=True)
class FineTuning:
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
    if not isinstance(task, Task) or getattr(task, "kind", "single_label") != "single_label":
        raise UserError("Important tokens are found for tasks with one label for each text; give such a task.")
    return task


def fine_tune(
    model: str | Path,
    task: Task,
    out: Path,
    options: FineTuning,
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
        **against_chance(split, [example.label for example in getattr(task, split)], metrics["accuracy"]),
        "minutes": (time.perf_counter() - begin) / 60,
    }
    warn(account)
    return account


def against_chance(split: str, gold: Any, accuracy: float) -> dict[str, Any]:
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
        "better_than_chance": bool(doubt < DOUBT),
    }


def warn(account: dict[str, Any]) -> None:
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


def open_classifier(folder: str | Path, task: Task, max_length: int) -> Classifier:
    """Load a fine-tuned classifier onto the default device."""
    device = default_device()
    classifier = load_classifier(folder, task.labels, max_length, device)
    to_device(classifier.model).eval()
    return classifier
