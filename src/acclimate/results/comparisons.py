# ruff: noqa: RUF009 (the calls only describe fields)
"""Rows of the results of a study that sum up several measurements: capabilities, and wins over tasks."""

from __future__ import annotations

from dataclasses import dataclass

from acclimate.base.records import Record, optional
from acclimate.results.scores import WITHHELD, Interval


@dataclass(kw_only=True, eq=False)
class CapabilityRow(Record):
    """A measurement of an adapted model in a group of capabilities, compared with before the adaptation.

    Attributes:
        group: Name of the group.
        measure: What is measured: a task, a text, ``"instructions"``, pairs or a benchmark.
        unit: ``"points"``, percentage points of a score, of which more is better; or that of a loss.
        before: Mean of what the method is compared with: the baseline for fine-tuned models, else the base model.
        after: Mean of the method.
        difference: After minus before; None if the two cannot be compared.
        lower_is_better: Whether it is a loss. The verdict of the difference then says what happened to the loss.
    """

    group: str = ""
    measure: str
    model: str
    domain: str
    task: str | None = optional()
    method: str
    unit: str
    before: float | None = None
    after: float | None = None
    difference: Interval | None = optional()
    lower_is_better: bool = False

    @property
    def verdict(self) -> str:
        """``"win"`` for better, ``"loss"`` for worse, ``"tie"``, or why there is no verdict."""
        verdict = WITHHELD if self.difference is None else self.difference.verdict
        turned = {"win": "loss", "loss": "win"} if self.lower_is_better else {}
        return turned.get(verdict, verdict)


@dataclass(kw_only=True, eq=False)
class HeadToHeadRow(Record):
    """On how many tasks an adapted model beats its base model, if the settings of each side were searched.

    Attributes:
        searched: What was searched on dev: ``"fine-tuning settings"`` or ``"prompts"``.
        biased: Whether the base model has the settings that were chosen for the adapted one, which favors the latter.
        tasks: Tasks with a comparison.
        unanswered: Tasks without a verdict.
        win: Tasks whose 95 % interval lies above zero.
        tie: Tasks whose interval includes zero.
        loss: Tasks whose interval lies below zero.
        win_low: Lower end of the 95 % interval of the share of wins, over tasks (Wilson).
        win_high: Upper end of that interval.
        difference: Mean over tasks of the difference in the metric of each, with a 95 % interval over tasks, so about
            other tasks of this kind; None for a single test set.
        test_sets: Number of distinct test sets; tasks of one are resampled together.
    """

    model: str
    method: str
    searched: str
    biased: bool
    tasks: int
    unanswered: int
    win: int
    tie: int
    loss: int
    win_low: float
    win_high: float
    difference: Interval | None = optional()
    test_sets: int = 0
