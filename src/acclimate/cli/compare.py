"""``acclimate compare`` and ``acclimate init``."""

from __future__ import annotations

import sys
from dataclasses import KW_ONLY
from pathlib import Path
from typing import Annotated, Any

from acclimate.base.bounds import Duration
from acclimate.base.errors import UserError
from acclimate.base.options import DATA, OUTPUT, TRAINING, Option, options, values
from acclimate.base.terminal import SafeConsole, echo
from acclimate.cli.app import app, describe_plugins, print_next
from acclimate.cli.options import command
from acclimate.data.reading import LabelOptions
from acclimate.study.options import CompareOptions, InitOptions, StudyOptions


@options
class CompareCommand(CompareOptions, LabelOptions, StudyOptions):
    """Options of ``acclimate compare``; Python has :func:`acclimate.study.forecast.forecast` for a dry run."""

    _: KW_ONLY
    config: Annotated[
        Any,
        Option("YAML or TOML file that describes the study; or give --model and --corpus.", DATA, flag="STUDY"),
    ] = None
    minutes: Annotated[
        Duration | None,
        Option(
            "Time for the whole comparison; this machine is timed, and the tokens per adaptation are cut to fit.",
            TRAINING,
        ),
    ] = None
    dry_run: Annotated[
        bool,
        Option(
            "Run no jobs; print the remaining jobs and the estimated time, for which this machine is timed if no job "
            "of a kind is finished.",
            OUTPUT,
        ),
    ] = False


@command(
    app,
    CompareCommand,
    plugins=True,
    example="acclimate compare --model roberta-base --corpus reviews/ --task tasks/restaurant --out runs/reviews",
)
def compare(options: CompareCommand) -> None:
    """Find out whether adaptation helps: compare a model with its adapted versions, or the grid of a study file.

    Run it again to resume after an interruption. Several processes, also on several machines, may share --out: no job
    runs twice. Without a study file, the one that was used is written to --out.
    """
    from acclimate.study.compare import compare as run
    from acclimate.study.draft import removed_if_nothing_ran

    if options.dry_run and (options.shard or options.report_only):
        raise UserError("--dry-run computes nothing and writes nothing; remove --shard and --report-only.")
    existed = (Path(options.out) / "study.yaml").exists()
    study, settings = _find_study(options)
    if options.dry_run:
        from acclimate.study.changes import load_study

        config = load_study(study, settings, options.only)
        print_forecast(config, options.out, minutes=options.minutes, progress=options.progress)
        print_next(["acclimate", *(word for word in sys.argv[1:] if word != "--dry-run")], "to run it")
        return
    chosen = {**values(options, CompareOptions), "config": study, "settings": settings}
    with removed_if_nothing_ran(Path(options.out), written=options.config is None and not existed):
        jobs = run(**chosen).jobs
    if options.shard and jobs.left:
        echo(f"Shard {options.shard} is finished; {jobs.left} of {jobs.total} jobs are left.")
    else:
        echo(f"Report: {Path(options.out) / 'report.html'}")
    if options.config is None:
        command = ["acclimate", "compare", study, *describe_plugins(), "--out", options.out]
        print_next(command, "after changing the study file")


@command(
    app,
    InitOptions,
    plugins=True,
    example="acclimate init study.yaml --model roberta-base --corpus reviews/ --task tasks/restaurant --seeds 3",
)
def init(options: InitOptions) -> None:
    """Write a study file to start from, for `acclimate compare`."""
    from acclimate.study.draft import check_files, draft_study, write_study

    study = draft_study(options)
    check_files(options)
    path = write_study(study, options.file)
    echo("\n".join([*study.get("notes", []), f"Study: {path}"]))
    out = Path("runs") / path.stem
    command = ["acclimate", "compare", path, *describe_plugins(), "--out", out]
    print_next([*command, "--dry-run"], "to estimate the time")
    print_next(command, "to run it")


def _find_study(options: CompareCommand) -> tuple[Any, dict[str, Any] | None]:
    """Return the study to run, and the changes to make to it; a study without a file is written to the output."""
    from acclimate.study.compare import check_study_folder
    from acclimate.study.draft import draft_study, given, is_written, write_study

    described = [*given(options), *(["minutes"] if options.minutes else [])]
    if options.config is not None:
        if described:
            negated = {
                "advice": "no-advice",
                "tune": "no-tune",
            }  # on by default, so given is only that one is off
            flags = ", ".join(f"--{negated.get(name, name).replace('_', '-')}" for name in described)
            raise UserError(
                f"The study file already describes the study: remove {flags}, or the file. --set changes a value of "
                "the file, and --only runs a part of it."
            )
        return options.config, options.settings
    if not described:
        raise UserError(
            "STUDY is required: YAML or TOML file that describes the study. Or describe it with --model and --corpus."
        )
    study = draft_study(options, options.settings)
    path = check_study_folder(options.out) / "study.yaml"
    if options.minutes and is_written(study, path):
        return path, None
    if options.minutes and (options.shard or options.report_only):
        raise UserError("--minutes runs a part of the study: first run it without --shard and --report-only.")
    if options.dry_run:
        return study, None
    if options.minutes:
        study = _fit(study, options)
    write_study(study, path)
    if options.progress:
        echo("\n".join(study.get("notes", [])), err=True)
    return path, None


def _fit(study: dict[str, Any], options: CompareCommand) -> dict[str, Any]:
    """Return a study with the token budget that fits into the time, and a note on it."""
    from acclimate.study.draft import ONE_PASS
    from acclimate.study.forecast import fit_budget

    tokens, note = fit_budget(study, options.out, options.minutes or 0.0, progress=options.progress)
    notes = [*(one for one in study["notes"] if one != ONE_PASS), note]
    return {**study, "notes": notes, "adapt": {**study.get("adapt", {}), **({"tokens": tokens} if tokens else {})}}


def print_forecast(config: Any, out: str | Path, *, minutes: float | None = None, progress: bool = True) -> None:
    """Print the jobs of a study by kind, and the estimated time."""
    from rich.table import Table

    from acclimate.study.forecast import TIMING_SECONDS, forecast

    found = forecast(config, out, timing=TIMING_SECONDS, minutes=minutes, progress=progress)
    table = Table("part", "kind", "jobs", "done", "time left", "estimated from")
    for estimate in found.estimates:
        left = "unknown" if estimate.seconds is None else _duration(estimate.seconds)
        table.add_row(estimate.part, estimate.kind, str(estimate.jobs), str(estimate.done), left, estimate.source)
    SafeConsole().print(table)
    jobs, done = (sum(getattr(estimate, name) for estimate in found.estimates) for name in ("jobs", "done"))
    if done == jobs:
        echo(f"All {jobs:,} jobs are done.")
    elif found.seconds is None:
        echo(f"{done:,} of {jobs:,} jobs are done; their duration is unknown, as no job could be timed.")
    else:
        how = "a rough estimate" if found.is_timed else "estimated from the finished ones"
        time = f"about {_duration(found.seconds)} on one process, {how}"
        echo(f"{done:,} of {jobs:,} jobs are done; the others take {time}.")
    if len(found.rows) > 1:
        rows = ", ".join(f"{label} {_duration(seconds)}" for label, seconds in found.rows.items())
        echo(f"By row: {rows}. The rest is measured on the base model.")
    for label, what in found.prepared.items():
        echo(f"{label}: not estimated is that, before the first step, {what}.")
    if found.guessed:
        echo("The search has not chosen settings yet; jobs after it are counted with the first combination.")
    for note in found.notes:
        echo(note)


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{max(0.1, seconds / 60):.1f} min" if seconds else "0"
