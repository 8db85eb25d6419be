"""Every family of decoders against its own loss in transformers, and end to end."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from acclimate.adaptation.adapt import adapt
from acclimate.data.documents import Corpus
from acclimate.engine.batches import Collator
from acclimate.engine.steps import Engine
from acclimate.models.encoding import encode
from acclimate.models.kinds import CAUSAL
from acclimate.models.loading import dropout_rates, load_language_model
from acclimate.models.probe import attach
from acclimate.parts.masking import RandomMasking
from acclimate.parts.objectives import Distillation, LanguageModelling, TextContrast
from tests.cases import each
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


@pytest.mark.parametrize("kind", sorted(DECODERS))
def test_dropout_is_applied_and_not_saved(decoders, kind, tmp_path):
    """LFM2 has no dropout of its own, GPT-2 has other names for it, and most others have it in the attention."""
    loaded = load_language_model(decoders[kind], dropout=0.2)
    model, ids = loaded.model, torch.arange(5, 25)[None]
    attach(model)
    assert {0.2} <= set(dropout_rates(model)) <= {0.0, 0.2}
    first, second = (encode(model.train(), ids, torch.zeros_like(ids)) for _ in range(2))
    assert (first - second).abs().max() > 1e-4
    plain = load_language_model(decoders[kind], dropout=0.0).model
    attach(plain)
    expected = encode(plain, ids, torch.zeros_like(ids))
    torch.testing.assert_close(encode(model.eval(), ids, torch.zeros_like(ids)), expected)
    torch.testing.assert_close(encode(plain.train(), ids, torch.zeros_like(ids)), expected)
    model.save_pretrained(tmp_path)
    saved, before = (json.loads((folder / "config.json").read_text()) for folder in (tmp_path, decoders[kind]))
    assert saved == before | {"dtype": saved["dtype"]}


@each("tokens", ["masked", "original"])
def test_where_nothing_is_masked_both_views_are_one(tiny_llama, tokens):
    """Each text is read once where terms ask for the masked and for the original tokens, with equal values."""
    model, plain = (load_language_model(tiny_llama).model for _ in range(2))
    with torch.no_grad():
        for value in model.parameters():
            value.add_(0.02 * torch.randn(value.shape, generator=torch.Generator().manual_seed(0)))
    for reader in (model, plain):
        attach(reader)
    rows = [np.array(decoder_tokenizer()(text)["input_ids"]) for text in TEXTS]
    batches = Collator.of(decoder_tokenizer(), RandomMasking(), CAUSAL, 120)(rows, np.random.default_rng(0))
    objective = pytest.importorskip("acclimate.papers.taco.objective")
    terms = [LanguageModelling(), Distillation(tokens=tokens), objective.ContextContrast(tokens=tokens)]
    engine = Engine(model, terms, reference=plain)
    assert engine.student_views == 1 and len(engine.views) == 2
    found = engine.step(batches, backward=False)
    states = [
        [reader.model(torch.from_numpy(row)[None]).last_hidden_state[0] for row in rows] for reader in (plain, model)
    ]
    before, after = (torch.cat(of_model).log_softmax(-1) for of_model in states)
    assert found["kd"].item() == pytest.approx((before.exp() * (before - after)).sum(-1).mean().item(), rel=1e-4)
    assert found["taco"] > 0
    assert Engine(model, [LanguageModelling(), TextContrast(tokens=tokens)]).student_views == 2
