"""``scripts/changed_tests.py`` finds the tests that a change reaches."""

from __future__ import annotations

import re

import pytest
from scripts.changed_tests import find_tests, import_graph, reached

GRAPH = {
    "acclimate.a": set(),
    "acclimate.b": {"acclimate.a"},
    "acclimate.c": {"acclimate.b"},
    "acclimate.d.e": set(),
    "tests.test_imports": {"acclimate.a"},
    "tests.test_one_between": {"acclimate.b"},
    "tests.test_two_between": {"acclimate.c"},
    "tests.helper": {"acclimate.b"},
    "tests.test_helped": {"tests.helper"},
    "tests.d.test_e": set(),
}


def test_importers_helpers_and_tests_of_the_same_name():
    assert reached({"acclimate.a"}, GRAPH) == {
        "tests.test_imports", "tests.test_one_between", "tests.helper", "tests.test_helped",
    }  # fmt: skip
    assert reached({"tests.helper"}, GRAPH) == {"tests.helper", "tests.test_helped"}
    assert reached({"acclimate.d.e"}, GRAPH) == {"tests.d.test_e"}
    assert reached({"scripts.other"}, GRAPH) == set()


@pytest.mark.slow
def test_in_this_repository():
    graph = import_graph(find_tests())
    paper = next(name for name in sorted(graph) if re.fullmatch(r"acclimate\.papers\.\w+\.method", name))
    method = reached({paper}, graph)
    assert "tests.papers.test_contract" in method
    assert [name for name in method if name.startswith(paper.removesuffix("method") + "test_")]
    assert "tests.data.test_chat" not in method
    assert "tests.data.test_chat" in reached({"acclimate.data.chat"}, graph)
    assert "tests.test_cases" in reached({"tests.cases"}, graph)
