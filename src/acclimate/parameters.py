"""Parts with parameters, made from what a user gave."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config

from acclimate.errors import UserError, unknown

T = TypeVar("T")


def number(value: Any) -> Any:
    """Let ``1e-5`` stand for a number and ``1e6`` for a whole one: YAML reads both as text. The rest stays."""
    try:
        made = float(value) if isinstance(value, str) else value
    except ValueError:
        return value
    return int(made) if isinstance(made, float) and made.is_integer() else made


def build(cls: type[T], kind: str, name: str, settings: Mapping[str, Any], hidden: Collection[str] = ()) -> T:
    """Make a dataclass from values; strings are converted to the types of its fields.

    Args:
        cls: The dataclass.
        kind: What it is, for messages, for example ``"method"``.
        name: What users call it.
        settings: Values of its fields.
        hidden: Fields that no user sets.

    Raises:
        UserError: If a field is unknown (the message proposes the nearest), or a value does not fit.
    """
    fields = {field.name for field in dataclasses.fields(cls)} - set(hidden)  # type: ignore[arg-type]
    for key in settings:
        if key not in fields:
            if not fields:
                raise UserError(f"{kind.capitalize()} '{name}' has no parameters, so '{key}' cannot be set.")
            raise unknown(f"parameter of {kind} '{name}'", key, fields)
    try:
        return TypeAdapter(with_config(ConfigDict(extra="forbid"))(cls)).validate_python(dict(settings))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise UserError(
            f"{kind.capitalize()} '{name}', parameter '{place}': {first['msg']} (got {first['input']!r})."
        ) from error
