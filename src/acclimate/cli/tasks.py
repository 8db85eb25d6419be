"""``acclimate finetune``, ``distill`` and ``annotate``."""

from __future__ import annotations

import statistics
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from acclimate.cli.app import Out, Precision, Quiet, app
from acclimate.cli.options import command, named_values
from acclimate.errors import UserError, environment_integer
from acclimate.locks import output_lock, with_output_lock
from acclimate.options import DistillOptions, FinetuneOptions
from acclimate.options.declaration import DATA, METHOD, MODEL, OUTPUT, TRAINING


@command(
    app,
    FinetuneOptions,
    without=("seed",),
    example="acclimate finetune --model adapted/ --task ner/ --seeds 5 --out finetuned/",
)
def finetune(
    values: dict[str, Any],
    seeds: Annotated[
        int | None,
        typer.Option(help="Number of seeds: 0, 1, ... (default: 5).", rich_help_panel=TRAINING, show_default=False),
    ] = None,
    repartition: Annotated[
        float | None,
        typer.Option(
            help="Share of the train split to keep; the rest and the dev split are added to the test split, as in the "
            "DGA paper.",
            rich_help_panel=DATA,
        ),
    ] = None,
) -> None:
    """Fine-tune a model on a labelled task, once per seed, and evaluate it on the test split.

    Each seed gets a folder seed-0, seed-1, ... in the output directory.
    """
    from acclimate.evaluation.scoring import make_scoring
    from acclimate.tasks import finetune as run
    from acclimate.tasks import load_task
    from acclimate.tasks import repartition as enlarge_test
    from acclimate.training.distributed import leave_process_group

    count = _check_seeds(5 if seeds is None else seeds)
    task = load_task(values.pop("task"))
    if repartition is not None:
        task = enlarge_test(task, repartition)
    out, first = values.pop("out", None), values.pop("first", None)
    first = first and load_task(first)
    scores: list[dict[str, Any]] = []
    for seed in range(count):
        result = run(**values, task=task, first=first, seed=seed, out=out and Path(out) / f"seed-{seed}")
        scores.append(result.metrics)
        if environment_integer("RANK"):
            continue
        names = (*make_scoring(result.kind, result.scoring).metrics, *(["ece"] if "ece" in result.metrics else []))
        typer.echo(f"seed {seed}: " + "  ".join(f"{name} {result.metrics[name]:.4f}" for name in names))
    leave_process_group()
    if environment_integer("RANK"):
        return
    for name in names:
        typer.echo(f"{name}: {_mean_and_spread([score[name] for score in scores])}")
    for label, row in scores[-1].get("per_class", {}).items():
        mean = statistics.mean(score["per_class"][label]["f1"] for score in scores)
        typer.echo(f"  F1 {label}: {mean:.4f} ({row['support']} in test)")


@command(
    app,
    DistillOptions,
    without=("seed",),
    example="acclimate distill --teacher adapted/ --student distilroberta-base --task reviews/ --out distilled/",
)
def distill(
    values: dict[str, Any],
    seeds: Annotated[
        int | None,
        typer.Option(
            help="Number of seeds of the student: 0, 1, ... (default: 1).",
            rich_help_panel=TRAINING,
            show_default=False,
        ),
    ] = None,
) -> None:
    """Distill a task from a teacher that knows the domain into a model of another architecture.

    The output directory gets the teacher, if it is fine-tuned, and one student per seed. All students share a teacher.
    """
    from acclimate.evaluation.scoring import make_scoring
    from acclimate.tasks import distill as run
    from acclimate.tasks import load_task

    count = _check_seeds(1 if seeds is None else seeds)
    if count > 1 and values.get("few_shot") is not None:
        raise UserError("Each seed draws other few-shot examples, but all seeds share one teacher; give --seeds 1.")
    task, teacher, out = load_task(values.pop("task")), values.pop("teacher"), values.pop("out", None)
    results = []
    with nullcontext() if out is None else output_lock(out):
        for seed in range(count):
            result = run(
                **values,
                teacher=teacher,
                task=task,
                seed=seed,
                out=out and Path(out) / f"seed-{seed}",
                teacher_out=out and Path(out) / "teacher",
                teacher_seed=0,
            )
            if out is not None and result.teacher_trained:
                teacher = str(Path(out) / "teacher")
            results.append(result)
            typer.echo(
                f"seed {seed}: {result.disagreement[0]:.0f} of {result.units} units were active in only one of the "
                f"models, {result.disagreement[result.distilled_epochs]:.0f} after distillation, "
                f"{result.disagreement[-1]:.0f} at the end"
            )
    names = make_scoring(results[0].kind, results[0].scoring).metrics
    for name in [*names, *(name for name in ("ece",) if name in results[0].metrics)]:
        before = statistics.mean(result.student_metrics[name] for result in results)
        after = _mean_and_spread([result.metrics[name] for result in results])
        typer.echo(
            f"{name}: teacher {results[0].teacher_metrics[name]:.4f}, student {before:.4f} before and {after} after"
        )


def _check_seeds(count: int) -> int:
    if count < 1:
        raise UserError(f"--seeds must be at least 1, not {count}.")
    return count


def _mean_and_spread(values: list[float]) -> str:
    """Return the mean of a metric over seeds and, for several seeds, its standard deviation."""
    spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.4f}{spread}"


@app.command(epilog="Example: acclimate annotate --model bert-base-uncased --task reviews/ --out annotated/")
@with_output_lock
def annotate(
    model: Annotated[
        str,
        typer.Option(
            help="Model folder or name on the Hugging Face Hub; it is fine-tuned first, unless it is a classifier of "
            "the task.",
            rich_help_panel=MODEL,
        ),
    ],
    task: Annotated[Path, typer.Option(help="Folder with train, dev and test files.", rich_help_panel=DATA)],
    out: Out,
    preset: Annotated[
        Literal["paper", "released-code"],
        typer.Option(
            help="Values to use where paper and released code differ: thresholds, units, stop words.",
            rich_help_panel=METHOD,
        ),
    ] = "paper",
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Option of the annotation, such as delta=0.02 or criterion=marginal. May be repeated.",
            rich_help_panel=METHOD,
        ),
    ] = None,
    epochs: Annotated[
        int,
        typer.Option(
            help="Passes over the train split in fine-tuning; the epoch with the best dev accuracy is used.",
            rich_help_panel=TRAINING,
        ),
    ] = 10,
    learning_rate: Annotated[
        float, typer.Option(help="Peak learning rate of fine-tuning.", rich_help_panel=TRAINING)
    ] = 2e-5,
    batch_size: Annotated[int, typer.Option(help="Texts per optimizer step.", rich_help_panel=TRAINING)] = 64,
    max_length: Annotated[int, typer.Option(help="Maximum tokens per text.", rich_help_panel=DATA)] = 256,
    seed: Annotated[int, typer.Option(help="Random seed.", rich_help_panel=TRAINING)] = 42,
    samples: Annotated[int, typer.Option(help="Number of annotated texts to print.", rich_help_panel=OUTPUT)] = 5,
    precision: Precision = "auto",
    quiet: Quiet = False,
) -> None:
    """Find the tokens of a task's train split that its labels depend on (Gu et al., EMNLP 2020)."""
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
