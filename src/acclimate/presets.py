"""Presets: the values that a paper, or its released code, has for parameters whose defaults differ from them."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, get_type_hints

from acclimate.errors import unknown_name_error

C = TypeVar("C", bound=type[Any])


@dataclass(frozen=True, eq=False)
class Published:
    """Published values of a parameter that differ from its default; an annotation of the field.

    Attributes:
        values: Values by name of the preset. A preset that is not listed has the default.
        reason: Why the default departs from the paper; empty if it does not.
    """

    values: Mapping[str, Any]
    reason: str = ""


@functools.cache
def published(cls: Any) -> dict[str, Published]:
    """Return the published values that the fields of a dataclass declare, by field."""
    if cls.__module__.split(".")[0] != "acclimate" and not hasattr(cls, "preset"):
        return {}  # the annotations of user-supplied code may have names that only type checkers import
    hints = get_type_hints(cls, include_extras=True)
    marks = {field.name: getattr(hints[field.name], "__metadata__", ()) for field in dataclasses.fields(cls)}
    return {name: mark for name, found in marks.items() for mark in found if isinstance(mark, Published)}


def preset_names(cls: Any) -> list[str]:
    """Return the names of the presets of a dataclass."""
    return sorted({"paper"}.union(*(mark.values for mark in published(cls).values())))


def preset_values(cls: Any, preset: str | None) -> dict[str, Any]:
    """Return the values of a preset that differ from the defaults of a dataclass, by field.

    Raises:
        UserError: If there is no such preset.
    """
    if preset is None:
        return {}
    if preset not in preset_names(cls):
        raise unknown_name_error("preset", str(preset), preset_names(cls))
    return {name: mark.values[preset] for name, mark in published(cls).items() if preset in mark.values}


def fill_from_preset(cls: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given values of the fields of a dataclass, and those of its ``preset`` for the others.

    Raises:
        UserError: If there is no such preset.
    """
    return {**preset_values(cls, given.get("preset", getattr(cls, "preset", None))), **given}


def with_presets(cls: C) -> C:
    """Make a dataclass take the values of its ``preset`` also when it is constructed directly."""
    construct = cls.__init__
    signature = inspect.signature(construct)

    @functools.wraps(construct)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        construct(**fill_from_preset(cls, signature.bind(self, *args, **kwargs).arguments))

    cls.__init__ = __init__
    return cls
