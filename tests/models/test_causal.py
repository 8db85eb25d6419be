"""Causal language models, from loading to the held-out loss, against plain transformers."""

from __future__ import annotations

import functools
import traceback

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.cache_utils import Cache
from transformers.models.llama.modeling_llama import LlamaModel

from acclimate.adaptation.adapt import adapt
from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from acclimate.engine.batches import Collator
from acclimate.engine.steps import Engine
from acclimate.evaluation.lm_loss import language_model_loss
from acclimate.labs.inspection.drift import measure_drift
from acclimate.labs.inspection.importance import inspect_importance
from acclimate.models.encoding import check_packable, encode, encode_positions
from acclimate.models.families import language_head, rotary_switch
from acclimate.models.kinds import CAUSAL, MASKED, kind_of_checkpoint
from acclimate.models.loading import load_language_model
from acclimate.models.probe import attach
from acclimate.models.saving import instructions
from acclimate.parts.masking import RandomMasking
from acclimate.parts.objectives import LanguageModelling
from tests import tiny
from tests.cases import each
from tests.fixtures import SHARED
from tests.kills import counted, killed
from tests.tiny import decoder_tokenizer, tiny_model

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


def summed(model, collator, rows):
    """The terms and gradients of a step over some rows."""
    model.zero_grad()
    batches = collator(rows, np.random.default_rng(0))
    terms = Engine(model, [LanguageModelling()]).step(batches)
    return len(batches), terms["clm"], {name: value.grad.clone() for name, value in model.named_parameters()}


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_a_step_does_not_depend_on_its_micro_batches(kind):
    """Eight micro-batches of one text, one of eight, and rows of several texts; sums over the texts alone."""
    model, tokenizer = tiny_model(kind), decoder_tokenizer(kind)
    attach(model)
    rows = [np.array(tokenizer(text)["input_ids"]) for text in tiny.TEXTS]
    assert len(rows) == 8
    collators = {
        name: Collator.of(tokenizer, RandomMasking(), CAUSAL, tokens, layout)
        for name, tokens, layout in [("one", 10_000, "padded"), ("eight", 1, "padded"), ("packed", 10_000, "packed")]
    }
    count, loss, gradients = summed(model, collators["one"], rows)
    assert count == 1
    alone = [summed(model, collators["one"], [row]) for row in rows]
    parts = np.array([len(row) - 1 for row in rows]) / sum(len(row) - 1 for row in rows)
    added = {name: sum(p * each[2][name] for p, each in zip(parts, alone, strict=True)) for name in gradients}
    torch.testing.assert_close(gradients, added, atol=1e-6, rtol=1e-4)
    for name, batches in [("eight", 8), ("packed", 1)]:
        found = summed(model, collators[name], rows)
        assert found[0] == batches
        torch.testing.assert_close(found[1:], (loss, gradients), atol=1e-6, rtol=1e-4)


def test_a_killed_adaptation_ends_in_the_same_weights(stories, tmp_path):
    options = {"steps": 6, "batch_size": 4, "precision": "fp32", "progress": False, "save_every": 2, "dropout": 0.1}
    options |= {"layout": "packed", "max_length": 24}
    adapt(stories, Corpus.of(TEXTS), "lm", tmp_path / "whole", **options)
    with killed(3):
        adapt(stories, Corpus.of(TEXTS), "lm", tmp_path / "killed", **options)
    with counted() as steps:
        adapt(stories, Corpus.of(TEXTS), "lm", tmp_path / "killed", **options)
    assert steps == [2, 3, 4, 5]
    whole, resumed = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "killed"))
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    start = load_file(stories / "model.safetensors")
    assert not torch.equal(whole["model.embed_tokens.weight"], start["model.embed_tokens.weight"])


