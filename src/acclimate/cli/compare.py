"""``acclimate compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from acclimate.cli.app import Out, Quiet, app
from acclimate.errors import UserError


@app.command(epilog="Example: acclimate compare study.yaml --out runs/study")
def compare(
    study: Annotated[Path, typer.Argument(help="YAML or TOML file that describes the study.")],
    out: Out,
    shard: Annotated[str | None, typer.Option(help="Share of the jobs to run, as i/n, for job arrays.")] = None,
    report_only: Annotated[
        bool, typer.Option("--report-only", help="Run no jobs; write the report from existing results.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Run no jobs; print the remaining jobs and the estimated time.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Run a study: a grid of models, methods, tasks and seeds. Run it again to resume after an interruption.

    Several processes, also on several machines, may share --out: no job runs twice.
    """
    from acclimate.study import compare as run

    if dry_run:
        if shard or report_only:
            raise UserError("--dry-run computes nothing and writes nothing; leave out --shard and --report-only.")
        _tell(study, out)
        return
    cells = run(study, out, shard=shard, report_only=report_only, progress=not quiet)["cells"]
    if shard and cells["left"]:
        typer.echo(f"Shard {shard} is through; {cells['left']} of {cells['total']} cells are left.")
    else:
        typer.echo(f"Report: {out / 'report.html'}")


def _tell(study: Path, out: Path) -> None:
    """Print the cells of a study by kind, and the estimate."""
    from rich.console import Console
    from rich.table import Table

    from acclimate.study.forecast import forecast

    plan = forecast(study, out)
    table = Table("part", "kind", "cells", "done", "minutes left")
    for stretch in plan.stretches:
        left = "unknown" if stretch.seconds is None else f"{stretch.seconds / 60:.1f}"
        table.add_row(stretch.part, stretch.kind, str(stretch.cells), str(stretch.done), left)
    Console().print(table)
    cells, done = (sum(getattr(stretch, name) for stretch in plan.stretches) for name in ("cells", "done"))
    if plan.seconds is None:
        said = "no finished cell of each kind says yet how long the others take"
    else:
        said = f"the others take about {plan.seconds / 60:.0f} minutes of one process, as the finished ones did"
    typer.echo(f"{done:,} of {cells:,} cells are done; {said}." if done < cells else f"All {cells:,} cells are done.")
    if plan.guessed:
        typer.echo("Settings are still to be chosen; what follows a choice is counted with the first combination.")
