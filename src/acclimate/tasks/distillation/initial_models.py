"""The models that a distillation starts from: the fine-tuned teacher and student, and their scores; all are cached."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from transformers import set_seed

from acclimate.adaptation.method import cache_key
from acclimate.base.device import Precision, to_device
from acclimate.base.files import cache_folder, read_json, warn_on_write_error, write_json
from acclimate.data.task_kinds import find_task_kind
from acclimate.evaluation.scoring import Collapse
from acclimate.tasks.finetune import finetune
from acclimate.tasks.interfaces import LabelledTask, Learner, ResolvedOptions
from acclimate.tasks.result import warn_of_collapse
from acclimate.tasks.training_cache import computation_key, load_or_train


def load_or_finetune(
    path: str | Path,
    task: LabelledTask,
    options: ResolvedOptions,
    precision: Precision,
    device: torch.device,
    out: str | Path | None = None,
) -> tuple[Learner, float, bool]:
    """Return a model of the task: the given model if it already is one, else the fine-tuned model.

    The fine-tuned model is cached, so that neither an interrupted distillation nor another one with the same teacher
    or student repeats the fine-tuning.

    Args:
        path: A model folder or a name on the Hugging Face Hub.
        task: The task.
        options: Options of fine-tuning.
        precision: The resolved precision.
        device: The default device.
        out: Output directory of the fine-tuned model, used instead of the cache; None for the cache.

    Returns:
        The model; the seconds that fine-tuning took, now or when it was cached; and whether the model was fine-tuned.

    Raises:
        UserError: As :func:`acclimate.finetune`.
    """
    kind = find_task_kind(task)
    seconds, known = 0.0, kind.is_model_of(path, task)
    if not known and out is not None:
        seconds = finetune_into(out, path, task, options, precision)
        path = out
    set_seed(options.seed)  # before the new weights are initialized
    learner: Learner = kind.learner(path, task, options, device)
    to_device(learner.head.model)
    if not known and out is None:
        seconds = load_or_train(learner, learner.rows(task.train), options, precision)
    return learner, seconds, not known


def finetune_into(
    out: str | Path, path: str | Path, task: LabelledTask, options: ResolvedOptions, precision: Precision
) -> float:
    """Fine-tune a model into a folder, unless the folder already contains the result; return the seconds it took."""
    # The metric only selects among epochs, which does not apply here, and it may exist for dev only.
    asked = {name: value for name, value in asdict(options).items() if name not in ("precision", "metric")}
    return finetune(path, task, out=out, precision=precision, **asked).seconds


def load_or_evaluate(learner: Learner, precision: Precision) -> dict[str, dict[str, Any]]:
    """Return the metrics on ``"test"`` and, if it exists, ``"dev"``, from the cache if possible.

    Log a warning if the model gives nearly all test items the same answer.

    Args:
        learner: A model of its task.
        precision: Precision of the forward pass.
    """
    task = learner.task
    splits = ["test", *(["dev"] if task.dev else [])]
    decides = {
        **computation_key(learner.head.model, learner.head.tokenizer, precision),
        "task": [task.fingerprint(), learner.head.max_length],
        "scoring": [[task.scoring().name, task.scoring(split, learner.negative).details()] for split in splits],
    }
    file = cache_folder() / "scores" / f"{cache_key(decides)}.json"
    try:
        found, only = read_json(file)
    except (OSError, ValueError, TypeError):  # missing or damaged
        measured = {split: learner.measure(split, precision) for split in splits}
        found = {split: what.metrics for split, what in measured.items()}
        only = task.scoring(negative=learner.negative).find_collapse(measured["test"].gold, measured["test"].predicted)
        with warn_on_write_error("Scores", file):
            write_json(file, [found, only])
    if only is not None:
        warn_of_collapse(Collapse(*only), len(task.test), task.name, learner.readable)
    return found
