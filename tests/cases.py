"""Many small cases in one test."""

from __future__ import annotations

import contextlib
import functools
import inspect
import reprlib
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from acclimate.base.registry import Registry

SOURCES = sorted(
    path for path in (Path(__file__).parents[1] / "src").rglob("*.py") if not path.name.startswith("test_")
)
"""The files of the package without the tests of papers."""
SHOWN = reprlib.Repr()
SHOWN.maxstring = SHOWN.maxother = 100


def each(names: str | tuple[str, ...], cases: Iterable) -> Callable[[Callable], Callable]:
    """Run all cases of a test as one test; each failure names its case.

    The arguments are those of ``pytest.mark.parametrize``. It is for cases that are too small to be separate tests.
    All cases run, even after a failure. Each case has a new ``tmp_path``, and its changes with ``monkeypatch`` are
    undone. All other fixtures are shared, so a case must not modify them.
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
                        values = {
                            name: _fixture_of_case(name, fixture, number, stack) for name, fixture in fixtures.items()
                        }
                        test(**given, **values)
                except (Exception, pytest.fail.Exception) as error:  # pytest.fail.Exception is a BaseException
                    shown = ", ".join(f"{name}={SHOWN.repr(value)}" for name, value in given.items())
                    error.add_note(f"in case {number}: {shown}")
                    failures.append(error)
            if len(failures) == 1:
                raise failures[0]
            if failures:
                raise BaseExceptionGroup(f"{len(failures)} of {len(cases)} cases failed", failures)

        # Hypothesis generates examples for each case separately.
        for name in [name for name in vars(all_cases) if "hypothesis" in name]:
            delattr(all_cases, name)
        signature = inspect.signature(test)
        others = [parameter for name, parameter in signature.parameters.items() if name not in names]
        assert len(others) + len(names) == len(signature.parameters), f"{test.__name__} does not have this argument"
        all_cases.__signature__ = signature.replace(parameters=others)
        assert cases, "no cases"
        return all_cases

    return decorate


def _fixture_of_case(name: str, fixture, number: int, stack: contextlib.ExitStack):
    """Return the value of a fixture for one case."""
    if name == "tmp_path":
        folder = fixture / f"case-{number}"
        folder.mkdir()
        return folder
    if name == "monkeypatch":
        return stack.enter_context(fixture.context())
    if name == "caplog":
        fixture.clear()
    return fixture


def installed(registry: Registry, cases: Iterable) -> list:
    """Return the cases about entries that are there; the folder of a paper may be missing.

    A case, or its first element, starts with the name of the entry, or is a dictionary with it.
    """

    def name(case) -> str:
        first = case[0] if isinstance(case, tuple) else case
        return next(iter(first)) if isinstance(first, dict) else first.split()[0]

    return [case for case in cases if name(case) in registry.names()]
