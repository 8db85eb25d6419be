"""SimCSE against a plain loop."""

from __future__ import annotations

import torch

from acclimate.engine.steps import Engine
from acclimate.models.probe import attach
from acclimate.parts.objectives import LanguageModelling, TextContrast
from tests.cases import each
from tests.parts.objectives.layouts import outputs, packed, padded, random_states, same_gradients
from tests.tiny import tiny_model


def reference(first, second, temperature):
    """Mean pooling and the loss of SimCSE, one text at a time."""
    z = [[sum(states) / len(states) for states in draw] for draw in (first, second)]

    def e(i, j):
        cosine = (z[0][i] * z[1][j]).sum() / (z[0][i].norm() * z[1][j].norm())
        return torch.exp(cosine / temperature)

    count = len(first)
    return -sum(torch.log(e(i, i) / sum(e(i, j) for j in range(count))) for i in range(count)) / count


@each("layout", [lambda batch: batch, packed])
def test_equals_the_reference(layout):
    batch = layout(padded())
    term = TextContrast(temperature=0.3)
    first, second = random_states(batch, seed=1), random_states(batch, seed=2)
    ours = term.loss(term.represent(outputs(batch, dict(zip(term.views, (first, second), strict=True)))))
    same_gradients(ours, reference(first, second, 0.3), first + second)


def test_pairs_are_two_dropout_masks_of_the_same_text():
    """Without dropout both vectors of a text are equal; with it they are not."""
    model = tiny_model("bert")
    attach(model)
    term = TextContrast()
    engine = Engine(model, [term])
    first, second = term.represent(engine.read(padded(), engine.views)).unbind(1)
    torch.testing.assert_close(first, second)
    assert torch.cdist(first, first).add(torch.eye(len(first))).min() > 1e-3
    model.train()
    first, second = term.represent(engine.read(padded(), engine.views)).unbind(1)
    assert ((first - second).abs().amax(1) > 1e-3).all()


def test_masked_text_shares_the_view_of_the_mlm_loss():
    model = tiny_model("bert")
    attach(model)
    assert Engine(model, [LanguageModelling(), TextContrast()]).student_views == 3
    assert Engine(model, [LanguageModelling(), TextContrast(tokens="masked")]).student_views == 2
