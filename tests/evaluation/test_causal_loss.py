"""The held-out loss of causal models: whole documents in windows, each token predicted once."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from acclimate.corpus.tokenizing import read_as_text
from acclimate.evaluation import language_model_loss
from acclimate.evaluation.lm_loss import MAX_CHARACTERS, _read_in_windows
from acclimate.model_kinds import CAUSAL
from tests.cases import each
from tests.tiny import DECODERS, TEXTS, decoder_tokenizer, tiny_model, tiny_tokenizer

LONG = " ".join(TEXTS)


def plain_tokenizer(**roles):
    """Return a tokenizer that puts no special tokens around a text."""
    backend = tiny_tokenizer().backend_tokenizer
    backend.post_processor = None
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", **roles)


def slow_losses(model, ids, width):
    """The loss of each token after the first, from the first window that predicts it."""
    found, start, context = {}, 0, max(1, width // 4)
    while len(found) < len(ids) - 1:
        logits = model(input_ids=torch.tensor([ids[start : start + width]]), use_cache=False).logits[0]
        for place in range(start + 1, min(start + width, len(ids))):
            if place not in found:
                found[place] = -logits[place - start - 1].log_softmax(-1)[ids[place]].item()
        start = max(found) + 1 - context
    return found


@each("width", [2, 7, 24, 200])
def test_equals_a_loop_over_windows(width):
    model, tokenizer = tiny_model("llama"), plain_tokenizer(eos_token="[SEP]")
    found = language_model_loss(model, [LONG, "pizza", ""], tokenizer=tokenizer, max_length=min(width, 64))
    with torch.no_grad():
        for index, text in enumerate((LONG, "pizza")):
            ids = [tokenizer.eos_token_id, *tokenizer(text)["input_ids"]]
            losses = slow_losses(model, ids, min(width, 64))
            assert found["per_text_masked"][index] == len(ids) - 1 == len(losses)
            assert found["per_text"][index] == pytest.approx(sum(losses.values()), rel=1e-4)
    assert found["tokens"] == found["masked"] and found["per_text_bytes"] == [len(LONG), 5, 0]
    assert found["bits_per_byte"] == pytest.approx(sum(found["per_text"]) / (len(LONG) + 5) / math.log(2))


@each("kind", sorted(DECODERS))
def test_all_families_equal_transformers(kind):
    """Texts of different lengths share a batch, in ours alone."""
    model, tokenizer = tiny_model(kind), decoder_tokenizer(kind)
    with torch.no_grad():
        expected = []
        for text in TEXTS:
            ids = tokenizer(text)["input_ids"]
            ids = ids if ids[0] == tokenizer.bos_token_id else [tokenizer.bos_token_id, *ids]
            row = torch.tensor([ids])
            expected.append(model(input_ids=row, labels=row, use_cache=False).loss.item() * (len(ids) - 1))
    found = language_model_loss(model, TEXTS, tokenizer=tokenizer, max_length=128)
    assert found["per_text"] == pytest.approx(expected, rel=1e-4)


WORD = st.sampled_from(["the", "food", "déjà", "漢", "[SEP]", "[CLS]", "pizza.", "\n", "x y"])


@settings(max_examples=30, deadline=None)
@given(st.lists(WORD, max_size=30).map(" ".join), st.integers(2, 20), st.sampled_from(["", "bos_token", "eos_token"]))
def test_each_token_is_predicted_once(text, width, role):
    tokenizer = plain_tokenizer(**({role: "[CLS]"} if role else {}))
    document = _read_in_windows(CAUSAL, read_as_text(tokenizer), text, width)
    ordinary = read_as_text(tokenizer)(text, add_special_tokens=False)["input_ids"]
    targets = [label for row in document.rows for label in row.labels.tolist() if label >= 0]
    assert targets == ordinary[0 if role else 1 :] or not document.rows
    assert all(len(row.ids) <= width for row in document.rows)
    if targets:
        assert (document.tokens, document.bytes) == (len(ordinary), len(text.encode()))


def test_special_tokens_are_read_and_not_predicted():
    tokenizer = tiny_tokenizer()  # [CLS] text [SEP]
    document = _read_in_windows(CAUSAL, tokenizer, "the food was good", 10)
    (row,) = document.rows
    assert row.ids.tolist() == tokenizer("the food was good")["input_ids"][:-1]
    assert row.labels.tolist() == [*row.ids.tolist()[1:], -100]


def test_all_tokenizers_read_the_same_bytes():
    long = "the food was good " * MAX_CHARACTERS
    found = language_model_loss(tiny_model("llama"), [long], tokenizer=tiny_tokenizer(), max_length=64)
    assert found["bytes"] == MAX_CHARACTERS
