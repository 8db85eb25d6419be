"""``acclimate adapt``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from acclimate.cli import training as options
from acclimate.cli.app import Quiet, app


@app.command()
def adapt(
    config: options.Config = None,
    model: Annotated[str | None, typer.Option(help="Model folder or name on the hub.")] = None,
    corpus: options.Corpus = None,
    task: Annotated[
        Path | None, typer.Option(help="Folder of a labelled task; without --corpus its train text is the corpus.")
    ] = None,
    method: Annotated[str | None, typer.Option(help="See `acclimate methods`.")] = None,
    out: options.Folder = None,
    steps: options.Steps = None,
    epochs: Annotated[
        float | None, typer.Option(help="Passes over the corpus (default: 1; 100 over the text of a task).")
    ] = None,
    tokens: options.Tokens = None,
    max_minutes: options.Minutes = None,
    seed: options.Seed = None,
    max_length: Annotated[int | None, typer.Option(help="Tokens of a text at most (default: 128).")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Texts a step (default: 64).")] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="Peak learning rate (default: the method's, mostly 1e-4).")
    ] = None,
    weight_decay: options.WeightDecay = None,
    warmup: options.Warmup = None,
    dropout: Annotated[
        float | None, typer.Option(help="Of the encoder while it adapts (default: what its configuration says).")
    ] = None,
    mask_rate: options.MaskRate = None,
    masking: options.Masking = None,
    masking_set: options.MaskingSet = None,
    text_column: options.TextColumn = None,
    head_tokens: Annotated[
        int | None, typer.Option(help="Tokens on which an absent masked-LM head is warmed up (default: 300,000).")
    ] = None,
    heldout: options.Heldout = None,
    heldout_every: options.HeldoutEvery = None,
    layout: options.Layout = None,
    precision: options.PrecisionKind = None,
    save_every: options.SaveEvery = None,
    keep_steps: options.KeepSteps = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Parameter of the method, as contrast_weight=0.5.")
    ] = None,
    report_to: options.ReportTo = None,
    push_to_hub: Annotated[
        str | None, typer.Option(help="Put the model on the hub at the end, as USER/NAME; a new one is private.")
    ] = None,
    overwrite: Annotated[bool | None, typer.Option("--overwrite", help="Replace another adaptation in --out.")] = None,
    quiet: Quiet = False,
) -> None:
    """Adapt a model to domain text."""
    given = {name: value for name, value in locals().items() if name not in ("config", "quiet")}
    from acclimate.cards.hub import check_repo_name
    from acclimate.cards.hub import push_to_hub as put
    from acclimate.training import adapt as run
    from acclimate.training.distributed import leave_process_group

    pairs = {
        "settings": ("--set", given.pop("settings")),
        "masking_settings": ("--masking-set", given.pop("masking_set")),
    }
    values = options.gather(config, given, pairs, adapt)
    options.require(values, ("model", "out") if values.get("task") else ("model", "corpus", "out"))
    repo = values.pop("push_to_hub", None)
    if repo:
        check_repo_name(repo)
    result = run(**values, progress=not quiet)
    leave_process_group()
    options.tell(result, values.get("keep_steps") or [], result.method)
    if repo and int(os.environ.get("RANK") or 0) == 0:
        typer.echo(put(result.out, repo))
