"""``acclimate demo``."""

from __future__ import annotations

from pathlib import Path

import typer

from acclimate.cli.app import app, print_next
from acclimate.cli.options import command
from acclimate.options import values
from acclimate.options.inspection import DemoOptions


@command(app, DemoOptions, example="acclimate demo --corpus notes/ --out runs/notes")
def demo(options: DemoOptions) -> None:
    """Adapt a real model to text that is on this machine, and report whether it helped."""
    from acclimate.demo import demo as run

    run(**values(options))
    typer.echo(f"Report: {Path(options.out) / 'report.html'}")
    own = ["--model", options.model or "MODEL", "--corpus", "TEXT", "--task", "TASK", "--out", "runs/own"]
    print_next(["acclimate", "compare", *own], "your own text and task")
