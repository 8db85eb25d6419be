"""InfoWord against a loop over texts."""

from __future__ import annotations

import json

import pytest
import torch

from acclimate.engine.steps import Engine
from acclimate.models.probe import attach
from acclimate.papers.infoword.objective import SpanContrast
from acclimate.parts.masking import ExtractNGram, MaskNGram, NGramSampler
from acclimate.parts.objectives import LanguageModelling
from tests.cases import each
from tests.papers.terms import run
from tests.parts.objectives.layouts import (
    by_text,
    outputs,
    packed,
    padded,
    random_states,
    same_gradients,
    spread,
    without_labels,
)
from tests.tiny import tiny_model

TEXTS = [[2, 10, 11, 12, 13, 14, 3], [2, 20, 21, 22, 3], [2, 30, 3], [2, 3], [2], [2, 40, 41, 42, 43, 44, 45, 46, 3]]
NGRAMS = NGramSampler(2.0, 0.7, 3)


def whole_batch():
    return padded(TEXTS, rewritings=(MaskNGram(NGRAMS), ExtractNGram(NGRAMS)))


def reference(whole, local, temperature, similarity):
    """InfoNCE over pairs of vectors in plain loops."""

    def e(g, other):
        value = (g * other).sum()
        if similarity == "cosine":
            value = value / (g.norm() * other.norm())
        return torch.exp(value / temperature)

    losses = [
        -torch.log(e(anchor, own) / sum(e(anchor, other) for other in local))
        for anchor, own in zip(whole, local, strict=True)
    ]
    return sum(losses) / len(losses)


@each("layout", [lambda batch: batch, packed])
@each("pooling", ["mean", "first"])
@each(("similarity", "temperature"), [("cosine", 0.3), ("dot", 2.0)])
def test_a_masked_ngram_against_its_text(layout, pooling, similarity, temperature):
    batch = layout(whole_batch())
    term = SpanContrast(temperature=temperature, pooling=pooling, similarity=similarity, ngrams=NGRAMS)
    alone = batch.view_input(term.local.tokens).text
    around, inside = random_states(batch, seed=1), random_states(batch, seed=2, text=alone)
    representations = term.represent(outputs(batch, {term.text: around, term.local: inside}))
    # Only texts with at least two ordinary tokens have an n-gram.
    part = [number for number, ids in enumerate(by_text(batch, "original")) if (ids > 4).sum() >= 2]
    assert len(part) == 3 == len(representations)

    def pool(states):
        return sum(states) / len(states) if pooling == "mean" else states[0]

    slow = reference([pool(around[i]) for i in part], [pool(inside[i]) for i in part], temperature, similarity)
    same_gradients(term.loss(representations), slow, around + inside)


@each("layout", [lambda batch: batch, packed])
def test_masked_tokens_against_their_text(layout):
    """The recipe of the released code, which divides by zero for a text without a masked token."""
    batch = layout(without_labels(padded(), 2))
    term = SpanContrast(temperature=0.3, span="masked")
    assert term.text == LanguageModelling().view
    around, clean = random_states(batch, seed=1), random_states(batch, seed=2)
    chosen = [labels >= 0 for labels in by_text(batch, "labels")]
    part = [number for number in range(batch.texts) if chosen[number].any()]
    assert 2 not in part
    assert 1 < len(part) < batch.texts
    locals_ = [sum(clean[i][chosen[i]]) / int(chosen[i].sum()) for i in part]
    slow = reference([sum(around[i]) / len(around[i]) for i in part], locals_, 0.3, "cosine")
    ours = term.loss(term.represent(outputs(batch, {term.text: around, term.local: clean})))
    same_gradients(ours, slow, around + clean)


def test_the_ngram_view_has_few_tokens():
    model = tiny_model("bert")
    attach(model)
    engine = Engine(model, [LanguageModelling(), SpanContrast(ngrams=NGRAMS)])
    assert engine.student_views == 2
    assert set(engine.rewritings) == {MaskNGram(NGRAMS), ExtractNGram(NGRAMS)}
    with pytest.raises(ValueError, match=r"Engine\.rewritings"):
        engine.read(padded(), engine.views)


def test_no_pairs_give_zero():
    term = SpanContrast(ngrams=NGRAMS)
    nothing = torch.zeros(0, 2, 4, requires_grad=True)
    loss = term.loss(nothing)
    loss.backward()
    assert loss == 0
    batch = padded([[2, 3]], rewritings=(MaskNGram(NGRAMS), ExtractNGram(NGRAMS)))
    states = random_states(batch)
    out = outputs(batch, {term.text: states, term.local: states})
    assert term.represent(out).shape == (0, 2, 6)
    assert spread(states, batch).shape[1] == 2


@pytest.mark.slow
def test_infoword_loss_falls(tiny_bert, tmp_path):
    """On training text; on held-out text it rises, since the model memorises so few texts."""
    run(tiny_bert, "infoword", tmp_path / "out", steps=150)
    lines = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    found = [line["terms"]["infoword"] for line in lines if "terms" in line]
    assert found[-1] < 0.8 * found[0]
