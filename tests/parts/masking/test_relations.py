"""Pairs of entries of a taxonomy: their classes, against all pairs, for any codes."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.parts.masking import DrawRelations
from acclimate.parts.masking.rewriting import RELATIONS


def relation(first, second):
    """The class of a pair of entries (group, code, text), from the definitions."""
    if first[0] != second[0]:
        return "random"
    return "linked" if first[1] == second[1] else "grouped"


CODES = st.lists(st.text("AB", min_size=3, max_size=3), min_size=2, max_size=12)


@settings(max_examples=40, deadline=None)
@given(codes=CODES, level=st.integers(1, 3))
def test_every_pair_is_of_the_class_that_it_is_drawn_for(codes, level):
    entries = [(code[:level], code, str(number)) for number, code in enumerate(codes)]
    by_text = {text: (group, code, text) for group, code, text in entries}
    drawing = DrawRelations(entries, lambda first, second: [int(first), int(second)], 2)
    expected = Counter(relation(a, b) for a in entries for b in entries if a != b)
    assert dict(zip(RELATIONS, drawing.counts, strict=True)) == {name: expected[name] for name in RELATIONS}
    for seed in range(30):
        (first, second), (task, label) = drawing.draw(np.random.default_rng(seed))
        assert first != second and task == 0
        assert relation(by_text[str(first)], by_text[str(second)]) == RELATIONS[label]


def test_classes_and_entries_are_uniform():
    """Of eight entries in two groups of two codes; each has four random partners, one linked and two grouped."""
    entries = [
        (code[0], code, f"{number}") for number, code in enumerate(("A1", "A1", "A2", "A2", "B1", "B1", "B2", "B2"))
    ]
    drawing = DrawRelations(entries, lambda first, second: [int(first), int(second)], 2)
    drawn = [drawing.draw(np.random.default_rng(seed)) for seed in range(6000)]
    shares = Counter((int(first), RELATIONS[label]) for (first, _), (_, label) in drawn)
    assert all(abs(count - 6000 / 24) < 70 for count in shares.values()) and len(shares) == 24
    partners = Counter(int(second) for (first, second), (_, label) in drawn if first == 0 and label == 0)
    assert set(partners) == {4, 5, 6, 7} and min(partners.values()) > 35
