"""``acclimate adapt``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from acclimate.cli.app import Quiet, app, named_values, read_options, step_numbers, tell_kept
from acclimate.errors import UserError


@app.command()
def adapt(
    config: Annotated[
        Path | None, typer.Option(help="YAML or TOML file with any of these options; options given here win.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model folder or name on the hub.")] = None,
    corpus: Annotated[
        list[str] | None, typer.Option(help="Text: file, folder, glob or hf:NAME; may be given several times.")
    ] = None,
    task: Annotated[
        Path | None, typer.Option(help="Folder of a labelled task; without --corpus its train text is the corpus.")
    ] = None,
    method: Annotated[str | None, typer.Option(help="See `acclimate methods`.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to make.")] = None,
    steps: Annotated[int | None, typer.Option(help="Optimiser steps to train.")] = None,
    epochs: Annotated[
        float | None, typer.Option(help="Passes over the corpus (default: 1; 100 over the text of a task).")
    ] = None,
    tokens: Annotated[int | None, typer.Option(help="Tokens of text to read.")] = None,
    max_minutes: Annotated[float | None, typer.Option(help="Minutes of training.")] = None,
    seed: Annotated[int | None, typer.Option(help="Every random choice comes from it.")] = None,
    max_length: Annotated[int | None, typer.Option(help="Tokens of a text at most (default: 128).")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Texts a step (default: 64).")] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="Peak learning rate (default: the method's, mostly 1e-4).")
    ] = None,
    mask_rate: Annotated[float | None, typer.Option(help="Share of tokens to predict (default: 0.15).")] = None,
    masking: Annotated[
        str | None, typer.Option(help="How they are chosen, as whole-word (default: random); docs/masking.md has all.")
    ] = None,
    masking_set: Annotated[
        list[str] | None, typer.Option("--masking-set", help="Parameter of the masking, as lexicon=words.txt.")
    ] = None,
    text_column: Annotated[str | None, typer.Option(help="Where the text is in tables and JSON lines.")] = None,
    heldout: Annotated[
        list[str] | None, typer.Option(help="Text on which the loss is measured during training, as --corpus.")
    ] = None,
    heldout_every: Annotated[int | None, typer.Option(help="Steps between two of these (default: 50).")] = None,
    layout: Annotated[str | None, typer.Option(help="padded or packed rows.")] = None,
    precision: Annotated[str | None, typer.Option(help="fp32, bf16 or auto.")] = None,
    save_every: Annotated[
        int | None, typer.Option(help="Steps between checkpoints (default: every 5 minutes).")
    ] = None,
    keep_steps: Annotated[
        list[str] | None, typer.Option(help="Keep the model after these steps, as 100,200; 0 is the start.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Parameter of the method, as contrast_weight=0.5.")
    ] = None,
    report_to: Annotated[
        list[str] | None, typer.Option(help="Tracker of experiments, as tensorboard or wandb; may be repeated.")
    ] = None,
    push_to_hub: Annotated[
        str | None, typer.Option(help="Put the model on the hub at the end, as USER/NAME; a new one is private.")
    ] = None,
    overwrite: Annotated[bool | None, typer.Option("--overwrite", help="Replace another adaptation in --out.")] = None,
    quiet: Quiet = False,
) -> None:
    """Adapt a model to domain text."""
    given = {
        key: value for key, value in locals().items() if key not in ("config", "quiet", "settings", "masking_set")
    }
    from acclimate.cards.hub import check_repo
    from acclimate.cards.hub import push_to_hub as put
    from acclimate.training import adapt as run

    values = (
        read_options(config, {*given, "settings", "masking_settings", "weight_decay", "warmup", "head_tokens"})
        if config
        else {}
    )
    if keep_steps:
        given["keep_steps"] = step_numbers(keep_steps)
    values.update({key: value for key, value in given.items() if value is not None})
    values["settings"] = {**(values.get("settings") or {}), **named_values(settings or [])}
    if masking_set:
        own = named_values(masking_set, "--masking-set")
        values["masking_settings"] = {**(values.get("masking_settings") or {}), **own}
    for name in ("model", "corpus", "out"):
        if not values.get(name) and not (name == "corpus" and values.get("task")):
            raise UserError(f"Say --{name} (or '{name}' in the configuration file).")
    repo = values.pop("push_to_hub", None)
    if repo:
        check_repo(repo)
    result = run(**values, progress=not quiet)
    losses = ", ".join(f"{name} {value:.3f}" for name, value in result.losses.items() if name != "loss")
    speed = f", {result.tokens / result.seconds:,.0f} tokens/s" if result.seconds else ""
    typer.echo(f"{result.out}: {result.method}, {result.steps:,} steps, {result.tokens:,} tokens{speed}. {losses}")
    tell_kept(result.out, values.get("keep_steps") or [])
    if repo and int(os.environ.get("RANK", "0")) == 0:
        typer.echo(put(result.out, repo))
