"""The held-out loss of causal models: whole documents in windows, each token predicted once."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from acclimate.adaptation.inputs import document_framing, tokenize_documents
from acclimate.data.documents import Corpus
from acclimate.data.tokenizing import read_as_text
from acclimate.evaluation.lm_loss import MAX_CHARACTERS, _read_in_windows, language_model_loss, read_targets
from acclimate.models.kinds import CAUSAL
from acclimate.models.loading import load_language_model
from acclimate.models.probe import attach
from tests.cases import each
from tests.fixtures import SHARED
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


@pytest.fixture
def stories():
    folder = SHARED / "models" / "stories260k"
    if not folder.is_dir():
        pytest.skip("the shared model is missing")
    return folder


STORY = "Once upon a time there was a little girl who liked to play in the park with her red ball and her dog. " * 12


def lose_rows_without_begin(model, begin):
    """Make a model predict the opposite in rows that do not begin with a token, as Gemma is lost without it."""
    seen = []
    model.base_model.register_forward_pre_hook(lambda *call: seen.append(call[2]["input_ids"]), with_kwargs=True)

    def turn(module, inputs, output):
        sign = torch.where(seen.pop()[:, 0] == begin, 1.0, -1.0)
        output.last_hidden_state = output.last_hidden_state * sign[:, None, None]

    model.base_model.register_forward_hook(turn)


def test_later_windows_begin_as_the_model_reads_them_best(stories):
    """Without the begin token where the model learned it at the start of documents only, with it where it is lost."""
    usual, lost = load_language_model(stories), load_language_model(stories)
    begin = usual.tokenizer.bos_token_id
    for loaded in (usual, lost):
        attach(loaded.model)
    lose_rows_without_begin(lost.model, begin)
    plain = read_targets(usual.model, usual.tokenizer, [STORY], 48)[0].rows
    begun = read_targets(lost.model, lost.tokenizer, [STORY], 48)[0].rows
    assert len(plain) > 3 and plain[0].ids[0] == begin and all(row.ids[0] != begin for row in plain[1:])
    assert all(row.ids[0] == begin and row.labels[0] < 0 and len(row.ids) <= 48 for row in begun[1:])
    whole = [int(row.ids[place + 1]) for row in plain for place in np.flatnonzero(row.labels >= 0)]
    assert whole == [int(row.ids[place + 1]) for row in begun for place in np.flatnonzero(row.labels >= 0)]
    own, other = (
        language_model_loss(one.model, [STORY], tokenizer=one.tokenizer, max_length=48) for one in (usual, lost)
    )
    assert own["masked"] == other["masked"] and other["nats"] < own["nats"] + 1


def test_rows_of_an_adaptation_begin_as_the_model_reads_them_best(stories, tmp_path, monkeypatch, capsys):
    loaded, lost = load_language_model(stories), load_language_model(stories)
    for one in (loaded, lost):
        attach(one.model)
    lose_rows_without_begin(lost.model, begin := loaded.tokenizer.bos_token_id)
    framing = document_framing(loaded, "apart")
    text = Corpus.of([STORY, "A short one."])
    same, plain = tokenize_documents(text, loaded, 48, framing, False)
    other, begun = tokenize_documents(text, lost, 48, framing, True)
    assert same == framing != other and "after its begin token" in " ".join(capsys.readouterr().err.split())
    assert [row[0] == begin for row in plain] == [True, *[False] * (len(plain) - 2), True]
    assert all(row[0] == begin and (row[1:] != begin).all() for row in begun)
    assert np.concatenate([row[row != begin] for row in plain]).tolist() == [
        token for row in begun for token in row[1:].tolist()
    ]
    assert begun[len(begun) - 2][-1] == framing.end == begun[len(begun) - 1][-1]
    assert max(map(len, begun)) == 48 and plain.fingerprint != begun.fingerprint
