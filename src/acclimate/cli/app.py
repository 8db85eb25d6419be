"""The command line application, and the options that several verbs have."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from acclimate.errors import UserError, unknown_name_error
from acclimate.files import read_settings

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=(__import__("acclimate").__doc__)
)

inspection = typer.Typer(no_args_is_help=True, help="Look inside a model or a text.")
app.add_typer(inspection, name="inspect")

SHARE = ("adapt", "pretrain")
"""Verbs whose work the processes of one run share."""


@app.callback()
def _alone(context: typer.Context) -> None:
    verb, size = context.invoked_subcommand, os.environ.get("WORLD_SIZE") or "1"
    if size == "1" or verb in SHARE:
        return
    each = ", once for each device: CUDA_VISIBLE_DEVICES=0, 1, ... and the same --out" if verb == "compare" else ""
    raise UserError(
        f"{size} processes were started (WORLD_SIZE), and each would do all of '{verb}': only {' and '.join(SHARE)} "
        f"share their work. Start 'acclimate {verb}' without torchrun or accelerate launch{each}."
    )


Out = Annotated[Path, typer.Option(help="Folder to make.")]
Precision = Annotated[str, typer.Option(help="fp32, bf16, or auto: bf16 where the hardware has it.")]
StopWords = Annotated[str, typer.Option(help="english, none, a file with a word a line, or a language, as german.")]
TextColumn = Annotated[str, typer.Option(help="Where the text is in tables and JSON lines.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bars.")]


def named_values(items: list[str], option: str = "--set") -> dict[str, str]:
    """Read the values of ``--set name=value``, or of another option like it."""
    pairs = {}
    for item in items:
        key, sign, value = item.partition("=")
        if not sign or not key:
            raise UserError(f"{option} wants name=value, not '{item}'.")
        pairs[key.strip()] = value.strip()
    return pairs


def read_options(path: Path, known: set[str], also: Mapping[str, str]) -> dict[str, Any]:
    """Read a YAML or TOML file of options; hyphens and underscores are the same, and ``also`` has second names."""
    if not path.is_file():
        raise UserError(f"There is no configuration file '{path}'.")
    values = read_settings(path, "configuration file")
    if not isinstance(values, dict):
        raise UserError(f"The configuration file '{path}' must hold names and values.")
    values = {str(key).replace("-", "_"): value for key, value in values.items()}
    values = {also.get(key, key): value for key, value in values.items()}
    for key in values:
        if key not in known:
            raise unknown_name_error(f"option in '{path}':", key, known)
    return values
