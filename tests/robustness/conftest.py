"""The commands on tiny models, and the result of each when nothing interrupts it."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.robustness.killed_process import Ended, run
from tests.tiny import TEXTS, WORDS, save_tiny

SHORT = ["--batch-size", 6, "--max-length", 24, "--precision", "fp32", "--quiet"]


@pytest.fixture(scope="session")
def commands(tmp_path_factory) -> dict[str, list]:
    """Arguments of each command; all write to ``out`` in the folder in which they run."""
    place = tmp_path_factory.mktemp("given")
    chance = random.Random(0)
    words = [word for word in WORDS if word.isalpha() and len(word) > 1]

    def sentence() -> str:
        return " ".join(chance.choices(words, k=chance.randint(4, 14)))

    model, other = save_tiny("bert", place / "bert"), save_tiny("roberta", place / "roberta", seed=1)
    corpus = place / "corpus.txt"
    corpus.write_text("".join(f"{text} {number}\n" for text in TEXTS for number in range(4)))
    general = place / "general.txt"
    general.write_text("".join(sentence() + "\n" for _ in range(30)))
    task = place / "task"
    task.mkdir()
    for split, count in (("train", 16), ("dev", 8), ("test", 8)):
        rows = [
            {"text": f"{('bad', 'good')[n % 2]} {sentence()}", "label": ("no", "yes")[n % 2]} for n in range(count)
        ]
        (task / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    study = place / "study.yaml"
    study.write_text(
        f"models: [{model}]\nmethods: [none, mlm]\nseeds: 1\n"
        f"domains: [{{name: d, corpus: {corpus}, heldout: {general}, tasks: [{task}]}}]\ngeneral: {general}\n"
        "adapt: {steps: 3, batch_size: 6, max_length: 16, precision: fp32, save_every: 2}\n"
        "finetune: {epochs: 1, max_length: 16, precision: fp32}\nevaluate: {documents: 10, max_length: 16}\n"
    )
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "max_position_embeddings": 64}
    changes = [part for name, value in sizes.items() for part in ("--set", f"{name}={value}")]
    labelled = ["--task", task, "--seeds", 2, "--max-length", 16, "--precision", "fp32", "--quiet", "--out", "out"]
    return {
        "adapt": [
            *("adapt", "--model", model, "--corpus", corpus, "--steps", 5, "--save-every", 2, "--out", "out"),
            *SHORT,
        ],
        "pretrain": [
            *("pretrain", "--corpus", corpus, "--steps", 4, "--save-every", 3, "--keep-steps", 2, "--out", "out"),
            *("--vocab-size", 150, *changes, *SHORT),
        ],
        "finetune": ["finetune", "--model", model, "--epochs", 1, "--select", "dev", *labelled],
        "distill": [
            *("distill", "--teacher", model, "--student", other, "--epochs", 2, "--distill-share", 0.5),
            *("--teacher-epochs", 1, "--student-epochs", 1, *labelled),
        ],
        "compare": ["compare", study, "--out", "out"],
    }


@pytest.fixture(scope="session")
def undisturbed(commands, tmp_path_factory):
    """Return a function that maps a command to the folder and outcome of an undisturbed run; each is run once."""
    done: dict[str, tuple[Path, Ended]] = {}

    def look(verb: str) -> tuple[Path, Ended]:
        if verb not in done:
            folder = tmp_path_factory.mktemp("whole") / verb
            done[verb] = folder, run(commands[verb], folder)
            assert done[verb][1].code == 0, done[verb][1].said
        return done[verb]

    return look
