"""``acclimate adapt``, ``pretrain`` and ``push``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from acclimate.cli.app import app
from acclimate.cli.options import command
from acclimate.errors import environment_integer
from acclimate.options import AdaptOptions, PretrainOptions
from acclimate.options.declaration import OUTPUT


@command(
    app,
    AdaptOptions,
    example="acclimate adapt --model roberta-base --corpus reviews/ --method dga --epochs 1 --out adapted/",
)
def adapt(
    values: dict[str, Any],
    push_to_hub: Annotated[
        str | None,
        typer.Option(
            help="Upload the model to the Hugging Face Hub as USER/NAME at the end; a new repository is private.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
) -> None:
    """Adapt a model to domain text."""
    from acclimate.cards.hub import check_repo_name
    from acclimate.cards.hub import push_to_hub as upload
    from acclimate.training import adapt as run
    from acclimate.training.distributed import leave_process_group

    if push_to_hub:
        check_repo_name(push_to_hub)
    result = run(**values)
    leave_process_group()
    _print_result(result, values.get("keep_steps", ()), result.method)
    if push_to_hub and environment_integer("RANK") == 0:
        typer.echo(upload(result.out, push_to_hub))


@command(
    app,
    PretrainOptions,
    example="acclimate pretrain --corpus text/ --architecture bert --size small --tokens 1000000000 --out pretrained/",
)
def pretrain(values: dict[str, Any]) -> None:
    """Train a masked language model and its tokenizer from scratch."""
    from acclimate.training import pretrain as run
    from acclimate.training.distributed import leave_process_group

    result = run(**values)
    leave_process_group()
    _print_result(result, values.get("keep_steps", ()))


def _print_result(result: Any, kept: tuple[int, ...], method: str = "") -> None:
    """Print the result of a training, and where the models of intermediate steps are.

    Args:
        result: An :class:`acclimate.training.AdaptResult`.
        kept: The steps after which the model was to be kept.
        method: Name of the method; empty where there is only one.
    """
    losses = ", ".join(f"{name} {value:.3f}" for name, value in result.losses.items() if name != "loss")
    speed = f", {result.tokens / result.seconds:,.0f} tokens/s" if result.seconds else ""
    steps = f"{method}, {result.steps:,} steps" if method else f"{result.steps:,} steps"
    typer.echo(f"{result.out}: {steps}, {result.tokens:,} tokens{speed}. {losses}")
    for step in kept:
        folder = result.out / f"step-{step:06d}"
        typer.echo(str(folder) if folder.is_dir() else f"The training ended before step {step:,}: it was not kept.")


@app.command(epilog="Example: acclimate push adapted/ me/roberta-reviews")
def push(
    folder: Annotated[Path, typer.Argument(help="Model folder, such as adapted/ or runs/study/models/KEY.")],
    repo: Annotated[str, typer.Argument(help="Repository on the Hugging Face Hub, as USER/NAME.")],
    public: Annotated[bool, typer.Option("--public", help="Make a new repository public.")] = False,
) -> None:
    """Upload a model with its card to the Hugging Face Hub."""
    from acclimate.cards import push_to_hub

    typer.echo(push_to_hub(folder, repo, private=not public))
