"""Content hashes of settings and texts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any


def fingerprint(value: Any) -> str:
    """Return 16 hex digits of the SHA-256 of ``value`` as canonical JSON.

    The order of keys and sets does not matter, and 1 equals 1.0. What has a ``fingerprint`` (an attribute or a method)
    is represented by it.
    """
    text = json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def identity(value: Any) -> Any:
    """Return the ``fingerprint`` of a value that has one, else the value."""
    found = getattr(value, "fingerprint", None)
    return value if found is None else str(found() if callable(found) else found)


def _plain(value: Any) -> Any:
    """Turn sets, tuples, paths and enums into JSON values in a fixed order."""
    value = identity(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted((_plain(item) for item in value), key=str)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bool | str) or value is None:
        return value
    if isinstance(value, int | float):
        return int(value) if float(value).is_integer() else value
    return str(value)


def texts_fingerprint(texts: Iterable[str]) -> str:
    """Return a hash of texts in their order."""
    state = hashlib.sha256()
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        state.update(f"{len(data)} ".encode() + data)
    return state.hexdigest()[:16]
