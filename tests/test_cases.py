"""The helper that runs many cases in one test."""

from __future__ import annotations

import os

import pytest

from tests.cases import each


def test_all_cases_run_and_each_failure_names_its_case():
    seen = []

    @each(("one", "other"), [(1, 1), (1, 2), ("x", "x"), (3, 4)])
    def check(one, other):
        seen.append(one)
        assert one == other

    with pytest.raises(ExceptionGroup, match="2 of 4 cases failed") as caught:
        check()
    assert seen == [1, 1, "x", 3]
    assert [error.__notes__ for error in caught.value.exceptions] == [
        ["in case 1: one=1, other=2"],
        ["in case 3: one=3, other=4"],
    ]


def test_a_single_failure_is_raised_itself():
    @each("value", ["a", "7"])
    def check(value):
        with pytest.raises(ValueError):
            int(value)

    with pytest.raises(pytest.fail.Exception) as caught:
        check()
    assert caught.value.__notes__ == ["in case 1: value='7'"]


def test_nested_cases_are_all_combinations():
    seen = []

    @each("one", "ab")
    @each("other", [1, 2])
    def check(one, other):
        seen.append((one, other))
        assert (one, other) != ("b", 1)

    with pytest.raises(AssertionError) as caught:
        check()
    assert seen == [("a", 1), ("a", 2), ("b", 1), ("b", 2)]
    assert caught.value.__notes__ == ["in case 0: other=1", "in case 1: one='b'"]


@each("number", range(3))
def test_each_case_has_its_own_folder_and_environment(number, tmp_path, monkeypatch):
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    assert "ACCLIMATE_TEST_CASE" not in os.environ
    monkeypatch.setenv("ACCLIMATE_TEST_CASE", str(number))


def test_an_unknown_argument_is_an_error():
    with pytest.raises(AssertionError, match="does not have this argument"):
        each("other", [1])(lambda one: None)
    with pytest.raises(AssertionError, match="no cases"):
        each("one", [])(lambda one: None)
