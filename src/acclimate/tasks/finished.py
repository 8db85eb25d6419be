"""A finished fine-tuning or distillation is found again, so that the same call after a kill does nothing twice.

There are no checkpoints in the middle of it. The unit is the seed, as a cell is the unit of a study: it takes minutes,
a run of the same seed from its start ends with the same weights (on a CPU to the bit), and nothing that it holds in
memory (the weights of the best epoch, the optimiser of a connector, what was measured after each epoch) has to be
saved and believed. What is found is a whole folder, which appears by one rename, with a record of everything that
decided it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
import transformers

from acclimate.backbone.device import default_device
from acclimate.backbone.identity import model_identity
from acclimate.files import read_json, write_json
from acclimate.tasks.kinds import LabelledTask
from acclimate.tasks.options import Options
from acclimate.tasks.result import FinetuneResult
from acclimate.version import __version__

RECORD = "run.json"
R = TypeVar("R", bound=FinetuneResult)


def decided_by(
    verb: str,
    models: Mapping[str, str | Path],
    tasks: Mapping[str, LabelledTask | None],
    precision: str,
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """Return everything that decides a result, as plain values.

    Args:
        verb: What is done.
        models: The models that are read, by their role; they are known by their content.
        tasks: The tasks, by their role.
        precision: The resolved one.
        options: All other options.

    Raises:
        UserError: If a model is not there.
    """
    told = {
        name: asdict(replace(value, precision=precision, progress=False)) if isinstance(value, Options) else value
        for name, value in options.items()
    }
    values = {
        "verb": verb,
        "acclimate": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "device": default_device().type,
        "models": {role: model_identity(str(model)) for role, model in models.items()},
        "tasks": {role: task and [task.name, task.fingerprint()] for role, task in tasks.items()},
        "precision": precision,
        "options": told,
    }
    return json.loads(json.dumps(values, default=str))


def found(out: str | Path | None, decided: dict[str, Any], kind: type[R]) -> R | None:
    """Return the result that a folder holds if it is that of the same run; None if it is not, or there is none."""
    if out is None or not (Path(out) / "config.json").is_file():
        return None
    try:
        record = read_json(Path(out) / RECORD)
        return kind(**record["result"]) if record["decided_by"] == decided else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def keep(folder: Path, decided: dict[str, Any], result: FinetuneResult) -> None:
    """Write the record of a run into its folder."""
    write_json(folder / RECORD, {"decided_by": decided, "result": asdict(result)})
