"""Options that are declared once: fields of a class, from which every interface is derived.

A class decorated with :func:`options` has one field per option, annotated with an :class:`Option`. The Python function
(:func:`verb`), the command line (:mod:`acclimate.cli.flags`), a section of the study file (:func:`section`) and the
configuration that is recorded with the model (:func:`recorded`) are derived from it.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import re
import textwrap
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, ClassVar, ParamSpec, TypeVar, cast, dataclass_transform, get_args, get_origin, get_type_hints

import pydantic
from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator, model_validator

from acclimate.base.errors import UserError, did_you_mean, refuse_exit, shorten
from acclimate.base.progress import silence_libraries

P = ParamSpec("P")
OptionsT = TypeVar("OptionsT")
R = TypeVar("R")
C = TypeVar("C", bound=type[Any])

DATA, MODEL, TRAINING, METHOD, OUTPUT = "Data", "Model", "Training", "Method", "Output"
PANELS = (DATA, MODEL, TRAINING, METHOD, OUTPUT)
"""Panels of ``--help``, in their order."""
CONFIG = ConfigDict(extra="forbid", arbitrary_types_allowed=True, coerce_numbers_to_str=True, defer_build=True)
TYPE_WORDS = {
    "int": "an integer",
    "float": "a number",
    "finite": "a finite number",
    "bool": "true or false",
    "dict": "a mapping of names to values, such as {temperature: 0.1}",
    "string": "text",
    "path": "a path",
}
"""The expected kind of value, by the first word of the type of pydantic's error."""
MAX_NAME = 200
"""Maximum bytes of the name of a file or folder; file systems allow 255, of which working files need some."""
PARAMETERS = {
    "settings": ("method", "dga contrast_weight=0.5"),
    "masking_settings": ("masking", "whole-word mask=1 random=0"),
    "adapter_settings": ("adapter", "lora r=8"),
    "quantize": ("adapter", "lora quantize=4bit"),
    "replay_share": ("replay", "wiki.txt=0.1"),
    "chat": ("replay", "chat:dialogues.jsonl=0.05"),
    "chat_share": ("replay", "chat:dialogues.jsonl=0.05"),
    "replay_memory": ("replay", "memory:500"),
    "memory_share": ("replay", "memory:500=0.2"),
    "memory_rule": ("replay", "reservoir:500"),
    "l2_sp": ("rules", "l2-sp strength=0.1"),
    "ewc": ("rules", "ewc strength=1 text=general.txt"),
    "ewc_text": ("rules", "ewc strength=1 text=general.txt"),
    "layer_decay": ("rules", "layer-decay factor=0.9"),
    "freeze": ("rules", "freeze names=embeddings"),
    "refactor_every": ("rules", "refactor every=100"),
    "sparsity": ("rules", "sparsity share=0.5"),
    "sparsity_choice": ("rules", "sparsity share=0.5 choice=random"),
    "new_token_settings": ("new_tokens", "500 min_count=5"),
}
"""Names that are no options since they are parameters of an entry: the option that takes it, and an example."""
UNKNOWN = ("unexpected_keyword_argument", "extra_forbidden")
"""Types of pydantic's errors for names that are not options: in calls, and in sections of a study file."""
BOUNDS = {
    "greater_than": ("more than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
}
"""The words for a bound, and its name in the context of the error, by the type of pydantic's error."""


@dataclass(frozen=True)
class Option:
    """Description of an option, and where it is available.

    Attributes:
        help: One sentence, shown by ``--help``.
        panel: Panel of ``--help``.
        more: Further sentences for the Python documentation only.
        unit: Unit of the value, shown with the default.
        default: Description of the default, shown instead of its value.
        flag: Name on the command line, if it differs from the field's; without hyphens, such as ``STUDY``, the
            command takes the value by position.
        negated: Flag that switches a boolean option off.
        many: Whether the flag may be repeated.
        cli: Whether the command line has the option.
        study: Whether a study file may set the option; the study itself sets the others.
        recorded: Whether the value can change the result, and so is part of the identity of a run.
    """

    help: str
    panel: str = TRAINING
    more: str = ""
    unit: str = ""
    default: str = ""
    flag: str = ""
    negated: str = ""
    many: bool = False
    cli: bool = True
    study: bool = True
    recorded: bool = True


@dataclass(frozen=True)
class OptionField:
    """One option of a class: its name, type, default (``MISSING`` if it is required) and description."""

    name: str
    annotation: Any
    type: Any
    default: Any
    option: Option
    keyword_only: bool

    @property
    def flag(self) -> str:
        """The name on the command line."""
        return self.option.flag or "--" + self.name.replace("_", "-")

    @property
    def shown_default(self) -> str:
        """The default in words, with its unit; empty if there is nothing to say."""
        unset = self.default is MISSING or self.default is None or self.default is False or self.default == ()
        if self.option.default or unset:
            return self.option.default
        if self.default is True:
            return "on"
        number = f"{self.default:,}" if isinstance(self.default, int) else str(self.default).replace("e-0", "e-")
        return f"{number} {self.option.unit}".rstrip()


@dataclass_transform(frozen_default=True)
def options(cls: C) -> C:
    """Make a class of options: a frozen pydantic dataclass that checks its fields when it is constructed.

    In every field that takes a path, ``~`` is the home folder.
    """
    cls.check_path = field_validator("*", mode="before", check_fields=False)(classmethod(_check_path))
    return pydantic.dataclasses.dataclass(frozen=True, config=CONFIG)(cls)  # type: ignore[return-value]


def _check_path(cls: Any, value: Any, info: ValidationInfo) -> Any:
    """Expand ``~`` if the option takes a path, which must not be empty; no text may hold a NUL character."""
    if not isinstance(value, str | Path):
        return value
    if "\0" in str(value):
        raise ValueError("must not contain a NUL character")
    kind = option_fields(cls)[str(info.field_name)].type
    if accepts(kind, Path) and value == "":
        raise ValueError("must not be empty")
    if accepts(kind, Path) and any(len(part.encode(errors="replace")) > MAX_NAME for part in Path(value).parts):
        raise ValueError(f"has a part of more than {MAX_NAME} bytes; give a shorter path")
    is_path = accepts(kind, Path) or accepts(kind, Any)
    return type(value)(os.path.expanduser(value)) if is_path else value


@functools.cache
def option_fields(cls: Any) -> dict[str, OptionField]:
    """Return the options of a class by name, in the order of its signature.

    Raises:
        TypeError: If a field has no :class:`Option`.
    """
    annotated, plain = get_type_hints(cls, include_extras=True), get_type_hints(cls)
    found = {}
    for field in dataclasses.fields(cls):
        marks = [mark for mark in getattr(annotated[field.name], "__metadata__", ()) if isinstance(mark, Option)]
        if not marks:
            raise TypeError(f"{cls.__name__}.{field.name} has no Option among its annotations")
        default = field.default
        if isinstance(default, pydantic.fields.FieldInfo):
            default = MISSING if default.is_required() else default.default
        found[field.name] = OptionField(
            field.name, annotated[field.name], plain[field.name], default, marks[-1], bool(field.kw_only)
        )
    return dict(sorted(found.items(), key=lambda item: item[1].keyword_only))


def build(cls: Callable[P, OptionsT], *args: P.args, **kwargs: P.kwargs) -> OptionsT:
    """Construct a class of options.

    Raises:
        UserError: If a value is wrong, an option is unknown or a required one is missing.
    """
    try:
        return cls(*args, **kwargs)
    except ValidationError as error:
        raise UserError(explain(error, cls)) from error


def explain(error: ValidationError, cls: Any, label: Callable[[str], str] | None = None) -> str:
    """Return one line on the first mistake in the options of a class.

    Args:
        error: What its construction raised.
        cls: The class of options.
        label: Function from the name of a field to the name that the user wrote; by default the name in quotes.
    """
    return " ".join(_explain(error, cls, label or "'{}'".format).split())


def _explain(error: ValidationError, cls: Any, label: Callable[[str], str]) -> str:
    # An unknown name may be a misspelled required one, so it is reported before missing ones.
    errors = error.errors(include_url=False)
    first = next((one for one in errors if one["type"] in UNKNOWN), errors[0])
    if not first["loc"]:
        text = explain_value(first)
        return f"{text[:1].upper()}{text[1:]}."
    place = first["loc"][0]
    name = list(option_fields(cls))[place] if isinstance(place, int) else str(place)  # a number if given by position
    if first["type"] in UNKNOWN:
        known = sorted(cls.option_names if issubclass(cls, Section) else option_fields(cls))
        if hint := propose_part(name, known):
            return f"{label(name)} is no option.{hint}"
        return f"Unknown option {label(name)}.{did_you_mean(name, known)} Available: {', '.join(known)}."
    if first["type"] in ("missing", "missing_argument"):
        return f"{label(name)} is required: {option_fields(cls)[name].option.help}"
    if first["type"] == "unexpected_positional_argument":
        return f"Too many positional arguments: give options by name, such as {', '.join(option_fields(cls))}."
    return f"{label(name)} {explain_value(first)}."


def propose_part(name: str, known: Collection[str]) -> str:
    """Return a sentence, after a space, on the option that takes what is no option of its own; empty if there is none.

    Args:
        name: Name of what was given, as a flag or a field.
        known: The options that there are, as flags or fields.
    """
    plain = name.removeprefix("--").replace("-", "_")
    option, example = PARAMETERS.get(re.sub(r"\bset$|(?<=_)set$", "settings", plain), ("", ""))
    flag = {"rules": "--rule"}.get(option, "--" + option.replace("_", "-"))
    shown = f"{flag} '{example}'" if flag in known else f"{option}: {example}" if option in known else ""
    return f" Give it as {shown}." if shown else ""


def explain_value(error: Mapping[str, Any]) -> str:
    """Return what is wrong with a value that pydantic refused, as the predicate of a sentence about its name."""
    kind, given, limits = error["type"], shorten(error["input"]), error.get("ctx", {})
    if kind in BOUNDS:
        words, bound = BOUNDS[kind]
        return f"must be {words} {limits[bound]:,.12g}, not {given}"
    if kind == "literal_error":
        return f"must be {limits['expected']}, not {given}"
    if kind.endswith("too_short"):
        return "must not be empty" if (least := limits["min_length"]) == 1 else f"needs at least {least} values"
    if kind == "value_error":
        return str(error["msg"]).removeprefix("Value error, ")
    if (expected := TYPE_WORDS.get(kind.split("_")[0])) is not None:
        return f"must be {expected}, not {given}"
    return f"is invalid: {error['msg']} (got {given})"


def verb(options: Callable[P, OptionsT]) -> Callable[[Callable[[OptionsT], R]], Callable[P, R]]:
    """Return a decorator that makes the public function of a verb, such as ``adapt``, with the options as arguments.

    The decorated function takes an instance of the class, and stays as ``__wrapped__``. Its docstring, with a section
    on the arguments added, becomes the public function's. While it runs with an option ``progress`` that is False,
    libraries show neither progress bars nor warnings.

    Args:
        options: The class of options, from which signature, documentation and checks come.
    """

    def decorate(run: Callable[[OptionsT], R]) -> Callable[P, R]:
        @functools.wraps(run)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            with refuse_exit():
                given = build(options, *args, **kwargs)
                with nullcontext() if getattr(given, "progress", True) else silence_libraries():
                    return run(given)

        call.__doc__ = _document(inspect.getdoc(run) or "", options)
        returned = inspect.signature(run).return_annotation
        call.__signature__ = _signature(options).replace(return_annotation=returned)  # type: ignore[attr-defined]
        return call

    return decorate


def _document(text: str, cls: Any) -> str:
    """Insert a section on the arguments into a docstring, before the section on errors."""
    lines = ["Args:"]
    for field in option_fields(cls).values():
        default = f" (default: {field.shown_default})" if field.shown_default else ""
        words = f"{field.name}: {field.option.help.removesuffix('.')}{default}. {field.option.more}".rstrip()
        lines += textwrap.wrap(words, 115, initial_indent="    ", subsequent_indent="        ")
    before, errors, after = text.partition("Raises:")
    return f"{before.rstrip()}\n\n" + "\n".join(lines) + (f"\n\n{errors}{after}" if errors else "\n")


def _signature(cls: Any) -> inspect.Signature:
    parameters = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY if field.keyword_only else inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=field.type,
        )
        for field in option_fields(cls).values()
    ]
    return inspect.Signature(parameters)