def test_no_forward_pass_makes_a_cache_of_keys(stories, tmp_path, monkeypatch):
    """With one, transformers ignores the boundaries of packed texts. Only the probe calls models as others would."""
    made, forwards, make, forward = [], [], Cache.__init__, LlamaModel.forward

    def count_cache(self, *args, **kwargs):
        if not any(frame.filename.endswith("models/probe.py") for frame in traceback.extract_stack()):
            made.append(type(self))
        make(self, *args, **kwargs)

    @functools.wraps(forward)  # its signature says that it takes use_cache
    def count_forward(self, *args, **kwargs):
        forwards.append(1)
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(Cache, "__init__", count_cache)
    monkeypatch.setattr(LlamaModel, "forward", count_forward)
    out, texts = tmp_path / "out", Corpus.of(TEXTS)
    options = {"steps": 2, "batch_size": 4, "dropout": 0.1, "heldout": texts, "heldout_every": 1, "layout": "packed"}
    for run in (
        lambda: adapt(stories, texts, "lm", out, progress=False, **options),
        lambda: language_model_loss(out, TEXTS),
        lambda: inspect_importance(stories, {"stories": texts}, tokens=100, dropout=0.1, progress=False),
        lambda: measure_drift(stories, out, TEXTS),
    ):
        forwards.clear()
        run()
        assert forwards and not made
    AutoModelForCausalLM.from_pretrained(stories)(input_ids=torch.ones(1, 3, dtype=torch.long))
    assert made, "the default of transformers, which this test would notice"


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
    assert "mask rate" not in card
    assert language_model_loss(tmp_path / "out", TEXTS)["nats"] < before - 0.1
    AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    with pytest.raises(UserError, match="trained without masking; remove the option 'masking'"):
        adapt(stories, Corpus.of(TEXTS), "lm", tmp_path / "no", masking="span", **options)
    with pytest.raises(UserError, match=r"'mlm' is for masked language models, but .* is a causal one; use .* lm"):
        adapt(stories, Corpus.of(TEXTS), "mlm", tmp_path / "no", **options)


@each("name", ["OtherForImageGeneration", "Strange"])
def test_a_class_of_no_known_kind_is_named(name):
    with pytest.raises(UserError, match=f"No language model could be loaded from 'folder': {name} is neither"):
        kind_of_checkpoint([name], "folder")


def test_models_without_a_language_model_head_are_masked():
    tasks = ("SequenceClassification", "TokenClassification", "QuestionAnswering", "PreTraining", "MultipleChoice")
    names = ["BertModel", "ModernBertModel", "T5EncoderModel", *(f"RobertaFor{task}" for task in tasks)]
    assert all(kind_of_checkpoint([name], "folder") is MASKED for name in (*names, "BertForMaskedLM"))
    assert all(kind_of_checkpoint(nothing, "folder") is MASKED for nothing in (None, [], 3, [None]))


LONGROPE = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [4.0, 3.0, 2.0, 1.5]}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0}


@each(
    ("kind", "rope", "sizes"),
    [
        ("phi3", {**LONGROPE, "original_max_position_embeddings": 32}, {"original_max_position_embeddings": 32}),
        ("llama", DYNAMIC, {"max_position_embeddings": 32}),
    ],
)
def test_rotary_frequencies_that_follow_the_longest_text_are_those_of_each_text(kind, rope, sizes):
    """Texts on both sides of the length at which frequencies change, read together, after longer ones, and packed."""
    rope = {**rope, "rope_theta": 10_000.0}
    model = tiny_model(kind, rope_parameters=rope, **sizes)
    layers = attach(model)
    assert layers and rotary_switch(model) == 32
    rng = np.random.default_rng(0)
    texts = [rng.integers(5, 300, length) for length in (70, 20, 5, 32, 50)]
    alone = []
    for text in texts:
        fresh = tiny_model(kind, rope_parameters=rope, **sizes)
        alone.append(fresh(input_ids=torch.tensor(text)[None]).logits[0])
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(text) for text in texts], batch_first=True)
    number = torch.arange(len(texts))[:, None].where(torch.arange(70) < torch.tensor([[len(t)] for t in texts]), -1)
    head = language_head(model)
    with torch.no_grad():
        together = head(encode(model, ids, number))
        chosen = (number >= 0).flatten().nonzero()[:, 0]
        some = head(encode_positions(model, ids, number, chosen))
        expected = torch.cat([one.detach() for one in alone])
        torch.testing.assert_close(together[number >= 0], expected, atol=5e-5, rtol=1e-3)
        torch.testing.assert_close(some, expected, atol=5e-5, rtol=1e-3)
        later = head(encode(model, ids[4:, :50], number[4:, :50] * 0))[0]
        torch.testing.assert_close(later, alone[4].detach(), atol=5e-5, rtol=1e-3)
    check_packable(model, 32)
    with pytest.raises(UserError, match="rotary frequencies follow the longest text of more than 32 tokens"):
        check_packable(model, 33)
