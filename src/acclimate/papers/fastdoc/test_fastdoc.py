"""Documents as sentence vectors: the loss against one document at a time, the triplets, and a training."""

from __future__ import annotations

import json
import sys
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.method import get
from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from acclimate.engine.steps import Engine
from acclimate.models.probe import attach
from acclimate.papers.fastdoc.objective import DocumentMetadata
from acclimate.parts.masking import DrawTriplets
from acclimate.parts.objectives import ClassificationHeads
from tests.cases import each
from tests.papers.test_contract import DOCUMENTS, SHORT
from tests.parts.objectives.layouts import cut, padded
from tests.tiny import tiny_model

ENTRIES = [("", code, f"{code} {number}") for code in ("a/x", "a/y", "b/x") for number in range(3)]


@settings(max_examples=30, deadline=None)
@given(codes=st.lists(st.sampled_from("abc"), min_size=1, max_size=9))
def test_triplets_have_two_codes(codes):
    drawing = DrawTriplets([("", code, str(number)) for number, code in enumerate(codes)])
    counts = Counter(codes)
    possible = [code for code in codes if counts[code] > 1 and counts[code] < len(codes)]
    assert sorted(drawing.entries[place][1] for place in drawing.anchors) == sorted(possible)
    for seed in range(20 if possible else 0):
        _, (anchor, positive, negative) = drawing.draw(np.random.default_rng(seed))
        names = [drawing.entries[place][1] for place in (anchor, positive, negative)]
        assert anchor != positive and names[0] == names[1] != names[2]


@each("kind", ["bert", "albert", "distilbert", "modernbert", "roberta"])
def test_the_loss_equals_the_reference(kind):
    """Every document is read by itself, without padding."""
    torch.manual_seed(0)
    model, triplets = tiny_model(kind), DrawTriplets(ENTRIES)
    attach(model)
    documents = [torch.randn(2 + number % 4, 5) for number in range(len(ENTRIES))]
    codes = torch.tensor([[number // 6, number // 3] for number in range(len(ENTRIES))])
    projection = nn.Linear(5, model.get_input_embeddings().weight.shape[1])
    heads = ClassificationHeads(32, [2, 3])
    term = DocumentMetadata(triplets, model, documents, codes, projection, heads, margin=0.5)
    engine = Engine(model, [term])
    batch = padded(rewritings=engine.rewritings)
    found = engine.step([batch])["metadata"]
    gradient = projection.weight.grad.clone()
    torch.testing.assert_close(engine.step(cut(batch, 3))["metadata"], found, atol=1e-5, rtol=1e-4)

    def vector(index):
        states = model.base_model(inputs_embeds=projection(documents[index])[None]).last_hidden_state
        return states[0].mean(0)

    slow = 0.0
    for anchor, positive, negative in batch.rewritten[term.view.tokens].known.tolist():
        a, p, n = (vector(index) for index in (anchor, positive, negative))
        slow = slow + torch.relu((a - p).norm() - (a - n).norm() + 0.5)
        for index, one in ((anchor, a), (positive, p), (negative, n)):
            for level, head in enumerate(heads):
                slow = slow - head(one).log_softmax(0)[codes[index, level]]
    slow = slow / batch.texts
    torch.testing.assert_close(found, slow.detach(), atol=2e-5, rtol=1e-4)
    projection.weight.grad = None
    slow.backward()
    torch.testing.assert_close(gradient, projection.weight.grad, atol=2e-5, rtol=1e-3)


ROWS = [
    {"text": f"The {word} was {mark}. The {word} is on the table. It is {mark}!", "code": f"{group}/{mark}"}
    for group, words in (("food", ("soup", "wine", "pasta")), ("model", ("loss", "layer", "token")))
    for word in words
    for mark in ("good", "bad")
]


@pytest.fixture
def taxonomy(tmp_path):
    file = tmp_path / "documents.jsonl"
    file.write_text("\n".join(map(json.dumps, ROWS)))
    return file


def run(model, out, progress=False, **given):
    options = {**SHORT, "steps": 40, "batch_size": 8, "learning_rate": 3e-3, "dropout": 0.0, "progress": progress}
    return adapt(model, Corpus.of(DOCUMENTS[:16]), {"fastdoc": given}, out, **options)


@pytest.mark.slow
def test_codes_are_learned(tiny_bert, taxonomy, tmp_path, capsys):
    result = run(tiny_bert, tmp_path / "out", True, taxonomy=str(taxonomy), preset="paper")
    shown = " ".join(capsys.readouterr().err.split())
    assert "Documents: 12 with 36 sentences; classes by level: 2, 4; anchors: 12." in shown
    assert set(result.losses) == {"metadata", "loss"}
    lines = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    found = [line["terms"]["metadata"] for line in lines]
    guess = 1 + 3 * (np.log(2) + np.log(4))
    assert abs(found[0] - guess) < 0.6 and np.mean(found[-4:]) < 0.75 * guess


def test_sentences_of_another_encoder_and_long_documents(tiny_bert, taxonomy, tmp_path, monkeypatch, capsys):
    """The vectors have the width of that encoder, and only two sentences are read. What is cut is counted."""
    taxonomy.write_text("\n".join(map(json.dumps, [*ROWS, ROWS[0] | {"code": "other"}])))

    class Encoder:
        def encode(self, sentences, **options):
            return torch.arange(4.0) + torch.tensor([[float(len(sentence))] for sentence in sentences])

    module = sys.modules["acclimate.papers.fastdoc.method"]
    monkeypatch.setattr(module, "load_encoder", lambda name: Encoder())
    result = run(tiny_bert, tmp_path / "out", True, taxonomy=str(taxonomy), encoder="one", sentences=2)
    shown = " ".join(capsys.readouterr().err.split())
    assert "12 with 24 sentences" in shown
    assert "; cut to 2 sentences: 12; left out because the text occurred before: 1." in shown
    assert set(result.losses) == {"mlm", "metadata", "loss"}


def test_mistakes_are_explained(tiny_bert, tmp_path):
    file = tmp_path / "alone.csv"
    file.write_text("text,code\ngood food,a\nbad food,b\n")
    for wrong, message in (({"taxonomy": str(file)}, "nothing to compare"), ({}, "needs a taxonomy")):
        with pytest.raises(UserError, match=message):
            run(tiny_bert, tmp_path / "out", **wrong)
    for wrong, message in (({"separator": ""}, "separator is empty"), ({"margin": 0}, "margin must be more")):
        with pytest.raises(UserError, match=message):
            get("fastdoc", **wrong)