def values(given: Any, names: type[Any] | None = None) -> dict[str, Any]:
    """Return the options of an instance by name: all, or those that the class ``names`` declares."""
    return {name: getattr(given, name) for name in option_fields(cast(Any, names or type(given)))}


def option_words(cls: type[Any], given: Mapping[str, Any]) -> list[str]:
    """Return options of a class as words of a command line; those that are None or off are left out.

    Args:
        cls: The class of options.
        given: Values by name; names that are no options are ignored.
    """
    words = []
    for name, field in option_fields(cast(Any, cls)).items():
        value = given.get(name)
        for one in value if isinstance(value, list | tuple) else [value]:
            if one is not None and one is not False:
                words += [field.flag, *([] if one is True else [str(one)])]
    return words


def recorded(given: Any, without: Collection[str] = (), **resolved: Any) -> dict[str, Any]:
    """Return everything that determines the result of a run: the options with ``recorded=True``, and resolved values.

    Args:
        given: An instance of a class of options.
        without: Options to leave out, because entries of ``resolved`` cover them.
        resolved: Entries that replace options or are added, such as the hash of a file instead of its name.
    """
    names = recorded_names(type(given))
    return {name: getattr(given, name) for name in names if name not in without} | resolved


def recorded_names(cls: type[Any]) -> list[str]:
    """Return the names of the options of a class that can change the result of a run."""
    return [name for name, field in option_fields(cast(Any, cls)).items() if field.option.recorded]


