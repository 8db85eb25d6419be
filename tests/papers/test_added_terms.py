"""The added loss terms train: they fall on held-out or training text and have the intended effect."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import transformers

from acclimate.adaptation.adapt import adapt
from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from acclimate.models.loading import dropout_rates, load_language_model
from tests.cases import each
from tests.papers.test_contract import SHORT
from tests.tiny import TEXTS, save_tiny, tiny_tokenizer

DOCUMENTS = [f"{text} {number}" for text in TEXTS for number in range(8)]
HELD = Corpus.of(
    [
        "the soup was not fresh and the waiter was slow",
        "a table of the score and the loss of the model",
        "cold wine and a good price for the pizza",
        "we test the layer on the text of the paper",
        "the menu is bad but the food is good",
        "is the result of the method on the data good?",
    ]
)


def run(model, method, out, **options):
    options = {**SHORT, "steps": 40, "batch_size": 16, **options}
    return adapt(model, Corpus.of(DOCUMENTS), method, out, **options)


@pytest.mark.parametrize("method", ["simcse", "taco"])
def test_the_added_term_falls_on_held_out_text(tiny_bert, tmp_path, method):
    run(tiny_bert, method, tmp_path / "out", heldout=HELD, heldout_every=20)
    lines = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    found = [line["heldout"]["terms"][method] for line in lines if "heldout" in line]
    assert len(found) >= 3
    assert found[-1] < found[0] - 0.02


@pytest.mark.slow
def test_tacl_loss_falls(tiny_bert, tmp_path):
    """On training text, since the base model already solves the few held-out texts."""
    run(tiny_bert, "tacl", tmp_path / "out", steps=100)
    lines = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    found = [line["terms"]["tacl"] for line in lines if "terms" in line]
    assert np.mean(found[-10:]) < 0.6 * np.mean(found[:5])


@pytest.mark.slow
def test_infoword_loss_falls(tiny_bert, tmp_path):
    """On training text; on held-out text it rises, since the model memorises so few texts."""
    run(tiny_bert, "infoword", tmp_path / "out", steps=150)
    lines = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    found = [line["terms"]["infoword"] for line in lines if "terms" in line]
    assert found[-1] < 0.8 * found[0]


@pytest.mark.slow
def test_distillation_keeps_hidden_states_close_to_the_base_model(tiny_bert, tmp_path):
    run(tiny_bert, "mlm", tmp_path / "mlm")
    run(tiny_bert, "kd", tmp_path / "kd", settings={"weight": 30.0})
    ids = tiny_tokenizer()(list(HELD), return_tensors="pt", padding=True)
    with torch.no_grad():
        start, mlm, kd = (
            load_language_model(folder).model.base_model(**ids).last_hidden_state[ids["attention_mask"] > 0]
            for folder in (tiny_bert, tmp_path / "mlm", tmp_path / "kd")
        )
    assert (kd - start).norm() < 0.8 * (mlm - start).norm()


def test_methods_that_contrast_dropout_masks_need_dropout(tmp_path):
    """ALBERT and ModernBERT have none; ``dropout`` sets it for the adaptation only, not in the saved config."""
    dry = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    albert = save_tiny("albert", tmp_path / "albert", **dry)
    for method in ("simcse", "dga"):
        for settings in ({}, {"importance": "random"}) if method == "dga" else ({},):
            with pytest.raises(UserError, match=r"dropout 0\.1"):
                run(albert, method, tmp_path / "out", settings=settings, steps=2)
    run(albert, "mlm", tmp_path / "plain", steps=2)
    run(albert, "dga", tmp_path / "out", dropout=0.1, steps=2, settings={"importance_tokens": 100})
    config = transformers.AutoConfig.from_pretrained(tmp_path / "out")
    assert {name: getattr(config, name) for name in dry} == dry
    assert json.loads((tmp_path / "out" / "acclimate.json").read_text())["dropout"] == 0.1


@each("kind", ["bert", "albert", "modernbert", "distilbert"])
def test_the_dropout_option_applies_to_every_layer(kind, tmp_path):
    folder = save_tiny(kind, tmp_path / kind)
    assert dropout_rates(load_language_model(folder, dropout=0.25).model) == [0.25]
    assert not any(dropout_rates(load_language_model(folder, dropout=0).model))
    with pytest.raises(UserError, match="dropout must be from 0"):
        load_language_model(folder, dropout=1.5)
