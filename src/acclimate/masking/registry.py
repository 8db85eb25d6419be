"""The ways to mask that have a name.

Every module in ``acclimate.masking`` is imported when the list is first read, and so is every entry point of the group
``acclimate.masking`` in other packages: one file with ``@register`` is all that a new strategy needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from acclimate.errors import UserError
from acclimate.masking.base import MASK_RATE, Strategy
from acclimate.registry import Registry

DEFAULT = "random"
REGISTRY: Registry[Strategy] = Registry("acclimate.masking", "masking", "ways to mask")
register, names, lookup = REGISTRY.register, REGISTRY.names, REGISTRY.lookup


def file_parameters() -> set[str]:
    """Return the parameters, of any strategy, that are paths of files."""
    return {parameter for name in names() for parameter in lookup(name).files}


def get(name: str, rate: float = MASK_RATE, /, **settings: Any) -> Strategy:
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
