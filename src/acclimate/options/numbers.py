"""Types of numbers in options, with their limits."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from acclimate.registry import parse_number

MAX_SEED = 2**32 - 1
AUTO = "auto"
"""Value of an option that is chosen for the machine or the data."""
MAX_COUNT = 10**9
"""Maximum of most counts, such as steps and documents; a larger one is probably a mistake and would never end."""
MAX_TOKENS = 10**15
MAX_SIZE = 10**6
"""Maximum texts per optimizer step, tokens per text, epochs and minutes."""


def read_number(value: Any) -> Any:
    """Return a number that may be given as text, such as ``1e-4``, which YAML does not read as a number."""
    if isinstance(value, bool):  # YAML reads yes and on as true, and Python counts with it
        raise ValueError(f"must be a number, not {value}")
    return parse_number(value)


def number_or_auto(most: int) -> BeforeValidator:
    """Return the check of an option that takes a whole number from 1 to ``most``, :data:`AUTO` or None."""

    def read(value: Any) -> Any:
        if value is None or value == AUTO:
            return value
        number = read_number(value)
        if type(number) is not int or not 1 <= number <= most:
            raise ValueError(f"must be auto or a whole number from 1 to {most:,}, not {value}")
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
Share = Annotated[Number, Field(ge=0, lt=1)]
