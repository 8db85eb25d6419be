"""``acclimate demo``."""

from __future__ import annotations

from pathlib import Path

from acclimate.base.options import values
from acclimate.base.terminal import echo
from acclimate.cli.app import app, print_next
from acclimate.cli.options import command
from acclimate.labs.demo.options import DemoOptions


@command(app, DemoOptions, example="acclimate demo --out runs/demo")
def demo(options: DemoOptions) -> None:
    """Adapt an included model to documentation that is on this machine, and report what changed.

    For your own model, text and task see 'acclimate compare'.
    """
    from acclimate.labs.demo.comparison import demo as run

    run(**values(options))
    echo(f"Report: {Path(options.out) / 'report.html'}")
    own = ["--model", "MODEL", "--corpus", "TEXT", "--task", "TASK", "--out", "runs/own"]
    print_next(["acclimate", "compare", *own], "with your text and task")
