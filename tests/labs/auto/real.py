"""A small tournament with the real backend."""

from __future__ import annotations

import json
import random
from pathlib import Path
from unittest.mock import patch

import acclimate
from acclimate.labs.auto import plan, race, stages
from acclimate.study import pricing
from tests.tiny import WORDS, save_tiny


def write_files(folder: Path, kind: str) -> Path:
    """Write a tiny random model, texts and a task."""
    rng = random.Random(0)
    words = [word for word in WORDS if word.isalpha() and len(word) > 1]

    def sentence() -> str:
        return " ".join(rng.choices(words, k=rng.randint(4, 14)))

    save_tiny(kind, folder / "model")
    for name, count in (("domain", 300), ("general", 200)):
        (folder / f"{name}.txt").write_text("".join(sentence() + "\n" for _ in range(count)))
    (folder / "task").mkdir()
    for split, count in (("train", 16), ("dev", 60), ("test", 24)):
        rows = [
            {"text": f"{('bad', 'good')[i % 2]} {sentence()}", "label": ("no", "yes")[i % 2]} for i in range(count)
        ]
        (folder / "task" / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def run(folder: Path, out: Path, **changes):
    """Run the tournament, with the limits of sizes lowered."""
    settings = {"adapt.batch_size": 8, "adapt.max_length": 16, "finetune.epochs": 1, "finetune.max_length": 16}
    given = {"general": folder / "general.txt", "minutes": 30, "tokens": 130, "methods": "tapt", **changes}
    settings |= {"evaluate.max_length": 16, "evaluate.documents": 10}
    with (
        patch.object(plan, "FEWEST_TOKENS", 40),
        patch.object(plan, "FEWEST_DEV_ITEMS", 40),
        patch.object(plan, "MOST_CLAIM_SEEDS", 3),
        patch.object(race, "MOST_CLAIM_SEEDS", 3),
        patch.object(stages, "MONITORED_DOCUMENTS", 8),
        patch.object(pricing, "PILOT_SECONDS", 0.2),
    ):
        texts = (folder / "model", folder / "domain.txt", folder / "task", out)
        return acclimate.auto(*texts, settings=settings, progress=False, **given)
