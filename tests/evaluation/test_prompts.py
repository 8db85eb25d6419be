"""Prompts that models choose from: their parts of dev, and solved examples."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acclimate.base.errors import UserError
from acclimate.evaluation.prompts import (
    LEAST_UNITS,
    SHOTS,
    AskedPrompt,
    check_fields,
    choose_prompts,
    fill,
    list_prompts,
    part_of_dev,
    solved_examples,
)


@given(st.lists(st.integers(0, 90), max_size=200), st.integers(1, 5))
def test_parts_of_dev_are_disjoint_and_keep_groups_whole(groups, parts):
    found = [part_of_dev(groups, part, parts) for part in range(parts)]
    if len(set(groups)) < parts * LEAST_UNITS:
        assert found == [list(range(len(groups)))] * parts
        return
    assert sorted(place for part in found for place in part) == list(range(len(groups)))
    owners = [{groups[place] for place in part} for part in found]
    assert all(len(owner) >= LEAST_UNITS for owner in owners)
    assert sum(map(len, owners)) == len(set(groups))


@given(st.lists(st.sampled_from("abc"), max_size=30), st.integers(0, 12))
def test_solved_examples_are_balanced_and_begin_alike(classes, count):
    train = list(enumerate(classes))
    found = solved_examples(train, count, classes)
    assert len(set(found)) == len(found) == min(count, len(train)) and set(found) <= set(train)
    assert solved_examples(train, count + 3, classes)[: len(found)] == found
    drawn = {label: sum(own == label for _, own in found) for label in set(classes)}
    left = [drawn[label] for label in drawn if drawn[label] < classes.count(label)]
    assert not left or max(drawn.values()) - min(left) <= 1


def test_each_seed_chooses_on_its_own_part_of_dev_and_reads_no_other():
    prompts, items = [AskedPrompt(template=name) for name in "xyz"], 3 * LEAST_UNITS
    parts = [part_of_dev(range(items), part, 3) for part in range(3)]
    asked = []

    def ask(prompt, places):
        asked.append(list(places))
        best = {place: number for number, part in enumerate(parts) for place in part}
        return [float("xyz"[best[place]] == prompt.template) for place in places]

    assert choose_prompts(prompts, ask, range(items), [4, 7, 9], [4, 7, 9]) == {4: 0, 7: 1, 9: 2}
    assert [prompt.dev for prompt in prompts] == pytest.approx([1 / 3] * 3)
    asked.clear()
    assert choose_prompts(prompts, ask, range(items), [7], [4, 7, 9]) == {7: 1}
    assert asked == [sorted(parts[1])] * 3
    assert choose_prompts(prompts, lambda *_: np.ones(items), range(items), [4], [4]) == {4: 0}, "the first of equals"


def test_what_a_user_gives_replaces_what_is_usual():
    def shown(*given):
        return [(prompt.template, prompt.shots) for prompt in list_prompts(*given)]

    assert shown(None, None, ("x", "y"), True) == [(name, count) for name in "xy" for count in SHOTS]
    assert shown(None, None, ("x", "y"), False) == [("x", 0)]
    assert shown(None, None, ("x",), True) == [("x", 0)], "what was trained with it"
    assert shown("z", None, ("x", "y"), True) == [("z", 0)]
    assert shown(["z", "w"], [0, 3], ("x",), True) == [("z", 0), ("z", 3), ("w", 0), ("w", 3)]
    assert shown(None, 2, ("x", "y"), True) == [("x", 2), ("y", 2)]


def test_templates_replace_names_once():
    assert fill("{a} {b} {c}", {"a": "{b}", "b": "x"}) == "{b} x {c}"
    assert fill("{context}\n\n{text}:", {"context": "", "text": "x"}) == "x:"
    check_fields('{"text": {text}} {labels}', ["text"], ["labels"])
    with pytest.raises(UserError, match=r"write \{text\} where it belongs"):
        check_fields("{labels}", ["text"], ["labels"])
    with pytest.raises(UserError, match=r"has \{answer\}, which the task does not have"):
        check_fields("{text} {answer}", ["text"])
