"""The default recipe of fine-tuning: steps decide on few rows, and the learning rate follows from the width."""

from __future__ import annotations

import json
import logging
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acclimate import finetune
from acclimate.base.bounds import MAX_SEED
from acclimate.base.errors import UserError
from acclimate.base.options import build
from acclimate.data.task_kinds import load_task
from acclimate.tasks import recipe
from acclimate.tasks.interfaces import resolve_options
from acclimate.tasks.options import FinetuneOptions
from tests.test_cli import call
from tests.tiny import save_tiny

finetuning = sys.modules["acclimate.tasks.finetune"]

ROWS = [
    {"text": f"good {number}" if number % 2 else f"bad {number}", "label": "ab"[number % 2]} for number in range(24)
]


@given(st.integers(1, 100_000), st.integers(1, 512))
def test_no_training_is_short_and_no_long_one_gets_longer(rows, batch):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipe, "STEPS", 300)
        epochs, steps = recipe.default_epochs(rows, batch), -(-rows // batch)
    assert epochs >= recipe.EPOCHS and epochs * steps >= 300
    assert epochs == recipe.EPOCHS or (epochs - 1) * steps < 300
    assert recipe.default_epochs(rows, batch, contrastive=True) == recipe.EPOCHS


@given(st.integers(1, 20_000))
def test_the_learning_rate_falls_with_the_width(width):
    rate = recipe.default_rate(width)
    assert rate == pytest.approx(min(recipe.HIGHEST_RATE, 2e-4 * 384 / width), rel=0.05)
    assert recipe.rates_to_try(width) == pytest.approx([rate / 2, rate, 2 * rate], rel=0.05)
    assert recipe.default_rate(None) == recipe.default_rate(384)


def test_what_is_given_wins_without_a_minimum(tiny_bert, tmp_path, monkeypatch):
    monkeypatch.setattr(recipe, "STEPS", 300)
    task = load_task({"train": ROWS, "test": ROWS})

    def resolved(**options):
        found, _ = resolve_options(build(FinetuneOptions, tiny_bert, task, **options), task, tiny_bert)
        return found.epochs, found.learning_rate

    assert resolved() == (150, recipe.HIGHEST_RATE)
    assert resolved(few_shot=4) == (300, recipe.HIGHEST_RATE)
    assert resolved(epochs=1, learning_rate=1e-5) == (1, 1e-5)
    wide = save_tiny("bert", tmp_path / "wide", hidden_size=768, num_hidden_layers=1, num_attention_heads=1)
    found, _ = resolve_options(build(FinetuneOptions, wide, task), task, wide)
    assert found.learning_rate == 1e-4
    rows = [{"query": "q", "passage": "p"}]
    pairs = load_task({"train": rows * 2, "test": rows}, task_kind="retrieval")
    found, _ = resolve_options(build(FinetuneOptions, tiny_bert, pairs), pairs, tiny_bert)
    assert (found.epochs, found.learning_rate) == (recipe.EPOCHS, recipe.CONTRASTIVE_RATE)


@pytest.mark.slow
def test_a_training_that_stops_too_early_says_so(tiny_bert, caplog):
    rows = {"train": ROWS, "test": ROWS}
    with caplog.at_level(logging.WARNING):
        early = finetune(tiny_bert, rows, epochs=6, learning_rate=2e-3, batch_size=4, progress=False)
    assert "still fell steeply at the end" in early.warning and early.warning in caplog.text
    assert "--epochs 24" in early.warning and len(early.losses) == 20
    enough = finetune(tiny_bert, rows, epochs=20, learning_rate=2e-3, batch_size=4, progress=False)
    assert not enough.warning and enough.metrics["accuracy"] == 1.0


def test_the_learning_rate_is_chosen_on_dev_once(tiny_bert, tmp_path, monkeypatch, capsys):
    """The trials read no test row, and a second call trains nothing."""
    tried = []
    run = finetuning._finetune

    def counted(options):
        tried.append((options.learning_rate, options.seed, {row.text.split()[0] for row in options.task.test}))
        return run(options)

    monkeypatch.setattr(finetuning, "_finetune", counted)
    for split, count in (("train", 16), ("dev", 8), ("test", 8)):
        rows = [{"text": f"{split} {number}", "label": "ab"[number % 2]} for number in range(count)]
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ["finetune", "--model", tiny_bert, "--task", tmp_path, "--tune", "--epochs", 1, "--seeds", 2]
    code, shown, _ = call(monkeypatch, capsys, *command, "--out", tmp_path / "out", "--quiet")
    rates = recipe.rates_to_try(32)
    assert code == 0 and tried == [(rate, MAX_SEED, {"dev"}) for rate in rates], shown
    chosen = {json.loads((tmp_path / f"out/seed-{seed}/metrics.json").read_text())["learning_rate"] for seed in (0, 1)}
    assert len(chosen) == 1 and chosen < {*rates}
    assert call(monkeypatch, capsys, *command, "--out", tmp_path / "out", "--quiet")[0] == 0 and len(tried) == 3
    with pytest.raises(UserError, match="needs a dev split"):
        finetune(tiny_bert, {"train": ROWS, "test": ROWS}, tune=True, progress=False)
    with pytest.raises(UserError, match="remove 'learning_rate'"):
        finetune(tiny_bert, {"train": ROWS, "test": ROWS}, tune=True, learning_rate=1e-3)
