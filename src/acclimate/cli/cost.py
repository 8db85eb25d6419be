"""``acclimate inspect cost``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from acclimate.cli.app import inspection
from acclimate.errors import UserError


@inspection.command("cost")
def inspect_cost(
    adapted: Annotated[
        list[str],
        typer.Option(help="Folder of adapt --method selective, DIR or NAME=DIR; several make a column each."),
    ],
    pretrained: Annotated[
        Path | None, typer.Option(help="Folder of pretrain --keep-steps that the adaptations started from.")
    ] = None,
    step: Annotated[
        int | None, typer.Option(help="The kept step that they started from; by default as each of them says.")
    ] = None,
    finetuned: Annotated[
        list[str] | None, typer.Option(help="Folder of finetune, DIR or NAME=DIR with the name of a column; several.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None,
) -> None:
    """Set the minutes of task-guided pre-training against those that an early stop saved."""
    from acclimate.methods.selective.cost import cost_table
    from acclimate.planning.cost import inspect_cost as run

    columns: dict[str, str] = {}
    for item in adapted:
        name, folder = _named(item)
        name = name or Path(folder).name
        if name in columns:
            raise UserError(f"Two adaptations are called '{name}'; give each a name of its own as NAME=DIR.")
        columns[name] = folder
    tuned: dict[str, list[str]] = {}
    for item in finetuned or []:
        name, folder = _named(item)
        if not name and len(columns) > 1:
            raise UserError(f"Which column is '{folder}' of? Write --finetuned NAME={folder}.")
        tuned.setdefault(name or next(iter(columns)), []).append(folder)
    typer.echo(cost_table(run(columns, out, pretrained=pretrained, step=step, finetuned=tuned)))
    if out is not None:
        typer.echo(f"All of it: {out}")


def _named(item: str) -> tuple[str, str]:
    """Split NAME=DIR; a folder alone has no name."""
    name, sign, folder = item.partition("=")
    return (name, folder) if sign and name and folder else ("", item)
