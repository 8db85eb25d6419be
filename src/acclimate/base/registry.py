"""Registries of named classes, instances built from user-supplied parameters, and presets.

A preset holds the values that a paper, or its released code, has for parameters whose defaults differ from them.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import inspect
import os
import re
import shlex
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import entry_points
from pathlib import Path, PurePath
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, cast, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config

from acclimate.base.errors import USER_CODE_ERRORS, UserError, first_line, shorten, unknown_name_error
from acclimate.base.files import find_file, hash_file

T = TypeVar("T")
C = TypeVar("C", bound=type[Any])

MAX_INTEGER = 10**18
"""Maximum of the integers that a user may give."""
PLUGIN = "acclimate_plugin_"
"""Beginning of the names of modules that are imported from a file."""
PLACES = {
    "acclimate.methods": ("adaptation/methods/*", "papers/*/method"),
    "acclimate.masking": ("parts/masking/*",),
    "acclimate.adapters": ("models/lora", "parts/modules/*", "papers/*/adapter"),
    "acclimate.rules": ("adaptation/rules", "papers/*/rule"),
    "acclimate.scorings": tuple(
        f"evaluation/{name}" for name in ("scoring", "answers", "choice", "regression", "entities", "qa", "retrieval")
    ),
    "acclimate.mixes": ("data/mix/*", "papers/*/mix"),
    "acclimate.selections": ("data/select/*", "papers/*/select"),
    "acclimate.merges": ("merging/methods/*", "papers/*/merge"),
    "acclimate.transforms": ("data/transform/*", "tasks/annotation", "papers/*/transform"),
    "acclimate.tasks": ("tasks/kinds/*", "tasks/kinds/*/*"),
    "acclimate.verbs": ("*/*options", "labs/*/*options", "papers/*/command_options"),
    "acclimate.jobs": ("study/jobs/*", "labs/*/jobs"),
    "acclimate.renderers": ("report/*",),
}
"""Modules that register the entries of each registry, as patterns of files of the package without their suffix.

