"""Losses over predicted tokens, one token at a time: logit swap self-distillation."""

from __future__ import annotations

import torch

from acclimate.papers.lssd.objective import LogitSwapDistillation
from tests.cases import each
from tests.parts.objectives.layouts import packed, padded, random_states, same_gradients, spread
from tests.parts.objectives.token_losses import HEADS, STUDENT, TEACHER, WORDS, predictions, read


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
