"""Scores per item from the logs of evaluations: lm-eval, lighteval, inspect_ai, tables, and predictions."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Scores:
    """The scores of one run on one task in one metric.

    Attributes:
        names: Identity of each item; unique.
        values: Score of each item (items,), float64, finite.
        groups: What each item belongs to, such as a passage; None if no two items share one, or nothing is known.
        group_name: What such a group is: a passage, a document, a subject; "item" without groups.
        is_error: Whether lower is better, as for a perplexity.
        weights: Weight of each item in the mean (items,), such as its bytes; None for equal weights.
    """

    names: list[str]
    values: np.ndarray
    groups: list[str] | None = None
    group_name: str = "item"
    is_error: bool = False
    weights: np.ndarray | None = None


@dataclass(frozen=True)
class Run:
    """The log of one evaluation of one model.

    Attributes:
        place: File or folder, for messages.
        seed: Seed of the training or adaptation; None if the log names none.
        scores: The scores by task and metric.
        left_out: Number of rows that are left out, by reason.
        settings: What must be equal in two logs for a task to be comparable, by task: split, hash of the prompts,
            number of examples in the prompt, limit; empty if unknown.
        model: Name of the model; that of the file or folder if the log names none.
    """

    place: str
    seed: str | None
    scores: dict[tuple[str, str], Scores]
    left_out: dict[str, int] = field(default_factory=dict)
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    model: str = ""


def read_runs(source: str | Path) -> list[Run]:
    """Read the logs of one side of a comparison.

    Args:
        source: A file, a folder, or a pattern of files such as ``"runs/seed-*"``. Several runs are seeds or
            adaptations of one side.

    Returns:
        The runs, sorted by place and seed.

    Raises:
        UserError: If nothing can be read, or a log is damaged or ambiguous.
    """
    raise NotImplementedError(str(source))
