"""``acclimate methods``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from acclimate.cli.app import app

SECTION = "Attributes:"


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="One method, to say what its parameters mean.")] = None,
) -> None:
    """List every method with its paper, parameters and defaults; of one, say what they mean."""
    from acclimate.training.method import lookup, names

    for known in [name] if name else names():
        method = lookup(known)
        paper = f" ({method.paper})" if method.paper else ""
        typer.echo(f"{known}{paper}: {method.summary}")
        typer.echo(_explained(method) if name else _listed(method), nl=False)


def _listed(method: Any) -> str:
    return "".join(f"    {parameter} = {default!r}\n" for parameter, default in _defaults(method).items())


def _explained(method: Any) -> str:
    """Return what the docstring of a method says of itself, and of each parameter beside its default."""
    import inspect

    about, _, parameters = (inspect.getdoc(method) or "").partition(SECTION)
    text, defaults = f"\n{about.strip()}\n\n", _defaults(method)
    for line in inspect.cleandoc("\n" + parameters).splitlines():
        parameter, colon, rest = line.partition(":")
        if colon and parameter in defaults:
            line = f"{parameter} = {defaults[parameter]!r}:{rest}"
        text += f"    {line}\n"
    return text.rstrip() + "\n"


def _defaults(method: Any) -> dict[str, Any]:
    import dataclasses

    return {field.name: field.default for field in dataclasses.fields(method)}
