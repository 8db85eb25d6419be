"""Many small cases in one test."""

from __future__ import annotations

import contextlib
import functools
import inspect
import reprlib
from collections.abc import Callable, Iterable

import pytest

SHOWN = reprlib.Repr()
SHOWN.maxstring = SHOWN.maxother = 100


def each(names: str | tuple[str, ...], cases: Iterable) -> Callable[[Callable], Callable]:
    """Run a test once for each case, all of them in one test; every failure names its case.

    It is written like ``pytest.mark.parametrize``, and is for cases that are too small to be tests of their own. A
    failure does not keep the cases after it from running. ``tmp_path`` is a new folder for each case, and what a case
    does to ``monkeypatch`` is undone after it. All other fixtures are shared, so a case must not change them.
    """
    names = (names,) if isinstance(names, str) else names
    cases = [case if len(names) > 1 else (case,) for case in cases]

    def decorate(test: Callable) -> Callable:
        @functools.wraps(test)
        def all_cases(**fixtures):
            failures = []
            for number, case in enumerate(cases):
                given = dict(zip(names, case, strict=True))
                try:
                    with contextlib.ExitStack() as stack:
                        own = {name: _own(name, fixture, number, stack) for name, fixture in fixtures.items()}
                        test(**given, **own)
                except (Exception, pytest.fail.Exception) as error:  # the second is no Exception: pytest.raises, fail
                    shown = ", ".join(f"{name}={SHOWN.repr(value)}" for name, value in given.items())
                    error.add_note(f"in case {number}: {shown}")
                    failures.append(error)
            if len(failures) == 1:
                raise failures[0]
            if failures:
                raise BaseExceptionGroup(f"{len(failures)} of {len(cases)} cases failed", failures)

        for name in [
            name for name in vars(all_cases) if "hypothesis" in name
        ]:  # each case is such a test, not the whole
            delattr(all_cases, name)
        signature = inspect.signature(test)
        others = [parameter for name, parameter in signature.parameters.items() if name not in names]
        assert len(others) + len(names) == len(signature.parameters), f"{test.__name__} takes no such argument"
        all_cases.__signature__ = signature.replace(parameters=others)
        assert cases, "no cases"
        return all_cases

    return decorate


def _own(name: str, fixture, number: int, stack: contextlib.ExitStack):
    """What a case is given in place of a fixture that cases must not share."""
    if name == "tmp_path":
        folder = fixture / f"case-{number}"
        folder.mkdir()
        return folder
    if name == "monkeypatch":
        return stack.enter_context(fixture.context())
    if name == "caplog":
        fixture.clear()
    return fixture
