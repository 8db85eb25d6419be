"""Held-out loss during training: its value is right, training is not affected, and a kill loses no value."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import transformers

from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.heldout import measure_heldout_terms
from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from acclimate.engine.batches import Collator
from acclimate.engine.steps import Engine
from acclimate.models.kinds import MASKED
from acclimate.models.probe import attach
from acclimate.parts.masking import RandomMasking
from acclimate.parts.objectives import LanguageModelling, TextContrast
from acclimate.tasks.kinds.classification.data import Task
from tests.adaptation.helpers import rows
from tests.kills import killed
from tests.papers.test_contract import HELD, weights
from tests.test_cli import call
from tests.tiny import TEXTS, tiny_model, tiny_tokenizer

DOCUMENTS = [f"{text} {number}" for text in TEXTS for number in range(4)]
OPTIONS = {"batch_size": 4, "max_length": 24, "learning_rate": 1e-3, "precision": "fp32", "progress": False}


@torch.no_grad()
def direct(model, batches):
    """The masked-LM loss in a plain loop over positions; return its sum and the number of positions."""
    total, count = 0.0, 0
    model.eval()
    for batch in batches:
        for ids, labels, text in zip(batch.masked, batch.labels, batch.text, strict=True):
            length = int((text >= 0).sum())
            logits = model(input_ids=ids[None, :length]).logits[0].log_softmax(-1)
            for place in range(length):
                if labels[place] >= 0:
                    total -= float(logits[place, labels[place]])
                    count += 1
    return total, count


@torch.no_grad()
def test_terms_are_those_of_a_direct_computation():
    model = tiny_model("bert")
    attach(model)
    model.train()
    engine = Engine(model, [LanguageModelling(), TextContrast(weight=0.5)])
    collator, rng = Collator.of(tiny_tokenizer(), RandomMasking(0.3), MASKED, 60), np.random.default_rng(0)
    texts = [np.asarray(row) for row in rows(2)]
    steps = [collator(texts[:5], rng), collator(texts[5:14], rng), collator(texts[14:], rng)]
    assert len({sum(int((batch.labels >= 0).sum()) for batch in step) for step in steps}) > 1
    state = torch.get_rng_state()
    found = measure_heldout_terms(engine, steps)
    assert torch.equal(torch.get_rng_state(), state) and model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    sums = [direct(model, step) for step in steps]
    assert found["mlm"] == pytest.approx(sum(total for total, _ in sums) / sum(count for _, count in sums), abs=1e-5)
    contrast = TextContrast()
    per_step = []
    for step, count in zip(steps, (5, 9, 2), strict=True):
        engine.readers["student"].eval()
        parts = [contrast.represent(engine.read(batch, engine.views)) for batch in step]
        per_step.append((float(contrast.loss(torch.cat(parts))), count))
    name = contrast.name
    assert found[name] == pytest.approx(sum(value * count for value, count in per_step) / 16, abs=1e-5)
    assert found["loss"] == pytest.approx(found["mlm"] + 0.5 * found[name], abs=1e-5)
    assert measure_heldout_terms(engine, steps) == found


def run(model, out, **options):
    return adapt(model, Corpus.of(DOCUMENTS), "mlm", out, **{**OPTIONS, "steps": 5, **options})


def lines(out):
    return [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]


def held(out):
    return [(line["step"], line["heldout"]) for line in lines(out) if "heldout" in line]


def test_it_is_measured_at_start_interval_and_end_and_changes_nothing(tiny_bert, tmp_path):
    run(tiny_bert, tmp_path / "plain")
    result = run(tiny_bert, tmp_path / "held", heldout=HELD, heldout_every=2)
    one, other = (weights(tmp_path / name) for name in ("plain", "held"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert [step for step, _ in held(tmp_path / "held")] == [0, 2, 4, 5]
    trained = [line for line in lines(tmp_path / "held") if "heldout" not in line]
    assert [line["loss"] for line in trained] == [line["loss"] for line in lines(tmp_path / "plain")]
    tokens = {line["step"]: line["tokens"] for line in trained}
    assert all(line["tokens"] == tokens.get(line["step"], 0) for line in lines(tmp_path / "held"))
    assert (result.parameters["heldout"], result.parameters["heldout_every"]) == (HELD.fingerprint, 2)
    # The last value is recomputed from the saved model.
    tokenizer = tiny_tokenizer()
    encoded = [np.asarray(tokenizer(text)["input_ids"]) for text in HELD]
    collator, rng = Collator.of(tokenizer, RandomMasking(0.15), MASKED, 10_000), np.random.default_rng([0, 5])
    batches = [*collator(encoded[:4], rng), *collator(encoded[4:], rng)]
    total, count = direct(transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "held"), batches)
    assert held(tmp_path / "held")[-1][1]["terms"]["mlm"] == pytest.approx(total / count, abs=1e-5)


@pytest.mark.parametrize("at", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_kill_loses_or_duplicates_no_value(tiny_bert, tmp_path, at):
    run(tiny_bert, tmp_path / "whole", heldout=HELD, heldout_every=2)
    with killed(at):
        run(tiny_bert, tmp_path / "cut", heldout=HELD, heldout_every=2, save_every=2)
    run(tiny_bert, tmp_path / "cut", heldout=HELD, heldout_every=2, save_every=2)
    assert held(tmp_path / "cut") == held(tmp_path / "whole")


@pytest.mark.slow
def test_measuring_is_not_counted_as_training(tiny_bert, tmp_path, monkeypatch):
    import time

    import acclimate.adaptation.heldout as module

    def slow(engine, steps, seed=0):
        time.sleep(1.0)
        return measure_heldout_terms(engine, steps, seed)

    monkeypatch.setattr(module, "measure_heldout_terms", slow)
    assert run(tiny_bert, tmp_path / "out", heldout=HELD, heldout_every=1, steps=2).seconds < 2.0


@pytest.mark.needs("tapt")
def test_both_stages_measure_the_same_text(tiny_bert, tmp_path):
    rows = [{"text": f"the wine was good {number}", "label": ("no", "yes")[number % 2]} for number in range(8)]
    task = Task.of("small", rows, rows[:2])
    adapt(
        tiny_bert, Corpus.of(DOCUMENTS), "dapt+tapt task_steps=2", tmp_path / "out", task=task,
        heldout=HELD, heldout_every=9, **{**OPTIONS, "steps": 3},
    )  # fmt: skip
    found = [(line["stage"], line["step"]) for line in lines(tmp_path / "out") if "heldout" in line]
    assert found == [(1, 0), (1, 3), (2, 3), (2, 5)]
    values = [values["loss"] for _, values in held(tmp_path / "out")]
    assert values[1] == pytest.approx(values[2], abs=1e-6)


def test_interval_without_text_and_command_line(tiny_bert, tmp_path, monkeypatch, capsys):
    with pytest.raises(UserError, match="--heldout"):
        run(tiny_bert, tmp_path / "out", heldout_every=2)
    with pytest.raises(UserError, match="heldout_every"):
        run(tiny_bert, tmp_path / "out", heldout=HELD, heldout_every=0)
    for name, texts in (("corpus", DOCUMENTS), ("held", HELD)):
        (tmp_path / f"{name}.txt").write_text("\n".join(texts))
    code, _, _ = call(
        monkeypatch, capsys, "adapt", "--model", tiny_bert, "--corpus", tmp_path / "corpus.txt", "--steps", 2,
        "--heldout", tmp_path / "held.txt", "--max-length", 24, "--out", tmp_path / "cli", "--quiet",
    )  # fmt: skip
    assert code == 0 and [step for step, _ in held(tmp_path / "cli")] == [0, 2]
