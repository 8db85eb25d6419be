"""Around the training steps: time budget, schedules, checkpoints, intermediate models and experiment trackers.

A process that is killed while it writes, or a full disk, leaves a checkpoint folder with missing or truncated files.
The list of files and their sizes is therefore written after all of them are on the disk. A folder without that list,
or with a file of another size, is ignored. The previous checkpoint is kept until the new one is complete.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from acclimate.base.errors import Stopped, UserError, check_stop, requested_stop, unknown_name_error
from acclimate.base.files import atomic_folder, read_json, write_json, write_text
from acclimate.base.progress import Progress
from acclimate.engine.distributed import ProcessGroup
from acclimate.engine.schedules import Schedule

COMPLETE_FILE = "complete.json"
MAX_CHECKPOINTS = 2
"""Checkpoints that are kept: the newest and the one before."""

CHECKPOINT_NAME = re.compile(r"checkpoint-(\d+)")


def mark_complete(checkpoint: Path) -> None:
    """Mark a checkpoint as complete, and remove all older ones except the newest of these."""
    sizes = {}
    for file in sorted(path for path in checkpoint.rglob("*") if path.is_file() and path.name != COMPLETE_FILE):
        with file.open("rb") as handle:
            os.fsync(handle.fileno())
        sizes[str(file.relative_to(checkpoint))] = file.stat().st_size
    write_json(checkpoint / COMPLETE_FILE, sizes)
    step = _checkpoint_step(checkpoint)
    older = [found for found in _list_checkpoints(checkpoint.parent) if _checkpoint_step(found) < step]
    for old in older[MAX_CHECKPOINTS - 1 :]:
        shutil.rmtree(old, ignore_errors=True)


def is_complete(checkpoint: Path) -> bool:
    """Return whether all files of a checkpoint exist and have their full size."""
    try:
        sizes = read_json(checkpoint / COMPLETE_FILE)
        return all((checkpoint / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, AttributeError):
        return False


def find_newest_checkpoint(work: Path) -> Path | None:
    """Return the newest complete checkpoint in a folder, or None."""
    return next((found for found in _list_checkpoints(work) if is_complete(found)), None)


def check_weight_names(work: str | Path, wrong: Collection[str]) -> None:
    """Refuse the checkpoints in a folder if weights are missing or unexpected.

    Args:
        work: The folder.
        wrong: Names of such weights.

    Raises:
        UserError: If there are any.
    """
    if wrong:
        raise UserError(
            f"The checkpoint in '{work}' is not one of this model ({len(wrong)} weights differ by name, such as "
            f"{min(wrong)}); remove that folder to start over."
        )


def remove_incomplete_checkpoints(work: Path) -> None:
    """Remove incomplete checkpoints, so that their files do not get into the next checkpoint of the same step."""
    for found in _list_checkpoints(work):
        if not is_complete(found):
            shutil.rmtree(found, ignore_errors=True)


def _list_checkpoints(work: Path) -> list[Path]:
    """Return the folders that are named like a checkpoint, the newest first."""
    found = [path for path in work.glob("checkpoint-*") if CHECKPOINT_NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=_checkpoint_step, reverse=True)


def _checkpoint_step(checkpoint: Path) -> int:
    match = CHECKPOINT_NAME.fullmatch(checkpoint.name)
    return int(match.group(1)) if match else -1


SECONDS_BETWEEN_CHECKPOINTS = 300
KEPT_FOLDER = "kept"
ModelWriter = Callable[[Path, Any], None]


class KeepStepsCallback(TrainerCallback):
    """Writes a complete model folder after each of the given steps, atomically."""

    def __init__(self, steps: Collection[int], folder: Path, write: ModelWriter, trainer: Any) -> None:
        """Set up the callback.

        Args:
            steps: After which optimizer steps to write; 0 is before the first.
            folder: Gets one subfolder per step, such as ``step-000100``.
            write: Writes the model into an existing folder.
            trainer: The trainer of the model.
        """
        self.steps, self.folder, self.write, self.trainer = frozenset(steps), folder, write, trainer

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        """Write the model before the first step."""
        if state.global_step == 0:
            self._keep(0)

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        """Write the model after a step."""
        if self._keep(state.global_step):
            # A resumed run must not repeat this step: under a time budget its model would differ.
            control.should_save = state.global_step < state.max_steps

    def _keep(self, step: int) -> bool:
        if step not in self.steps:
            return False
        self.trainer.engine.group.gather_weights()
        if self.trainer.engine.group.first:
            with atomic_folder(self.folder / f"step-{step:06d}") as made:
                self.write(made, self.trainer)
        self.trainer.engine.group.release_weights()
        return True


def copy_kept_models(work: Path, out: Path) -> None:
    """Copy the intermediate folders of a finished training into its model folder, as hard links where possible."""
    for kept in sorted((work / KEPT_FOLDER).glob("step-*")):
        copy_folder(kept, out / kept.name)


def copy_folder(source: Path, target: Path) -> None:
    """Copy a folder, its files as hard links where possible: they must be replaced, not changed."""
    shutil.copytree(source, target, copy_function=_link_or_copy)


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
"""Package names of trackers, where they differ from the name of the tracker."""


def check_trackers(names: str | Sequence[str] | None) -> list[str]:
    """Return the requested trackers, without duplicates.

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
    """Let TensorBoard write next to ``out`` (to ``runs`` if ``out`` is None), unless the user has chosen a folder.

    By default it would write into the working folder, which is removed after training.
    """
    ours = "tensorboard" in names and TENSORBOARD_VARIABLE not in os.environ
    if ours:
        os.environ[TENSORBOARD_VARIABLE] = str(Path("runs") if out is None else out.parent / f"{out.name}.tensorboard")
    try:
        yield
    finally:
        if ours:
            os.environ.pop(TENSORBOARD_VARIABLE, None)


