"""``acclimate demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from acclimate.cli.app import Out, Quiet, app
from acclimate.options.declaration import DATA, MODEL, TRAINING


@app.command(epilog="Example: acclimate demo --corpus notes/ --out runs/notes")
def demo(
    out: Out = Path("runs/demo"),
    model: Annotated[
        str | None,
        typer.Option(help="Model folder or name on the Hugging Face Hub (default: included).", rich_help_panel=MODEL),
    ] = None,
    corpus: Annotated[
        list[str] | None,
        typer.Option(
            help="Domain text: file, folder, glob or hf:NAME. May be repeated (default: documentation on this "
            "machine).",
            rich_help_panel=DATA,
        ),
    ] = None,
    general: Annotated[
        str | None,
        typer.Option(help="General text (default: documentation of Python's standard library).", rich_help_panel=DATA),
    ] = None,
    task: Annotated[
        Path | None,
        typer.Option(help="Folder of a labelled task (default: derived from the text).", rich_help_panel=DATA),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Number of seeds of fine-tuning.", rich_help_panel=TRAINING)] = 3,
    quiet: Quiet = False,
) -> None:
    """Adapt a real model to text that is on this machine, and report whether it helped."""
    from acclimate.demo import demo as run

    run(out, model=model, corpus=corpus, general=general, task=task, seeds=seeds, progress=not quiet)
    typer.echo(f"Report: {out / 'report.html'}")
