"""Model folders of chosen steps, beside the model of the end."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from acclimate.errors import UserError
from acclimate.files import new_folder
from acclimate.training.method import Method
from acclimate.training.trainer import StepTrainer

KEPT = "kept"
Write = Callable[[Path, StepTrainer], None]


def check_steps(keep: Collection[int], method: Method, total: int | None = None) -> dict[str, Any]:
    """Check the steps that are to be kept.

    Args:
        keep: The steps; 0 is the model before the first.
        method: What trains.
        total: Steps of the training; None if that is not known.

    Returns:
        What the card says of it; nothing if no step is kept.

    Raises:
        UserError: If one is negative, or the training ends before it, or the method changes its model at the end.
    """
    if keep and (type(method).finish is not Method.finish or method.stages() or not method.trains):
        raise UserError(f"Method '{method.name}' has no model of single steps to keep; leave keep-steps out.")
    if keep and min(keep) < 0:
        raise UserError(f"keep-steps must be 0 or more, not {min(keep)}.")
    if keep and total is not None and max(keep) > total:
        raise UserError(f"keep-steps has step {max(keep):,}, but the training has only {total:,}; give it more steps.")
    return {"keep_steps": sorted(set(keep))} if keep else {}


class Keeper(TrainerCallback):
    """Writes a whole model folder at each of some steps, atomically."""

    def __init__(self, steps: Collection[int], folder: Path, write: Write, trainer: StepTrainer) -> None:
        """Prepare.

        Args:
            steps: After which optimiser steps; 0 is the start.
            folder: Gets a folder ``step-000100`` for each.
            write: Writes the model into a folder that exists.
            trainer: Whose model it is.
        """
        self.steps, self.folder, self.write, self.trainer = frozenset(steps), folder, write, trainer

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Keep the model before the first step."""
        if state.global_step == 0:
            self._keep(0)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Keep the model after a step."""
        if self._keep(state.global_step):
            # A resumed run does not go back behind it: under a time budget it would not come out the same.
            control.should_save = state.global_step < state.max_steps

    def _keep(self, step: int) -> bool:
        if step in self.steps and self.trainer.engine.group.first:
            with new_folder(self.folder / f"step-{step:06d}") as made:
                self.write(made, self.trainer)
        return step in self.steps


def carry(work: Path, out: Path) -> None:
    """Put the kept folders of a finished training into its model folder; on the same disk without copying."""
    for kept in sorted((work / KEPT).glob("step-*")):
        shutil.copytree(kept, out / kept.name, copy_function=_link)


def _link(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:  # not every file system has hard links
        return str(shutil.copy2(source, target))
    return target
