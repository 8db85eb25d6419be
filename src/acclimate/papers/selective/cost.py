"""Time cost of selective masking against the time saved by stopping general pre-training early.

As in Gu et al., EMNLP 2020, appendix A, Table 3. The minutes are read from the folders of finished runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from acclimate.api import MANIFEST_FILE, UserError, read_json
from acclimate.papers.selective.stages import STAGES

SUMMARY_FILE = "selective.json"
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
"""Row titles of the table, by the names that :meth:`Cost.minutes` returns."""
_STEP_FOLDER = re.compile(r"step-(\d+)")


@dataclass(frozen=True)
class Cost:
    """Minutes of one task-guided pre-training; None where unknown.

    Attributes:
        stages: Minutes of each stage in :data:`acclimate.papers.selective.stages.STAGES` when it was computed.
        task_guided: Minutes of the adaptation itself.
        fine_tuning: Minutes of fine-tuning on the end task, averaged over seeds.
        step: Step at which general pre-training was stopped early.
        steps: Steps of the complete general pre-training.
        general_to_stop: Minutes of general pre-training until ``step``.
        general_to_end: Minutes of general pre-training until ``steps``.
    """

    stages: Mapping[str, float]
    task_guided: float
    fine_tuning: float | None = None
    step: int | None = None
    steps: int | None = None
    general_to_stop: float | None = None
    general_to_end: float | None = None

    def minutes(self) -> dict[str, float | None]:
        """Return the minutes of every row of the table, by the names in :data:`ROW_TITLES`."""
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
    """Read the cost of one model from the folders of its runs.

    Args:
        adapted: Output directory of ``acclimate adapt --method selective``.
        pretrained: Output directory of the ``acclimate pretrain`` run whose kept step the adaptation started from.
        step: That step; by default the one that the adaptation recorded.
        finetuned: Output directories of ``acclimate finetune``, with one or several seeds.

    Raises:
        UserError: If a folder was not made by the expected command, or the adaptation started from another model.
    """
    manifest = _read_manifest(adapted, "acclimate adapt")
    stages = _stage_minutes(Path(adapted), manifest)
    cost = Cost(stages, _training_seconds(manifest, adapted) / 60, _fine_tuning_minutes(finetuned))
    if pretrained is None:
        if step is not None:
            raise UserError("A step needs the folder of the general pre-training; add --pretrained.")
        return cost
    general = _read_manifest(pretrained, "acclimate pretrain")
    steps = int(general["result"].get("steps", 0))
    step = _find_early_stop(Path(pretrained), steps, step, str(manifest.get("model")), adapted)
    to_end = _training_seconds(general, pretrained) / 60
    to_stop = to_end if step == steps else _minutes_until_step(Path(pretrained), step)
    return Cost(cost.stages, cost.task_guided, cost.fine_tuning, step, steps, to_stop, to_end)


def cost_table(costs: Mapping[str, Cost]) -> str:
    """Render costs as a Markdown table like the paper's Table 3: one column per model, one row per stage, in minutes.

    Rows without any known value are omitted.
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


def _read_manifest(folder: str | Path, verb: str) -> dict[str, Any]:
    """Return the manifest of the folder of a finished training."""
    manifest = _read_json_if_valid(Path(folder) / MANIFEST_FILE)
    if not isinstance(manifest, dict) or not isinstance(manifest.get("result"), dict):
        raise UserError(f"'{folder}' was not made by {verb}: it has no {MANIFEST_FILE} with a result.")
    return manifest


def _read_json_if_valid(path: Path) -> Any:
    try:
        return read_json(path)
    except (OSError, ValueError):
        return None


def _training_seconds(manifest: Mapping[str, Any], folder: str | Path) -> float:
    seconds = manifest["result"].get("seconds")
    if not isinstance(seconds, int | float):
        raise UserError(f"The {MANIFEST_FILE} of '{folder}' has no training time ('seconds').")
    return float(seconds)


def _stage_minutes(adapted: Path, manifest: Mapping[str, Any]) -> dict[str, float]:
    summary = _read_json_if_valid(adapted / SUMMARY_FILE)
    if not isinstance(summary, dict):
        raise UserError(
            f"'{adapted}' was adapted by '{manifest.get('method')}' and has no {SUMMARY_FILE}; give a folder of "
            "acclimate adapt --method selective."
        )
    minutes = {stage: (summary.get(stage) or {}).get("minutes") for stage in STAGES}
    if missing := [stage for stage, value in minutes.items() if not isinstance(value, int | float)]:
        raise UserError(f"The {SUMMARY_FILE} of '{adapted}' has no minutes for: {', '.join(missing)}.")
    return {stage: float(value) for stage, value in minutes.items()}  # type: ignore[arg-type]


def _fine_tuning_minutes(folders: Sequence[str | Path]) -> float | None:
    """Return the mean minutes over all seeds; None without folders."""
    seconds: list[float] = []
    for folder in map(Path, folders):
        files = (
            [folder / "metrics.json"] if (folder / "metrics.json").is_file() else folder.glob("seed-*/metrics.json")
        )
        found = [_read_json_if_valid(file) for file in files]
        if not found or not all(isinstance(one, dict) and "seconds" in one for one in found):
            raise UserError(f"'{folder}' was not made by acclimate finetune: it has no metrics.json with seconds.")
        seconds += [float(one["seconds"]) for one in found]
    return mean(seconds) / 60 if seconds else None


def _find_early_stop(pretrained: Path, steps: int, given: int | None, model: str, adapted: str | Path) -> int:
    """Return the step of general pre-training that an adaptation started from.

    Args:
        pretrained: Folder of the general pre-training.
        steps: Number of steps of the general pre-training.
        given: Step given by the user.
        model: Base model recorded by the adaptation.
        adapted: Folder of the adaptation, for messages.
    """
    start, whole = Path(model).resolve(), pretrained.resolve()
    kept = _STEP_FOLDER.fullmatch(start.name)
    recorded = steps if start == whole else int(kept.group(1)) if kept else None
    if given is None and (recorded is None or whole not in (start, start.parent)):
        raise UserError(
            f"'{adapted}' started from '{model}', which is not a step of '{pretrained}'; if that folder was moved, "
            "give the step (--step)."
        )
    if given is not None and recorded is not None and given != recorded:
        raise UserError(f"'{adapted}' started from '{model}', which is step {recorded:,}, not {given:,}; omit --step.")
    return recorded if given is None else given  # type: ignore[return-value]


def _minutes_until_step(pretrained: Path, step: int) -> float:
    """Return the minutes of general pre-training until a kept step."""
    folder = pretrained / f"step-{step:06d}"
    if not (folder / MANIFEST_FILE).is_file():
        kept = sorted(int(path.name[5:]) for path in pretrained.glob("step-*") if _STEP_FOLDER.fullmatch(path.name))
        steps = ", ".join(f"{step:,}" for step in kept) or "none"
        raise UserError(f"'{pretrained}' has no model of step {step:,}; kept steps: {steps} (pretrain --keep-steps).")
    return _training_seconds(_read_manifest(folder, "acclimate pretrain"), folder) / 60