def report_summary(names: Sequence[str], out: Path, numbers: Mapping[str, float]) -> None:
    """Send numbers to experiment trackers, as one run with the name of a folder."""
    if not names:
        return
    from transformers.integrations import integration_utils as integrations

    about = TrainingArguments(output_dir=str(out), run_name=out.name, report_to=[])
    state, control = TrainerState(), TrainerControl()
    with tensorboard_folder(names, out):
        for tracker in (integrations.INTEGRATION_TO_CALLBACK[name]() for name in names):
            tracker.on_train_begin(about, state, control)
            tracker.on_log(about, state, control, logs=dict(numbers))
            tracker.on_train_end(about, state, control)


class Clock:
    """Seconds of training, those before an interruption included, and the share of a time budget that is used up."""

    def __init__(self, budget: float | None = None, group: ProcessGroup | None = None) -> None:
        """Start at zero, with a budget in seconds, or None for no budget."""
        self.budget, self.earlier, self._start = budget, 0.0, time.monotonic()
        self._group, self._agreed = group or ProcessGroup(), 0.0

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        return self.earlier + time.monotonic() - self._start

    @property
    def spent(self) -> float:
        """Share of the budget that is used up; 0 without a budget.

        The learning rate depends on it, so with several processes it is the value of the first process at the last
        :meth:`synchronize`.
        """
        if self.budget is None:
            return 0.0
        return self.seconds / self.budget if self._group.size == 1 else self._agreed

    def synchronize(self) -> None:
        """Let all processes agree on the time."""
        if self.budget is not None and self._group.size > 1:
            self._agreed = self._group.broadcast_value(self.seconds / self.budget)


def follow(schedule: Schedule, steps: int, clock: Clock) -> Callable[[int], float]:
    """Return the factor of the learning rate by step; under a time budget, by the time spent if that is further."""
    return lambda step: float(schedule.factor(max(step / steps, clock.spent), steps))


