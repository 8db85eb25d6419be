"""The stages before distillation: a teacher, and a student, that know the task."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from transformers import AutoConfig

from acclimate.errors import UserError, first_line


def is_classifier_of(path: str | Path, labels: Sequence[str], several: bool) -> bool:
    """Say whether a checkpoint already is a classifier of these labels, in this order.

    Args:
        path: A model folder, or a name on the hub.
        labels: The classes of a task.
        several: Whether an example of the task may have several labels.

    Raises:
        UserError: If there is no model.
    """
    try:
        config = AutoConfig.from_pretrained(str(path))
    except (OSError, ValueError) as error:
        raise UserError(f"No model could be read from '{path}': {first_line(error)}") from error
    names = getattr(config, "id2label", None) or {}
    return (
        any(name.endswith("ForSequenceClassification") for name in config.architectures or [])
        and [names.get(place) for place in range(len(names))] == list(labels)
        and (config.problem_type == "multi_label_classification") == several
    )