The key is also the group of entry points under which other packages declare entries.
"""
ROOT = Path(__file__).parents[1]
"""Folder of the package."""
KNOWN_PACKAGES = ("acclimate", "builtins", "abc", "typing", "torch")
"""Packages that are identified by their version; other code is identified by the content of its files."""


class Registry(Generic[T]):
    """The classes of one kind, by name.

    A new entry needs one file with ``@register``: when the registry is first read, every module in its :data:`PLACES`
    is imported, and so is every entry point that other packages declare in its group.
    """

    def __init__(self, group: str, kind: str, plural: str) -> None:
        """Make an empty registry.

        Args:
            group: Key of :data:`PLACES`.
            kind: What an entry is, for messages.
            plural: Plural of ``kind``.
        """
        self.group, self.kind, self.plural = group, kind, plural
        self.entries: dict[str, type[T]] = {}
        self._discovered = False
        REGISTRIES.setdefault(group, self)

    def register(self, name: str, *, paper: str = "", summary: str = "") -> Callable[[C], C]:
        """Return a decorator that registers a class.

        Args:
            name: Name of the entry.
            paper: Short citation.
            summary: What it does, in one line.

        Raises:
            ValueError: If another class has this name.
        """

        def decorate(cls: C) -> C:
            known = self.entries.get(name)
            if known is not None and known.__qualname__ != cls.__qualname__:
                raise ValueError(f"two {self.plural} have the name '{name}': {known.__module__} and {cls.__module__}")
            cls.name, cls.paper, cls.summary = name, paper, summary
            self.entries[name] = cls
            return cls

        return decorate

    def names(self) -> list[str]:
        """Return the names of all entries, sorted."""
        self._discover()
        return sorted(self.entries)

    def lookup(self, name: str) -> type[T]:
        """Return the class with a name.

        Raises:
            UserError: If there is none; the message suggests the closest name.
        """
        self._discover()
        if name not in self.entries:
            raise unknown_name_error(self.kind, name, self.entries)
        return self.entries[name]

    def parse(self, given: Any) -> tuple[type[T], dict[str, Any]]:
        """Return the class of the entry that a user gave, and its parameters.

        Args:
            given: ``"NAME"``, ``"NAME parameter=value ..."``, ``{name: parameters}``, ``{name: value}`` with the value
                of the main parameter, or an instance.

        Raises:
            UserError: If it is something else, or the name is unknown.
        """
        if isinstance(given, Part):
            return cast(type[T], type(given)), given.settings()
        name, settings = split_entry(given, self.kind)
        cls = self.lookup(name)
        if settings is None or isinstance(settings, Mapping):
            return cls, dict(settings or {})
        if not (main := getattr(cls, "main", "")):
            raise UserError(f"{self.kind.capitalize()} '{name}' expects named parameters, not {shorten(settings)}.")
        return cls, {main: settings}

    def read(self, given: Any) -> T:
        """Return the entry that a user gave (:meth:`parse`).

        Raises:
            UserError: If a name or a parameter is unknown, or a value does not fit.
        """
        if isinstance(given, Part):
            return cast(T, given)
        cls, settings = self.parse(given)
        return build_dataclass(cls, self.kind, cls.name, fill_from_preset(cls, settings))  # type: ignore[attr-defined]

    def make(self, name: str, /, **settings: Any) -> T:
        """Return the entry with a name and parameters, as :meth:`read`."""
        return self.read({name: settings})

    def _discover(self) -> None:
        if self._discovered:
            return
        self._discovered = True
        import_entries(self.group)
        for entry in entry_points(group=self.group):
            try:
                entry.load()
            except USER_CODE_ERRORS as error:
                self._discovered = False
                raise UserError(
                    f"The package '{entry.dist.name if entry.dist else entry.value}' declares '{entry.name}' in "
                    f"{self.group}, which cannot be imported: {type(error).__name__}: {first_line(error)}. Repair or "
                    "uninstall it."
                ) from error


REGISTRIES: dict[str, Registry[Any]] = {}
"""The registries by group, once they are imported."""


def find_registry(group: str) -> Registry[Any]:
    """Return the registry of a group."""
    import_entries(group)
    return REGISTRIES[group]


def import_entries(group: str) -> None:
    """Import the modules that register the entries of a group, see :data:`PLACES`."""
    for module in declared_modules(group):
        importlib.import_module(module)


def declared_modules(group: str) -> list[str]:
    """Return the names of the modules that register the entries of a group, see :data:`PLACES`."""
    return [
        f"acclimate.{file.relative_to(ROOT).with_suffix('').as_posix().replace('/', '.')}".removesuffix(".__init__")
        for file in _files(group)
    ]


def _files(group: str) -> list[Path]:
    return sorted(file for place in PLACES[group] for file in ROOT.glob(f"{place}.py"))


REGISTERED = re.compile(r'@(?:\w+\.)?register(?:_\w+)?\(\s*"([^"]+)"')


@functools.cache
def declared_names(group: str) -> set[str]:
    """Return the names of the entries of a group, from their source, which imports nothing.

    None is returned if other packages may declare further entries.
    """
    if entry_points(group=group):
        return set()
    return {name for file in _files(group) for name in REGISTERED.findall(file.read_text(encoding="utf-8"))}


class Part:
    """A registered dataclass whose fields are the parameters that a user gives."""

    name: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    files: ClassVar[tuple[str, ...]] = ()
    """Parameters that may be paths of files or models; in a study file they are relative to its folder."""
    main: ClassVar[str] = ""
    """The parameter that is meant where only a value is given, as in ``{nearest: 50}``."""

    def settings(self) -> dict[str, Any]:
        """Return the parameters and their values."""
        return {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}  # type: ignore[arg-type]

    def identity(self) -> dict[str, Any]:
        """Return everything that determines the result, as plain values; files and user code by their content."""
        values = self.settings()
        for name in self.files:
            if values[name] is not None and (file := find_file(str(values[name]))) is not None:
                values[name] = hash_file(file)
        code = hash_user_code(type(self))
        return {"name": self.name, **values, **({"code": code} if code else {})}

    def describe(self) -> str:
        """Return the name, with the parameters that differ from the defaults, as on the command line."""
        usual = {
            item.name: item.default if item.default_factory is dataclasses.MISSING else item.default_factory()
            for item in dataclasses.fields(self)  # type: ignore[arg-type]
        }
        changed = {name: plain_value(value) for name, value in self.settings().items() if value != usual[name]}
        return " ".join([self.name, *(f"{name}={value}" for name, value in changed.items())])


if TYPE_CHECKING:
    PartLike = str | Mapping[str, Any] | Part
else:
    PartLike = Any  # Registry.read says in one line what is wrong
"""A part as a user gives it, see :meth:`Registry.parse`."""


def plain_value(value: Any) -> Any:
    """Return the value of a parameter as it is stored: paths as text, functions by their names."""
    if callable(value):
        return getattr(value, "__qualname__", type(value).__qualname__)
    return str(value) if isinstance(value, Path) else value


def import_plugin(path: str | Path) -> ModuleType:
    """Run a Python file that registers entries, once per process; return its module.

    Raises:
        UserError: If it is not a Python file, or it fails.
    """
    path = Path(path).expanduser().resolve()
    if path.suffix != ".py" or not path.is_file():
        raise UserError(f"There is no Python file '{path}'; give the .py file that registers the method or function.")
    name = f"{PLUGIN}{path.stem}"  # not the path, so that results are found again after the file has moved
    if name in sys.modules and sys.modules[name].__file__ != str(path):  # another file of the same name
        name += f"_{sha256(os.fsencode(path)).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except USER_CODE_ERRORS as error:
        del sys.modules[name]
        raise UserError(f"'{path}' cannot be imported: {type(error).__name__}: {first_line(error)}.") from error
    return module


def load_function(given: Any, what: str) -> Any:
    """Return a function of the user.

    Args:
        given: The function itself, ``FILE.py:FUNCTION``, or the name of a function of a file that was imported with
            :func:`import_plugin`.
        what: What it is for, for messages.

    Raises:
        UserError: If there is no such file or function.
    """
    if callable(given):
        return given
    file, _, name = str(given).rpartition(":")
    plugins = [module for key, module in list(sys.modules.items()) if key.startswith(PLUGIN)]
    if not file and (found := [getattr(one, name) for one in plugins if callable(getattr(one, name, None))]):
        return found[0]
    if not file or not name:
        raise UserError(f"'{given}' names no function; give the {what} as FILE.py:FUNCTION.")
    function = getattr(import_plugin(file), name, None)
    if not callable(function):
        raise UserError(f"'{file}' has no function '{name}', which was given as {what}.")
    return function


def identify_function(given: Any, what: str, key: object = None) -> str:
    """Return the name of a function of the user and what its results depend on: its code and the values it holds.

    The code is the whole file of the function. The values are its defaults, the variables that it takes from a
    function around it, the arguments of a ``functools.partial``, and the attributes of the object it belongs to.

    Args:
        given: The function, see :func:`load_function`.
        what: What it is for, for messages.
        key: What identifies the function instead, such as the version of the model that it calls.

    Raises:
        UserError: If there is no such function, or its code or one of the values cannot be read.
    """
    function = load_function(given, what)
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    name = (inner if inspect.isroutine(inner) or inspect.isclass(inner) else type(inner)).__qualname__
    if key is not None:
        return f"{name} {key}"
    try:
        return f"{name} {sha256(repr(_content(function)).encode()).hexdigest()}"
    except (OSError, TypeError, ValueError) as error:
        raise UserError(
            f"The code of the {what} '{name}', or a value that it holds, cannot be read; define it in a file, or "
            f"identify its results with key=TEXT ({first_line(error)})."
        ) from error


def _content(value: Any, above: tuple[int, ...] = ()) -> Any:
    """Return what determines a value, as plain values: of code its file, and what it holds.

    Raises:
        OSError, TypeError, ValueError: If that cannot be read.
    """
    if id(value) in above:  # such as a function that calls itself
        return "again", above.index(id(value))
    of = functools.partial(_content, above=(*above, id(value)))
    if callable(value):
        return _code_content(value, of)
    if value is None or isinstance(value, str | bytes | int | float | complex | PurePath):
        return value
    if isinstance(value, ModuleType | re.Pattern):
        return (value.__name__,) if isinstance(value, ModuleType) else (value.pattern, value.flags)
    if isinstance(value, dict):
        return "dict", [(of(key), of(one)) for key, one in value.items()]
    if isinstance(value, set | frozenset):
        return "set", sorted(repr(of(one)) for one in value)
    return ("list", [of(one) for one in value]) if isinstance(value, list | tuple) else _state(value, of)


def _code_content(value: Any, of: Callable[[Any], Any]) -> Any:
    if isinstance(value, functools.partial):
        return "partial", of(value.func), of(value.args), of(value.keywords)
    if inspect.ismethod(value):
        return value.__name__, of(value.__self__)
    if inspect.isclass(value):
        return value.__qualname__, [_file_content(one) for one in value.__mro__ if one is not object]
    if inspect.isfunction(value):
        ends = [(line, column or 0) for line, _, column, _ in value.__code__.co_positions() if line]
        end = max(ends) if value.__name__ == "<lambda>" else None  # where it starts is not recorded
        held = [cell.cell_contents for cell in value.__closure__ or ()], value.__defaults__, value.__kwdefaults__
        return value.__qualname__, _file_content(value), end, of(held)
    wrapped = getattr(value, "__wrapped__", None)  # such as of functools.cache
    return _state(value, of) if wrapped is None else of(wrapped)


def _state(value: Any, of: Callable[[Any], Any]) -> Any:
    if type(value).__reduce_ex__ is not object.__reduce_ex__ or type(value).__reduce__ is not object.__reduce__:
        raise TypeError(f"a value of type {type(value).__name__}")
    return of(type(value)), of(object.__getstate__(value))


def _file_content(code: Any) -> str:
    file = Path(inspect.getfile(code))
    # A notebook has no file; of it only the lines of the function are known.
    return hash_file(file) if file.is_file() else inspect.getsource(code)


def imported_plugins() -> list[str]:
    """Return the files that :func:`import_plugin` has run in this process."""
    return [str(module.__file__) for name, module in list(sys.modules.items()) if name.startswith(PLUGIN)]


def hash_user_code(cls: type) -> dict[str, str]:
    """Return the hash of each user module that defines a class or one of its base classes, by module name.

    The hashes are part of the identity of results, so that results are computed again after a change to user code.
    Neither other modules that the code imports nor classes of an interactive session are included.
    """
    hashes = {}
    for part in cls.__mro__:
        if part.__module__.split(".")[0] not in KNOWN_PACKAGES:
            with suppress(OSError, TypeError):  # the class has no file
                hashes[part.__module__] = hash_file(Path(inspect.getfile(part)))
    return hashes


def parse_number(value: Any) -> Any:
    """Convert text such as ``1e-5``, which YAML does not read as a number, to a float or int."""
    try:
        number = float(value) if isinstance(value, str) else value
    except ValueError:
        return value
    return int(number) if isinstance(number, float) and number.is_integer() else number


def split_entry(given: Any, kind: str) -> tuple[str, Any]:
    """Return the name and the parameters of an entry that a user gave; the registry is not read.

    Args:
        given: As for :meth:`Registry.parse`, but no instance.
        kind: What the entry is, for messages.

    Raises:
        UserError: If it has another form.
    """
    if isinstance(given, Mapping) and len(given) == 1:
        ((name, settings),) = given.items()
        return str(name), settings
    with suppress(ValueError):  # it is empty, or a quotation mark is missing
        name, *parts = shlex.split(given) if isinstance(given, str) else []
        pairs = [part.partition("=") for part in parts]
        if all(sign and key for key, sign, _ in pairs):
            return name, {key: parse_number(value) for key, _, value in pairs}
    shown = f"'{given}'" if isinstance(given, str) else shorten(given)
    raise UserError(f"A {kind} is NAME, 'NAME parameter=value ...' or {{NAME: {{parameter: value}}}}, not {shown}.")


def check_parameters(given: Iterable[str], known: Collection[str], kind: str, name: str) -> None:
    """Check that an entry has the parameters that a user gave.

    Raises:
        UserError: If it lacks one; the message suggests the closest.
    """
    for key in given:
        if key not in known:
            if not known:
                raise UserError(f"{kind.capitalize()} '{name}' has no parameters, so '{key}' cannot be set.")
            raise unknown_name_error(f"parameter of {kind} '{name}'", key, known)


def build_dataclass(
    cls: type[T], kind: str, name: str, settings: Mapping[str, Any], hidden: Collection[str] = ()
) -> T:
    """Make a dataclass from values that a user gave; strings are converted to the types of its fields.

    Args:
        cls: The dataclass.
        kind: What it is, for messages, for example ``"method"``.
        name: Its name, for messages.
        settings: Values of its fields.
        hidden: Fields that users cannot set.

    Raises:
        UserError: If a field is unknown (the message suggests the closest), or a value is invalid.
    """
    fields = {field.name for field in dataclasses.fields(cls)} - set(hidden)  # type: ignore[arg-type]
    check_parameters(settings, fields, kind, name)
    try:
        made = TypeAdapter(with_config(ConfigDict(extra="forbid", allow_inf_nan=False))(cls)).validate_python(
            dict(settings)
        )
    except ValidationError as error:
        first = error.errors()[0]
        same = [one for one in error.errors() if one["loc"][:1] == first["loc"][:1]]
        if first["type"] == "missing":
            raise UserError(f"{kind.capitalize()} '{name}' needs the parameter '{first['loc'][0]}'.") from error
        # Of a parameter with several types, the places are the names of the types.
        place = ".".join(str(part) for part in first["loc"][: None if len(same) == 1 else 1])
        wrong = ", or: ".join(dict.fromkeys(one["msg"].removeprefix("Value error, ") for one in same))
        given = shorten(first["input"])
        raise UserError(f"{kind.capitalize()} '{name}', parameter '{place}': {wrong} (got {given}).") from error
    for key in fields:
        if isinstance(value := getattr(made, key), int) and abs(value) > MAX_INTEGER:
            raise UserError(f"{kind.capitalize()} '{name}', parameter '{key}' is too large: {shorten(value)}.")
    return made


@dataclass(frozen=True, eq=False)
class Published:
    """Published values of a parameter that differ from its default; an annotation of the field.

    Attributes:
        values: Values by name of the preset. A preset that is not listed has the default.
        reason: Why the default departs from the paper; empty if it does not.
    """

    values: Mapping[str, Any]
    reason: str = ""


@functools.cache
def published(cls: Any) -> dict[str, Published]:
    """Return the published values that the fields of a dataclass declare, by field."""
    if cls.__module__.split(".")[0] != "acclimate" and not hasattr(cls, "preset"):
        return {}  # the annotations of user-supplied code may have names that only type checkers import
    hints = get_type_hints(cls, include_extras=True)
    marks = {field.name: getattr(hints[field.name], "__metadata__", ()) for field in dataclasses.fields(cls)}
    return {name: mark for name, found in marks.items() for mark in found if isinstance(mark, Published)}


def preset_names(cls: Any) -> list[str]:
    """Return the names of the presets of a dataclass."""
    return sorted({"paper"}.union(*(mark.values for mark in published(cls).values())))


def preset_values(cls: Any, preset: str | None) -> dict[str, Any]:
    """Return the values of a preset that differ from the defaults of a dataclass, by field.

    Raises:
        UserError: If there is no such preset.
    """
    if preset is None:
        return {}
    if preset not in preset_names(cls):
        raise unknown_name_error("preset", str(preset), preset_names(cls))
    return {name: mark.values[preset] for name, mark in published(cls).items() if preset in mark.values}


def fill_from_preset(cls: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given values of the fields of a dataclass, and its ``preset``'s values for the others.

    Raises:
        UserError: If there is no such preset.
    """
    return {**preset_values(cls, given.get("preset", getattr(cls, "preset", None))), **given}


def with_presets(cls: C) -> C:
    """Make a dataclass take the values of its ``preset`` also when it is constructed directly."""
    construct = cls.__init__
    signature = inspect.signature(construct)

    @functools.wraps(construct)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        construct(**fill_from_preset(cls, signature.bind(self, *args, **kwargs).arguments))

    cls.__init__ = __init__
    return cls
