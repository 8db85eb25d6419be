"""Model folders of chosen steps, beside the model of the end.

Trackers of experiments, such as TensorBoard: those that the ``Trainer`` of transformers knows, by their names.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from acclimate.errors import UserError, unknown_name_error
from acclimate.files import atomic_folder
from acclimate.training.method import Method
from acclimate.training.trainer import StepTrainer

KEPT_FOLDER = "kept"
ModelWriter = Callable[[Path, StepTrainer], None]


def check_keep_steps(keep: Collection[int], method: Method, total: int | None = None) -> dict[str, Any]:
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


class KeepStepsCallback(TrainerCallback):
    """Writes a whole model folder at each of some steps, atomically."""

    def __init__(self, steps: Collection[int], folder: Path, write: ModelWriter, trainer: StepTrainer) -> None:
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
            with atomic_folder(self.folder / f"step-{step:06d}") as made:
                self.write(made, self.trainer)
        return step in self.steps


def copy_kept_models(work: Path, out: Path) -> None:
    """Put the kept folders of a finished training into its model folder; on the same disk without copying."""
    for kept in sorted((work / KEPT_FOLDER).glob("step-*")):
        shutil.copytree(kept, out / kept.name, copy_function=_link_or_copy)


def _link_or_copy(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:  # not every file system has hard links
        return str(shutil.copy2(source, target))
    return target


TENSORBOARD_VARIABLE = "TENSORBOARD_LOGGING_DIR"
TRACKER_PACKAGES = {
    "azure_ml": "azureml-core",
    "comet_ml": "comet-ml",
    "dagshub": "dagshub mlflow",
    "flyte": "flytekit",
    "kubeflow": "kubeflow",
}
"""What to install for a tracker, where its package is called otherwise."""


def check_trackers(names: str | Sequence[str] | None) -> list[str]:
    """Return the trackers that were asked for, each once.

    Args:
        names: Names with commas between, or a list of them; ``"all"`` for all that are installed; ``"none"`` or None
            for none.

    Raises:
        UserError: If a name is not known, or the package of a tracker is not installed.
    """
    given = [names] if isinstance(names, str) else list(names or ())
    asked = [part.strip() for name in given for part in name.split(",") if part.strip()]
    if not asked or asked == ["none"]:
        return []
    from transformers.integrations import integration_utils as integrations

    known = [*integrations.INTEGRATION_TO_CALLBACK]
    there = set(integrations.get_available_reporting_integrations())
    if find_spec("flytekit"):  # the list of transformers forgets it
        there.add("flyte")
    if asked == ["all"]:
        return sorted(there)
    for name in asked:
        if name not in known:
            raise unknown_name_error("tracker", name, [*known, "all", "none"])
        if name not in there:
            package = TRACKER_PACKAGES.get(name, name)
            raise UserError(f"The tracker '{name}' is not installed: pip install {package}, or leave report-to out.")
    return list(dict.fromkeys(asked))


@contextmanager
def tensorboard_folder(names: Sequence[str], out: Path | None) -> Iterator[None]:
    """Keep what TensorBoard writes: beside ``out``, or in ``runs``, unless the user says where.

    The folder that a trainer works in is gone at the end, and with it what trackers write there.
    """
    ours = "tensorboard" in names and TENSORBOARD_VARIABLE not in os.environ
    if ours:
        os.environ[TENSORBOARD_VARIABLE] = str(Path("runs") if out is None else out.parent / f"{out.name}.tensorboard")
    try:
        yield
    finally:
        if ours:
            os.environ.pop(TENSORBOARD_VARIABLE, None)
