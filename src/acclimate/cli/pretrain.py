"""``acclimate pretrain``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from acclimate.cli.app import Quiet, app, named_values, read_options, step_numbers, tell_kept
from acclimate.errors import UserError


@app.command()
def pretrain(
    config: Annotated[
        Path | None, typer.Option(help="YAML or TOML file with any of these options; options given here win.")
    ] = None,
    corpus: Annotated[
        list[str] | None, typer.Option(help="Text: file, folder, glob or hf:NAME; may be given several times.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to make.")] = None,
    architecture: Annotated[
        str | None, typer.Option(help="bert (default), roberta, ..., or a Hugging Face config: folder or file.")
    ] = None,
    size: Annotated[
        str | None, typer.Option(help="tiny, mini, small, medium or base (default: what the config says).")
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="Setting of the config, as num_hidden_layers=6.")
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="Folder or model; or wordpiece or byte-bpe to train one (default).")
    ] = None,
    vocab_size: Annotated[int | None, typer.Option(help="Of a trained tokenizer (default: 30,000 at most).")] = None,
    lowercase: Annotated[
        bool | None, typer.Option("--lowercase/--cased", help="Of a trained tokenizer (default: WordPiece lowers).")
    ] = None,
    tokenizer_characters: Annotated[
        int | None, typer.Option(help="Sample for the tokenizer, at most (default: 50 million).")
    ] = None,
    keep_steps: Annotated[
        list[str] | None, typer.Option(help="Keep the model after these steps, as 1000,2000; 0 is the start.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Optimiser steps to train.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the corpus (default: 1).")] = None,
    tokens: Annotated[int | None, typer.Option(help="Tokens of text to read.")] = None,
    max_minutes: Annotated[float | None, typer.Option(help="Minutes of training.")] = None,
    seed: Annotated[int | None, typer.Option(help="Every random choice comes from it.")] = None,
    max_length: Annotated[int | None, typer.Option(help="Tokens of a text at most (default: 256).")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Texts a step (default: 256).")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Peak learning rate (default: 1e-4).")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Of AdamW (default: 0.01).")] = None,
    warmup: Annotated[float | None, typer.Option(help="Share in which the rate rises (default: 0.01).")] = None,
    mask_rate: Annotated[float | None, typer.Option(help="Share of tokens to predict (default: 0.15).")] = None,
    masking: Annotated[str | None, typer.Option(help="How they are chosen (default: random).")] = None,
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
    report_to: Annotated[
        list[str] | None, typer.Option(help="Tracker of experiments, as tensorboard or wandb; may be repeated.")
    ] = None,
    overwrite: Annotated[bool | None, typer.Option("--overwrite", help="Replace another run in --out.")] = None,
    quiet: Quiet = False,
) -> None:
    """Train a masked language model from scratch, and its tokenizer."""
    given = {key: value for key, value in locals().items() if key not in ("config", "quiet", "masking_set")}
    from acclimate.training import pretrain as run

    values = read_options(config, {*given, "masking_settings"}) if config else {}
    values["changes"] = {**(values.get("changes") or {}), **named_values(given.pop("changes") or [])}
    if masking_set:
        own = named_values(masking_set, "--masking-set")
        values["masking_settings"] = {**(values.get("masking_settings") or {}), **own}
    if keep_steps:
        given["keep_steps"] = step_numbers(keep_steps)
    values.update({key: value for key, value in given.items() if value is not None})
    for name in ("corpus", "out"):
        if not values.get(name):
            raise UserError(f"Say --{name} (or '{name}' in the configuration file).")
    result = run(**values, progress=not quiet)
    losses = ", ".join(f"{name} {value:.3f}" for name, value in result.losses.items() if name != "loss")
    speed = f", {result.tokens / result.seconds:,.0f} tokens/s" if result.seconds else ""
    typer.echo(f"{result.out}: {result.steps:,} steps, {result.tokens:,} tokens{speed}. {losses}")
    tell_kept(result.out, values.get("keep_steps") or [])
