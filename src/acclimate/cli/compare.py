"""``acclimate compare``."""

from __future__ import annotations

from dataclasses import KW_ONLY
from pathlib import Path
from typing import Annotated

import typer

from acclimate.cli.app import app
from acclimate.cli.options import command
from acclimate.errors import UserError
from acclimate.options import Option, options, values
from acclimate.options.declaration import OUTPUT
from acclimate.options.tasks import CompareOptions


@options
class CompareCommand(CompareOptions):
    """Options of ``acclimate compare``; Python has :func:`acclimate.study.forecast.forecast` for a dry run."""

    _: KW_ONLY
    dry_run: Annotated[bool, Option("Run no jobs; print the remaining jobs and the estimated time.", OUTPUT)] = False


@command(app, CompareCommand, example="acclimate compare study.yaml --out runs/study")
def compare(options: CompareCommand) -> None:
    """Run a study: a grid of models, methods, tasks and seeds. Run it again to resume after an interruption.

    Several processes, also on several machines, may share --out: no job runs twice.
    """
    from acclimate.study import compare as run

    if options.dry_run:
        if options.shard or options.report_only:
            raise UserError("--dry-run computes nothing and writes nothing; remove --shard and --report-only.")
        _print_forecast(options)
        return
    jobs = run(**values(options, CompareOptions)).jobs
    if options.shard and jobs.left:
        typer.echo(f"Shard {options.shard} is finished; {jobs.left} of {jobs.total} jobs are left.")
    else:
        typer.echo(f"Report: {Path(options.out) / 'report.html'}")


def _print_forecast(options: CompareOptions) -> None:
    """Print the jobs of a study by kind, and the estimated time."""
    from rich.console import Console
    from rich.table import Table

    from acclimate.study.forecast import forecast

    found = forecast(options.config, options.out)
    table = Table("part", "kind", "jobs", "done", "minutes left")
    for estimate in found.estimates:
        left = "unknown" if estimate.seconds is None else f"{estimate.seconds / 60:.1f}"
        table.add_row(estimate.part, estimate.kind, str(estimate.jobs), str(estimate.done), left)
    Console().print(table)
    jobs, done = (sum(getattr(estimate, name) for estimate in found.estimates) for name in ("jobs", "done"))
    if found.seconds is None:
        time = "their duration is unknown, as not every kind has a finished job"
    else:
        time = (
            f"the others take about {found.seconds / 60:.0f} minutes on one process, estimated from the finished ones"
        )
    typer.echo(f"{done:,} of {jobs:,} jobs are done; {time}." if done < jobs else f"All {jobs:,} jobs are done.")
    if found.guessed:
        typer.echo("The search has not chosen settings yet; jobs after it are counted with the first combination.")
