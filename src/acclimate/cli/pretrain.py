"""``acclimate pretrain``."""

from __future__ import annotations

from typing import Annotated

import typer

from acclimate.cli import training as options
from acclimate.cli.app import Quiet, app


@app.command()
def pretrain(
    config: options.Config = None,
    corpus: options.Corpus = None,
    out: options.Folder = None,
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
    keep_steps: options.KeepSteps = None,
    steps: options.Steps = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the corpus (default: 1).")] = None,
    tokens: options.Tokens = None,
    max_minutes: options.Minutes = None,
    seed: options.Seed = None,
    max_length: Annotated[int | None, typer.Option(help="Tokens of a text at most (default: 256).")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Texts a step (default: 256).")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Peak learning rate (default: 1e-4).")] = None,
    weight_decay: options.WeightDecay = None,
    warmup: options.Warmup = None,
    mask_rate: options.MaskRate = None,
    masking: options.Masking = None,
    masking_set: options.MaskingSet = None,
    text_column: options.TextColumn = None,
    heldout: options.Heldout = None,
    heldout_every: options.HeldoutEvery = None,
    layout: options.Layout = None,
    precision: options.PrecisionKind = None,
    save_every: options.SaveEvery = None,
    report_to: options.ReportTo = None,
    overwrite: Annotated[bool | None, typer.Option("--overwrite", help="Replace another run in --out.")] = None,
    quiet: Quiet = False,
) -> None:
    """Train a masked language model from scratch, and its tokenizer."""
    given = {name: value for name, value in locals().items() if name not in ("config", "quiet")}
    from acclimate.training import pretrain as run
    from acclimate.training.distributed import leave_process_group

    pairs = {
        "changes": ("--set", given.pop("changes")),
        "masking_settings": ("--masking-set", given.pop("masking_set")),
    }
    values = options.gather(config, given, pairs, pretrain)
    options.require(values, ("corpus", "out"))
    result = run(**values, progress=not quiet)
    leave_process_group()
    options.tell(result, values.get("keep_steps") or [])
