"""The goals: which work is compared with what, and by how much it should be better."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Row:
    """One comparison.

    Attributes:
        key: Its name on the command line.
        work: What we do, in words.
        against: What it is compared with, in words.
        shape: Key of ``SHAPES``.
        ours: Name of our contender.
        theirs: Name of the other.
        goals: The goal by precision; a precision that is not here is not measured.
        kind: ``"speed"``: our rate over theirs, at least the goal. ``"cost"``: their rate over ours, at most the goal.
            ``"memory"``: our peak over theirs, at most the goal.
        quick: Whether ``--quick`` measures it.
    """

    key: str
    work: str
    against: str
    shape: str
    ours: str
    theirs: str
    goals: Mapping[str, float]
    kind: Literal["speed", "cost", "memory"] = "speed"
    quick: bool = True


def _goals(fp32: float, bf16: float) -> dict[str, float]:
    return {"fp32": fp32, "bf16": bf16}


LINES = "Trainer, MLM, line by line"
NAMES = {"minilm": "MiniLM shape", "base": "RoBERTa-base shape"}
ROWS = (
    Row("mlm-minilm", "MLM, MiniLM shape", LINES, "minilm", "ours-mlm", "trainer-lines", _goals(6, 10)),
    Row("mlm-base", "MLM, RoBERTa-base shape", LINES, "base", "ours-mlm", "trainer-lines", _goals(4, 8)),
    Row(
        "mlm-minilm-grouped", "MLM, MiniLM shape", "Trainer, MLM, grouped texts", "minilm", "ours-mlm",
        "trainer-grouped", _goals(3, 5),
    ),
    Row(
        "mlm-minilm-loop", "MLM, MiniLM shape", "plain loop with autocast", "minilm", "ours-mlm", "loop",
        {"bf16": 3.5},
    ),
    Row("dga-minilm", "DGA step, MiniLM shape", LINES, "minilm", "ours-dga", "trainer-lines", _goals(1.3, 2.5)),
    Row("dga-base", "DGA step, RoBERTa-base shape", LINES, "base", "ours-dga", "trainer-lines", _goals(1.3, 1.7)),
    *(
        Row(
            f"dga-{shape}-forwards", f"DGA step, {NAMES[shape]}", "three separate forwards", shape, "ours-dga",
            "three-forwards", _goals(3, 5), quick=shape == "minilm",
        )
        for shape in NAMES
    ),
    *(
        Row(
            f"dga-{shape}-cost", f"DGA step, {NAMES[shape]}", "our own MLM step: cost", shape, "ours-dga", "ours-mlm",
            _goals(2.8, 2.8), kind="cost",
        )
        for shape in NAMES
    ),
    *(
        Row(
            f"importance-{shape}", f"importance, text by text, {NAMES[shape]}", "loop over texts", shape,
            "ours-importance", "sample-loop", _goals(1.8, 2.5), quick=shape == "minilm",
        )
        for shape in NAMES
    ),
    *(
        Row(
            f"memory-{work}-{shape}", f"peak memory, {work.upper()}, {NAMES[shape]}", LINES, shape, f"ours-{work}",
            "trainer-lines", _goals(0.7, 0.6), kind="memory", quick=shape == "minilm",
        )
        for work in ("mlm", "dga")
        for shape in NAMES
    ),
)  # fmt: skip


def judge(row: Row, precision: str, ours: Sequence[float], theirs: Sequence[float]) -> dict[str, Any]:
    """Compare two lists of measurements, round by round.

    Args:
        row: The comparison.
        precision: Which of its goals counts.
        ours: Tokens per second of each round, or bytes.
        theirs: The same of the other side, in the same rounds.

    Returns:
        The row as plain values: the median of the ratios, their range, the medians of both sides, and ``met``.
    """
    pairs = list(zip(ours, theirs, strict=True))
    ratios = [b / a if row.kind == "cost" else a / b for a, b in pairs]
    goal = row.goals[precision]
    ratio = statistics.median(ratios)
    return {
        "key": row.key,
        "work": row.work,
        "against": row.against,
        "shape": row.shape,
        "precision": precision,
        "kind": row.kind,
        "goal": goal,
        "ratio": ratio,
        "lowest": min(ratios),
        "highest": max(ratios),
        "rounds": len(ratios),
        "ours": statistics.median(ours),
        "theirs": statistics.median(theirs),
        "unit": "bytes" if row.kind == "memory" else "tokens/s",
        "met": ratio >= goal if row.kind == "speed" else ratio <= goal,
    }
