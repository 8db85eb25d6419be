"""What a model scores before distillation; measured once, since several distillations start from the same models."""

from __future__ import annotations

import logging
from typing import Any

import torch

from acclimate.backbone.device import Precision
from acclimate.errors import first_line
from acclimate.files import read_json, write_json
from acclimate.tasks.cached import hash_rows
from acclimate.tasks.classification import ClassificationLearner
from acclimate.training.run import cache_folder, cache_key, fingerprint_weights
from acclimate.version import __version__

log = logging.getLogger(__name__)


def scores(learner: ClassificationLearner, precision: Precision) -> dict[str, dict[str, Any]]:
    """Return the metrics on ``"test"`` and, if there is one, on ``"dev"``: from the cache, or measured and left there.

    Args:
        learner: A model that knows its task.
        precision: Of the forward.
    """
    task = learner.task
    splits = ["test", *(["dev"] if task.dev else [])]
    decides = {
        "weights": fingerprint_weights(learner.model),
        "rows": [hash_rows(learner.rows(getattr(task, split))) for split in splits],
        "scoring": [[task.kind, task.scoring(split, learner.negative).details()] for split in splits],
        "labels": task.labels,
        "how": [learner.classifier.device.type, precision, torch.__version__, __version__],
    }
    file = cache_folder() / "scores" / f"{cache_key(decides)}.json"
    try:
        return dict(read_json(file))
    except (OSError, ValueError):  # absent, or damaged
        found = {split: learner.measure(split, precision).metrics for split in splits}
    try:
        write_json(file, found)
    except OSError as error:  # a full or read-only disk costs time later, not this run
        log.warning("Scores could not be kept in '%s': %s.", file.parent, first_line(error))
    return found
