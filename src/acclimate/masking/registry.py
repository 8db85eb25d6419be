"""The ways to mask that have a name.

Every module in ``acclimate.masking`` is imported when the list is first read, and so is every entry point of the group
``acclimate.masking`` in other packages: one file with ``@register`` is all that a new strategy needs.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any, TypeVar

from acclimate.errors import UserError, unknown
from acclimate.masking.base import Strategy

DEFAULT = "random"
S = TypeVar("S", bound=type[Strategy])
_strategies: dict[str, type[Strategy]] = {}
_discovered = False


def register(name: str, *, paper: str = "", summary: str = "") -> Callable[[S], S]:
    """Enter a subclass of :class:`Strategy` (a frozen dataclass) in the list.

    Args:
        name: What users call it.
        paper: Short citation.
        summary: One line on what it masks.

    Raises:
        ValueError: If the name is taken by another class.
    """

    def enter(cls: S) -> S:
        known = _strategies.get(name)
        if known is not None and known.__qualname__ != cls.__qualname__:
            raise ValueError(f"two ways to mask are called '{name}': {known.__module__} and {cls.__module__}")
        cls.name, cls.paper, cls.summary = name, paper, summary
        _strategies[name] = cls
        return cls

    return enter


def _discover() -> None:
    global _discovered
    if _discovered:
        return
    _discovered = True
    package = importlib.import_module("acclimate.masking")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"acclimate.masking.{module.name}")
    for entry in entry_points(group="acclimate.masking"):
        entry.load()


def names() -> list[str]:
    """Return the names of all strategies, sorted."""
    _discover()
    return sorted(_strategies)


def lookup(name: str) -> type[Strategy]:
    """Return the class of a strategy.

    Raises:
        UserError: If there is none of that name; the message proposes the nearest.
    """
    _discover()
    if name not in _strategies:
        raise unknown("masking", name, _strategies)
    return _strategies[name]


def file_parameters() -> set[str]:
    """Return the parameters, of any strategy, that are paths of files."""
    return {parameter for name in names() for parameter in lookup(name).files}


def get(name: str, rate: float = 0.15, /, **settings: Any) -> Strategy:
    """Make a strategy with its parameters.

    Args:
        name: Its name.
        rate: Share of tokens that are chosen.
        settings: Its other parameters; strings are converted to the type of the parameter.

    Raises:
        UserError: If the strategy or a parameter is unknown, or a value does not fit.
    """
    if "rate" in settings:
        raise UserError("Give the share of tokens that are masked as mask-rate, not as a parameter of the masking.")
    return lookup(name).build(rate, settings)


def resolve(masking: str | Strategy | None, rate: float, settings: Mapping[str, Any] | None = None) -> Strategy:
    """Return the strategy that a user named, or the default one.

    Args:
        masking: A name, a strategy with its parameters and its own rate, or None for random masking.
        rate: Share of tokens that are chosen, where a name is given.
        settings: Parameters, where a name is given.

    Raises:
        UserError: If it is not known, or parameters are given twice or do not fit.
    """
    if isinstance(masking, Strategy):
        if settings:
            raise UserError("Give parameters in the masking or in masking-settings, not in both.")
        return masking
    return get(masking or DEFAULT, rate, **(settings or {}))


def identify(
    masking: str | Strategy | None, rate: float, settings: Mapping[str, Any] | None = None
) -> dict[str, Any] | None:
    """Return what decides what is masked, as plain values; None for the default at that rate, however it is named.

    Raises:
        UserError: As :func:`resolve`; also if a file is missing.
    """
    chosen = resolve(masking, rate, settings)
    return None if chosen == get(DEFAULT, rate) else chosen.identity()
