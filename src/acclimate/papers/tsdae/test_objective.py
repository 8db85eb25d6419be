"""TSDAE against the loss of sentence-transformers, and the deletion of words."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.base.errors import UserError
from acclimate.engine.steps import Engine
from acclimate.evaluation.embeddings import load_pooling_head, pool_first_token
from acclimate.models.encoding import encode
from acclimate.models.loading import load_language_model
from acclimate.models.probe import attach
from acclimate.papers.tsdae.model import TiedDecoder
from acclimate.papers.tsdae.objective import DeleteWords, SentenceReconstruction
from acclimate.parts.masking.base import make_vocabulary
from acclimate.parts.objectives import Outputs, View
from acclimate.parts.objectives.base import mean_pool, split_texts
from tests.cases import each
from tests.parts.objectives.layouts import cut, packed, padded
from tests.tiny import ENCODERS, SIZES, TEXTS, save_tiny, tiny_model, tiny_tokenizer

sentence_transformers = pytest.importorskip("sentence_transformers")


def engine(folder, head=None, seed=0):
    """Return an engine of the objective, its model and the decoder."""
    model = load_language_model(folder).model
    layers = attach(model)
    torch.manual_seed(seed)
    decoder = TiedDecoder(model, layers)
    for parameter in decoder.parameters():  # larger than the initial values, so that the vector matters
        torch.nn.init.normal_(parameter, std=0.3)
    model.add_module("decoder", decoder.eval())
    return Engine(model, [SentenceReconstruction(decoder.decode, head)]), model, decoder


def library_loss(folder, pooling, decoder):
    """Return the loss of sentence-transformers with the weights of our cross-attention, and its encoder."""
    modules = sentence_transformers.sentence_transformer.modules
    encoder = sentence_transformers.SentenceTransformer(
        modules=[modules.Transformer(str(folder)), modules.Pooling(32, pooling)], device="cpu"
    )
    loss = sentence_transformers.sentence_transformer.losses.DenoisingAutoEncoderLoss(encoder)
    for layer, cross in zip(loss.decoder.base_model.encoder.layer, decoder, strict=True):
        theirs = layer.crossattention
        theirs.self.value.load_state_dict(cross.value.state_dict())
        theirs.output.dense.load_state_dict(cross.output.state_dict())
        theirs.output.LayerNorm.load_state_dict(cross.norm.state_dict())
    return loss.eval(), encoder


@each(("kind", "pooling"), [("bert", "mean"), ("roberta", "cls"), ("electra", "mean")])
def test_equals_the_loss_of_sentence_transformers(kind, pooling, tmp_path):
    folder = save_tiny(kind, tmp_path, initializer_range=0.2)  # smaller weights predict about uniformly
    ours, model, decoder = engine(folder, pool_first_token if pooling == "cls" else None)
    batch = padded(rewritings=ours.rewritings)
    loss, encoder = library_loss(folder, pooling, decoder)
    damaged = batch.view_input(ours.views[0].tokens)
    features = [
        {"input_ids": ids, "attention_mask": (text >= 0).long()}
        for ids, text in ((damaged.ids, damaged.text), (batch.original, batch.text))
    ]
    expected = loss(features, None)
    expected.backward()
    found = ours.step([batch])
    torch.testing.assert_close(found["tsdae"], expected.detach(), atol=1e-5, rtol=1e-5)
    theirs = dict(encoder[0].auto_model.named_parameters())
    compared = 0
    for name, parameter in model.base_model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(parameter.grad, theirs[name].grad, atol=2e-5, rtol=1e-3, msg=name)
            compared += 1
    assert compared > 30
    assert found["tsdae"] > 5  # far from uniform


@each("kind", sorted(ENCODERS))
def test_the_decoder_reads_earlier_tokens_and_the_vector(kind):
    model = tiny_model(kind, initializer_range=0.2)
    decoder = TiedDecoder(model, attach(model)).eval()
    batch = packed(padded())
    vectors = torch.randn(batch.texts, 32, requires_grad=True)
    states = decoder.decode(batch.original, batch.text, vectors)
    place = (batch.text == 1).nonzero()[3]
    row, token = place.tolist()
    (gradient,) = torch.autograd.grad(states[row, token].square().sum(), vectors)
    assert (gradient.abs().amax(1) > 0).tolist() == [number == 1 for number in range(batch.texts)]
    later = batch.original.clone()
    later[row, token + 1 :] = 40
    changed = decoder.decode(later, batch.text, vectors)
    torch.testing.assert_close(changed[row, : token + 1], states[row, : token + 1])
    assert (changed[row, token + 1] - states[row, token + 1]).abs().max() > 1e-3
    before = model.base_model(input_ids=batch.original[:1]).last_hidden_state
    decoder.remove()
    torch.testing.assert_close(model.base_model(input_ids=batch.original[:1]).last_hidden_state, before)


def test_micro_batches_packed_rows_and_checkpointing_change_nothing(tmp_path):
    folder = save_tiny("bert", tmp_path, initializer_range=0.2)

    def step(arrange, checkpointed=False):
        ours, model, _ = engine(folder)
        if checkpointed:
            ours.set_gradient_checkpointing(True, 64)
            model.train()
            for module in model.modules():
                module.p = 0.0
                module.dropout_prob = 0.0
        terms = ours.step(arrange(padded(rewritings=ours.rewritings)))
        return terms["tsdae"], {name: p.grad for name, p in model.named_parameters() if p.grad is not None}

    loss, gradients = step(lambda batch: [batch])
    for other, there in (
        step(lambda batch: cut(batch, 3)),
        step(lambda batch: [replace(packed(replace(batch, rewritten={})), rewritten=batch.rewritten)]),
        step(lambda batch: [batch], True),
    ):
        torch.testing.assert_close(other, loss, atol=1e-5, rtol=1e-5)
        for name, gradient in gradients.items():
            torch.testing.assert_close(there[name], gradient, atol=2e-5, rtol=1e-3, msg=name)


def test_a_model_that_keeps_its_own_attention_is_refused():
    config = transformers.DebertaV2Config(**{**SIZES, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]})
    model = transformers.DebertaV2ForMaskedLM(config)
    with pytest.raises(UserError, match=r"cannot read from left to right.*Use simcse"):
        TiedDecoder(model, attach(model))


def test_texts_of_packed_rows_are_split():
    batch = packed(padded())
    hidden = torch.randn(*batch.text.shape, 6)
    states, real = split_texts(hidden, batch.text, batch.texts)
    for number in range(batch.texts):
        torch.testing.assert_close(states[number][real[number]], hidden[batch.text == number])
    mean = (states * real[..., None]).sum(1) / real.sum(1, keepdim=True)
    torch.testing.assert_close(mean, mean_pool(hidden, batch.text, batch.texts))


def test_the_vector_is_that_of_the_sentence_encoder(tmp_path):
    modules = sentence_transformers.sentence_transformer.modules
    encoder = sentence_transformers.SentenceTransformer(
        modules=[
            modules.Transformer(str(save_tiny("bert", tmp_path / "plain"))),
            modules.Pooling(32, ["mean", "max"]),
            modules.Dense(64, 32),
            modules.Normalize(),
        ],
        device="cpu",
    )
    encoder.save(str(tmp_path / "encoder"), create_model_card=False)
    model = load_language_model(tmp_path / "encoder").model
    attach(model)
    head = load_pooling_head(tmp_path / "encoder", model.device)
    ids = [tiny_tokenizer()(text)["input_ids"] for text in TEXTS]
    for arrange in (lambda batch: batch, packed):
        batch = arrange(padded(ids))
        view = View("original")
        found = Outputs({view: encode(model, batch.original, batch.text)}, batch, {}).pooled(view, head)
        assert np.abs(found[np.argsort(batch_order(batch, ids))].detach().numpy() - encoder.encode(TEXTS)).max() < 1e-5
    assert load_pooling_head(tmp_path / "plain", model.device) is None


def batch_order(batch, ids):
    """Return the index of each text of a batch among the given ones."""
    return [ids.index(batch.original[batch.text == number].tolist()) for number in range(batch.texts)]


WORD_LISTS = st.lists(
    st.lists(st.sampled_from("good ! pizzas food xyz 1".split()), max_size=9), min_size=1, max_size=4
)


@settings(max_examples=30, deadline=None)
@given(texts=WORD_LISTS, rate=st.sampled_from([0.0, 0.5, 0.99]), seed=st.integers(0, 5))
def test_whole_words_are_deleted_and_one_remains(texts, rate, seed):
    tokenizer = tiny_tokenizer()
    rows = [tokenizer(" ".join(words))["input_ids"] for words in texts]
    width = max(map(len, rows))
    ids = np.array([row + [0] * (width - len(row)) for row in rows])
    text = np.array([[number] * len(row) + [-1] * (width - len(row)) for number, row in enumerate(rows)])
    allowed = ~np.isin(ids, tokenizer.all_special_ids)
    seeds = [seed * 100 + number for number in range(len(rows))]
    new, number = DeleteWords(rate)(ids, text, allowed, make_vocabulary(tokenizer), seeds)
    for index, words in enumerate(texts):
        left = tokenizer.decode(new[index][number[index] == index]).replace(" ##", "").split()
        assert (left[0], left[-1]) == ("[CLS]", "[SEP]")
        remaining = iter(words)
        assert all(word in remaining for word in left[1:-1]), "a subsequence of the words"
        assert len(left) - 2 >= min(1, len(words))
        assert rate or len(left) - 2 == len(words)
    again, _ = DeleteWords(rate)(ids, text, allowed, make_vocabulary(tokenizer), seeds)
    assert (again == new).all()


def test_about_the_rate_is_deleted():
    ids = np.full((1, 2000), tiny_tokenizer().convert_tokens_to_ids("good"))
    new, number = DeleteWords(0.6)(ids, 0 * ids, ids > 0, make_vocabulary(tiny_tokenizer()), [1])
    assert 0.35 < (number >= 0).mean() * new.shape[1] / 2000 < 0.45
