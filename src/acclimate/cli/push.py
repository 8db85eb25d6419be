"""``acclimate push``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from acclimate.cli.app import app


@app.command()
def push(
    folder: Annotated[Path, typer.Argument(help="Model folder, also one of a study: runs/study/models/KEY.")],
    repo: Annotated[str, typer.Argument(help="USER/NAME on the hub.")],
    public: Annotated[bool, typer.Option("--public", help="Let everyone see a new repository.")] = False,
) -> None:
    """Put a model with its card on the hub."""
    from acclimate.cards import push_to_hub

    typer.echo(push_to_hub(folder, repo, private=not public))
