"""The command line application, and what several commands share."""

from __future__ import annotations

import itertools
import os
import shlex
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from acclimate.base.errors import UserError, environment_integer
from acclimate.base.options import defaults
from acclimate.base.terminal import SafeConsole, echo
from acclimate.base.version import __version__
from acclimate.cli.commands import PAGES, Commands, make_epilog
from acclimate.data.reading import LabelOptions

app = typer.Typer(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help=__import__("acclimate").__doc__,
    epilog=make_epilog(
        "acclimate compare --model roberta-base --corpus text/ --task tasks/restaurant --out runs/first", PAGES["demo"]
    ),
)

inspection = typer.Typer(
    no_args_is_help=True,
    help="Inspect a model or a text.",
    epilog=make_epilog(
        "acclimate inspect masks --model roberta-base --corpus reviews/ --out masks/", PAGES["inspect"]
    ),
)
app.add_typer(inspection, name="inspect")

planning = typer.Typer(
    no_args_is_help=True,
    help="Extrapolate a training plan from small runs.",
    epilog=make_epilog("acclimate plan ratio --log runs.csv --target-tokens 100000000 --out plan/", PAGES["plan"]),
)
app.add_typer(planning, name="plan")
over_time = typer.Typer(
    no_args_is_help=True,
    help="Divide dated text and tasks into periods, and measure how models age.",
    epilog=make_epilog("acclimate periods gap --model roberta-base --task dated.csv --by year", PAGES["periods"]),
)
app.add_typer(over_time, name="periods")

DISTRIBUTED = ("adapt", "pretrain", "finetune", "bench")
"""Commands whose work the processes of one run share."""


def _print_version(wanted: bool) -> None:
    if wanted:
        echo(f"acclimate {__version__}")
        raise typer.Exit


@app.callback()
def check_single_process(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Refuse to start a command several times where the processes would not share its work."""
    verb, size = context.invoked_subcommand, environment_integer("WORLD_SIZE", 1)
    if size <= 1 or verb in DISTRIBUTED:
        return
    each = ", with --workers auto" if verb == "compare" else ""
    raise UserError(
        f"{size} processes were started (WORLD_SIZE), and each would do all the work of '{verb}': only "
        f"{', '.join(DISTRIBUTED)} share their work. Start 'acclimate {verb}' without torchrun or accelerate "
        f"launch{each}."
    )


def print_tables(tables: Any) -> None:
    """Print tables and texts of ``rich``."""
    console = SafeConsole()
    for table in tables:
        console.print(table)


def print_next(command: Sequence[object], purpose: str = "") -> None:
    """Print what to do next, as the last line of a command.

    Args:
        command: The words of a command line, with the real paths; what the user has to fill in is in capitals.
        purpose: Purpose of the command, such as ``"to see whether it helps"``.
    """
    echo(f"Next{', ' * bool(purpose)}{purpose}: {shlex.join(map(str, command))}")


def print_place(what: str, place: object) -> None:
    """Print where a file or folder was written; nothing for None."""
    if place is not None:
        echo(f"{what}: {place}")


def describe_text(flag: str, sources: Any, placeholder: str = "TEXT", *, column: str | None = None) -> list[str]:
    """Return a flag with each source of text that was given, as words of a command line.

    Args:
        flag: The flag, such as ``--corpus``.
        sources: The values given; None for nothing.
        placeholder: The word for text that has no name.
        column: The column of sources that name none, for commands without ``--text-column``.
    """
    from acclimate.data.sources import name_column

    given = [sources] if isinstance(sources, str | os.PathLike) else list(sources or ())
    named = [str(source) for source in given if isinstance(source, str | os.PathLike)]
    if column is not None:
        named = [name_column(source, column) for source in named]
    return [word for source in named or [placeholder] for word in (flag, source)]


def describe_reading(options: Any) -> list[str]:
    """Return the options of how text and tasks are read that were given, as words of a command line."""
    usual = {"encoding": None, **(defaults(LabelOptions) if getattr(options, "task", None) is not None else {})}
    return [
        word
        for name, value in usual.items()
        if getattr(options, name, value) != value
        for word in (f"--{name.replace('_', '-')}", getattr(options, name))
    ]


def describe_plugins() -> list[str]:
    """Return the ``--plugin`` flags of the command line, as words of the next one."""
    words = sys.argv[1:]
    pairs = [pair for pair in itertools.pairwise(words) if pair[0] == "--plugin"]
    return [word for pair in pairs for word in pair] + [word for word in words if word.startswith("--plugin=")]


Quiet = Annotated[bool, typer.Option("--quiet", help="Hide progress bars.")]
