"""The command line application, and what several commands share."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from acclimate.cli.commands import Commands
from acclimate.errors import UserError, environment_integer
from acclimate.version import __version__

app = typer.Typer(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help=__import__("acclimate").__doc__,
    epilog="Example: acclimate compare --model roberta-base --corpus text/ --task tasks/restaurant --out runs/first",
)

inspection = typer.Typer(
    no_args_is_help=True,
    help="Inspect a model or a text.",
    epilog="Example: acclimate inspect masks --model roberta-base --corpus reviews/ --out masks/",
)
app.add_typer(inspection, name="inspect")

DISTRIBUTED = ("adapt", "pretrain", "finetune")
"""Commands whose work the processes of one run share."""


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"acclimate {__version__}")
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
    each = ", once per device: CUDA_VISIBLE_DEVICES=0, 1, ... with the same --out" if verb == "compare" else ""
    raise UserError(
        f"{size} processes were started (WORLD_SIZE), and each would do all the work of '{verb}': only "
        f"{', '.join(DISTRIBUTED)} share their work. Start 'acclimate {verb}' without torchrun or accelerate "
        f"launch{each}."
    )


def print_tables(tables: Any) -> None:
    """Print tables and texts of ``rich``."""
    from rich.console import Console

    console = Console()
    for table in tables:
        console.print(table, highlight=False, markup=False)


Quiet = Annotated[bool, typer.Option("--quiet", help="Hide progress bars.")]
