"""The loss of similarities, against plain loops."""

from __future__ import annotations

import torch

from acclimate.papers.similarity_kd.objective import SimilarityDistillation
from acclimate.parts.objectives import Outputs
from tests.parts.objectives.drawn import DRAW, WIDTH, mean
from tests.parts.objectives.layouts import padded, random_states, same_gradients, spread


def test_similarities_equal_the_reference():
    """Inner products of all drawn texts of the step, with rows of norm one; the teacher is wider."""
    batch = padded(rewritings=(DRAW,))
    term = SimilarityDistillation(DRAW)
    student = random_states(batch, WIDTH, seed=1, text=batch.rewritten[DRAW].text)
    teacher = random_states(batch, 9, seed=2, grad=False, text=batch.rewritten[DRAW].text)
    states = dict(zip(term.views, (student, teacher), strict=True))
    hidden = {view: spread(each, batch, batch.rewritten[DRAW].text) for view, each in states.items()}
    slow = 0.0
    for i in range(batch.texts):
        rows = [torch.stack([mean(one[i]) @ mean(one[j]) for j in range(batch.texts)]) for one in (student, teacher)]
        s, t = (row / row.square().sum().sqrt() for row in rows)
        slow = slow + ((s - t) ** 2).sum()
    ours = term.loss(term.represent(Outputs(hidden, batch, {})))
    same_gradients(ours, slow / batch.texts**2, student)
