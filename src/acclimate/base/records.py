"""Dataclasses with a JSON form, and content hashes of JSON values and texts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from types import UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Self,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from acclimate.base.errors import UserError, first_line, shorten
from acclimate.base.files import read_json

LARGEST_INTEGER = 2**64
Count = Annotated[int, 0]
"""An integer that is not negative."""


def optional() -> Any:
    """Declare a field that is None by default and left out of the JSON while it is None."""
    return field(default=None, metadata={"optional": True})


def internal() -> Any:
    """Declare a field that is None by default and never in the JSON."""
    return field(default=None, metadata={"internal": True})


def flattened() -> Any:
    """Declare a dictionary whose entries are keys of the record itself in the JSON."""
    return field(default_factory=dict, metadata={"flat": True})


@dataclass_transform(kw_only_default=True, eq_default=False, field_specifiers=(field,))
@dataclass(kw_only=True, eq=False)
class Record(Mapping[str, Any]):
    """A dataclass with a JSON form; subclasses are dataclasses, too, and need no decorator.

    It can also be read like the JSON, ``record["key"]``: :func:`acclimate.compare` returns records, and scripts read
    them as they read ``results.json``. Two records, or a record and a dictionary, are equal if their JSON is.
    """

    def __init_subclass__(cls, *, repr: bool = True) -> None:
        super().__init_subclass__()
        dataclass(kw_only=True, eq=False, repr=repr)(cls)

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
    def from_dict(cls, values: Mapping[str, Any], place: str = "") -> Self:
        """Make a record from what :meth:`to_dict` returned, also after a round trip through JSON.

        Unknown keys are ignored.

        Args:
            values: The values.
            place: Where they are, for messages, such as ``"scores[2]"``.

        Raises:
            UserError: If a required key is missing, or a value has another type; the message names the key.
        """
        if isinstance(values, cls):
            return values
        if not isinstance(values, Mapping):
            raise UserError(_wrong(place, "an object", values))
        hints, given = _hints(cls), dict(values)
        made: dict[str, Any] = {}
        flat = None
        for entry in fields(cls):
            key = f"{place}.{entry.name}" if place else entry.name
            if entry.metadata.get("flat"):
                flat = entry
            elif "internal" in entry.metadata:
                continue
            elif entry.name in given:
                made[entry.name] = build_value(hints[entry.name], given.pop(entry.name), key)
            elif entry.default is MISSING and entry.default_factory is MISSING:
                raise UserError(f"{key} is missing")
        if flat is not None:
            kind = get_args(hints[flat.name])[1]
            made[flat.name] = {
                key: build_value(kind, value, f"{place}.{key}" if place else key)
                for key, value in given.items()
                if kind is Any or isinstance(value, Mapping)
            }
        return cls(**made)


RecordT = TypeVar("RecordT", bound=Record)


def read_record(path: str | Path, kind: type[RecordT], remedy: str) -> RecordT:
    """Read a JSON file that acclimate wrote, and check its form.

    Args:
        path: The file.
        kind: The class of its content.
        remedy: What to do about a damaged file, for the error.

    Raises:
        OSError: If the file cannot be read.
        UserError: If it has another form; the message names the file and the key.
    """
    try:
        return kind.from_dict(read_json(path))
    except (ValueError, UserError) as error:
        raise UserError(f"'{path}' is damaged ({first_line(error).removesuffix('.')}); {remedy}.") from error


def read_kept(path: Path, hint: Any) -> Any:
    """Return the content of a JSON file that acclimate keeps; None if there is none, or it has another form.

    Args:
        path: The file.
        hint: The type of its content, see :func:`build_value`.
    """
    with suppress(OSError, ValueError, UserError):
        return build_value(hint, read_json(path), path.name)
    return None


@cache
def _hints(cls: type[Record]) -> dict[str, Any]:
    return get_type_hints(cls, include_extras=True)


def _is_omitted(entry: Field[Any], value: Any) -> bool:
    return "internal" in entry.metadata or (value is None and bool(entry.metadata.get("optional")))


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    return [_plain(entry) for entry in value] if isinstance(value, list | tuple) else value


def _wrong(place: str, expected: str, value: Any) -> str:
    return f"{place or 'its content'} must be {expected}, not {shorten(value)}"


SCALARS: dict[Any, tuple[Any, str]] = {
    bool: (bool, "true or false"),
    int: (Integral, "an integer"),
    float: (Real, "a number"),
    str: (str, "a text"),
}
"""Types of plain values, and what they are called."""


def build_value(hint: Any, value: Any, place: str) -> Any:
    """Turn plain values into the records that a type hint names.

    Args:
        hint: The type, such as ``list[dict[str, float]]`` or a class of records.
        value: The values, such as the content of a JSON file.
        place: Where they are, for messages, such as ``"scores[2]"``.

    Raises:
        UserError: If a value has another type; the message names its key.
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, UnionType):
        *others, last = (one for one in arguments if one is not type(None))
        for other in others:
            with suppress(UserError):
                return build_value(other, value, place)
        return None if value is None else build_value(last, value, place)
    if origin is Annotated:
        if (made := build_value(arguments[0], value, place)) < arguments[1]:
            raise UserError(_wrong(place, f"at least {arguments[1]}", value))
        return made
    if isinstance(hint, type) and issubclass(hint, Record):
        return hint.from_dict(value, place)
    if origin is list:
        return [build_value(arguments[0], entry, f"{place}[{key}]") for key, entry in enumerate(_list(value, place))]
    if origin is dict or is_typeddict(hint):
        return _build_dict(hint, value, place)
    return _check_scalar(hint, value, place)


def _list(value: Any, place: str) -> Iterable[Any]:
    if isinstance(value, str | Mapping) or not isinstance(value, Iterable):
        raise UserError(_wrong(place, "a list", value))
    return value


def _build_dict(hint: Any, value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise UserError(_wrong(place, "an object", value))
    hints = get_type_hints(hint) if is_typeddict(hint) else {}
    marked = get_type_hints(hint, include_extras=True) if hints else {}
    # Postponed annotations hide what is not required from `__required_keys__`.
    required = {key for key, kind in marked.items() if get_origin(kind) is not NotRequired}
    if missing := required - value.keys():
        raise UserError(f"{place}.{min(missing)} is missing")
    other = Any if hints else get_args(hint)[1]
    return {key: build_value(hints.get(key, other), entry, f"{place}.{key}") for key, entry in value.items()}


def _check_scalar(hint: Any, value: Any, place: str) -> Any:
    if get_origin(hint) is Literal:
        kind, words = type(value) if value in get_args(hint) else (), f"one of {list(get_args(hint))}"
    else:
        kind, words = SCALARS[hint]
    if not isinstance(value, kind) or (isinstance(value, bool) and hint is not bool):
        raise UserError(_wrong(place, words, value))
    if isinstance(value, int) and abs(value) > LARGEST_INTEGER:
        raise UserError(_wrong(place, f"{words} of at most 64 bits", value))
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
