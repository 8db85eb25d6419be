"""Forgetting, drift and contamination with the real backend, on a tiny random model."""

from __future__ import annotations

import json
import random

import pytest

from acclimate.study.compare import compare
from tests.tiny import WORDS, save_tiny

pytestmark = pytest.mark.usefixtures("no_report")

LEAKED = "bad the waiter had a cold soup and the menu was on the table for an hour"


def sentences(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    words = [word for word in WORDS if word.isalpha() and len(word) > 1]
    return [" ".join(rng.choices(words, k=rng.randint(9, 14))) for _ in range(count)]


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))
    save_tiny("bert", tmp_path / "model")
    for name, lines in (
        ("domain", [*sentences(0, 60), f"we train the model on this data and {LEAKED} as it was not quick or kind"]),
        ("heldout", sentences(1, 20)),
        ("general", sentences(2, 30)),
    ):
        (tmp_path / f"{name}.txt").write_text("".join(line + "\n" for line in lines))
    for number, task in enumerate(("task", "other")):
        (tmp_path / task).mkdir()
        for split, count in (("train", 16), ("test", 24)):
            texts = [
                f"{('bad', 'good')[i % 2]} {line}" for i, line in enumerate(sentences(10 * number + count, count))
            ]
            if (task, split) == ("task", "test"):
                texts[0] = LEAKED
            rows = [{"text": text, "label": ("no", "yes")[i % 2]} for i, text in enumerate(texts)]
            (tmp_path / task / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


@pytest.mark.slow
def test_all_measurements_of_one_study(place):
    (place / "study.yaml").write_text(
        "models: [model]\nmethods: [none, mlm, {name: prompt, length: 4, adapt: {learning_rate: 0.1}}]\n"
        "domains: [{name: d, corpus: domain.txt, heldout: heldout.txt, tasks: [task]}]\ngeneral: general.txt\n"
        "other_tasks: [task, other]\nleakage: remove\n"
        "adapt: {steps: 2, batch_size: 8, max_length: 24, learning_rate: 0.01}\n"
        "finetune: {epochs: 1, max_length: 24}\n"
        "evaluate: {documents: 10, max_length: 24, drift: true, meters: true, recovery: 2}\nseeds: 2\n"
    )
    results = compare(place / "study.yaml", place / "out", progress=False)
    assert results["jobs"]["failed"] == 0
    leaked, *trains = results["contamination"]
    assert [(row["train_of"], row["documents"], row["flagged"]) for row in trains] == [
        ("task", 16, 0),
        ("other", 16, 0),
    ]
    assert (leaked["flagged"], leaked["removed"]) == (1, True)
    test = next(row for row in leaked["texts"] if row["task"] == "task")
    assert (test["texts"], test["contained"]) == (24, 1)
    folders = [place / "out" / run["folder"] for run in results["adaptations"]]
    assert {json.loads((folder / "acclimate.json").read_text())["text"]["documents"] for folder in folders} == {60}
    assert {(row["method"], row["task"]) for row in results["forgetting"]} == {
        (method["label"], "other") for method in results["methods"][1:]
    }
    rows = {row["method"]: row for row in results["rows"]["drift"]}
    mlm, prompt = (rows[method["label"]] for method in results["methods"][1:])
    assert all(layer["cka"] < 1 for layer in mlm["layers"]) and mlm["embeddings"]["distance"] > 0
    # A soft prompt does not change the embeddings of words, so the input of the first layer stays the same.
    assert prompt["embeddings"]["distance"] == 0 and prompt["layers"][0]["cka"] == pytest.approx(1)
    assert prompt["layers"][-1]["cka"] < 1 and prompt["tokens"] == mlm["tokens"]
    meters = {row["method"]: row for row in results["rows"]["meters"]}
    assert meters[mlm["method"]].kl_domain > 0 and meters[mlm["method"]].distance > 0
    assert meters[prompt["method"]].kl_domain is None  # it reads other rows
    for row in results["rows"]["meters"]:
        (loss,) = (loss for loss in results["losses"] if (loss["method"], loss["text"]) == (row.method, "general"))
        after = dict(zip(loss["adapt_seeds"], loss["by_seed"], strict=True))[row.adapt_seed]
        assert row.forgotten == pytest.approx(after - loss["before"], abs=1e-6)
    losses = [row for row in results["losses"] if row["text"] == "general" and "before" in row]
    ratios = {round(row["bits_per_byte"] / row["nats"], 9) for row in losses}
    assert len(ratios) == 1  # text and tokenizer are the same, so bits per byte are nats times one constant
    assert compare(place / "study.yaml", place / "out", progress=False)["jobs"]["done"] == 0
