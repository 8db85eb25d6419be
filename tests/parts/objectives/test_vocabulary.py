"""Losses over the vocabulary, some positions at a time."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, LlamaForCausalLM

from acclimate.engine.batches import Collator
from acclimate.engine.steps import Engine
from acclimate.evaluation.lm_loss import language_model_loss
from acclimate.kernels import Kernels, gradients
from acclimate.kernels.gradients import BF16Weights, deferred_vocabulary_grads
from acclimate.models import batching, families
from acclimate.models.encoding import encode
from acclimate.models.families import language_head
from acclimate.models.kinds import kind_of
from acclimate.models.probe import attach
from acclimate.parts.masking import RandomMasking
from acclimate.parts.objectives import LanguageModelling, Objective, Outputs, View
from acclimate.parts.objectives.vocabulary import cross_entropy, map_logits
from tests.parts.objectives.layouts import padded
from tests.tiny import TEXTS, decoder_tokenizer, tiny_model

WORDS, WIDTH = 37, 5


class Widest(TorchDispatchMode):
    """Records the shapes of all tensors that operations return, and of those that they are computed from."""

    def __init__(self):
        super().__init__()
        self.shapes = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else (result,):
            if isinstance(value, torch.Tensor):
                self.shapes.add(tuple(value.shape))
        return result

    def most_rows(self, vocabulary):
        """The maximum number of positions whose logits, or gradients of them, were in one tensor."""
        sizes = [torch.Size(shape[:-1]).numel() for shape in self.shapes if shape and shape[-1] == vocabulary]
        return max(sizes, default=0)


class Head(nn.Module):
    """A linear head with the extras of decoders: Gemma's softcap, Cohere's scale, a bias."""

    def __init__(self, cap, scale, bias, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.linear, self.cap, self.scale = nn.Linear(WIDTH, WORDS, bias=bias), cap, scale

    def forward(self, hidden):
        logits = self.linear(hidden) * self.scale
        return logits if self.cap is None else self.cap * torch.tanh(logits / self.cap)


def gradients_of(loss, *leaves):
    return torch.autograd.grad(loss, leaves)


@settings(max_examples=25, deadline=None)
@given(
    count=st.integers(0, 40),
    rows=st.integers(1, 45),
    cap=st.sampled_from([None, 0.7]),
    scale=st.sampled_from([1.0, 0.25]),
    bias=st.booleans(),
    weighted=st.booleans(),
    seed=st.integers(0, 99),
)
def test_values_and_gradients_are_those_of_all_logits_at_once(count, rows, cap, scale, bias, weighted, seed):
    head = Head(cap, scale, bias, seed)
    states = torch.randn(count, WIDTH, requires_grad=True)
    labels = torch.randint(0, WORDS, (count,))
    labels[::5] = -100  # not counted
    weights = torch.rand(count) if weighted else torch.ones(count)
    found = (map_logits(cross_entropy, [head], [states], labels, rows=rows) * weights).sum()
    logits = head(states)
    expected = sum(
        (-weights[i] * logits[i].log_softmax(-1)[labels[i]] for i in range(count) if labels[i] >= 0),
        start=torch.zeros(()) + 0 * logits.sum(),
    )
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    leaves = (states, *head.parameters())
    for ours, theirs in zip(gradients_of(found, *leaves), gradients_of(expected, *leaves), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("rows", [1, 7, 100])
def test_two_heads_are_read_at_the_same_positions(rows):
    """Distillation: the divergence from a teacher with a head and a width of its own."""
    student, teacher = Head(2.0, 1.0, True), Head(None, 0.5, False, seed=1)
    mine, its = torch.randn(20, WIDTH, requires_grad=True), torch.randn(20, WIDTH)

    def divergence(one, other):
        return (other.softmax(-1) * (other.log_softmax(-1) - one.log_softmax(-1))).sum(-1)

    found = map_logits(divergence, [student, torch.no_grad()(teacher)], [mine, its], rows=rows)
    expected = torch.stack([divergence(student(mine[i]), teacher(its[i]).detach()) for i in range(20)])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    leaves = (mine, *student.parameters())
    for ours, theirs in zip(gradients_of(found.sum(), *leaves), gradients_of(expected.sum(), *leaves), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("bf16", [False, True])
def test_a_product_with_aligned_columns_is_that_of_the_layer(bf16):
    """Values, gradients and the type of the result; a layer whose columns are aligned is left alone."""
    torch.manual_seed(0)
    for words in (WORDS, 40):
        head, states = nn.Linear(WIDTH, words), torch.randn(6, WIDTH, requires_grad=True)
        leaves = (states, *head.parameters())
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
            plain = head(states)
            with families._aligned(head):
                assert ("forward" in vars(head)) == (words == WORDS)
                found = head(states)
        assert "forward" not in vars(head) and found.dtype == plain.dtype and found.shape == plain.shape
        assert torch.equal(found, plain)
        for ours, theirs in zip(
            gradients_of(found.square().sum(), *leaves), gradients_of(plain.square().sum(), *leaves), strict=True
        ):
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("bf16", [False, True])
def test_the_gradients_of_tied_weights_add_up(bf16, monkeypatch):
    """With the kernels, which add them in place, and with bfloat16 copies of the weights."""
    monkeypatch.setattr(gradients, "MIN_OUTPUTS", 10)
    model = tiny_model("bert")
    kernels = Kernels("cpu", vocabulary_grads=True)
    attach(model)
    kernels.replace_layers(model)
    ids, text = padded().original, padded().text
    found = {}
    for rows in (None, 32):
        model.zero_grad()
        with BF16Weights(model)() if bf16 and rows else nullcontext(), deferred_vocabulary_grads():
            states = encode(model, ids, text).flatten(0, 1)
            map_logits(cross_entropy, [language_head(model)], [states], ids.flatten(), rows=rows).sum().backward()
        found[rows] = {name: value.grad for name, value in model.named_parameters() if value.grad is not None}
    assert len(states) > 64 and "bert.embeddings.word_embeddings.weight" in found[32]
    for name, whole in found[None].items():
        assert (found[32][name] - whole).norm() <= (0.03 if bf16 else 1e-5) * whole.norm() + 1e-5, name


def test_gradients_of_chunks_are_summed_in_fp32_under_autocast():
    torch.manual_seed(0)
    head = nn.Linear(32, 50, bias=False)
    states, labels = torch.randn(2_000, 32), torch.randint(0, 50, (2_000,))
    found = {}
    for name, rows, bf16 in [("exact", None, False), ("whole", None, True), ("chunks", 8, True)]:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
            total = map_logits(cross_entropy, [head], [states], labels, rows=rows).sum()
        (found[name],) = torch.autograd.grad(total, [head.weight])
    errors = {name: (value - found["exact"]).norm() / found["exact"].norm() for name, value in found.items()}
    assert errors["chunks"] < 1.5 * errors["whole"] < 0.02


class Sharpness(Objective):
    """A term that compares the student with its reference at the labelled positions."""

    name, weight, chosen_only = "sharpness", 1.0, True
    views = (View(), View(reader="reference"))

    def count(self, batch):
        return int((batch.labels >= 0).sum())

    def total(self, outputs):
        return outputs.map_logits(lambda one, other: (one.logsumexp(-1) - other.logsumexp(-1)) ** 2, self.views).sum()


@pytest.mark.parametrize("rows", [None, 3, 32, 1000])
def test_terms_read_logits_through_their_outputs(rows):
    batch = padded()
    head, frozen = Head(None, 1.0, True), Head(None, 1.0, True, seed=1)
    states = {view: torch.randn(*batch.text.shape, WIDTH, requires_grad=True) for view in Sharpness.views}
    outputs = Outputs(states, batch, {"student": head, "reference": frozen}, logit_rows=rows)
    total = Sharpness().total(outputs)
    chosen = batch.labels >= 0
    ours, its = (reader(states[view][chosen]) for reader, view in zip((head, frozen), Sharpness.views, strict=True))
    expected = ((ours.logsumexp(-1) - its.detach().logsumexp(-1)) ** 2).sum()
    torch.testing.assert_close(total, expected)
    total.backward()
    assert states[View()].grad is not None and head.linear.weight.grad is not None
    assert states[Sharpness.views[1]].grad is None and frozen.linear.weight.grad is None
    torch.testing.assert_close(head.linear.weight.grad, gradients_of(expected, head.linear.weight)[0])


def test_no_tensor_of_all_tokens_and_the_vocabulary():
    """A training step of a model with Llama's vocabulary, with shapes only (on the device ``meta``)."""
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=128_256, tie_word_embeddings=True, **sizes)
    most = {}
    for rows in (1_024, None):
        with torch.device("meta"):
            model = LlamaForCausalLM(config).train()
            ids = torch.zeros(2, 4_096, dtype=torch.long)
            mask = torch.zeros(2, 1, 4_096, 4_096)  # its values would be needed to make it
        with Widest() as widest:
            states = model.model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state.flatten(0, 1)
            map_logits(cross_entropy, [model.lm_head], [states], ids.flatten(), rows=rows).sum().backward()
        assert model.lm_head.weight.grad is model.model.embed_tokens.weight.grad is not None
        most[rows] = widest.most_rows(128_256)
    assert most == {1_024: 1_024, None: 2 * 4_096}, "and the check itself sees what it should"


