"""Commands that are generated from a class of options; values come from flags and from a configuration file."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic import ValidationError

from acclimate.cli.app import Quiet
from acclimate.errors import UserError, unknown_name_error
from acclimate.options import OptionField, explain, option_fields
from acclimate.options.declaration import MISSING, PANELS, accepts
from acclimate.settings_file import read_settings

Config = Annotated[
    Path | None,
    typer.Option(help="YAML or TOML file with any of these options; flags take precedence.", show_default=False),
]


def command(
    app: typer.Typer, options: Any, *, example: str, without: Collection[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command whose flags are the options of a class.

    The first argument of the decorated function is a dictionary of the options that the user gave, and ``progress``,
    ready to be passed to the Python function. Its further parameters are flags that only the command line has; a
    configuration file may set them, too.

    Args:
        app: The application that gets the command.
        options: The class of options.
        example: A command line, shown at the end of ``--help``.
        without: Options that the command sets itself.
    """
    fields = {
        name: field for name, field in option_fields(options).items() if field.option.cli and name not in without
    }

    def decorate(run: Callable[..., None]) -> Callable[..., None]:
        own = dict(list(inspect.signature(run, eval_str=True).parameters.items())[1:])

        def call(**given: Any) -> None:
            config, quiet = given.pop("config"), given.pop("quiet")
            extra = {name: given.pop(name) for name in own}
            values = read_values(options, fields, given, config, extra)
            run({**values, "progress": not quiet}, **extra)

        flags = sorted(fields.values(), key=lambda field: PANELS.index(field.option.panel))
        parameters = [
            _parameter("config", Config, None),
            *(_parameter(field.name, _annotation(field), None) for field in flags),
            *(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own.values()),
            _parameter("quiet", Quiet, False),
        ]
        call.__name__, call.__doc__ = run.__name__, run.__doc__
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        app.command(epilog=f"Example: {example}")(call)
        return run

    return decorate


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _annotation(field: OptionField) -> Any:
    """Return the annotation from which typer makes the flag; its value is None if the flag was not given."""
    names = [field.flag]
    if field.option.negated:
        names = [f"{field.flag}/{field.option.negated}"]
    notes = ["required"] if field.default is MISSING else []
    notes += [f"default: {field.shown_default}"] if field.shown_default else []
    text = field.option.help
    if field.option.many or accepts(field.type, dict):
        text += " May be repeated."
    if notes:
        text = f"{text[:-1] if text.endswith('.') else text} ({'; '.join(notes)})."
    return Annotated[
        _flag_type(field) | None,
        typer.Option(*names, help=text, rich_help_panel=field.option.panel, show_default=False),
    ]


def _flag_type(field: OptionField) -> Any:
    """Return the type that typer parses; the class of options then checks the value."""
    if field.option.many or accepts(field.type, dict):
        return list[str]
    literal = next((kind for kind in (field.type, *get_args(field.type)) if get_origin(kind) is Literal), None)
    if literal is not None:
        return literal
    return next((kind for kind in (bool, int, float) if accepts(field.type, kind)), str)


def read_values(
    options: Any,
    fields: Mapping[str, OptionField],
    flags: Mapping[str, Any],
    config: Path | None,
    extra: dict[str, Any],
) -> dict[str, Any]:
    """Join flags and a configuration file, and check the result.

    Args:
        options: The class of options.
        fields: The options that the command has.
        flags: Values from the command line by name; None for those that were not given.
        config: The configuration file, or None.
        extra: Values of flags that are not options of the class; those that were not given are set from the file, in
            place.

    Raises:
        UserError: If the file cannot be read or has unknown names, a value is wrong, or a required one is missing.
    """
    values = {} if config is None else read_config(config, fields, extra)
    for name in extra:
        if (value := values.pop(name, None)) is not None and extra[name] is None:
            extra[name] = value
    for name, field in fields.items():
        if (given := flags[name]) is not None:
            named = accepts(field.type, dict)
            values[name] = {**(values.get(name) or {}), **named_values(given, field.flag)} if named else given

    def label(name: str) -> str:
        if config is not None and flags.get(name) is None and name in values:
            return f"'{config}': '{name}'"
        return fields[name].flag if name in fields else f"'{name}'"

    placeholders = {
        name: name for name, field in option_fields(options).items() if name not in fields and field.default is MISSING
    }
    try:
        made = options(**placeholders, **values)
    except ValidationError as error:
        raise UserError(explain(error, options, label)) from error
    return {name: getattr(made, name) for name in values}


def read_config(path: Path, fields: Mapping[str, OptionField], extra: Collection[str]) -> dict[str, Any]:
    """Read a YAML or TOML file of options; names may have hyphens, and may be those of flags.

    Raises:
        UserError: If the file is missing or cannot be parsed, or has a name that is not an option.
    """
    if not path.is_file():
        raise UserError(f"Configuration file '{path}' does not exist.")
    values = read_settings(path, "configuration file")
    if not isinstance(values, dict):
        raise UserError(f"Configuration file '{path}' must consist of names with values.")
    also = {field.flag.lstrip("-").replace("-", "_"): name for name, field in fields.items()}
    values = {str(key).replace("-", "_"): value for key, value in values.items()}
    values = {also.get(key, key): value for key, value in values.items()}
    known = {*fields, *extra}
    for key in values:
        if key not in known:
            raise unknown_name_error(f"option in '{path}':", key, known)
    return values


def named_values(items: list[str], flag: str = "--set") -> dict[str, str]:
    """Return the values of a flag such as ``--set name=value``, by name.

    Raises:
        UserError: If one has no name or no ``=``.
    """
    pairs = {}
    for item in items:
        key, sign, value = item.partition("=")
        if not sign or not key:
            raise UserError(f"{flag} expects name=value, not '{item}'.")
        pairs[key.strip()] = value.strip()
    return pairs
