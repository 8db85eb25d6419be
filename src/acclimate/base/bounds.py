"""Types of numbers in options, with their limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from acclimate.base.errors import shorten
from acclimate.base.registry import parse_number

MAX_SEED = 2**32 - 1
AUTO = "auto"
"""Value of an option that is chosen for the machine or the data."""
MAX_COUNT = 10**9
"""Maximum of most counts, such as steps and documents; a larger one is probably a mistake and would never end."""
MAX_TOKENS = 10**15
MAX_NUMBER = 10**300
MAX_SIZE = 10**6
"""Maximum texts per optimizer step, tokens per text, epochs and minutes."""


def read_number(value: Any) -> Any:
    """Return a number that may be given as text, such as ``1e-4``, which YAML does not read as a number."""
    if isinstance(value, bool):  # YAML reads yes and on as true, and Python counts with it
        raise ValueError(f"must be a number, not {value}")
    number = parse_number(value)
    if isinstance(number, int) and abs(number) > MAX_NUMBER:
        raise ValueError(f"must be between -1e300 and 1e300, not {shorten(value)}")
    return number


def number_or_auto(most: int) -> BeforeValidator:
    """Return the check of an option that takes an integer from 1 to ``most``, :data:`AUTO` or None."""

    def read(value: Any) -> Any:
        if value is None or value == AUTO:
            return value
        number = read_number(value)
        if type(number) is not int or not 1 <= number <= most:
            raise ValueError(f"must be auto or an integer from 1 to {most:,}, not {shorten(value)}")
        return number

    return BeforeValidator(read)


Integer = Annotated[int, BeforeValidator(read_number)]
Count = Annotated[Integer, Field(ge=1, le=MAX_COUNT)]
"""An integer of at least 1."""
TokenCount = Annotated[Integer, Field(ge=1, le=MAX_TOKENS)]
Size = Annotated[Integer, Field(ge=1, le=MAX_SIZE)]
SeedNumber = Annotated[Integer, Field(ge=0, le=MAX_SEED)]
SeedCount = Annotated[Integer, Field(ge=1, le=1000)]
Number = Annotated[float, BeforeValidator(read_number), Field(allow_inf_nan=False)]
"""A finite number."""
Positive = Annotated[Number, Field(gt=0)]
Fraction = Annotated[Positive, Field(le=1)]
Duration = Annotated[Positive, Field(le=MAX_SIZE)]
"""Epochs or minutes."""
NonNegative = Annotated[Number, Field(ge=0)]
Price = Annotated[Number, Field(ge=1e-6, le=1e12)]
"""An amount of money; labels and hours can be computed from it without overflow."""
Share = Annotated[Number, Field(ge=0, lt=1)]
ALL = "all"
"""Instead of a number of labels: all train examples."""


def read_levels(value: Any) -> Any:
    """Return numbers of labels as a tuple; they are given as a list, as one text such as ``"8,64,all"``, or both.

    Raises:
        ValueError: If one is neither an integer of at least 1 nor ``"all"``, or there is none.
    """
    given = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    items = [part for item in given for part in (map(str.strip, item.split(",")) if isinstance(item, str) else [item])]
    levels = [item if item == ALL or isinstance(item, bool) else parse_number(item) for item in items if item != ""]
    for level in levels:
        if level != ALL and (type(level) is not int or not 1 <= level <= MAX_COUNT):
            raise ValueError(f"must be integers of at least 1, or {ALL}, not {shorten(level)}")
    if not levels:
        raise ValueError("must not be empty")
    return tuple(dict.fromkeys(levels))


Levels = Annotated[tuple[int | str, ...], BeforeValidator(read_levels)]
"""Numbers of labels per class, and :data:`ALL`."""
