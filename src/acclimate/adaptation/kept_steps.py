"""Copies of the model that a training keeps of steps before its last one."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any

from acclimate.adaptation.method import Method
from acclimate.adaptation.run import Feature, Run
from acclimate.base.errors import UserError
from acclimate.base.files import MANIFEST_FILE, record_files
from acclimate.engine.callbacks import KEPT_FOLDER, KeepStepsCallback, copy_kept_models
from acclimate.engine.trainer import CallbackFactory, StepTrainer


def check_keep_steps(keep: Collection[int], method: Method, total: int | None = None) -> None:
    """Check the steps whose models are to be kept.

    Args:
        keep: The steps; 0 is the model before the first step.
        method: The method in training.
        total: Number of steps of the training; None if it is not known yet.

    Raises:
        UserError: If a step is negative or after the end of training, or the method has no usable intermediate models.
    """
    if keep and (method.changes_result or method.stages() or not method.trains):
        raise UserError(f"Method '{method.name}' has no intermediate models; remove 'keep_steps'.")
    if keep and min(keep) < 0:
        raise UserError(f"'keep_steps' must be 0 or more, not {min(keep)}.")
    if keep and total is not None and max(keep) > total:
        raise UserError(
            f"'keep_steps' contains step {max(keep):,}, but the training has only {total:,} steps; train for more."
        )


class KeptSteps(Feature):
    """The steps of ``keep_steps``."""

    def __init__(self, run: Run) -> None:
        self.steps = sorted(set(run.options.keep_steps))
        check_keep_steps(self.steps, run.method, run.budget.steps)

    def identity(self) -> dict[str, Any]:
        """Return the steps in order."""
        return {"keep_steps": self.steps}

    def warm_up(self, run: Run) -> None:
        """Check the steps once more, since now their number is known."""
        check_keep_steps(self.steps, run.method, run.steps)

    def callbacks(self, run: Run) -> list[CallbackFactory]:
        """Return what writes the models."""
        return [partial(KeepStepsCallback, self.steps, run.work / KEPT_FOLDER, partial(_write, run))]

    def finish(self, run: Run, folder: Path) -> None:
        """Copy the models into the folder of the last one."""
        copy_kept_models(run.work, folder)


def _write(run: Run, folder: Path, trainer: StepTrainer) -> None:
    """Write the model of an intermediate step."""
    run.result.take(trainer)
    run.write_model(folder)
    record_files(folder, MANIFEST_FILE)
