"""Callbacks: intermediate model folders at chosen steps, and experiment trackers."""

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
    """Check the steps whose models are to be kept.

    Args:
        keep: The steps; 0 is the model before the first step.
        method: The method in training.
        total: Number of steps of the training; None if it is not known yet.

    Returns:
        What the configuration records; nothing if no step is kept.

    Raises:
        UserError: If a step is negative or after the end of training, or the method changes its model at the end.
    """
    if keep and (type(method).finish is not Method.finish or method.stages() or not method.trains):
        raise UserError(f"Method '{method.name}' has no intermediate models to keep; remove keep-steps.")
    if keep and min(keep) < 0:
        raise UserError(f"keep-steps must be 0 or more, not {min(keep)}.")
    if keep and total is not None and max(keep) > total:
        raise UserError(
            f"keep-steps has step {max(keep):,}, but the training has only {total:,} steps; train for more."
        )
    return {"keep_steps": sorted(set(keep))} if keep else {}


class KeepStepsCallback(TrainerCallback):
    """Writes a complete model folder at each of some steps, atomically."""

    def __init__(self, steps: Collection[int], folder: Path, write: ModelWriter, trainer: StepTrainer) -> None:
        """Set up the callback.

        Args:
            steps: After which optimizer steps to write; 0 is before the first.
            folder: Gets a folder ``step-000100`` for each.
            write: Writes the model into an existing folder.
            trainer: The trainer of the model.
        """
        self.steps, self.folder, self.write, self.trainer = frozenset(steps), folder, write, trainer

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Write the model before the first step."""
        if state.global_step == 0:
            self._keep(0)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Write the model after a step."""
        if self._keep(state.global_step):
            # A resumed run must not go back before this step: under a time budget its model would differ.
            control.should_save = state.global_step < state.max_steps

    def _keep(self, step: int) -> bool:
        if step in self.steps and self.trainer.engine.group.first:
            with atomic_folder(self.folder / f"step-{step:06d}") as made:
                self.write(made, self.trainer)
        return step in self.steps


def copy_kept_models(work: Path, out: Path) -> None:
    """Copy the intermediate folders of a finished training into its model folder, as hard links where possible."""
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
"""The package of a tracker, where its name differs."""


def check_trackers(names: str | Sequence[str] | None) -> list[str]:
    """Return the trackers that were asked for, each once.

    Args:
        names: Names separated by commas, or a list of names; ``"all"`` for all that are installed; ``"none"`` or None
            for none.

    Raises:
        UserError: If a name is unknown, or the package of a tracker is not installed.
    """
    given = [names] if isinstance(names, str) else list(names or ())
    asked = [part.strip() for name in given for part in name.split(",") if part.strip()]
    if not asked or asked == ["none"]:
        return []
    from transformers.integrations import integration_utils as integrations

    known = [*integrations.INTEGRATION_TO_CALLBACK]
    there = set(integrations.get_available_reporting_integrations())
    if find_spec("flytekit"):  # missing in the list of transformers
        there.add("flyte")
    if asked == ["all"]:
        return sorted(there)
    for name in asked:
        if name not in known:
            raise unknown_name_error("tracker", name, [*known, "all", "none"])
        if name not in there:
            package = TRACKER_PACKAGES.get(name, name)
            raise UserError(f"The tracker '{name}' is not installed: pip install {package}, or remove report-to.")
    return list(dict.fromkeys(asked))


@contextmanager
def tensorboard_folder(names: Sequence[str], out: Path | None) -> Iterator[None]:
    """Let TensorBoard write beside ``out``, or to ``runs`` without it, unless the user has chosen a folder.

    By default it would write into the working folder, which is removed at the end.
    """
    ours = "tensorboard" in names and TENSORBOARD_VARIABLE not in os.environ
    if ours:
        os.environ[TENSORBOARD_VARIABLE] = str(Path("runs") if out is None else out.parent / f"{out.name}.tensorboard")
    try:
        yield
    finally:
        if ours:
            os.environ.pop(TENSORBOARD_VARIABLE, None)
