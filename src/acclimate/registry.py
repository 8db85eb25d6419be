"""Lists of parts that have names: one file with ``@register`` is all that a new entry needs.

Parts with parameters, made from what a user gave.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config

from acclimate.errors import UserError, unknown_name_error
from acclimate.files import hash_file

T = TypeVar("T")
C = TypeVar("C", bound=type[Any])

KNOWN_PACKAGES = ("acclimate", "builtins", "abc", "typing", "torch")
"""Packages whose versions are known; code of others is told by its files."""


class Registry(Generic[T]):
    """The classes of one kind, by name.

    Every module of the package is imported when the list is first read, and so is every entry point of the group of
    the same name in other packages.
    """

    def __init__(self, package: str, kind: str, several: str) -> None:
        """Start empty.

        Args:
            package: Whose modules hold the entries, and the name of the group of entry points.
            kind: What an entry is, for messages.
            several: The same for more than one.
        """
        self.package, self.kind, self.several = package, kind, several
        self.entries: dict[str, type[T]] = {}
        self._discovered = False

    def register(self, name: str, *, paper: str = "", summary: str = "") -> Callable[[C], C]:
        """Enter a class in the list.

        Args:
            name: What users call it.
            paper: Short citation.
            summary: One line on what it does.

        Raises:
            ValueError: If the name is taken by another class.
        """

        def enter(cls: C) -> C:
            known = self.entries.get(name)
            if known is not None and known.__qualname__ != cls.__qualname__:
                raise ValueError(f"two {self.several} are called '{name}': {known.__module__} and {cls.__module__}")
            cls.name, cls.paper, cls.summary = name, paper, summary
            self.entries[name] = cls
            return cls

        return enter

    def names(self) -> list[str]:
        """Return all names, sorted."""
        self._discover()
        return sorted(self.entries)

    def lookup(self, name: str) -> type[T]:
        """Return the class of a name.

        Raises:
            UserError: If there is none of that name; the message proposes the nearest.
        """
        self._discover()
        if name not in self.entries:
            raise unknown_name_error(self.kind, name, self.entries)
        return self.entries[name]

    def _discover(self) -> None:
        if self._discovered:
            return
        self._discovered = True
        package = importlib.import_module(self.package)
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{self.package}.{module.name}")
        for entry in entry_points(group=self.package):
            entry.load()


def hash_user_code(cls: type) -> dict[str, str]:
    """Return hashes of the files, by module, that define a class and those it derives from; none for this package.

    Results are known by what decided them: somebody who mends a method of their own must not be given those of before.
    Code that is imported from further files is not looked at, nor is a class of an interactive session.
    """
    found = {}
    for part in cls.__mro__:
        if part.__module__.split(".")[0] not in KNOWN_PACKAGES:
            with suppress(OSError, TypeError):  # there is no file
                found[part.__module__] = hash_file(Path(inspect.getfile(part)))
    return found


DataclassT = TypeVar("DataclassT")


def parse_number(value: Any) -> Any:
    """Let ``1e-5`` stand for a number and ``1e6`` for a whole one: YAML reads both as text. The rest stays."""
    try:
        made = float(value) if isinstance(value, str) else value
    except ValueError:
        return value
    return int(made) if isinstance(made, float) and made.is_integer() else made


def build_dataclass(
    cls: type[T], kind: str, name: str, settings: Mapping[str, Any], hidden: Collection[str] = ()
) -> T:
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
            raise unknown_name_error(f"parameter of {kind} '{name}'", key, fields)
    try:
        return TypeAdapter(with_config(ConfigDict(extra="forbid"))(cls)).validate_python(dict(settings))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise UserError(
            f"{kind.capitalize()} '{name}', parameter '{place}': {first['msg']} (got {first['input']!r})."
        ) from error
