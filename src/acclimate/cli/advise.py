"""``acclimate advise`` and ``methods``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from acclimate.cli.app import app
from acclimate.cli.commands import Command
from acclimate.cli.options import command
from acclimate.options import values
from acclimate.options.declaration import METHOD
from acclimate.options.inspection import AdviseOptions

SECTION = "Attributes:"
"""Heading of the parameters in the docstring of a method."""


@command(
    app,
    AdviseOptions,
    example="acclimate advise --model roberta-base --corpus reviews/ --general wiki.txt --out advice.json",
)
def advise(options: AdviseOptions) -> None:
    """Measure how far the domain is from general text, and what a pilot adaptation learns and forgets."""
    from rich.console import Console

    from acclimate.planning.advice import advise as run

    report = run(**values(options))
    console = Console()
    for part in report["words"]:
        console.print(part["about"][:1].upper() + part["about"][1:], style="bold", markup=False, highlight=False)
        console.print(f"  {part['says']}", markup=False, highlight=False)
        console.print(f"  It does not say: {part['does_not_say']}", style="dim", markup=False, highlight=False)
    if options.out is not None:
        typer.echo(f"All figures: {options.out}")


@app.command(cls=Command, epilog="Example: acclimate methods dga")
def methods(
    name: Annotated[
        str | None,
        typer.Argument(help="Name of a method, to describe its parameters.", rich_help_panel=METHOD, metavar="NAME"),
    ] = None,
) -> None:
    """List all methods with paper, parameters and defaults, or describe one, with its departures from the paper."""
    from acclimate.model_kinds import KINDS
    from acclimate.training.method import former_names, lookup, names

    for known in [name] if name else names():
        method = lookup(known)
        notes = [method.paper] if method.paper else []
        notes += [f"formerly {', '.join(former)}"] if (former := former_names(known)) else []
        notes += [f"{' and '.join(method.kinds)} models only"] if set(KINDS) - set(method.kinds) else []
        about = f" ({'; '.join(notes)})" if notes else ""
        typer.echo(f"{method.name}{about}: {method.summary}")
        typer.echo(_describe(method) if name else _list_parameters(method), nl=False)


def _list_parameters(method: Any) -> str:
    return "".join(f"    {parameter} = {default!r}\n" for parameter, default in _defaults(method).items())


def _describe(method: Any) -> str:
    """Return the docstring of a method, with the default of each parameter, also of those that it inherits."""
    import inspect

    texts = [inspect.cleandoc(cls.__doc__ or "").partition(SECTION) for cls in method.__mro__]
    text, defaults = f"\n{texts[0][0].strip()}\n\n", _defaults(method)
    parameters = [inspect.cleandoc("\n" + found.partition("Raises:")[0]) for _, _, found in texts]
    for line in "\n".join(filter(None, parameters)).splitlines():
        parameter, colon, rest = line.partition(":")
        if colon and parameter in defaults:
            line = f"{parameter} = {defaults[parameter]!r}:{rest}"
        text += f"    {line}\n"
    return text.rstrip() + "\n" + _describe_paper(method, defaults)


def _describe_paper(method: Any, defaults: dict[str, Any]) -> str:
    """Return the published values that differ from the defaults of a method, and the options of the paper's runs."""
    import textwrap

    from acclimate.options import AdaptOptions, option_fields
    from acclimate.registry import published

    text = ""
    for name, mark in published(method).items():
        values = "; ".join(f"{preset}: {value!r}" for preset, value in mark.values.items())
        line = f"{name} = {defaults[name]!r} ({values})" + (f": {mark.reason}" if mark.reason else "")
        text += textwrap.fill(line, 119, initial_indent="    ", subsequent_indent="        ") + "\n"
    if text:
        text = f"\nDepartures from published values, which `--set preset=NAME` selects:\n\n{text}"
    if method.paper_options:
        fields = option_fields(AdaptOptions)
        flags = " ".join(f"{fields[name].flag} {value}" for name, value in method.paper_options.items())
        text += f"\nThe paper adapts with {flags}\n"
    return text


def _defaults(method: Any) -> dict[str, Any]:
    import dataclasses

    return {field.name: field.default for field in dataclasses.fields(method)}