def log_interval(steps: int) -> int:
    """Return how many steps one line of the log averages: a fiftieth of the training, 50 at most."""
    return max(1, min(50, steps // 50))


class ResumableCallback(TrainerCallback):
    """A callback whose state is part of every checkpoint."""

    def save(self, checkpoint: Path) -> None:
        """Write the state into the folder of a checkpoint."""
        raise NotImplementedError

    def load(self, checkpoint: Path) -> None:
        """Restore the state from the folder of a checkpoint."""
        raise NotImplementedError


class StepCallback(TrainerCallback):
    """Shows progress, and decides when to save and when to end."""

    def __init__(self, trainer: Any, progress: Progress | None, save_every: int | None) -> None:
        """Set up the callback; ``StepTrainer`` has the same arguments."""
        self.trainer, self.progress, self.save_every = trainer, progress, save_every
        self._saved = time.monotonic()
        self._save_after_epoch = False
        self._stop = 0

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        """Seed dropout per process, and remove the log lines of steps that will be repeated."""
        trainer = self.trainer
        group = trainer.engine.group
        if group.size > 1 and state.global_step == 0:
            # Dropout must differ between processes; a resumed process restores its own generator state.
            group.seed_dropout(int(args.seed))
        if group.first and trainer.log_file.is_file():
            # Steps after the checkpoint are repeated, so their lines are removed.
            with trainer.log_file.open(encoding="utf-8") as file:
                lines = file.readlines()
            kept = [line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= state.global_step]
            write_text(trainer.log_file, "".join(kept))
            trainer.lines = [json.loads(line) for line in kept]
        self._saved = time.monotonic()

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        """Check the time, show progress, and decide whether to save a checkpoint or to end on a signal."""
        check_stop()
        trainer = self.trainer
        trainer.clock.synchronize()
        if trainer.clock.spent >= 1:
            control.should_training_stop = True
            control.should_log = True
        if self.progress is not None:
            share = max(state.global_step / state.max_steps, trainer.clock.spent)
            loss = f"loss {trainer.last_terms['loss']:.3f}, " if trainer.last_terms else ""
            speed = trainer.tokens / max(1e-9, trainer.clock.seconds)
            self.progress.update(min(1.0, share), f"{loss}{speed:,.0f} tokens/s")
        due, self._stop = self._find_due(args, state)
        if self._stop and self.save_every == 0:
            raise Stopped(self._stop)
        if due and state.global_step < state.max_steps:
            # What callbacks measure at the end of an epoch belongs to the checkpoint of its last step.
            at_epoch_end = bool(trainer.data.epoch_steps) and state.global_step % (trainer.data.epoch_steps or 1) == 0
            self._save_after_epoch, control.should_save = at_epoch_end, not at_epoch_end

    def on_epoch_end(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        """Save the checkpoint that was postponed to the end of the epoch."""
        if self._save_after_epoch:
            self._save_after_epoch, control.should_save = False, True

    def _find_due(self, args: TrainingArguments, state: TrainerState) -> tuple[bool, int]:
        """Return whether a checkpoint is due, and the signal that asks to end; the same in all processes."""
        if self.save_every is None:
            due = time.monotonic() - self._saved > SECONDS_BETWEEN_CHECKPOINTS
        else:
            due = self.save_every > 0 and state.global_step % self.save_every == 0
        stop = requested_stop()
        # Signals are positive, so that one number holds both.
        shared = int(self.trainer.engine.group.broadcast_value(float(-stop if stop else due)))
        return shared != 0, max(0, -shared)

    def on_save(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        """Add the progress of the trainer to a checkpoint, and mark it as complete."""
        self._saved = time.monotonic()
        self.trainer.engine.group.wait()  # each process writes its own generator state
        if self.trainer.engine.group.first:
            folder = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
            self.trainer.save_progress(folder)
            mark_complete(folder)
        if self._stop:
            self.trainer.engine.group.wait()  # the launcher ends all processes when the first of them has ended
            raise Stopped(self._stop)
