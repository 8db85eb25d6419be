"""Losses of drawn examples, against plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.parts.objectives import (
    ClassificationHeads,
    DrawnClassification,
)
from tests.cases import each
from tests.parts.objectives.drawn import DRAW, TASKS, WIDTH, assert_layouts_change_nothing, mean, states_of
from tests.parts.objectives.layouts import padded, same_gradients


@each("per_log_classes", [False, True])
def test_the_loss_of_examples_equals_the_reference(per_log_classes):
    torch.manual_seed(0)
    heads = ClassificationHeads(WIDTH, [2, 5])
    batch = padded(rewritings=(DRAW,))
    term = DrawnClassification(DRAW, heads, per_log_classes=per_log_classes)
    drawn, _, out = states_of(batch)
    slow = 0.0
    known = batch.rewritten[DRAW].known.tolist()
    assert {task for task, _ in known} == {0, 1}, "examples of both tasks are in the step"
    for vectors, (task, label) in zip(drawn, known, strict=True):
        logits = heads[task](mean(vectors).float())
        loss = -(logits[label].exp() / logits.exp().sum()).log()
        slow = slow + loss / (math.log(len(logits)) if per_log_classes else 1)
    same_gradients(term.total(out) / term.count(batch), slow / batch.texts, [*drawn, *heads.parameters()])


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**63 - 1), copies=st.integers(1, 5))
def test_drawn_texts_depend_on_their_seeds_alone(seed, copies):
    ids = np.full((copies, 3), 5)
    text = np.arange(copies)[:, None].repeat(3, 1)
    rows, numbers, known = DRAW(ids, text, text >= 0, None, [seed] * copies)
    assert rows.dtype == ids.dtype and (rows == rows[0]).all() and (known == known[0]).all()
    assert [set(row) - {-1} for row in numbers.tolist()] == [{number} for number in range(copies)]
    drawn = rows[0][numbers[0] >= 0].tolist()
    task, label = known[0]
    assert (drawn, label) in [(row.tolist(), number) for row, number in TASKS[task]]


@pytest.mark.parametrize("tokens", [60, 500])
def test_long_examples_beside_short_texts_stay_within_the_limit(tokens):
    """An example has up to 52 tokens, a text as few as 4; a micro-batch has room for what is drawn."""
    from acclimate.engine.batches import Collator
    from acclimate.models.kinds import MASKED
    from acclimate.parts.masking import RandomMasking
    from tests.tiny import tiny_tokenizer

    collator = Collator.of(tiny_tokenizer(), RandomMasking(0.3), MASKED, tokens, rewritings=(DRAW,))
    for batch in collator([np.array([2, 10, 11, 3])] * 12, np.random.default_rng(0)):
        assert batch.texts == 1 or batch.rewritten[DRAW].ids.numel() <= tokens


def test_neither_micro_batches_nor_packing_change_value_or_gradient():
    torch.manual_seed(0)
    assert_layouts_change_nothing(DrawnClassification(DRAW, ClassificationHeads(32, [2, 5]), per_log_classes=True))