def defaults(cls: type[Any]) -> dict[str, Any]:
    """Return the options of a class that are not required, with their defaults."""
    fields = option_fields(cast(Any, cls))
    return {name: field.default for name, field in fields.items() if field.default is not MISSING}


class Section(BaseModel):
    """A section of the study file that sets some of the options of a class; the other options have their defaults."""

    model_config = ConfigDict(**{**CONFIG, "protected_namespaces": ()})
    option_names: ClassVar[tuple[str, ...]] = ()
    """The options that the section may set."""

    def given(self) -> dict[str, Any]:
        """Return the options that the section sets, by name."""
        return {name: getattr(self, name) for name in self.option_names if getattr(self, name) is not None}

    @classmethod
    def check(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return values of some of the options, converted to their types.

        Raises:
            ValueError: If a name is not an option, or a value is wrong; the message is one line.
        """
        try:
            made = cls.model_validate(values)
        except ValidationError as error:
            text = explain(error, cls).removesuffix(".")
            raise ValueError(f"{text[:1].lower()}{text[1:]}") from error
        return {name: getattr(made, name) for name in values if getattr(made, name) is not None}


def section(cls: Any, *, without: Collection[str] = (), also: Collection[str] = ()) -> Any:
    """Make the section of the study file that takes the options of a class, checked as the class checks them.

    Args:
        cls: The class of options.
        without: Options that the section does not take, in addition to those that a study sets itself.
        also: Options that the section takes although other sections do not.

    Returns:
        A subclass of :class:`Section`. An option that the file does not set is None.
    """
    fields = {
        name: field
        for name, field in option_fields(cls).items()
        if (field.option.study and name not in without) or name in also
    }

    def refuse_others(model: type[Section], value: Any) -> Any:
        for name in set(value) & (option_fields(cls).keys() - fields.keys()) if isinstance(value, Mapping) else ():
            if name not in model.model_fields:
                raise ValueError(f"the study itself sets '{name}'; remove it")
        return value

    def check(self: Section) -> Section:
        placeholders = {name: name for name, field in option_fields(cls).items() if field.default is MISSING}
        try:
            cls(**placeholders, **self.given())
        except ValidationError as error:
            text = explain(error, cls).removesuffix(".")
            raise ValueError(f"{text[:1].lower()}{text[1:]}") from error
        return self

    definitions: dict[str, Any] = {name: (field.annotation | None, None) for name, field in fields.items()}
    validators: dict[str, Any] = {
        "refuse_others": model_validator(mode="before")(cast(Any, classmethod(refuse_others))),
        "check_options": model_validator(mode="after")(check),
    }
    title = f"{cls.__name__.removesuffix('Options')}Section"
    model = pydantic.create_model(title, __base__=Section, __validators__=validators, **definitions)
    model.option_names = tuple(fields)
    return model


def accepts(kind: Any, wanted: Any) -> bool:
    """Return whether a type is, or is a union with, ``wanted``: a class, or a result of ``get_origin``."""
    return kind is wanted or get_origin(kind) is wanted or any(accepts(inner, wanted) for inner in get_args(kind))


def takes_names(kind: Any) -> bool:
    """Return whether an annotation is of values by name only, which flags write as ``name=value``."""
    members = get_args(kind) if get_origin(kind) is not dict else (kind,)
    return accepts(kind, dict) and str not in members
