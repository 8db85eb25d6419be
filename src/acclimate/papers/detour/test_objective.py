"""The loss of the causal phase, against single texts with a causal mask and against decoders of ``transformers``."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.masking_utils import create_bidirectional_sliding_window_mask

from acclimate.base.errors import UserError
from acclimate.engine.ledger import SourceLedger
from acclimate.engine.steps import Engine
from acclimate.models.encoding import decode
from acclimate.models.families import probe_of
from acclimate.models.probe import attach, check_reads_left_to_right
from acclimate.papers.detour.objective import CausalThenMasked
from acclimate.parts.objectives import LanguageModelling
from tests.cases import each
from tests.parts.objectives.layouts import cut, packed, padded
from tests.tiny import ENCODERS, SIZES, tiny_model

MORE = {
    "eurobert": (transformers.EuroBertConfig, {**SIZES, "num_key_value_heads": 2, "head_dim": 8}),
    "nomic_bert": (transformers.NomicBertConfig, SIZES),
    "mpnet": (transformers.MPNetConfig, SIZES),
}
"""Rotary positions with grouped queries, rotary positions, and relative positions with an attention of its own."""
PACK = [*sorted(ENCODERS), "eurobert", "nomic_bert"]


def make(kind):
    """Return a random model, whose weights are so large that every token matters."""
    if kind in ENCODERS:
        return tiny_model(kind, initializer_range=0.2)
    config, sizes = MORE[kind]
    torch.manual_seed(0)
    return transformers.AutoModelForMaskedLM.from_config(config(**sizes, initializer_range=0.2)).eval()


def causal_engine(model, causal=0.9):
    """An engine of the loss in its first phase, and the gradients of a step."""
    attach(model)
    return Engine(model, [CausalThenMasked(model, causal)])


def gradients(model):
    return {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}


@each(("kind", "pack"), [*((kind, False) for kind in [*PACK, "mpnet"]), *((kind, True) for kind in PACK)])
def test_no_later_token_changes_an_earlier_state(kind, pack):
    """After each token of a text all later ones are changed at once; a text in the same row changes nothing either."""
    model = make(kind)
    attach(model)
    check_reads_left_to_right(model)
    assert probe_of(model).packs == (kind in PACK)
    ids = (torch.arange(26) * 31) % 90 + 10
    rows = ids.repeat(20, 1)
    for place in range(20):
        rows[place, place + 1 : 20] = (rows[place, place + 1 : 20] + 7) % 90 + 10
    text = (torch.arange(26) >= 20).long().repeat(20, 1) if pack else torch.zeros(20, 26, dtype=torch.long)
    if not pack:
        text[:, 20:], ids[20:], rows[:, 20:] = -1, 0, 0
    with torch.no_grad():
        changed = decode(model, rows, text)
        whole = changed[19]
    for place in range(20):
        torch.testing.assert_close(changed[place, : place + 1], whole[: place + 1], atol=1e-6, rtol=0)
        if place < 18:
            assert (changed[place, place + 1 : 20] - whole[place + 1 : 20]).abs().amax(1).min() > 1e-3
    if pack:
        torch.testing.assert_close(changed[:, 20:], whole[None, 20:].expand(20, -1, -1), atol=1e-6, rtol=0)
        alone = decode(model, ids[None, 20:], text[:1, 20:])[0]
        torch.testing.assert_close(whole[20:], alone, atol=1e-5, rtol=1e-5)


def slow_loss(model, texts):
    """The mean loss of the next token, by the model as the library has it, each text with a causal mask."""
    total, count = 0.0, 0
    for ids in texts:
        size = len(ids)
        mask = torch.ones(1, 1, size, size, dtype=torch.bool).tril()
        if getattr(model.config, "layer_types", None) and "sliding_attention" in model.config.layer_types:
            near = create_bidirectional_sliding_window_mask(model.config, torch.zeros(1, size, 32), None)
            mask = {"full_attention": mask, "sliding_attention": mask if near is None else mask & near}
        logits = model(input_ids=ids[None], attention_mask=mask).logits[0]
        for place in range(size - 1):
            total = total - logits[place].log_softmax(-1)[ids[place + 1]]
            count += 1
    return total / count


@pytest.mark.parametrize(
    "kind", [kind if kind in ("bert", "modernbert") else pytest.param(kind, marks=pytest.mark.slow) for kind in PACK]
)
def test_the_loss_of_the_first_phase_equals_that_of_single_texts_with_a_causal_mask(kind):
    """The loss and its gradient, whatever the layout of the step; nothing is predicted across texts of a row."""
    model, plain = make(kind), make(kind)
    assert plain.config._attn_implementation == "sdpa"
    engine = causal_engine(model)
    batch = padded()
    expected = slow_loss(plain, [batch.original[batch.text == number] for number in range(batch.texts)])
    expected.backward()
    theirs = gradients(plain)
    assert expected > 4 and len(theirs) > 10
    for batches in ([batch], cut(batch, 3), [packed(batch)]):
        model.zero_grad()
        terms = engine.step(batches)
        assert list(terms) == ["clm", "loss"] and engine.additive[0].count(batch) == batch.tokens - batch.texts
        torch.testing.assert_close(terms["clm"], expected.detach(), atol=1e-5, rtol=1e-5)
        for name, gradient in gradients(model).items():
            torch.testing.assert_close(gradient, theirs[name], atol=3e-5, rtol=1e-3, msg=name)


@each("kind", ["bert", "roberta"])
def test_it_is_the_loss_of_the_decoder_of_the_same_weights(kind):
    model = make(kind)
    decoder = transformers.AutoModelForCausalLM.from_config(
        type(model.config)(**{**model.config.to_dict(), "is_decoder": True})
    )
    assert not decoder.load_state_dict(model.state_dict(), strict=False).missing_keys
    decoder.eval()
    batch = padded()
    found, count = 0.0, 0
    for number in range(batch.texts):
        ids = batch.original[batch.text == number][None]
        found += decoder(input_ids=ids, labels=ids).loss.item() * (ids.shape[1] - 1)
        count += ids.shape[1] - 1
    terms = causal_engine(model).step([batch], backward=True)
    assert abs(float(terms["clm"]) - found / count) < 1e-5


@settings(max_examples=10, deadline=None)
@given(lengths=st.lists(st.integers(1, 12), min_size=1, max_size=5), pack=st.booleans())
def test_texts_of_any_length_have_the_loss_of_each_by_itself(lengths, pack):
    rng = np.random.default_rng(sum(lengths))
    batch = padded([rng.integers(5, 90, size).tolist() for size in lengths])
    texts = [batch.original[batch.text == number] for number in range(batch.texts)]
    engine = causal_engine(BERT)
    BERT.zero_grad()
    found = engine.step([packed(batch) if pack else batch])["clm"]
    if max(lengths) == 1:
        assert found == 0
    else:
        torch.testing.assert_close(found, slow_loss(PLAIN, texts).detach(), atol=1e-5, rtol=1e-5)


BERT, PLAIN = make("bert"), make("bert")


@each("kind", ["albert", "bert"])
def test_the_second_phase_is_lm_bit_for_bit(kind):
    """With dropout: the same loss, gradients and random numbers. So is what is measured, in both phases."""
    found = []
    for detour in (True, False):
        model = make(kind)
        attach(model)
        engine = Engine(model, [CausalThenMasked(model, 0.6) if detour else LanguageModelling()])
        measured = engine.step([padded()], backward=False)
        model.train()
        engine.progress = 0.6
        torch.manual_seed(3)
        found.append((measured, engine.step(cut(padded(), 3)), gradients(model), torch.rand(1)))
    (measured, terms, grads, chance), (lm_measured, lm_terms, lm_grads, lm_chance) = found
    assert terms == lm_terms and measured == lm_measured and terms.keys() == {"mlm", "loss"} and chance == lm_chance
    assert grads.keys() == lm_grads.keys() and all(torch.equal(grads[name], lm_grads[name]) for name in grads)


def test_the_loss_of_each_source_is_recorded_in_both_phases():
    model = make("bert")
    engine = causal_engine(model)
    batch = packed(padded())
    batch = replace(batch, source=torch.arange(batch.texts) % 2)
    for engine.progress, name in ((0.0, "clm"), (0.9, "mlm")):
        engine.ledger = SourceLedger(2)
        found = engine.step([batch])[name]
        sums, counts = engine.ledger.total()
        assert counts.sum() == engine.additive[0].count(batch) and (counts > 0).all()
        assert sums.sum() / counts.sum() == pytest.approx(float(found), rel=1e-5)


def test_recomputed_layers_have_the_same_gradient():
    found = []
    for checkpointed in (False, True):
        model = make("bert")
        engine = causal_engine(model)
        if checkpointed:
            engine.set_gradient_checkpointing(True, 64)
        model.train()
        for module in model.modules():
            module.p = module.dropout_prob = 0.0
        found.append((engine.step([padded()])["clm"], gradients(model)))
    (loss, plain), (again, recomputed) = found
    torch.testing.assert_close(loss, again)
    for name, gradient in plain.items():
        torch.testing.assert_close(recomputed[name], gradient, atol=1e-6, rtol=1e-4, msg=name)


RELATIVE = {**SIZES, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}


@each(
    "model",
    [
        lambda: transformers.DebertaV2ForMaskedLM(transformers.DebertaV2Config(**RELATIVE)),
        lambda: transformers.DebertaForMaskedLM(transformers.DebertaConfig(**RELATIVE)),
        lambda: transformers.FNetForMaskedLM(transformers.FNetConfig(**SIZES)),
    ],
)
def test_an_architecture_that_cannot_read_from_left_to_right_is_refused_by_name(model):
    model = model().eval()
    attach(model)
    with pytest.raises(UserError, match=f"{type(model).__name__} cannot read from left to right: .* such as BERT"):
        check_reads_left_to_right(model)
