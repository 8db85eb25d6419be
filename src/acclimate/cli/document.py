"""The JSON document that ``--json`` prints as the last line of standard output."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from acclimate.base.verbs import find_verbs

SCHEMA = 1
"""Version of the layout of the document."""


def make_document(verb: str, **content: Any) -> str:
    """Return the document as one line.

    Args:
        verb: Name of the verb.
        **content: ``out``, the output; ``result``; ``next``, the command lines to go on with; and ``decision``, if
            something was required; or ``error`` and ``code``.
    """
    return json.dumps({"schema": SCHEMA, "verb": verb, **_plain(content)}, allow_nan=False)


def named_verb(words: list[str]) -> str:
    """Return the verb that a command line names; its first word if there is no such verb."""
    given = [word for word in words if not word.startswith("-")]
    names = {verb.name for verb in find_verbs()}
    return next((name for name in (" ".join(given[:2]), *given[:1]) if name in names), "".join(given[:1]))


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: dataclasses by field, numbers that are not finite as null, paths as text."""
    if hasattr(value, "document"):
        return _plain(value.document())
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if hasattr(value, "tolist"):  # arrays and numbers of numpy and torch
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Iterable) and not isinstance(value, bytes):
        return [_plain(entry) for entry in value]
    return str(value)
