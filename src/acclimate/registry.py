"""Lists of parts that have names: one file with ``@register`` is all that a new entry needs."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from acclimate.errors import unknown

T = TypeVar("T")
C = TypeVar("C", bound=type[Any])


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
            raise unknown(self.kind, name, self.entries)
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
