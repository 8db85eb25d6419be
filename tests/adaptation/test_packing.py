"""Packed rows of causal models: best fit, labels from the structure of rows, end tokens, and joined documents."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.inputs import document_framing
from acclimate.base.errors import UserError, warn_once
from acclimate.base.files import read_json
from acclimate.data.documents import Corpus
from acclimate.data.token_dataset import RowAccount, TokenDataset
from acclimate.data.tokenizing import Framing, encode, tokenize
from acclimate.engine.batches import Collator, StepDataset
from acclimate.engine.cutting import pack_best_fit
from acclimate.engine.distributed import ProcessGroup
from acclimate.engine.steps import Engine
from acclimate.models.kinds import CAUSAL
from acclimate.models.loading import load_language_model
from acclimate.models.probe import attach
from acclimate.parts.masking import IGNORE_INDEX, RandomMasking
from acclimate.parts.objectives import LanguageModelling
from tests.cases import each
from tests.fixtures import SHARED
from tests.tiny import TEXTS, save_tiny, tiny_tokenizer

TOKENIZER = tiny_tokenizer()
START, END = 2, 3
SHORT = {"batch_size": 4, "precision": "fp32", "progress": False}


@pytest.fixture(scope="module")
def stories():
    if not SHARED.is_dir():
        pytest.skip("there is no shared folder")
    return SHARED / "models" / "stories260k"


def slow_best_fit(lengths, capacity):
    rows = []
    for text, length in enumerate(lengths):
        room = [(capacity - sum(lengths[i] for i in row), number) for number, row in enumerate(rows)]
        fitting = [entry for entry in room if entry[0] >= length]
        rows[min(fitting)[1]].append(text) if fitting else rows.append([text])
    return rows


def first_fit(lengths, capacity):
    rows = []
    for length in lengths:
        row = next((row for row in rows if sum(row) + length <= capacity), None)
        rows.append([length]) if row is None else row.append(length)
    return rows


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=40), st.integers(40, 90))
def test_each_text_is_in_the_fullest_row_that_has_room_for_it(lengths, capacity):
    lengths = sorted(lengths, reverse=True)
    rows = pack_best_fit(lengths, capacity)
    assert rows == slow_best_fit(lengths, capacity)
    assert sorted(text for row in rows for text in row) == list(range(len(lengths)))
    assert all(sum(lengths[text] for text in row) <= capacity for row in rows)


def test_best_fit_needs_no_more_rows_than_first_fit():
    """On each of 300 random steps of 64 texts; there are rare inputs for which first fit is better."""
    chance = np.random.default_rng(0)
    for _ in range(300):
        lengths = np.clip(chance.lognormal(4, 1, 64), 8, 256).astype(int)
        lengths = sorted(lengths.tolist(), reverse=True)
        found = len(pack_best_fit(lengths, 256))
        assert -(-sum(lengths) // 256) <= found <= len(first_fit(lengths, 256))


def causal_collator(capacity, tokens=10_000, padding=END, **options):
    """A collator whose padding token is the end token."""
    tokenizer = tiny_tokenizer()
    tokenizer.pad_token_id = padding
    return Collator.of(tokenizer, RandomMasking(), CAUSAL, tokens, "packed", capacity=capacity, **options)


@settings(deadline=None, max_examples=60)
@given(
    texts=st.lists(st.text("ab cd", max_size=60).filter(str.strip), min_size=1, max_size=12),
    max_length=st.integers(8, 24),
    capacity=st.integers(8, 64),
    documents=st.sampled_from(["apart", "joined"]),
)
def test_every_token_is_predicted_once_but_the_first_of_each_text(texts, max_length, capacity, documents):
    corpus = Corpus.of(texts, dedup=False)
    rows = tokenize(corpus, TOKENIZER, max_length, framing=Framing(documents, END))
    collator = causal_collator(capacity)
    batches = collator(list(rows), np.random.default_rng(0))
    predicted = np.concatenate([batch.labels[batch.labels != IGNORE_INDEX].numpy() for batch in batches])
    assert sorted(predicted) == sorted(np.concatenate([row[1:] for row in rows]))
    first_of_documents = len(texts) if documents == "apart" else 1
    account = RowAccount.of(rows, CAUSAL, 0.0, joined=documents == "joined")
    assert account.tokens == len(predicted) + first_of_documents + account.unpredicted_tokens
    assert (account.documents, account.dropped_tokens) == (len(texts), 0)
    if documents == "apart":
        assert (predicted == END).sum() == len(texts), "the end token is learned, also if it is the padding token"
        assert account.split_documents == sum(len(ids) + 2 > max_length for ids in encode(TOKENIZER, texts))
        for batch in batches:
            starts = (batch.original == START) & (batch.text >= 0)
            assert (batch.labels != START).all() and starts.any(), "no document predicts the next one"
    for batch in batches:
        assert batch.original.shape[1] <= max(capacity, max(map(len, rows)))
        assert (batch.labels[batch.text < 0] == IGNORE_INDEX).all()


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 40), min_size=4, max_size=30), st.integers(8, 200), st.integers(1, 4))
def test_processes_share_packed_rows_and_read_every_text_once(lengths, capacity, size):
    texts = [np.array([START, *[5 + (i + k) % 90 for k in range(n)], END]) for i, n in enumerate(lengths)]
    found = []
    for rank in range(size):
        group = ProcessGroup(rank, size)
        data = StepDataset(texts, causal_collator(capacity), batch_size=len(texts), steps=1, seed=0, group=group)
        assert data[0], "no process is idle"
        found += [batch.original[batch.text == n].tolist() for batch in data[0] for n in range(batch.texts)]
    assert sorted(found) == sorted(text.tolist() for text in texts)


def test_padding_is_what_the_batches_have():
    rows = TokenDataset.of([[5] * n for n in (3, 9, 20, 7, 30, 11, 4, 16)])
    data = StepDataset(rows, causal_collator(32, tokens=64), batch_size=4, steps=6, seed=1)
    batches = [batch for step in range(6) for batch in data[step]]
    tokens, padded = sum(batch.tokens for batch in batches), sum(batch.text.numel() for batch in batches)
    assert data.padding() == pytest.approx(1 - tokens / padded) and 0 < data.padding() < 0.5


def gradients(model, batches):
    model.zero_grad()
    loss = Engine(model, [LanguageModelling()]).step(batches)["clm"].item()
    return loss, {name: value.grad.clone() for name, value in model.named_parameters()}


def test_one_packed_micro_batch_equals_many_and_plain_transformers(stories):
    loaded = load_language_model(stories)
    attach(loaded.model)
    framing = document_framing(loaded, "apart")
    assert framing == Framing("apart", loaded.tokenizer.eos_token_id)
    rows = tokenize(Corpus.of([*TEXTS, " ".join(TEXTS)]), loaded.tokenizer, 48, framing=framing)
    assert RowAccount.of(rows, CAUSAL, 0, joined=False).split_documents > 0
    reference, total, count = AutoModelForCausalLM.from_pretrained(stories), 0.0, 0
    for row in rows:
        ids = torch.from_numpy(row).long()[None]
        total = total + reference(input_ids=ids, labels=ids, use_cache=False).loss * (len(row) - 1)
        count += len(row) - 1
    (total / count).backward()
    expected = {name: value.grad for name, value in reference.named_parameters()}
    for tokens, capacity in ((10_000, 96), (96, 96), (1, 0)):
        collator = Collator.of(
            loaded.tokenizer, RandomMasking(), CAUSAL, tokens, "packed" if capacity else "padded", capacity=capacity
        )
        batches = collator(list(rows), np.random.default_rng(0))
        assert (len(batches) == 1) == (tokens == 10_000)
        loss, found = gradients(loaded.model, batches)
        assert loss == pytest.approx(total.item() / count, rel=1e-5)
        for name, value in found.items():
            torch.testing.assert_close(value, expected[name], atol=1e-5, rtol=1e-3)


def test_joined_documents_attend_to_each_other(stories):
    loaded = load_language_model(stories)
    attach(loaded.model)
    rows = tokenize(Corpus.of(TEXTS), loaded.tokenizer, 500, framing=document_framing(loaded, "joined"))
    (ids,) = (torch.from_numpy(row).long()[None] for row in rows)
    expected = AutoModelForCausalLM.from_pretrained(stories)(input_ids=ids, labels=ids).loss.item()
    batches = Collator.of(loaded.tokenizer, RandomMasking(), CAUSAL, 512)(list(rows), np.random.default_rng(0))
    assert gradients(loaded.model, batches)[0] == pytest.approx(expected, rel=1e-5)


def loaded_with(own, generation=None, configured=None, kind=CAUSAL):
    model = SimpleNamespace(
        generation_config=SimpleNamespace(eos_token_id=generation), config=SimpleNamespace(eos_token_id=configured)
    )
    return SimpleNamespace(kind=kind, model=model, tokenizer=SimpleNamespace(eos_token_id=own))


@each(
    ("own", "generation", "configured", "end", "warning"),
    [
        (7, None, None, 7, ""),
        (7, [8, 7], 9, 7, ""),
        (None, [8, 7], 9, 8, ""),
        (None, None, 9, 9, ""),
        (None, 0, 9, 0, ""),
        (7, [8, 9], None, 7, "stops generating at 8, 9: correct eos_token_id"),
        (None, None, None, None, "will not learn where a document ends; set eos_token in tokenizer_config.json"),
    ],
)
def test_the_end_token(own, generation, configured, end, warning, caplog):
    warn_once.cache_clear()
    assert document_framing(loaded_with(own, generation, configured), None) == Framing("apart", end)
    assert warning in caplog.text if warning else not caplog.text


def test_documents_cannot_be_joined_without_an_end_token_or_for_masked_models(tiny_bert, tmp_path):
    with pytest.raises(UserError, match="no end token, so joined documents could not be separated; set eos_token"):
        document_framing(loaded_with(None), "joined")
    with pytest.raises(UserError, match="cannot be joined for a masked language model"):
        adapt(tiny_bert, Corpus.of(TEXTS), "lm", tmp_path / "no", documents="joined", steps=1, **SHORT)


def test_defaults_and_account_of_each_kind(stories, tiny_bert, tmp_path, capsys):
    adapt(tiny_bert, Corpus.of(TEXTS), "none", tmp_path / "bert", max_length=64, **SHORT)
    manifest = read_json(tmp_path / "bert" / "acclimate.json")
    assert (manifest["layout"], manifest["documents"]) == ("padded", None)
    options = {**SHORT, "steps": 1, "progress": True}
    adapt(stories, Corpus.of([*TEXTS, "the soup " * 400]), "lm", tmp_path / "out", **options)
    manifest = read_json(tmp_path / "out" / "acclimate.json")
    # 512 positions are fewer than the default of 1,024 tokens.
    assert (manifest["layout"], manifest["max_length"], manifest["documents"]) == ("packed", 512, "apart")
    account = manifest["text"]["rows"]
    assert (account["documents"], account["split_documents"], account["dropped_tokens"]) == (len(TEXTS) + 1, 1, 0)
    assert account["unpredicted_tokens"] == account["texts"] - account["documents"] > 0
    said = capsys.readouterr().err
    assert "split documents: 1, tokens not predicted" in said and "dropped tokens: 0" in said
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"{account['tokens']:,} tokens" in card
    again = adapt(stories, Corpus.of([*TEXTS, "the soup " * 400]), "lm", tmp_path / "out", max_length=512, **options)
    assert again.rows is None, "explicit defaults are the same run"


@pytest.mark.slow
def test_generation_stops_by_itself(stories, tmp_path, monkeypatch):
    """Trained on 50 short texts; without end tokens, the model goes on."""
    names = "Tom Lily Ben Mia Sam Anna Max Sue Tim Kate".split()
    things = ["a red ball", "a big dog", "the blue sky", "a small cat", "his green hat"]
    corpus = Corpus.of([f"{name} sees {thing}." for name in names for thing in things])
    lengths = {}
    for end in (True, False):
        if not end:
            module = sys.modules["acclimate.adaptation.adapt"]
            monkeypatch.setattr(module, "document_framing", lambda *_: Framing("apart", None))
        out = tmp_path / f"end-{end}"
        adapt(stories, corpus, "lm", out, **{**SHORT, "steps": 20, "batch_size": 10, "learning_rate": 3e-3})
        model, tokenizer = AutoModelForCausalLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
        for prompt in ("Tom sees", "Kate sees", "Mia"):
            given = tokenizer(prompt, return_tensors="pt")
            (ids,) = model.generate(**given, max_new_tokens=40, do_sample=False).tolist()
            lengths.setdefault(end, []).append(len(ids) - given["input_ids"].shape[1])
            assert (ids[-1] == tokenizer.eos_token_id) == end, tokenizer.decode(ids)
    assert max(lengths[True]) < 20 and lengths[False] == [40, 40, 40]


def test_a_model_that_cannot_separate_texts_reads_one_per_row_unless_packing_was_asked_for(tmp_path, caplog):
    warn_once.cache_clear()
    model = save_tiny("lfm2", tmp_path / "lfm2")
    options = {**SHORT, "steps": 1, "max_length": 16}
    result = adapt(model, Corpus.of(TEXTS), "lm", tmp_path / "out", **options)
    assert result.steps == 1 and "each text has a row by itself" in caplog.text
    with pytest.raises(UserError, match="Texts cannot share a row of Lfm2ForCausalLM"):
        adapt(model, Corpus.of(TEXTS), "lm", tmp_path / "no", layout="packed", **options)
