"""Dataclasses with a JSON form, and content hashes of JSON values and texts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache
from types import UnionType
from typing import Any, Self, Union, get_args, get_origin, get_type_hints

from acclimate.errors import UserError


def optional() -> Any:
    """Declare a field that is None by default and left out of the JSON while it is None."""
    return field(default=None, metadata={"optional": True})


def internal() -> Any:
    """Declare a field that is None by default and never in the JSON."""
    return field(default=None, metadata={"internal": True})


def flattened() -> Any:
    """Declare a dictionary whose entries are keys of the record itself in the JSON."""
    return field(default_factory=dict, metadata={"flat": True})


@dataclass(kw_only=True, eq=False)
class Record(Mapping[str, Any]):
    """A dataclass with a JSON form.

    It can also be read like the JSON, ``record["key"]``: :func:`acclimate.compare` returns records, and scripts read
    them as they read ``results.json``. Two records, or a record and a dictionary, are equal if their JSON is.
    """

    def __getitem__(self, key: str) -> Any:
        for entry in fields(self):
            value = getattr(self, entry.name)
            if entry.metadata.get("flat"):
                if key in value:
                    return value[key]
            elif entry.name == key and not _is_omitted(entry, value):
                return value
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        for entry in fields(self):
            value = getattr(self, entry.name)
            if entry.metadata.get("flat"):
                yield from value
            elif not _is_omitted(entry, value):
                yield entry.name

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {key: _plain(self[key]) for key in self}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Make a record from what :meth:`to_dict` returned, also after a round trip through JSON.

        Unknown keys are ignored.

        Raises:
            UserError: If a required key is missing.
        """
        if isinstance(values, cls):
            return values
        hints, given = _hints(cls), dict(values)
        made: dict[str, Any] = {}
        flat = None
        for entry in fields(cls):
            if entry.metadata.get("flat"):
                flat = entry
            elif "internal" in entry.metadata:
                continue
            elif entry.name in given:
                made[entry.name] = _build(hints[entry.name], given.pop(entry.name))
            elif entry.default is MISSING and entry.default_factory is MISSING:
                raise UserError(
                    f"The results have no '{entry.name}' where a {cls.__name__} is expected; run the study again."
                )
        if flat is not None:
            kind = get_args(hints[flat.name])[1]
            made[flat.name] = {
                key: _build(kind, value) for key, value in given.items() if kind is Any or isinstance(value, Mapping)
            }
        return cls(**made)


@cache
def _hints(cls: type[Record]) -> dict[str, Any]:
    return get_type_hints(cls)


def _is_omitted(entry: Field[Any], value: Any) -> bool:
    return "internal" in entry.metadata or (value is None and bool(entry.metadata.get("optional")))


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    return [_plain(entry) for entry in value] if isinstance(value, list | tuple) else value


def _build(hint: Any, value: Any) -> Any:
    """Turn plain values into the records that a type hint names."""
    origin, arguments = get_origin(hint), get_args(hint)
    if value is None:
        return None
    if origin in (Union, UnionType):
        return _build(next(one for one in arguments if one is not type(None)), value)
    if origin is list:
        return [_build(arguments[0], entry) for entry in value]
    if origin is dict:
        return {key: _build(arguments[1], entry) for key, entry in value.items()}
    if isinstance(hint, type) and issubclass(hint, Record):
        return hint.from_dict(value)
    return value


def fingerprint(value: Any) -> str:
    """Return 16 hex digits of the SHA-256 of ``value`` as canonical JSON.

    The order of keys and of set elements does not matter, and 1 equals 1.0. A value with a ``fingerprint`` (an
    attribute or a method) is represented by it.
    """
    text = json.dumps(_canonical(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def identity(value: Any) -> Any:
    """Return the ``fingerprint`` of a value that has one, else the value."""
    found = getattr(value, "fingerprint", None)
    return value if found is None else str(found() if callable(found) else found)


def _canonical(value: Any) -> Any:
    """Turn sets, tuples, paths and enums into JSON values in a fixed order."""
    value = identity(value)
    if isinstance(value, Mapping):
        return {str(key): _canonical(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted((_canonical(item) for item in value), key=str)
    if isinstance(value, list | tuple):
        return [_canonical(item) for item in value]
    if isinstance(value, int | str) or value is None:
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    return str(value)


def texts_fingerprint(texts: Iterable[str]) -> str:
    """Return 16 hex digits of the SHA-256 of texts, which depends on their order."""
    state = hashlib.sha256()
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        state.update(f"{len(data)} ".encode() + data)
    return state.hexdigest()[:16]
