"""Detection of models that predict the same answer for almost every item."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from acclimate.evaluation.scoring import MIN_ITEMS, Collapse, find_collapse


def test_one_class_for_all_items():
    gold = [0, 1] * 20
    assert find_collapse(gold, [1] * 40) == Collapse(1, 40)
    assert find_collapse(gold, [1] * 38 + [0] * 2) is None
    assert find_collapse([0, 1] * 200, [1] * 398 + [0] * 2) == Collapse(1, 398)


def test_a_correct_model_has_not_collapsed():
    assert find_collapse([1] * 40, [1] * 40) is None
    assert find_collapse([1] * 96 + [0] * 4, [1] * 100) is None


def test_too_few_items():
    assert find_collapse([0, 1] * (MIN_ITEMS // 2 - 1), [0] * (MIN_ITEMS - 2)) is None
    assert find_collapse([], []) is None


def test_lists_of_labels_and_answers():
    assert find_collapse([[], [1], [0, 2], []] * 10, [[]] * 40) == Collapse([], 40)
    assert find_collapse([["Paris"], ["Rome", "Roma"]] * 15, [["the"]] * 30) == Collapse(["the"], 30)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=60))
def test_against_the_definition(items):
    gold, predicted = [a for a, _ in items], [b for _, b in items]
    found = find_collapse(gold, predicted)
    shares = {answer: predicted.count(answer) for answer in predicted}
    collapsed = [
        answer
        for answer, count in shares.items()
        if len(items) >= 20 and count > 0.99 * len(items) and count - gold.count(answer) > 0.05 * len(items)
    ]
    assert (found is None) == (not collapsed)
    if found:
        assert found == Collapse(collapsed[0], shares[collapsed[0]])
