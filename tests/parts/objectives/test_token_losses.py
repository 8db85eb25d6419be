"""Losses over predicted tokens, one token at a time: logit swap self-distillation and weights by likelihood."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from torch import nn

from acclimate.adaptation.method import get
from acclimate.base.errors import UserError
from acclimate.papers.talr.objective import WeightedLanguageModelling
from acclimate.parts.objectives import LanguageModelling, LogitSwapDistillation, Outputs, View
from tests.cases import each
from tests.parts.objectives.layouts import by_text, cut, packed, padded, random_states, same_gradients, spread

WORDS, WIDTH = 130, 6
STUDENT, TEACHER = View(), View(reader="reference")
torch.manual_seed(0)
HEADS = {"student": nn.Linear(WIDTH, WORDS).double(), "reference": nn.Linear(WIDTH, WORDS).double()}


def read(batch, states, rows=None):
    """Outputs of artificial states by view, whose logits are computed ``rows`` positions at a time."""
    return Outputs({view: spread(each, batch) for view, each in states.items()}, batch, HEADS, logit_rows=rows)


def predictions(batch, states, reader="student"):
    """The logits (tokens, words) and labels (tokens,) at the labelled tokens of each text."""
    for mine, labels in zip(states, by_text(batch, "labels"), strict=True):
        yield HEADS[reader](mine)[labels >= 0], labels[labels >= 0]


def swapped_divergence(batch, student, teacher, temperature):
    """T^2 KL(q' || p), the mean over labelled tokens, with a swapped copy of the teacher's logits."""
    total, count = 0.0, 0
    both = zip(predictions(batch, student), predictions(batch, teacher, "reference"), strict=True)
    for (ours, labels), (theirs, _) in both:
        for z, base, gold in zip(ours, theirs.detach(), labels.tolist(), strict=True):
            top = int(base.argmax())
            moved = base.clone()
            moved[gold], moved[top] = base[top], base[gold]
            assert int(moved.argmax()) == gold and torch.equal(moved.sort().values, base.sort().values)
            q, p = torch.softmax(moved / temperature, 0), torch.softmax(z / temperature, 0)
            total = total + sum(q[k] * (q[k].log() - p[k].log()) for k in range(WORDS))
            count += 1
    return temperature**2 * total / count


@each(("layout", "temperature", "rows"), [(lambda batch: batch, 1.0, None), (packed, 2.5, 4)])
def test_the_swapped_distribution_equals_the_reference(layout, temperature, rows):
    batch = layout(padded())
    term = LogitSwapDistillation(temperature=temperature)
    student, teacher = random_states(batch, seed=1), random_states(batch, seed=2, grad=False)
    # One label is what the teacher predicts anyway: nothing is swapped.
    place = tuple((batch.labels >= 0).nonzero()[0].tolist())
    batch.labels[place] = HEADS["reference"](spread(teacher, batch)[place]).argmax()
    ours = term.total(read(batch, {STUDENT: student, TEACHER: teacher}, rows)) / term.count(batch)
    same_gradients(ours, swapped_divergence(batch, student, teacher, temperature), student)


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
    """The median is that of all texts of the step, however they are split."""
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
    assert [type(term) for term in get("lssd", alpha=0).objectives()] == [LanguageModelling], "no second model"
    assert get("talr", tau="2.5").tau == 2.5 and get("talr").tau == "batch"
    for settings, message in (
        ({"tau": 0}, "tau must be more than zero"),
        ({"tau": "median"}, "parameter 'tau': .* valid number.*, or: Input should be 'batch' \\(got 'median'\\)"),
        ({"favors": "unlikely", "normalized": "false"}, "needs normalized=true"),
        ({"floor": -1}, "floor must be zero or more"),
    ):
        with pytest.raises(UserError, match=message):
            get("talr", **settings)
    with pytest.raises(UserError, match="alpha must be zero or more"):
        get("lssd", alpha=-1)
