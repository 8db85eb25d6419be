"""What selective masking cost and what an early stop of general pre-training saved, from what the runs wrote.

Gu et al., EMNLP 2020, appendix A: their Table 3 sets the four stages of selective masking against the saved time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from acclimate.errors import UserError
from acclimate.files import read_json
from acclimate.methods.selective.stages import STAGES
from acclimate.training.result import MANIFEST_FILE

ACCOUNT_FILE = "selective.json"
ROW_TITLES = {
    "general_to_stop": "General pre-training, to the early stop",
    "finetune": "Fine-tuning the annotator",
    "annotate": "Finding important tokens",
    "train": "Training the token classifier",
    "mark": "In-domain masking",
    "selection": "**Selective masking, sum of the four**",
    "task_guided": "Task-guided pre-training",
    "fine_tuning": "Fine-tuning, each seed",
    "general_to_end": "General pre-training, to its end",
    "saved": "**Saved by the early stop**",
    "left": "**Saved, less selective masking and task-guided pre-training**",
}
"""What :meth:`Cost.minutes` has, and what a table calls it."""
_STEP_FOLDER = re.compile(r"step-(\d+)")


@dataclass(frozen=True)
class Cost:
    """What one model of task-guided pre-training took, in minutes; None where it is not known.

    Attributes:
        stages: Of :data:`acclimate.methods.selective.stages.STAGES`, each as it took when it was done.
        task_guided: Of the adaptation itself.
        fine_tuning: Of the end task, a mean over seeds.
        step: Of general pre-training, where it stopped.
        steps: Of general pre-training, to its end.
        general_to_stop: Until ``step``.
        general_to_end: Until ``steps``.
    """

    stages: Mapping[str, float]
    task_guided: float
    fine_tuning: float | None = None
    step: int | None = None
    steps: int | None = None
    general_to_stop: float | None = None
    general_to_end: float | None = None

    def minutes(self) -> dict[str, float | None]:
        """Return every row of the table by its name, see :data:`ROWS`."""
        selection = sum(self.stages.values())
        known = self.general_to_end is not None and self.general_to_stop is not None
        saved = self.general_to_end - self.general_to_stop if known else None  # type: ignore[operator]
        found: dict[str, float | None] = {
            **self.stages,
            "selection": selection,
            "general_to_stop": self.general_to_stop,
            "task_guided": self.task_guided,
            "fine_tuning": self.fine_tuning,
            "general_to_end": self.general_to_end,
            "saved": saved,
            "left": None if saved is None else saved - selection - self.task_guided,
        }
        return {name: found[name] for name in ROW_TITLES}


def read_cost(
    adapted: str | Path,
    pretrained: str | Path | None = None,
    *,
    step: int | None = None,
    finetuned: Sequence[str | Path] = (),
) -> Cost:
    """Read what the stages of one model took from the folders that the runs made.

    Args:
        adapted: Folder of ``acclimate adapt --method selective``.
        pretrained: Folder of ``acclimate pretrain`` whose kept step the adaptation started from.
        step: Which one; by default what the adaptation says that it started from.
        finetuned: Folders of ``acclimate finetune``: of one seed, or with a folder for each.

    Raises:
        UserError: If a folder is not what it should be, or the adaptation started from something else.
    """
    card = _read_run_card(adapted, "acclimate adapt")
    stages = _stage_minutes(Path(adapted), card)
    cost = Cost(stages, _training_seconds(card, adapted) / 60, _fine_tuning_minutes(finetuned))
    if pretrained is None:
        if step is not None:
            raise UserError(f"Step {step:,} of what? Give the folder of the general pre-training, too (--pretrained).")
        return cost
    general = _read_run_card(pretrained, "acclimate pretrain")
    steps = int(general["result"].get("steps", 0))
    step = _find_early_stop(Path(pretrained), steps, step, str(card.get("model")), adapted)
    to_end = _training_seconds(general, pretrained) / 60
    to_stop = to_end if step == steps else _minutes_until_step(Path(pretrained), step)
    return Cost(cost.stages, cost.task_guided, cost.fine_tuning, step, steps, to_stop, to_end)


def cost_table(costs: Mapping[str, Cost]) -> str:
    """Render costs in Markdown, as Table 3 of the paper: a column for each, a row for each stage, in minutes.

    A row of which nothing is known is left out.
    """
    minutes = {name: cost.minutes() for name, cost in costs.items()}
    lines = [["Minutes", *minutes]]
    for row, title in ROW_TITLES.items():
        values = [column[row] for column in minutes.values()]
        if any(value is not None for value in values):
            lines.append([title, *map(_format_minutes, values)])
    widths = [max(3, *map(len, column)) for column in zip(*lines, strict=True)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    padded = [[line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])] for line in lines]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [padded[0], rule, *padded[1:]])


def _format_minutes(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.0f}" if abs(value) >= 10 else f"{value:.2g}"


def _read_run_card(folder: str | Path, verb: str) -> dict[str, Any]:
    """Return the card of a folder that a finished training made."""
    card = _read_json_if_valid(Path(folder) / MANIFEST_FILE)
    if not isinstance(card, dict) or not isinstance(card.get("result"), dict):
        raise UserError(f"'{folder}' is no folder that {verb} made: it has no {MANIFEST_FILE} with a result.")
    return card


def _read_json_if_valid(path: Path) -> Any:
    try:
        return read_json(path)
    except (OSError, ValueError):
        return None


def _training_seconds(card: Mapping[str, Any], folder: str | Path) -> float:
    seconds = card["result"].get("seconds")
    if not isinstance(seconds, int | float):
        raise UserError(f"The {MANIFEST_FILE} of '{folder}' does not say how many seconds its training took.")
    return float(seconds)


def _stage_minutes(adapted: Path, card: Mapping[str, Any]) -> dict[str, float]:
    account = _read_json_if_valid(adapted / ACCOUNT_FILE)
    if not isinstance(account, dict):
        raise UserError(
            f"'{adapted}' was adapted by '{card.get('method')}' and has no {ACCOUNT_FILE}; give a folder of "
            "acclimate adapt --method selective."
        )
    minutes = {stage: (account.get(stage) or {}).get("minutes") for stage in STAGES}
    if missing := [stage for stage, value in minutes.items() if not isinstance(value, int | float)]:
        raise UserError(f"The {ACCOUNT_FILE} of '{adapted}' has no minutes of: {', '.join(missing)}.")
    return {stage: float(value) for stage, value in minutes.items()}  # type: ignore[arg-type]


def _fine_tuning_minutes(folders: Sequence[str | Path]) -> float | None:
    """Return the mean minutes of all seeds; None without any."""
    seconds: list[float] = []
    for folder in map(Path, folders):
        files = (
            [folder / "metrics.json"] if (folder / "metrics.json").is_file() else folder.glob("seed-*/metrics.json")
        )
        found = [_read_json_if_valid(file) for file in files]
        if not found or not all(isinstance(one, dict) and "seconds" in one for one in found):
            raise UserError(
                f"'{folder}' is no folder that acclimate finetune made: it has no metrics.json with seconds."
            )
        seconds += [float(one["seconds"]) for one in found]
    return mean(seconds) / 60 if seconds else None


def _find_early_stop(pretrained: Path, steps: int, given: int | None, model: str, adapted: str | Path) -> int:
    """Return the step of general pre-training that an adaptation started from.

    Args:
        pretrained: The folder of general pre-training.
        steps: How many it had.
        given: What the user says.
        model: What the adaptation started from, as its card has it.
        adapted: Its folder, for messages.
    """
    start, whole = Path(model).resolve(), pretrained.resolve()
    kept = _STEP_FOLDER.fullmatch(start.name)
    said = steps if start == whole else int(kept.group(1)) if kept else None
    if given is None and (said is None or whole not in (start, start.parent)):
        raise UserError(
            f"'{adapted}' started from '{model}', which is no step of '{pretrained}'; if it is one that was moved, "
            "say which step (--step)."
        )
    if given is not None and said is not None and given != said:
        raise UserError(
            f"'{adapted}' started from '{model}', which is step {said:,}, not {given:,}; leave out --step."
        )
    return said if given is None else given  # type: ignore[return-value]


def _minutes_until_step(pretrained: Path, step: int) -> float:
    """Return the minutes of general pre-training until a step that was kept."""
    folder = pretrained / f"step-{step:06d}"
    if not (folder / MANIFEST_FILE).is_file():
        kept = sorted(int(path.name[5:]) for path in pretrained.glob("step-*") if _STEP_FOLDER.fullmatch(path.name))
        steps = ", ".join(f"{one:,}" for one in kept) or "none"
        raise UserError(f"'{pretrained}' has no model of step {step:,}; kept steps: {steps} (pretrain --keep-steps).")
    return _training_seconds(_read_run_card(folder, "acclimate pretrain"), folder) / 60