@pytest.mark.parametrize("kind", ["llama", "gemma2"])  # the latter caps its logits
def test_steps_and_held_out_losses_hold_few_logits(kind, monkeypatch):
    """The engine and the held-out loss of a decoder, with the same results."""
    tokenizer, texts = decoder_tokenizer(kind), [" ".join(TEXTS)[:400]] * 2
    words = len(tokenizer)
    found = []
    for logits in (None, 1):
        if logits:
            monkeypatch.setitem(batching.LOGITS_AT_ONCE, "cpu", logits)
        model = tiny_model(kind)
        attach(model)
        collator = Collator.of(tokenizer, RandomMasking(), kind_of(model), 10_000)
        batches = collator([np.array(tokenizer(text)["input_ids"][:120]) for text in texts], np.random.default_rng(0))
        with Widest() as widest:
            terms = Engine(model, [LanguageModelling()]).step(batches)
            nats = language_model_loss(model, texts, tokenizer=tokenizer, max_length=120)["nats"]
        grads = {name: value.grad for name, value in model.named_parameters() if value.grad is not None}
        found.append((terms, grads, torch.tensor(nats)))
        assert words == model.config.vocab_size
        assert widest.most_rows(words) <= 32 if logits else widest.most_rows(words) > 64
    torch.testing.assert_close(found[1], found[0], atol=1e-5, rtol=1e-5)
