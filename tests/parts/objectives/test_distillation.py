"""Distillation against a loop over tokens and features."""

from __future__ import annotations

import torch

from acclimate.parts.objectives import Distillation
from tests.cases import each
from tests.parts.objectives.layouts import outputs, packed, padded, random_states, same_gradients, spread


def reference(student, teacher, temperature, reverse):
    """T^2 KL, the mean over all tokens of all texts, one feature at a time."""
    total, count = 0.0, 0
    for ours, theirs in zip(student, teacher, strict=True):
        for h, r in zip(ours, theirs, strict=True):
            p, q = [torch.exp(v / temperature) / torch.exp(v / temperature).sum() for v in (r, h)]
            if reverse:
                p, q = q, p
            total = total + sum(p[k] * (p[k].log() - q[k].log()) for k in range(len(p)))
            count += 1
    return temperature**2 * total / count


@each("layout", [lambda batch: batch, packed])
@each(("divergence", "temperature"), [("forward", 1.0), ("forward", 2.5), ("reverse", 1.0)])
def test_equals_the_reference(layout, divergence, temperature):
    batch = layout(padded())
    term = Distillation(temperature=temperature, divergence=divergence)
    student, teacher = random_states(batch, seed=1), random_states(batch, seed=2, grad=False)
    ours = term.total(outputs(batch, {term.student: student, term.teacher: teacher})) / term.count(batch)
    same_gradients(ours, reference(student, teacher, temperature, divergence == "reverse"), student)


def test_is_zero_for_equal_models_and_ignores_padding():
    batch = padded()
    term = Distillation()
    states, others = random_states(batch), random_states(batch, seed=3)
    assert abs(term.total(outputs(batch, {term.student: states, term.teacher: states})).item()) < 1e-6
    out = outputs(batch, {term.student: states, term.teacher: others})
    before = term.total(out)
    out._hidden[term.student] = torch.where((batch.text >= 0)[..., None], spread(states, batch), -7.0)
    torch.testing.assert_close(term.total(out), before)
