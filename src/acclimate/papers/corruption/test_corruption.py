"""Detection of corrupted documents: what is drawn, the losses against each document by itself, and training."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.method import get
from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from acclimate.engine.steps import Engine
from acclimate.models.encoding import encode
from acclimate.models.probe import attach
from acclimate.papers.corruption.method import CorruptionDetection, DocumentReader, DrawDocuments
from tests.papers.test_contract import DIALOGUES, DOCUMENTS, SHORT
from tests.parts.objectives.layouts import cut, padded
from tests.tiny import tiny_model


def make_documents(sizes, different=1000):
    ends = np.cumsum(sizes)
    documents = [range(end - size, end) for size, end in zip(sizes, ends.tolist(), strict=True)]
    return np.arange(ends[-1]) % different, documents


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(2, 7), min_size=2, max_size=4),
    st.integers(2, 6),
    st.floats(0.05, 1),
    st.integers(2, 30),
    st.integers(0, 99),
)
def test_what_is_known_is_what_happened(sizes, most, rate, different, seed):
    order, documents = make_documents(sizes, different)
    _, known = DrawDocuments(order, documents, most, rate).draw(np.random.default_rng(seed))
    shown, moved, corrupted = np.array(known[:most]), np.array(known[most:-1]), known[-1]
    size = int((shown >= 0).sum())
    assert (shown[size:] == -1).all() and (moved[size:] == -1).all() and corrupted == int((moved == 1).any())
    fits = [
        order[start : start + size]
        for document in documents
        if min(most, len(document)) == size
        for start in range(document.start, document.stop - size + 1)
    ]
    assert any(((shown[:size] != right) == (moved[:size] == 1)).all() for right in fits)


def test_half_is_intact_and_a_quarter_each_is_replaced_or_shuffled():
    order, documents = make_documents([6, 6, 6])
    drawing, rng, found = DrawDocuments(order, documents, 6, 0.4), np.random.default_rng(0), Counter()
    for _ in range(3000):
        _, known = drawing.draw(rng)
        shown, moved = np.array(known[:6]), np.array(known[6:-1]) == 1
        own = Counter((shown // 6).tolist()).most_common(1)[0][0]
        foreign = (shown // 6 != own).any()
        found["intact" if not known[-1] else "replaced" if foreign else "shuffled"] += 1
        if known[-1] and not foreign:
            assert sorted(shown) == list(range(6 * own, 6 * own + 6)) and moved.sum() >= 2
            assert (moved == (shown != np.arange(6 * own, 6 * own + 6))).all()
    shares = {name: count / 3000 for name, count in found.items()}
    assert shares == pytest.approx({"intact": 0.5, "replaced": 0.25, "shuffled": 0.25}, abs=0.03)


def test_the_losses_are_those_of_each_document_by_itself():
    model = tiny_model("bert").eval()
    attach(model)
    torch.manual_seed(0)
    reader = DocumentReader(32, 4, most=5).eval()
    rng = np.random.default_rng(0)
    sentences = [np.array([2, *rng.integers(5, 60, rng.integers(1, 6)), 3]) for _ in range(12)]
    drawing = DrawDocuments(*make_documents([2, 3, 7]), 5, 0.5)
    term = CorruptionDetection(drawing, model, sentences, reader, 2.0, 0.1)
    batch = padded(rewritings=[drawing])
    known = batch.rewritten[drawing].known
    losses = []
    for row in known.tolist():
        shown = [number for number in row[:5] if number >= 0]
        vectors = []
        for number in shown:
            ids = torch.as_tensor(sentences[number])[None]
            vectors.append(encode(model, ids, torch.zeros_like(ids))[0].mean(0))
        states = torch.stack(vectors) + reader.places.weight[: len(shown)]
        for layer in reader.layers.layers:
            states = layer(states[None])[0]
        document = -reader.document(states.mean(0)).log_softmax(0)[row[-1]]
        each = [-reader.sentence(state).log_softmax(0)[label] for state, label in zip(states, row[5:-1], strict=False)]
        losses.append(document + 0.1 * sum(each) / len(each))
    expected = sum(losses) / len(losses)
    whole = Engine(model, [term]).step([batch])
    assert float(whole["corruption"]) == pytest.approx(float(expected.detach()), rel=1e-4)
    assert float(whole["loss"]) == pytest.approx(2 * float(expected.detach()), rel=1e-4)
    gradient = model.get_input_embeddings().weight.grad.clone()
    model.zero_grad()
    (2 * expected).backward()
    torch.testing.assert_close(gradient, model.get_input_embeddings().weight.grad, atol=1e-5, rtol=1e-3)
    split = Engine(model, [term]).step(cut(batch, 3))
    torch.testing.assert_close(whole["corruption"], split["corruption"], atol=1e-5, rtol=1e-4)


def test_documents_of_the_domain_or_of_a_file_are_read(tiny_bert, tmp_path, capsys):
    words = ["food", "soup", "wine", "menu"]
    long = [f"the {word} was good. it was on the table! the {word} and the {word} of the waiter." for word in words]
    options = {**SHORT, "steps": 2, "progress": True}
    chosen = {"length": 8, "sentences": 4, "lm_weight": 0}
    found = adapt(tiny_bert, Corpus.of([*long, "one"]), {"corruption": chosen}, tmp_path / "own", **options)
    assert set(found.losses) == {"corruption", "loss"}
    heard = " ".join(capsys.readouterr().err.split())
    assert "Documents: 4 with 12 sentences; cut to 8 tokens: 4; left out, one sentence only: 1." in heard
    given = get("corruption", documents=str(DIALOGUES), split="lines")
    assert set(given.file_contents()) == {"documents"}
    with pytest.raises(UserError, match="0 documents have two sentences or more"):
        adapt(tiny_bert, Corpus.of(["one", "two words"]), "corruption", tmp_path / "x", **SHORT)


@pytest.mark.slow
def test_corrupted_documents_are_detected(tiny_bert, tmp_path):
    """Documents with sentences of two kinds in a fixed order: a foreign or moved sentence is evident."""
    kinds = ("good food", "model data", "soup wine", "loss test")
    texts = [{"text": "\n".join(f"{kind} {number}" for number in range(4))} for kind in kinds]
    (tmp_path / "documents.jsonl").write_text("\n".join(map(json.dumps, texts)))
    options = {**SHORT, "steps": 150, "batch_size": 16, "learning_rate": 3e-3, "dropout": 0.0}
    chosen = {"documents": str(tmp_path / "documents.jsonl"), "split": "lines", "lm_weight": 0, "sentence_weight": 1}
    result = adapt(tiny_bert, Corpus.of(DOCUMENTS), {"corruption": chosen}, tmp_path / "out", **options)
    assert result.losses["corruption"] < 0.9 * 2 * np.log(2)


def test_settings():
    for chosen, message in (
        ({"sentences": 1}, "sentences is at least 2"),
        ({"rate": 0}, "rate is above 0"),
        ({"split": "lines"}, "split=lines needs 'documents'"),
        ({"weight": 0}, "weight must be more than zero"),
    ):
        with pytest.raises(UserError, match=message):
            get("corruption", **chosen)
