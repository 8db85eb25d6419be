"""``acclimate compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from acclimate.cli.app import Quiet, app, read_path
from acclimate.errors import UserError
from acclimate.options.declaration import OUTPUT


@app.command(epilog="Example: acclimate compare study.yaml --out runs/study")
def compare(
    study: Annotated[
        Path,
        typer.Argument(help="YAML or TOML file that describes the study.", parser=read_path, metavar="STUDY"),
    ],
    out: Annotated[
        Path, typer.Option(help="Output directory.", rich_help_panel=OUTPUT, parser=read_path, metavar="<path>")
    ],
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
            raise UserError("--dry-run computes nothing and writes nothing; remove --shard and --report-only.")
        _print_forecast(study, out)
        return
    jobs = run(study, out, shard=shard, report_only=report_only, progress=not quiet).jobs
    if shard and jobs.left:
        typer.echo(f"Shard {shard} is finished; {jobs.left} of {jobs.total} jobs are left.")
    else:
        typer.echo(f"Report: {out / 'report.html'}")


def _print_forecast(study: Path, out: Path) -> None:
    """Print the jobs of a study by kind, and the estimated time."""
    from rich.console import Console
    from rich.table import Table

    from acclimate.study.forecast import forecast

    found = forecast(study, out)
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
