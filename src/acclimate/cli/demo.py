"""``acclimate demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from acclimate.cli.app import Out, Quiet, app


@app.command()
def demo(
    out: Out = Path("runs/demo"),
    model: Annotated[str | None, typer.Option(help="Instead of the packaged model.")] = None,
    corpus: Annotated[list[str] | None, typer.Option(help="Instead of the documentation on this machine.")] = None,
    general: Annotated[str | None, typer.Option(help="Instead of the documentation of the standard library.")] = None,
    task: Annotated[Path | None, typer.Option(help="Instead of the derived task.")] = None,
    seeds: int = 3,
    quiet: Quiet = False,
) -> None:
    """Adapt a real model to text that is on this machine, and report whether it helped."""
    from acclimate.demo import demo as run

    run(out, model=model, corpus=corpus, general=general, task=task, seeds=seeds, progress=not quiet)
    typer.echo(f"Report: {out / 'report.html'}")
