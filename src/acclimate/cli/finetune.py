"""``acclimate finetune``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from acclimate.cli.app import Precision, Quiet, app
from acclimate.errors import UserError
from acclimate.locks import with_output_lock


@app.command()
@with_output_lock
def finetune(
    model: Annotated[str, typer.Option(help="Model folder or name on the hub.")],
    task: Annotated[Path, typer.Option(help="Folder with train, dev and test files.")],
    seeds: Annotated[int, typer.Option(help="How many seeds: 0, 1, ...")] = 5,
    out: Annotated[Path | None, typer.Option(help="Folder for the fine-tuned models, one a seed.")] = None,
    epochs: int = 5,
    learning_rate: float = 3e-5,
    batch_size: int = 16,
    max_length: Annotated[
        int | None, typer.Option(help="Tokens of an example, or of a window of a passage: 128, with questions 384.")
    ] = None,
    few_shot: Annotated[int | None, typer.Option(help="Train examples a class, or questions.")] = None,
    select: Annotated[
        Literal["last", "dev"], typer.Option(help="last: the last epoch; dev: the best on dev.")
    ] = "last",
    repartition: Annotated[
        float | None, typer.Option(help="Move dev and about 1 - this share of train to test, as the DGA paper does.")
    ] = None,
    first: Annotated[
        Path | None, typer.Option(help="Folder of a task of the same kind that is learnt before this one.")
    ] = None,
    first_epochs: Annotated[int | None, typer.Option(help="Of the first task; by default as many.")] = None,
    first_learning_rate: Annotated[float | None, typer.Option(help="Of the first task; by default the same.")] = None,
    negative: Annotated[
        list[str] | None,
        typer.Option(
            help='A label that means "none of these"; may be repeated. The others get a micro-F1 of their own.'
        ),
    ] = None,
    confidence_penalty: Annotated[
        float, typer.Option(help="Weight of the entropy of predictions that is taken from the loss.")
    ] = 0.0,
    report_to: Annotated[
        list[str] | None, typer.Option(help="Tracker of experiments, as tensorboard or wandb; may be repeated.")
    ] = None,
    precision: Precision = "auto",
    quiet: Quiet = False,
) -> None:
    """Fine-tune a model on a labelled task and score it on the test set."""
    import statistics

    from acclimate.evaluation.scoring import make_scoring
    from acclimate.tasks import finetune as run
    from acclimate.tasks import load_task
    from acclimate.tasks import repartition as enlarge_test

    if seeds < 1:
        raise UserError("seeds must be at least 1.")
    labelled = load_task(task) if repartition is None else enlarge_test(load_task(task), repartition)
    before = None if first is None else load_task(first)
    scores: list[dict[str, Any]] = []
    names: tuple[str, ...] = ()
    for seed in range(seeds):
        result = run(
            model,
            labelled,
            seed=seed,
            out=None if out is None else out / f"seed-{seed}",
            epochs=epochs,
            learning_rate=learning_rate,
            batch_size=batch_size,
            max_length=max_length,
            few_shot=few_shot,
            select=select,
            first=before,
            first_epochs=first_epochs,
            first_learning_rate=first_learning_rate,
            negative=negative or None,
            confidence_penalty=confidence_penalty,
            precision=precision,
            report_to=report_to,
            progress=not quiet,
        )
        scores.append(result.metrics)
        names = (*make_scoring(result.kind, result.scoring).metrics, *(["ece"] if "ece" in result.metrics else []))
        line = "  ".join(f"{name} {result.metrics[name]:.4f}" for name in names)
        typer.echo(f"seed {seed}: {line}")
    for name in names:
        values = [score[name] for score in scores]
        spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
        typer.echo(f"{name}: {statistics.mean(values):.4f}{spread}")
    for label, row in scores[-1].get("per_class", {}).items():
        mean = statistics.mean(score["per_class"][label]["f1"] for score in scores)
        typer.echo(f"  F1 {label}: {mean:.4f} ({row['support']} in test)")
