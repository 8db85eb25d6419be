"""Weights of tokens by their likelihood, one token at a time."""

from __future__ import annotations

import math
import statistics

import pytest
import torch

from acclimate.adaptation.method import get
from acclimate.base.errors import UserError
from acclimate.papers.talr.objective import WeightedLanguageModelling
from acclimate.parts.objectives import LanguageModelling
from tests.cases import each
from tests.parts.objectives.layouts import cut, packed, padded, random_states, same_gradients
from tests.parts.objectives.token_losses import STUDENT, predictions, read


def weighted(batch, states, favors, tau, normalized, floor):
    """The weighted mean in plain numbers, one token at a time."""
    losses = [
        [-z.log_softmax(0)[label] for z, label in zip(logits, labels, strict=True)]
        for logits, labels in predictions(batch, states)
    ]
    plain = [[loss.item() for loss in text] for text in losses]
    if tau is None:
        tau = statistics.median_low(statistics.fmean(text) for text in plain if text)
    sign = -1 if favors == "likely" else 1
    weights = [math.exp(sign * loss / tau) for text in plain for loss in text]
    scale = len(weights) / sum(weights) if normalized else 1
    flat = [loss for text in losses for loss in text]
    return sum(max(floor, scale * weight) * loss for weight, loss in zip(weights, flat, strict=True)) / len(flat)


@each(
    ("favors", "tau", "normalized", "floor"),
    [
        ("likely", None, True, 0.0),
        ("unlikely", None, True, 0.0),
        ("likely", None, False, 0.0),
        ("likely", 0.7, True, 0.5),
    ],
)
@each("layout", [lambda batch: [batch], lambda batch: cut(batch, 3), lambda batch: [packed(batch)]])
def test_weights_equal_the_reference(favors, tau, normalized, floor, layout):
    """The median is over all texts of the step, however they are split."""
    whole = padded()
    term = WeightedLanguageModelling(favors, tau, normalized, floor)
    states = random_states(whole, seed=1)
    parts, first = [], 0
    for batch in layout(whole):
        parts.append(term.represent(read(batch, {STUDENT: states[first : first + batch.texts]})))
        first += batch.texts
    slow = weighted(whole, states, favors, tau, normalized, floor)
    same_gradients(term.loss(torch.cat(parts)), slow, states)


@each("favors", ["likely", "unlikely"])
def test_a_large_tau_is_plain_language_modelling(favors):
    batch = padded()
    states = random_states(batch)
    term, plain = WeightedLanguageModelling(favors, 1e9), LanguageModelling()
    slow = plain.total(read(batch, {STUDENT: states})) / plain.count(batch)
    same_gradients(term.loss(term.represent(read(batch, {STUDENT: states}))), slow, states)


def test_unlikely_tokens_count_less_or_more():
    losses, means = torch.tensor([0.1, 1.0, 5.0]), torch.tensor([2.0, -1.0, -1.0])
    down, up = (WeightedLanguageModelling(favors).weights(losses, means) for favors in ("likely", "unlikely"))
    assert (down.diff() < 0).all() and (up.diff() > 0).all()
    torch.testing.assert_close(torch.stack((down.mean(), up.mean())), torch.ones(2))


def test_settings():
    assert get("talr", tau="2.5").tau == 2.5 and get("talr").tau == "batch"
    for settings, message in (
        ({"tau": 0}, "tau must be more than zero"),
        ({"tau": "median"}, "parameter 'tau': .* valid number.*, or: Input should be 'batch' \\(got 'median'\\)"),
        ({"favors": "unlikely", "normalized": "false"}, "needs normalized=true"),
        ({"floor": -1}, "floor must be zero or more"),
    ):
        with pytest.raises(UserError, match=message):
            get("talr", **settings)
