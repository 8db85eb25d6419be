"""Encoder-decoders: loading, probing, and losses and gradients equal to those of the model's own forward pass."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import T5ForTokenClassification

from acclimate.base.errors import UserError
from acclimate.engine.batches import Collator
from acclimate.engine.steps import Engine
from acclimate.models import probe
from acclimate.models.encoding import check_packable, encode, encode_layers
from acclimate.models.families import probe_of
from acclimate.models.kinds import SEQ2SEQ
from acclimate.models.loading import is_encoder, load_language_model
from acclimate.models.probe import attach
from acclimate.parts.masking import get
from acclimate.parts.objectives import LanguageModelling
from tests.tiny import ENCODER_DECODERS, TEXTS, pair_tokenizer, save_tiny, tiny_model


def read(model, kind, name, tokens):
    """Return the terms and gradients of a step of the engine, and its micro-batches."""
    rows = [np.array(pair_tokenizer(kind)(text)["input_ids"]) for text in TEXTS]
    collator = Collator.of(pair_tokenizer(kind), get(name), SEQ2SEQ, tokens)
    batches = collator(rows, np.random.default_rng(0))
    attach(model)
    model.zero_grad()
    terms = Engine(model, [LanguageModelling()]).step(batches)
    gradients = {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}
    return float(terms["denoising"]), gradients, batches


QUICK = ("t5", "bart")


@pytest.mark.parametrize(
    "kind", [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.slow) for kind in ENCODER_DECODERS]
)
def test_loss_and_gradients_equal_those_of_the_models_own_forward_pass(kind):
    model = tiny_model(kind)
    for name in ("sentinels", "denoisers") if "t5" in kind else ("infilling",):
        loss, gradients, batches = read(model, kind, name, 120)
        assert len(batches) > 1
        model.zero_grad()
        total, count = 0.0, 0
        for ids in (ids[text >= 0] for batch in batches for ids, text in zip(batch.masked, batch.text, strict=True)):
            source, target = ids[ids >= 0], ~ids[ids < 0]
            own = model(input_ids=source[None], labels=target[None])
            total, count = total + own.loss * len(target), count + len(target)
        total = total / count
        total.backward()
        assert loss == pytest.approx(total.item(), rel=1e-5)
        weights = dict(model.named_parameters())
        assert gradients.keys() == {name for name, one in weights.items() if one.grad is not None}
        assert all(
            torch.allclose(found, weights[name].grad, rtol=1e-3, atol=1e-5) for name, found in gradients.items()
        )


def test_the_loss_does_not_depend_on_micro_batches():
    model = tiny_model("t5")
    one, gradients, batches = read(model, "t5", "sentinels", 10**6)
    other, parts, several = read(model, "t5", "sentinels", 40)
    assert len(batches) == 1 and len(several) > 3 and one == pytest.approx(other, rel=1e-6)
    assert all(torch.allclose(gradients[name], parts[name], atol=1e-6) for name in gradients)


def test_the_kind_is_found_and_the_probe_says_what_is_possible(tmp_path):
    loaded = load_language_model(save_tiny("bart", tmp_path))
    assert loaded.kind is SEQ2SEQ and not loaded.absent_head
    assert attach(loaded.model) == []
    found = probe_of(loaded.model)
    assert found.pads and not found.packs and [one.name for one in found.checks].count("a pair by itself") == 2
    with pytest.raises(UserError, match="one text per row"):
        check_packable(loaded.model)
    with pytest.raises(UserError, match="is an encoder-decoder"):
        encode_layers(loaded.model, torch.ones(1, 4, dtype=torch.long), torch.zeros(1, 4, dtype=torch.long))


def test_other_heads_of_an_encoder_decoder_read_in_both_directions():
    assert all(is_encoder(tiny_model(kind)) for kind in ("t5", "bart"))
    assert is_encoder(T5ForTokenClassification(tiny_model("t5").config))


def test_missing_weights_are_found(tmp_path):
    folder = save_tiny("t5", tmp_path)
    weights = load_file(folder / "model.safetensors")
    del weights["decoder.block.1.layer.0.SelfAttention.q.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match="incomplete: 1 missing, such as decoder"):
        load_language_model(folder)


def test_a_model_that_depends_on_padding_reads_rows_one_by_one(monkeypatch):
    model = tiny_model("bart")
    encoder = model.get_encoder()
    own = encoder.forward

    def forward(attention_mask=None, **inputs):  # sees padding
        output = own(attention_mask=attention_mask, **inputs)
        if attention_mask is not None:
            padded = (1 - attention_mask.float().mean(1))[:, None, None]
            output.last_hidden_state = output.last_hidden_state + 50 * padded * output.last_hidden_state.roll(1, -1)
        return output

    monkeypatch.setattr(encoder, "forward", forward)
    monkeypatch.setattr(probe, "_FOUND", {})
    attach(model)
    assert not probe_of(model).pads
    ids = torch.tensor([[1, 20, 21, 22, 2, ~1, ~23, ~2], [1, 20, 2, ~1, ~21, ~22, ~23, ~2]])
    text = torch.tensor([[0] * 8, [1] * 8])
    both = encode(model, ids, text)
    assert all(torch.equal(both[row], encode(model, ids[row : row + 1], text[row : row + 1])[0]) for row in range(2))


def test_a_row_without_a_target_is_read_by_the_encoder():
    model = tiny_model("t5")
    ids = torch.tensor([[20, 21, 22, 2], [23, 2, 0, 0]])
    text = torch.tensor([[0] * 4, [1, 1, -1, -1]])
    found = encode(model, ids, text)
    own = model.get_encoder()(input_ids=ids, attention_mask=(text >= 0).long()).last_hidden_state
    assert torch.equal(found[text >= 0], own[text >= 0])
    assert isinstance(model.lm_head, nn.Linear)
