"""What a fine-tuning run measured, and how it is written."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from acclimate.files import write_json, write_text


@dataclass(frozen=True)
class EvaluationResult:
    """What a model did on a split: its metrics, and for each item what is true and what was predicted.

    Everything is plain values. ``gold`` and ``predicted`` are what the scoring of the kind of task takes.
    """

    metrics: dict[str, Any]
    gold: list[Any]
    predicted: list[Any]
    probabilities: list[Any]
    """What else is known of each prediction; it is written beside it, and studies do not keep it."""


@dataclass(frozen=True)
class FinetuneResult:
    """What one fine-tuning run measured; plain values that can be written as JSON."""

    task: str
    seed: int
    metrics: dict[str, Any]
    """Of the test split: those of the scoring, and what else the kind of task measures."""
    dev_metrics: dict[str, Any] | None
    """The same of the dev split, for the weights that were kept; None without a dev split."""
    gold: list[Any]
    """What is true of each test item: a class number, a list of them in a multi-label task, or texts of answers."""
    predicted: list[Any]
    """The same, as predicted."""
    probabilities: list[Any]
    """For each test item, in the order of the file, its probabilities: (items, classes).

    Softmax over the classes; in a multi-label task sigmoid of each. Of a question, the scores of the answers.
    """
    labels: list[str]
    seconds: float
    train_size: int
    """Examples that were trained on, after ``few_shot``."""
    steps: int
    epoch: int
    """The epoch whose weights were kept, counted from one."""
    train_loss: float
    """Mean over all steps, in nats."""
    precision: str
    kind: str = "single_label"
    """The kind of the task: a key of :data:`acclimate.evaluation.scoring.SCORINGS`."""
    scoring: dict[str, Any] = field(default_factory=dict)
    """What :func:`acclimate.evaluation.scoring.make_scoring` needs besides to score the predictions again."""
    first: str | None = None
    """Name of the task that was learnt before this one."""


def write_result(
    folder: Path, result: FinetuneResult, readable: Callable[[Any], Any], log: Sequence[dict[str, Any]] = ()
) -> None:
    """Write ``metrics.json``, a line for each test item in ``predictions.jsonl``, and the losses in ``log.jsonl``.

    Args:
        folder: Where to.
        result: What was measured.
        readable: From an entry of ``gold`` or ``predicted`` to what people read.
        log: The loss of each stretch of the training.
    """
    summary = asdict(result)
    for name in ("gold", "predicted", "probabilities", "scoring"):
        del summary[name]
    write_json(folder / "metrics.json", summary)
    lines = [
        {"gold": readable(gold), "predicted": readable(predicted), "probabilities": probabilities}
        for gold, predicted, probabilities in zip(result.gold, result.predicted, result.probabilities, strict=True)
    ]
    write_text(folder / "predictions.jsonl", "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    write_text(folder / "log.jsonl", "".join(json.dumps(line) + "\n" for line in log))
