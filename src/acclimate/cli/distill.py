"""``acclimate distill``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from acclimate.cli.app import Precision, Quiet, app
from acclimate.errors import UserError
from acclimate.locks import with_output_lock


@app.command()
@with_output_lock
def distill(
    teacher: Annotated[str, typer.Option(help="A model of the domain: a classifier of the task, or any other model.")],
    student: Annotated[str, typer.Option(help="Model folder or name on the hub, of any architecture.")],
    task: Annotated[Path, typer.Option(help="Folder with train, dev and test files.")],
    seeds: Annotated[int, typer.Option(help="How many seeds of the student: 0, 1, ...")] = 1,
    out: Annotated[
        Path | None, typer.Option(help="Folder: the teacher if it is trained, and a student a seed.")
    ] = None,
    objective: Annotated[
        Literal["boundary", "kl"], typer.Option(help="What is distilled: which units are active, or predictions.")
    ] = "boundary",
    epochs: Annotated[int, typer.Option(help="Of distillation and refinement together.")] = 10,
    distill_share: Annotated[float, typer.Option(help="Share of the epochs that distil; the rest refine.")] = 0.9,
    learning_rate: float = 1e-5,
    confidence_penalty: Annotated[float, typer.Option(help="Weight of the entropy in refinement.")] = 0.5,
    margin: Annotated[float, typer.Option(help="Of the activation boundary.")] = 1.0,
    scale: Annotated[float, typer.Option(help="Factor of the loss of the activation boundary.")] = 1e-3,
    temperature: Annotated[float, typer.Option(help="Of the predictions, with --objective kl.")] = 1.0,
    connector: Annotated[
        Literal["auto", "none", "teacher", "student"], typer.Option(help="Whose representation is projected.")
    ] = "auto",
    connector_learning_rate: Annotated[float, typer.Option(help="Of the connector of the student.")] = 1e-3,
    schedule: Annotated[
        Literal["shared", "each"], typer.Option(help="One learning-rate schedule for both phases, or one for each.")
    ] = "shared",
    teacher_epochs: int = 5,
    teacher_learning_rate: float = 2e-5,
    teacher_penalty: Annotated[
        float, typer.Option(help="Weight of the entropy in the training of the teacher.")
    ] = 0.3,
    student_epochs: int = 5,
    student_learning_rate: float = 1e-5,
    batch_size: int = 16,
    max_length: int = 128,
    few_shot: Annotated[int | None, typer.Option(help="Train examples a class.")] = None,
    select: Annotated[
        Literal["last", "dev"], typer.Option(help="last: the last epoch; dev: the best on dev.")
    ] = "last",
    report_to: Annotated[
        list[str] | None, typer.Option(help="Tracker of experiments, as tensorboard or wandb; may be repeated.")
    ] = None,
    negative: Annotated[
        list[str] | None,
        typer.Option(
            help='A label that means "none of these"; may be repeated. The others get a micro-F1 of their own.'
        ),
    ] = None,
    precision: Precision = "auto",
    quiet: Quiet = False,
) -> None:
    """Move what a model of the domain knows about a task into a model of another architecture.

    One teacher serves all seeds.
    """
    given = {key: value for key, value in locals().items() if key not in ("teacher", "task", "seeds", "out", "quiet")}
    given["negative"] = negative or None
    import statistics

    from acclimate.evaluation.scoring import make_scoring
    from acclimate.tasks import distill as run
    from acclimate.tasks import load_task

    if seeds < 1:
        raise UserError("seeds must be at least 1.")
    if seeds > 1 and few_shot is not None:
        raise UserError("Each seed draws other few_shot examples, and one teacher serves all seeds; give --seeds 1.")
    labelled = load_task(task)
    results = []
    for seed in range(seeds):
        result = run(
            teacher,
            task=labelled,
            seed=seed,
            out=None if out is None else out / f"seed-{seed}",
            teacher_out=None if out is None else out / "teacher",
            teacher_seed=0,
            progress=not quiet,
            **given,
        )
        if out is not None and result.teacher_trained:
            teacher = str(out / "teacher")
        results.append(result)
        typer.echo(
            f"seed {seed}: {result.disagreement[0]:.0f} of {result.units} units were active in only one of the "
            f"models, {result.disagreement[result.distilled_epochs]:.0f} after distillation, "
            f"{result.disagreement[-1]:.0f} at the end"
        )
    names = make_scoring(results[0].kind, results[0].scoring).metrics
    for name in [*names, *(name for name in ("ece",) if name in results[0].metrics)]:
        values = [result.metrics[name] for result in results]
        before = statistics.mean(result.student_metrics[name] for result in results)
        spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
        typer.echo(
            f"{name}: teacher {results[0].teacher_metrics[name]:.4f}, student {before:.4f} before and "
            f"{statistics.mean(values):.4f}{spread} after"
        )
