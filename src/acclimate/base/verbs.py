"""Verbs: what ``acclimate`` does, each declared once, next to its options.

From a declaration follow the command with its place in ``acclimate --help`` (:mod:`acclimate.cli.app`) and the
function in ``acclimate``. It names functions instead of importing them, since the declarations of all verbs are read
whenever the command line starts, while the functions import torch, which takes seconds.
"""

from __future__ import annotations

import inspect
import itertools
import shlex
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

from acclimate.base.options import values
from acclimate.base.registry import import_entries

C = TypeVar("C", bound=type[Any])

FIRST, EVALUATE, TRAIN, PUBLISH = "Start with these", "More: evaluate", "More: train", "More: inspect and publish"
SECTIONS = (FIRST, EVALUATE, TRAIN, PUBLISH)
"""Panels of ``acclimate --help``, in their order; the first has the verbs that most people need."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """Commands of one first word, such as ``inspect``.

    Attributes:
        name: The words after ``acclimate``.
        help: What it does.
        example: A command line, shown at the end of ``--help``.
        page: The page of the documentation that says more.
        section: Panel of ``acclimate --help``; a verb of a group is in the panel of the group.
        order: Place in the panel or group, by the order of use.
    """

    name: str
    help: str
    example: str
    page: str
    section: str = ""
    order: int = 0


@dataclass(frozen=True, kw_only=True)
class Verb(Group):
    """A command and the Python function of the same name, in which ``_`` stands for blanks and hyphens.

    Attributes:
        options: The options of the command.
        run: The function, as ``module:name``; the other functions are in the same module unless they name another one.
        command: Function that the command calls with the options, if it does more than ``run``.
        dry_run: Function that it calls instead if the option ``dry_run`` is on; its result has a method ``show``.
        show: Function that yields what the command prints, from the result and the options: texts, :class:`Next`, and
            what ``rich`` can print; by default :func:`show_report`.
        decide: Function that decides from the result and the options whether the requirements of ``--require`` are met
            (:class:`acclimate.results.requirements.Decision`); by default the result has it as ``decision``.
        without: Options that the command does not have.
        plugins: Whether the command takes ``--plugin``.
        shared: Whether processes that ``torchrun`` started share the work.
        cli: Whether there is a command.
    """

    options: Any
    run: str
    command: str = ""
    dry_run: str = ""
    show: str = ""
    decide: str = ""
    without: Collection[str] = ()
    plugins: bool = False
    shared: bool = False
    cli: bool = True

    @property
    def function_name(self) -> str:
        """Name of the function in ``acclimate``."""
        return self.name.replace(" ", "_").replace("-", "_")

    def load(self, name: str = "") -> Any:
        """Import the Python function, or another one that the declaration names."""
        module, _, function = name.rpartition(":")
        own, _, run = self.run.partition(":")
        return getattr(import_module(module or own), function or run)

    def call(self, given: Any) -> Any:
        """Do what the command does, and return the result.

        Args:
            given: An instance of ``options``.
        """
        if self.dry_run and given.dry_run:
            return self.load(self.dry_run)(given)
        if self.command:
            return self.load(self.command)(given)
        named = values(given)
        if self.dry_run:
            del named["dry_run"]
        return self.load()(**named)

    def shown(self, result: Any, given: Any) -> Iterator[Any]:
        """Yield what the command prints."""
        if self.dry_run and given.dry_run:
            return iter(result.show())
        return (self.load(self.show) if self.show else show_report)(result, given)

    def decided(self, result: Any, given: Any) -> Any:
        """Return the decision on requirements, which is the last that the command prints; None without any."""
        if not getattr(given, "require", ()) or getattr(given, "dry_run", False):
            return None
        return self.load(self.decide)(result, given) if self.decide else result.decision


DECLARED: dict[str, Group] = {}
"""Groups and verbs by name, of the modules that are imported."""


def register_group(name: str, **declared: Any) -> None:
    """Declare a group of commands, with the attributes of :class:`Group`."""
    DECLARED[name] = Group(name=name, **declared)


def register_verb(name: str, run: str, **declared: Any) -> Callable[[C], C]:
    """Return a decorator for a class of options that declares a verb; the docstring of the class is its help.

    Args:
        name: Name of the command, such as ``"inspect masks"``.
        run: The function, as ``module:name``.
        **declared: Other attributes of :class:`Verb`.
    """

    def decorate(cls: C) -> C:
        help = inspect.cleandoc(cls.__doc__ or "")
        DECLARED[name] = Verb(name=name, run=run, options=cls, help=help, **declared)
        return cls

    return decorate


def find_verbs() -> list[Verb]:
    """Return all verbs, in the order of their use."""
    return [one for one in find_declared() if isinstance(one, Verb)]


def find_declared() -> list[Group]:
    """Return all groups and verbs, in the order of their use."""
    import_entries("acclimate.verbs")
    return sorted(DECLARED.values(), key=lambda one: (SECTIONS.index(one.section or PUBLISH), one.order))


@dataclass(frozen=True)
class Next:
    """What to do next, as the last line of what a command prints.

    Attributes:
        words: The words of a command line after ``acclimate``, with the real paths; what the user has to fill in is in
            capitals.
        purpose: Purpose of the command, such as ``"to see whether it helps"``.
    """

    words: Sequence[object]
    purpose: str = ""

    @property
    def command(self) -> str:
        """The command line, with the ``--plugin`` flags of this one if the command takes such files."""
        words = [str(word) for word in self.words]
        verb = next((DECLARED[name] for name in (" ".join(words[:2]), *words[:1]) if name in DECLARED), None)
        plugins = plugin_words() if isinstance(verb, Verb) and verb.plugins else []
        return shlex.join(["acclimate", *words, *plugins])

    def __str__(self) -> str:
        return f"Next{', ' * bool(self.purpose)}{self.purpose}: {self.command}"


def show_report(report: Any, options: Any) -> Iterator[Any]:
    """Yield the summary of a report, and the file that holds all of it."""
    yield from report.describe()
    yield from show_place("Full report", options.out)


def show_place(what: str, place: object) -> Iterator[str]:
    """Yield where a file or folder was written; nothing for None."""
    if place is not None:
        yield f"{what}: {place}"


def given_words(*without: str, valued: Collection[str] = ()) -> list[str]:
    """Return the words of the command line after ``acclimate``, for the same command with other options.

    Args:
        without: Flags that are left out.
        valued: Options that are left out with their values; ``--plugin`` is, too, since :class:`Next` adds it.
    """
    words, valued = sys.argv[1:], (*valued, "--plugin")
    left_out = {place + shift for place, word in enumerate(words) if word in valued for shift in (0, 1)}
    left_out |= {place for place, word in enumerate(words) if word.partition("=")[0] in valued}
    return [word for place, word in enumerate(words) if place not in left_out and word not in (*without, "--json")]


def plugin_words() -> list[str]:
    """Return the ``--plugin`` flags of the command line, as words of the next one."""
    words = sys.argv[1:]
    pairs = [pair for pair in itertools.pairwise(words) if pair[0] == "--plugin"]
    return [word for pair in pairs for word in pair] + [word for word in words if word.startswith("--plugin=")]
