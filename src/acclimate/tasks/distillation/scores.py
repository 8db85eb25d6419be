"""What a model scores before distillation; measured once, since several distillations start from the same models."""

from __future__ import annotations

from typing import Any

from acclimate.backbone.device import Precision
from acclimate.evaluation.one_answer import OneAnswer, one_answer
from acclimate.files import read_json, write_json
from acclimate.tasks.cached import hash_rows, kept_if_possible, what_computes
from acclimate.tasks.classification import ClassificationLearner
from acclimate.tasks.outcome import warn_of_one_answer
from acclimate.training.run import cache_folder, cache_key


def scores(learner: ClassificationLearner, precision: Precision) -> dict[str, dict[str, Any]]:
    """Return the metrics on ``"test"`` and, if there is one, on ``"dev"``: from the cache, or measured and left there.

    It warns of a model that gives nearly all test items the same answer.

    Args:
        learner: A model that knows its task.
        precision: Of the forward.
    """
    task = learner.task
    splits = ["test", *(["dev"] if task.dev else [])]
    decides = {
        **what_computes(learner.model, learner.tokenizer, precision),
        "rows": [hash_rows(learner.rows(getattr(task, split))) for split in splits],
        "scoring": [[task.kind, task.scoring(split, learner.negative).details()] for split in splits],
        "labels": task.labels,
    }
    file = cache_folder() / "scores" / f"{cache_key(decides)}.json"
    try:
        found, only = read_json(file)
    except (OSError, ValueError, TypeError):  # absent, or damaged
        measured = {split: learner.measure(split, precision) for split in splits}
        found = {split: what.metrics for split, what in measured.items()}
        only = one_answer(measured["test"].gold, measured["test"].predicted)
        with kept_if_possible("Scores", file):
            write_json(file, [found, only])
    if only is not None:
        warn_of_one_answer(OneAnswer(*only), len(task.test), task.name, learner.readable)
    return found
