"""``acclimate annotate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from acclimate.cli.app import Out, Precision, Quiet, app
from acclimate.cli.options import named_values
from acclimate.locks import with_output_lock


@app.command()
@with_output_lock
def annotate(
    model: Annotated[
        str, typer.Option(help="Model folder or name on the hub; fine-tuned first, unless it is a classifier of it.")
    ],
    task: Annotated[Path, typer.Option(help="Folder with train, dev and test files.")],
    out: Out,
    preset: Annotated[
        Literal["paper", "released-code"], typer.Option(help="Where the two part: thresholds, units, stop words.")
    ] = "paper",
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Option of the annotation, as delta=0.02 or criterion=marginal.")
    ] = None,
    epochs: Annotated[int, typer.Option(help="Of fine-tuning; best accuracy on dev.")] = 10,
    learning_rate: float = 2e-5,
    batch_size: int = 64,
    max_length: int = 256,
    seed: int = 42,
    samples: Annotated[int, typer.Option(help="Texts to print.")] = 5,
    precision: Precision = "auto",
    quiet: Quiet = False,
) -> None:
    """Find the tokens that matter to a task in its train split (Gu et al., EMNLP 2020)."""
    from acclimate.methods.selective import annotation_options
    from acclimate.methods.selective.annotation import annotate_task
    from acclimate.methods.selective.annotator import FineTuningOptions

    result = annotate_task(
        model,
        task,
        out,
        annotation_options(preset, **named_values(settings or [])),
        FineTuningOptions(epochs, learning_rate, batch_size, max_length),
        seed=seed,
        samples=samples,
        precision=precision,
        progress=not quiet,
    )
    found = result.account["annotate"]
    typer.echo(
        f"{found['important']:,} of {found['tokens']:,} tokens are important ({found['share']:.1%}); "
        f"{found['share_first_half']:.1%} in first halves of the texts, {found['share_second_half']:.1%} in second."
    )
    typer.echo(
        f"{found['misclassified']:,} of {found['units']:,} texts are misclassified, {found['units_without']:,} have "
        f"no important token; {found['near_threshold']:,} tokens lie within 0.001 of the threshold."
    )
    for line in result.samples:
        typer.echo(f"  {line}")
    typer.echo(f"{out}: annotated.jsonl, account.json")
