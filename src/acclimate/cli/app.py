"""The command line application, and flags that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from acclimate.errors import UserError, environment_integer
from acclimate.options.declaration import DATA, OUTPUT, TRAINING

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__import__("acclimate").__doc__
)

inspection = typer.Typer(no_args_is_help=True, help="Inspect a model or a text.")
app.add_typer(inspection, name="inspect")

DISTRIBUTED = ("adapt", "pretrain", "finetune")
"""Commands whose work the processes of one run share."""


@app.callback()
def check_single_process(context: typer.Context) -> None:
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


Out = Annotated[Path, typer.Option(help="Output directory.", rich_help_panel=OUTPUT)]
Json = Annotated[Path | None, typer.Option(help="JSON file to write.", rich_help_panel=OUTPUT)]
Precision = Annotated[
    str,
    typer.Option(
        help="Number format of the forward pass: fp32, bf16, or auto: bf16 where supported.", rich_help_panel=TRAINING
    ),
]
StopWords = Annotated[
    str,
    typer.Option(
        help="Stop words: english, none, another language such as german, or a file with one word per line.",
        rich_help_panel=DATA,
    ),
]
TextColumn = Annotated[
    str, typer.Option(help="Column or key that holds the text in tables and JSON lines.", rich_help_panel=DATA)
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Hide progress bars.")]
