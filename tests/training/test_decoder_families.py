"""Every family of decoders against its own loss in transformers, and end to end."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from acclimate.corpus import Corpus
from acclimate.masking import RandomMasking
from acclimate.models import CAUSAL, attach
from acclimate.objectives import LanguageModelling
from acclimate.training import adapt
from acclimate.training.batches import Collator
from acclimate.training.engine import Engine
from tests.tiny import DECODERS, HYBRIDS, TEXTS, decoder_tokenizer, tiny_model

LAYOUTS = [(kind, layout) for kind in sorted(DECODERS) for layout in ("padded", "packed")[: 2 - (kind in HYBRIDS)]]
"""Families whose layers are not all attention keep one text per row."""
LARGE = {"initializer_range": 0.3}
"""Weights with which the bound that Gemma 2 puts on attention scores and logits matters."""


@pytest.mark.parametrize(("kind", "layout"), LAYOUTS)
def test_loss_and_gradients_are_those_of_the_model_text_by_text(kind, layout):
    tokenizer = decoder_tokenizer(kind)
    rows = [np.array(tokenizer(text)["input_ids"]) for text in TEXTS if text != "pizza"]
    model = tiny_model(kind, **LARGE)
    count = sum(len(row) - 1 for row in rows)
    total = torch.zeros(())
    for row in rows:
        ids = torch.from_numpy(row)[None]
        total = total + model(input_ids=ids, labels=ids, use_cache=False).loss * (len(row) - 1)
    (total / count).backward()
    expected = {name: value.grad.clone() for name, value in model.named_parameters()}
    model.zero_grad()
    attach(model)
    collator = Collator.of(tokenizer, RandomMasking(), CAUSAL, 120, layout)
    batches = collator(rows, np.random.default_rng(0))
    texts_per_row = [len(np.unique(row[row >= 0])) for batch in batches for row in batch.text.numpy()]
    assert (max(texts_per_row) > 1) == (layout == "packed")
    assert len(batches) > 1
    terms = Engine(model, [LanguageModelling()]).step(batches)
    assert terms["clm"].item() == pytest.approx(total.item() / count, rel=1e-5)
    for name, value in model.named_parameters():
        error = (value.grad - expected[name]).abs().max() / expected[name].abs().max().clamp(min=1e-6)
        assert error < 1e-3, name


@pytest.mark.parametrize("kind", sorted({kind for kind, _ in LAYOUTS}))
def test_adapts_and_loads_without_acclimate(decoders, kind, tmp_path):
    """All steps read the same eight texts, so the loss has to fall."""
    layout = "padded" if kind in HYBRIDS else "packed"
    common = {"max_length": 24, "learning_rate": 1e-2, "warmup": 0.0, "dropout": 0.0, "precision": "fp32"}
    corpus = Corpus.of([text[:40] for text in TEXTS])
    adapt(
        decoders[kind], corpus, "lm", tmp_path / "out", steps=2, batch_size=8, layout=layout, progress=False, **common
    )
    first, second = (json.loads(line)["loss"] for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines())
    assert second < first - 0.02
    model, info = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    before = AutoModelForCausalLM.from_pretrained(decoders[kind])
    assert model.config.to_dict() == {**before.config.to_dict(), "_name_or_path": model.config._name_or_path}
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.get_vocab() == decoder_tokenizer(kind).get_vocab()
    inputs = tokenizer("the food", return_tensors="pt", return_token_type_ids=False)
    made = model.generate(**inputs, max_new_tokens=4, do_sample=False)
    with torch.no_grad():
        assert made[0, inputs["input_ids"].shape[1]] == model(**inputs).logits[0, -1].argmax()
        assert not torch.equal(model(**inputs).logits, before(**inputs).logits)
