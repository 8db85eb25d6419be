"""``acclimate methods``."""

from __future__ import annotations

import typer

from acclimate.cli.app import app


@app.command()
def methods() -> None:
    """List every method with its paper, parameters and defaults."""
    import dataclasses

    from acclimate.training.method import lookup, names

    for name in names():
        method = lookup(name)
        paper = f" ({method.paper})" if method.paper else ""
        typer.echo(f"{name}{paper}: {method.summary}")
        for field in dataclasses.fields(method):
            typer.echo(f"    {field.name} = {field.default!r}")
