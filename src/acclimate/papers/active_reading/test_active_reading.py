"""Active Reading: the strategies of each document, and their results."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.base.errors import UserError
from acclimate.data.operations import Context
from acclimate.papers.active_reading.transform import ActiveReading
from tests.data.select.test_operations import pool
from tests.data.test_answer_parsing import ODD
from tests.data.transform.recipes import DOCUMENTS, say, write


def test_each_strategy_is_carried_out():
    context, recipe = Context(), ActiveReading(by=write, strategies=2)
    made = list(recipe.apply(pool(DOCUMENTS), context))
    strategies = ["Time line: list the dates", "Quiz yourself"]
    assert [one.fields["strategy"] for one in made] == strategies * len(DOCUMENTS)
    asked = recipe.templates["study"].replace("{text}", DOCUMENTS[1]).replace("{strategy}", strategies[1])
    assert made[3].text == say(asked) and context.notes["calls"] == 3 * len(DOCUMENTS)
    assert "List 2 different" in recipe.templates["strategies"].replace("{number}", "2")


@given(st.lists(ODD, min_size=2, max_size=2))
@settings(max_examples=20, deadline=None)
def test_any_answer_is_handled(answers):
    by = lambda prompt: answers["Strategy:" in prompt]  # noqa: E731
    context = Context()
    made = list(ActiveReading(by=by, key=repr(answers)).apply(pool(DOCUMENTS[:1]), context))
    assert all(one.text.strip() for one in made)
    assert made or context.notes["unused"] or context.notes["empty"]


def test_mistakes_are_explained():
    with pytest.raises(UserError, match="strategies is at least 1, not 0"):
        ActiveReading(by=write, strategies=0)
