"""TaCL against a loop over tokens."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from acclimate.papers.tacl.objective import TokenAwareContrast
from acclimate.parts.objectives import LanguageModelling, View
from tests.cases import each
from tests.papers.terms import run
from tests.parts.objectives.layouts import (
    by_text,
    outputs,
    packed,
    padded,
    random_states,
    same_gradients,
    without_labels,
)


def reference(student, teacher, chosen, temperature, similarity):
    """The mean over the chosen tokens; the denominator runs over the tokens of the same text."""

    def e(h, r):
        value = (h * r).sum()
        if similarity == "cosine":
            value = value / (h.norm() * r.norm())
        return torch.exp(value / temperature)

    losses = []
    for h, r, here in zip(student, teacher, chosen, strict=True):
        for i in range(len(h)):
            if here[i]:
                losses.append(-torch.log(e(h[i], r[i]) / sum(e(h[i], r[j]) for j in range(len(r)))))
    return sum(losses) / len(losses)


@each("layout", [lambda batch: batch, packed])
@each("positions", ["masked", "unmasked"])
@each(("similarity", "temperature"), [("cosine", 0.1), ("dot", 2.0)])
def test_equals_the_reference(layout, positions, similarity, temperature):
    batch = layout(without_labels(padded(), 2))
    term = TokenAwareContrast(temperature=temperature, similarity=similarity, positions=positions)
    student, teacher = random_states(batch, seed=1), random_states(batch, seed=2, grad=False)
    chosen = [(labels >= 0) == (positions == "masked") for labels in by_text(batch, "labels")]
    ours = term.total(outputs(batch, {term.student: student, term.teacher: teacher})) / term.count(batch)
    same_gradients(ours, reference(student, teacher, chosen, temperature, similarity), student)


def test_anchors_are_masked_tokens_in_the_view_of_the_mlm_loss():
    """The loss is zero if masked tokens are right and others wrong; in the released code it is the other way round."""
    batch = padded()
    term = TokenAwareContrast()
    assert term.student == LanguageModelling().view
    assert term.teacher == View("original", reader="reference")
    width = batch.text.shape[1]
    teacher = [torch.eye(width, dtype=torch.float64)[: int((batch.text == i).sum())] for i in range(batch.texts)]
    student = [
        torch.where((labels >= 0)[:, None], states, states.roll(1, 0))
        for states, labels in zip(teacher, by_text(batch, "labels"), strict=True)
    ]
    assert term.total(outputs(batch, {term.student: student, term.teacher: teacher})) < 1e-6
    other = TokenAwareContrast(positions="unmasked")
    assert other.total(outputs(batch, {term.student: student, term.teacher: teacher})) > 10


def test_a_text_of_one_token_has_no_loss():
    batch = padded([[10], [11, 12]], rate=0.999)
    assert (batch.labels >= 0).sum() == 3
    term = TokenAwareContrast(temperature=1.0)
    states = [torch.eye(2, dtype=torch.float64)[:n] for n in (batch.text >= 0).sum(1)]
    total = term.total(outputs(batch, {term.student: states, term.teacher: states}))
    assert math.isclose(total.item(), 2 * math.log(1 + math.exp(-1)), rel_tol=1e-6)


@pytest.mark.slow
def test_tacl_loss_falls(tiny_bert, tmp_path):
    """On training text, since the base model already solves the few held-out texts."""
    run(tiny_bert, "tacl", tmp_path / "out", steps=100)
    lines = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    found = [line["terms"]["tacl"] for line in lines if "terms" in line]
    assert np.mean(found[-10:]) < 0.6 * np.mean(found[:5])
