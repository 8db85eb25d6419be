"""Causal language models, from loading to the held-out loss, against plain transformers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from acclimate.corpus import Corpus
from acclimate.errors import UserError
from acclimate.evaluation import language_model_loss
from acclimate.masking import RandomMasking
from acclimate.models import CAUSAL, MASKED, attach, kind_of_checkpoint, load_language_model
from acclimate.models.checkpoints import instructions
from acclimate.objectives import LanguageModelling
from acclimate.training import adapt
from acclimate.training.batches import Collator
from acclimate.training.engine import Engine
from tests.cases import each
from tests.conftest import SHARED

STORIES = SHARED / "models" / "stories260k"
TEXTS = [
    "Once upon a time there was a little girl named Lily.",
    "She loved to play outside in the park with her red ball and her small brown dog. One day it rained.",
    "The end.",
    "Tom saw a big tree. He wanted to climb it, but his mom said it was too high for him.",
    "A cat sat.",
    "Ben and Mia went to the beach. They made a castle of sand, and the sea took it away.",
]


@pytest.fixture
def stories():
    if not STORIES.is_dir():
        pytest.skip("the shared models are not here")
    return STORIES


def expected_loss(texts):
    """The summed loss of transformers, text by text, its gradients, and the number of predicted tokens."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(STORIES), AutoTokenizer.from_pretrained(STORIES)
    total, count = torch.zeros(()), 0
    for text in texts:
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        total = total + model(input_ids=ids, labels=ids).loss * (ids.shape[1] - 1)
        count += ids.shape[1] - 1
    (total / count).backward()
    return total.item(), count, {name: value.grad for name, value in model.named_parameters()}


@pytest.mark.parametrize("layout", ["padded", "packed"])
@pytest.mark.parametrize("kernels", ["auto", "torch"])
def test_loss_and_gradients_are_those_of_transformers(stories, layout, kernels, monkeypatch):
    monkeypatch.setenv("ACCLIMATE_KERNELS", kernels)
    total, count, gradients = expected_loss(TEXTS)
    loaded = load_language_model(stories)
    assert loaded.kind is CAUSAL and not loaded.absent_head
    assert "load_language_model" in instructions(type(loaded.model).__name__, "adapters", "here")
    attach(loaded.model)
    rows = [np.array(loaded.tokenizer(text)["input_ids"]) for text in TEXTS]
    collator = Collator.of(loaded.tokenizer, RandomMasking(), loaded.kind, 10_000, layout)
    batches = collator(rows, np.random.default_rng(0))
    assert len(batches[0].text) == len(TEXTS) if layout == "padded" else len(batches[0].text) < len(TEXTS)
    assert all(torch.equal(batch.masked, batch.original) for batch in batches)
    engine = Engine(loaded.model, [LanguageModelling()])
    terms = engine.step(batches)
    assert terms["clm"].item() == pytest.approx(total / count, rel=1e-5)
    for name, value in loaded.model.named_parameters():
        torch.testing.assert_close(value.grad, gradients[name], atol=1e-5, rtol=1e-3)


def test_held_out_loss(stories):
    total, count, _ = expected_loss(TEXTS)
    found = language_model_loss(stories, TEXTS)
    assert (found["masked"], found["texts"]) == (count, len(TEXTS))
    assert found["nats"] == pytest.approx(total / count, rel=1e-5)


def test_the_method_lm_adapts_a_decoder(stories, tmp_path):
    options = {"steps": 8, "batch_size": 6, "precision": "fp32", "progress": False, "learning_rate": 1e-3}
    before = language_model_loss(stories, TEXTS)["nats"]
    result = adapt(stories, Corpus.of(TEXTS), "lm", tmp_path / "out", layout="packed", **options)
    assert not result.masked and "clm" in result.losses
    card = (tmp_path / "out" / "README.md").read_text()
    assert "pipeline_tag: text-generation" in card and "AutoModelForCausalLM" in card
    assert language_model_loss(tmp_path / "out", TEXTS)["nats"] < before - 0.1
    AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    with pytest.raises(UserError, match="trained without masking; remove the option 'masking'"):
        adapt(stories, Corpus.of(TEXTS), "lm", tmp_path / "no", masking="span", **options)
    with pytest.raises(UserError, match=r"'mlm' is for masked language models, but .* is a causal one; use .* lm"):
        adapt(stories, Corpus.of(TEXTS), "mlm", tmp_path / "no", **options)


@each("name", ["T5ForConditionalGeneration", "Strange"])
def test_a_class_of_no_known_kind_is_named(name):
    with pytest.raises(UserError, match=f"No language model could be loaded from 'folder': {name} is neither"):
        kind_of_checkpoint([name], "folder")


def test_models_without_a_language_model_head_are_masked():
    tasks = ("SequenceClassification", "TokenClassification", "QuestionAnswering", "PreTraining", "MultipleChoice")
    names = ["BertModel", "ModernBertModel", "T5EncoderModel", *(f"RobertaFor{task}" for task in tasks)]
    assert all(kind_of_checkpoint([name], "folder") is MASKED for name in (*names, "BertForMaskedLM"))
    assert all(kind_of_checkpoint(nothing, "folder") is MASKED for nothing in (None, [], 3, [None]))
