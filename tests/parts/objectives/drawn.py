"""Drawn examples of two tasks, states of them, and a check that no layout of a step changes a term."""

from __future__ import annotations

import numpy as np
import torch

from acclimate.engine.steps import Engine
from acclimate.models.probe import attach
from acclimate.parts.masking import DrawExamples
from acclimate.parts.objectives import Outputs, View
from tests.parts.objectives.layouts import cut, packed, padded, random_states, spread
from tests.tiny import tiny_model

WIDTH = 6
EXAMPLES = [[2, 10, 11, 3], [2, 12, 3], [2, *range(20, 70), 3], [2, 13, 14, 15, 3], [2, 16, 3], [2, 17, 18, 3]]
TASKS = [
    [(np.array(row), label) for row, label in zip(EXAMPLES[:4], (0, 1, 1, 0), strict=True)],
    [(np.array(row), label) for row, label in zip(EXAMPLES[4:], (4, 2), strict=True)],
]
DRAW = DrawExamples(TASKS)
EXAMPLE, ORIGINAL = View(DRAW), View("original")


def states_of(batch):
    """Random states of the drawn texts and of the texts, and outputs that have them."""
    drawn = random_states(batch, WIDTH, seed=1, text=batch.rewritten[DRAW].text)
    own = random_states(batch, WIDTH, seed=2)
    hidden = {EXAMPLE: spread(drawn, batch, batch.rewritten[DRAW].text), ORIGINAL: spread(own, batch)}
    return drawn, own, Outputs(hidden, batch, {})


def mean(states):
    return sum(states) / len(states)


def assert_layouts_change_nothing(*terms):
    """Neither micro-batches nor packing change the value of terms of a tiny model, or the gradient."""
    model = tiny_model("bert")
    attach(model)
    engine = Engine(model, list(terms))
    engine.progress = 0.2
    batch = padded(rewritings=engine.rewritings)
    found = []
    for batches in ([batch], cut(batch, 3), [packed(batch)]):
        model.zero_grad()
        found.append((engine.step(batches), [one.grad.clone() for one in model.parameters() if one.grad is not None]))
    for terms, gradients in found[1:]:
        for name, value in found[0][0].items():
            torch.testing.assert_close(terms[name], value, atol=1e-5, rtol=1e-4)
        for ours, whole in zip(gradients, found[0][1], strict=True):
            torch.testing.assert_close(ours, whole, atol=2e-5, rtol=1e-3)
