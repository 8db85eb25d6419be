"""Commands that are generated from a class of options; values come from flags and from a configuration file."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic import ValidationError

from acclimate.base.errors import UserError, refuse_exit, unknown_name_error
from acclimate.base.files import check_regular_file
from acclimate.base.options import (
    METHOD,
    MISSING,
    OUTPUT,
    PANELS,
    OptionField,
    accepts,
    explain,
    option_fields,
    propose_part,
    takes_names,
)
from acclimate.base.registry import parse_number
from acclimate.base.settings_file import read_settings
from acclimate.base.verbs import Verb
from acclimate.base.version import DOCS_URL, docs_page
from acclimate.cli.commands import Command
from acclimate.cli.early import refuse_early

Config = Annotated[
    Path | None,
    typer.Option(
        "--config", help="YAML or TOML file with any of these options; flags take precedence.", show_default=False
    ),
]

Plugin = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin",
        metavar="<path>",
        help="Python file that registers a method or a masking strategy. May be repeated.",
        rich_help_panel=METHOD,
        show_default=False,
    ),
]

Quiet = Annotated[bool, typer.Option("--quiet", help="Hide progress bars.")]
Json = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print one JSON document as the last line of standard output, and all else to standard error.",
        rich_help_panel=OUTPUT,
    ),
]


def make_epilog(example: str, page: str) -> str:
    """Return the end of ``--help``: an example, and what says more; each a paragraph."""
    if page.startswith("docs/") and DOCS_URL:
        page = docs_page(page.removeprefix("docs/").removesuffix(".md"))
    elif page.endswith(".md"):
        page += " in the repository"
    return f"Example: {example}\n\nMore: {page}"


def import_plugins(files: Iterable[Path] | None) -> None:
    """Import the files of ``--plugin``."""
    if files:
        from acclimate.base.registry import import_plugin

        for file in files:
            import_plugin(file)


def add_command(
    app: typer.Typer,
    verb: Verb,
    run: Callable[[Any, bool], None],
    *,
    epilog: str = "",
    panel: str | None = None,
) -> None:
    """Add a command whose flags are the options of a verb.

    Args:
        app: The application or group that gets the command.
        verb: The verb.
        run: Called with an instance of the class of options, and whether to print JSON.
        epilog: End of ``--help``.
        panel: Panel of ``--help`` of the application.
    """
    declared = option_fields(verb.options)
    fields = {key: field for key, field in declared.items() if field.option.cli and key not in verb.without}

    @refuse_exit()
    def call(**flags: Any) -> None:
        config, quiet, plugins, as_json = (
            flags.pop(key, None) for key in ("config_file", "quiet", "plugin", "as_json")
        )
        import_plugins(plugins)
        given = read_options(verb.options, fields, flags, config, {} if quiet is None else {"progress": not quiet})
        refuse_early(verb.name, given, fields, bool(plugins))
        run(given, bool(as_json))

    shown = sorted(fields.values(), key=lambda field: PANELS.index(field.option.panel))
    parameters = [
        *([_parameter("config_file", Config, None)] if fields else []),
        *(_parameter(field.name, _annotation(field), None) for field in shown),
        *([_parameter("plugin", Plugin, None)] if verb.plugins else []),
        *([_parameter("quiet", Quiet, False)] if "progress" in declared else []),
        _parameter("as_json", Json, False),
    ]
    name = verb.name.rpartition(" ")[2]
    call.__name__ = name
    call.__doc__ = "\n\n".join(" ".join(one.split()) for one in verb.help.split("\n\n"))  # wrapped by the terminal
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    app.command(name, cls=Command, epilog=epilog, rich_help_panel=panel)(call)


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _annotation(field: OptionField) -> Any:
    """Return the annotation from which typer makes the flag or argument; its value is None if it was not given."""
    notes = ["required"] if field.default is MISSING else []
    notes += [f"default: {field.shown_default}"] if field.shown_default else []
    text = field.option.help
    if field.option.many or takes_names(field.type):
        text += " May be repeated."
    if notes:
        text = f"{text[:-1] if text.endswith('.') else text} ({'; '.join(notes)})."
    kind = _flag_type(field)
    # The class of options reports what is not a number, and also reads 1e6 as a whole number.
    number = {"parser": parse_number, "metavar": f"<{kind.__name__}>"} if kind in (int, float) else {}
    number |= {"metavar": "<str>"} if get_origin(kind) is list else {}
    text = text.replace("[", r"\[")  # the help is markup
    shown: Any = {"help": text, "rich_help_panel": field.option.panel, "show_default": False, **number}
    if not field.flag.startswith("-"):
        return Annotated[kind | None, typer.Argument(**{**shown, "metavar": field.flag})]
    name = f"{field.flag}/{field.option.negated}" if field.option.negated else field.flag
    return Annotated[kind | None, typer.Option(name, **shown)]


def _flag_type(field: OptionField) -> Any:
    """Return the type that typer parses; the class of options then checks the value."""
    if field.option.many or takes_names(field.type):
        return list[str]
    literal = next((kind for kind in (field.type, *get_args(field.type)) if get_origin(kind) is Literal), None)
    if literal is not None:
        return literal
    return next((kind for kind in (bool, int, float) if accepts(field.type, kind)), str)


def read_options(
    options: Any,
    fields: Mapping[str, OptionField],
    flags: Mapping[str, Any],
    config: Path | None,
    values: Mapping[str, Any],
) -> Any:
    """Join flags and a configuration file, and make an instance of the class of options.

    Args:
        options: The class of options.
        fields: The options that the command has.
        flags: Values from the command line by name; None for those that were not given.
        config: The configuration file, or None.
        values: Further values by name.

    Raises:
        UserError: If the file cannot be read or has unknown names, a value is wrong, or a required one is missing.
    """
    given = {} if config is None else read_config(config, fields)
    for name, field in fields.items():
        if (flag := flags[name]) is not None:
            if takes_names(field.type) and isinstance(base := given.get(name) or {}, dict):
                flag = {**base, **named_values(flag, field.flag)}
            given[name] = flag
    # A list of strings can also be texts in Python, but flags and files name sources.
    given |= {name: tuple(value) for name, value in given.items() if fields[name].option.many and type(value) is list}

    def label(name: str) -> str:
        if config is not None and flags.get(name) is None and name in given:
            return f"'{config}': '{name}'"
        return fields[name].flag if name in fields else f"'{name}'"

    try:
        return options(**given, **values)
    except ValidationError as error:
        raise UserError(explain(error, options, label)) from error


def read_config(path: Path, fields: Mapping[str, OptionField]) -> dict[str, Any]:
    """Read a YAML or TOML file of options; names may have hyphens, and may be names of flags.

    Raises:
        UserError: If the file is missing or cannot be parsed, or has a name that is not an option.
    """
    path = Path(os.path.expanduser(path))
    check_regular_file(path)
    if path.is_dir():
        raise UserError(f"Configuration file '{path}' is a folder; give a YAML or TOML file of options.")
    if not path.is_file():
        raise UserError(f"Configuration file '{path}' does not exist.")
    values = read_settings(path, "configuration file")
    if not isinstance(values, dict):
        raise UserError(f"Configuration file '{path}' must consist of names with values.")
    also = {field.flag.lstrip("-").replace("-", "_").lower(): name for name, field in fields.items()}
    given: dict[str, Any] = {}
    for key, value in values.items():
        name = str(key).replace("-", "_")
        name = also.get(name, name)
        if name not in fields:
            if hint := propose_part(name, fields):
                raise UserError(f"'{path}': '{name}' is no option.{hint}")
            raise unknown_name_error(f"option in '{path}':", name, fields)
        if name in given:
            raise UserError(f"'{path}' sets '{name}' twice, once as '{key}'; set it once.")
        given[name] = value
    return given


def named_values(items: list[str], flag: str = "--set") -> dict[str, str]:
    """Return the values of a flag such as ``--set name=value``, by name.

    Raises:
        UserError: If one has no name or no ``=``, or a name is duplicated.
    """
    pairs: dict[str, str] = {}
    for item in items:
        key, sign, value = item.partition("=")
        if not sign or not key:
            raise UserError(f"{flag} expects name=value, not '{item}'.")
        if key.strip() in pairs:
            raise UserError(f"{flag} sets '{key.strip()}' twice; give it once.")
        pairs[key.strip()] = value.strip()
    return pairs
