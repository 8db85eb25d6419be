"""A model and a task become a folder of annotations: what ``acclimate annotate`` does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from acclimate.backbone.device import choose_precision, default_device
from acclimate.errors import check_not_negative
from acclimate.files import check_replaceable, new_folder, write_json
from acclimate.selective.annotating import FILE, annotate, sample, write_annotations
from acclimate.selective.fine_tuning import FineTuning, against_chance, check_task, fine_tune, open_classifier, warn
from acclimate.selective.options import AnnotationOptions
from acclimate.tasks import Task, load_task
from acclimate.tasks.loading import knows_task
from acclimate.training.course import check_seed

ACCOUNT = "account.json"


@dataclass(frozen=True)
class AnnotatedTask:
    """What was found.

    Attributes:
        account: Of fine-tuning (or of the classifier that was given) and of the annotation, plain values.
        samples: Some texts with their important tokens in brackets.
    """

    account: dict[str, Any]
    samples: list[str]


def annotate_task(
    model: str | Path,
    task: Task | str | Path,
    out: str | Path,
    options: AnnotationOptions,
    tuning: FineTuning | None = None,
    *,
    seed: int = 42,
    samples: int = 5,
    precision: str = "auto",
    progress: bool = True,
) -> AnnotatedTask:
    """Find the important tokens of the train split of a task, and write them to a folder.

    Args:
        model: A classifier of the task, used as it is; anything else is fine-tuned first, and kept in the folder.
        task: The task or its folder.
        out: Folder to make: ``annotated.jsonl`` with a line for each text, ``account.json``.
        options: The rule.
        tuning: How to fine-tune.
        seed: Of fine-tuning and of the samples.
        samples: How many texts to return.
        precision: Of fine-tuning; the annotation is always in fp32.
        progress: Show bars.

    Raises:
        UserError: If the model or the task cannot be used, a number has no sense, or the folder holds something else.
    """
    check_seed(seed)
    check_not_negative(samples=samples)
    data = check_task(load_task(task) if isinstance(task, str | Path) else task)
    tuning = tuning or FineTuning()
    check_replaceable(out, ACCOUNT, "annotations")
    chosen = choose_precision(precision, default_device())
    with new_folder(out) as folder:
        account: dict[str, Any] = {"model": str(model), "task": data.name, "fingerprint": data.fingerprint()}
        place: str | Path = model
        if not knows_task(model, data):
            place = folder / "classifier"
            account["finetune"] = fine_tune(
                model, data, Path(place), tuning, seed=seed, precision=chosen, progress=progress
            )
        classifier = open_classifier(place, data, tuning.max_length)
        if "finetune" not in account:
            split, items = ("dev", data.dev) if data.dev else ("test", data.test)
            gold = np.array([example.label for example in items])
            right = classifier.probabilities(items, "fp32").argmax(1).numpy() == gold
            account["finetune"] = against_chance(split, gold.tolist(), float(right.mean()))
            warn(account["finetune"])
        found = annotate(classifier, data.train, options, progress=progress)
        account["annotate"] = found.account
        write_annotations(folder / FILE, found.annotated, classifier.tokenizer, data.labels)
        write_json(folder / ACCOUNT, account)
    drawn = np.random.default_rng(seed).permutation(len(found.annotated))[:samples]
    names = [data.labels[int(found.annotated[place].unit.label)] for place in drawn]
    texts = [sample(found.annotated[place], classifier.tokenizer) for place in drawn]
    return AnnotatedTask(account, [f"{name}: {text}" for name, text in zip(names, texts, strict=True)])
