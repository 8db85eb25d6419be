"""``acclimate compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from acclimate.cli.app import Out, Quiet, app


@app.command()
def compare(
    study: Annotated[Path, typer.Argument(help="YAML or TOML file that describes the study.")],
    out: Out,
    shard: Annotated[str | None, typer.Option(help="i/n: compute the i-th of n shares only, for job arrays.")] = None,
    report_only: Annotated[
        bool, typer.Option("--report-only", help="Compute nothing; write the report from what is there.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Run a study of models x methods x tasks x seeds; run it again to go on after a kill.

    Several processes may share --out, also on several machines: no cell is computed twice.
    """
    from acclimate.study import compare as run

    cells = run(study, out, shard=shard, report_only=report_only, progress=not quiet)["cells"]
    left = cells["total"] - cells["done"] - cells["reused"]
    if shard and left:
        typer.echo(f"Shard {shard} is through; {left} of {cells['total']} cells are left.")
    else:
        typer.echo(f"Report: {out / 'report.html'}")
