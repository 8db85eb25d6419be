"""``acclimate demo``."""

from __future__ import annotations

from pathlib import Path

from acclimate.cli.app import app, print_next
from acclimate.cli.options import command
from acclimate.options import values
from acclimate.options.demo import (
    DemoOptions,
)
from acclimate.terminal import echo


@command(app, DemoOptions, example="acclimate demo --out runs/demo")
def demo(options: DemoOptions) -> None:
    """Adapt an included model to documentation that is on this machine, and report what changed.

    For your own model, text and task see 'acclimate compare'.
    """
    from acclimate.demo import demo as run

    run(**values(options))
    echo(f"Report: {Path(options.out) / 'report.html'}")
    own = ["--model", "MODEL", "--corpus", "TEXT", "--task", "TASK", "--out", "runs/own"]
    print_next(["acclimate", "compare", *own], "with your text and task")
