"""``acclimate finetune``, ``distill`` and ``generate-queries``."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from dataclasses import KW_ONLY
from pathlib import Path
from typing import Annotated, Any

from pydantic import model_validator

from acclimate.base.bounds import Fraction, SeedCount
from acclimate.base.errors import cut, environment_integer, printable
from acclimate.base.locks import output_lock
from acclimate.base.options import DATA, METHOD, Option, defaults, option_fields, options, values
from acclimate.base.progress import format_duration
from acclimate.base.terminal import echo
from acclimate.cli.app import app, describe_reading, describe_text, print_next, print_place
from acclimate.cli.options import command
from acclimate.data.reading import DEFAULT_READING
from acclimate.tasks.embedding_options import GenerateQueriesOptions
from acclimate.tasks.options import DistillOptions, FinetuneOptions, ProbeOptions, ProbeSettings
from acclimate.tasks.prediction_options import PredictOptions


@options
class FinetuneCommand(FinetuneOptions, ProbeSettings):
    """Options of ``acclimate finetune``; the Python function takes a single seed and an already repartitioned task.

    With ``probe`` they are the options of :func:`acclimate.probe`.
    """

    _: KW_ONLY
    probe: Annotated[
        bool, Option("Freeze the model: a linear model and nearest neighbours learn from its states.", METHOD)
    ] = False
    seeds: Annotated[SeedCount, Option("Number of seeds, counted from 0.")] = 5
    repartition: Annotated[
        Fraction | None,
        Option(
            "Share of the train split to keep; the rest and the dev split are added to the test split, as in the DGA "
            "paper.",
            DATA,
        ),
    ] = None

    @model_validator(mode="after")
    def check_probe(self) -> Any:
        """Check that options of a training are given only without a probe, and options of a probe only with it."""
        usual = defaults(FinetuneCommand)
        own, shared = option_fields(ProbeSettings).keys(), option_fields(ProbeOptions).keys()
        others = own if not self.probe else usual.keys() - shared - {"probe", "repartition"}
        if given := [name for name in usual if name in others and getattr(self, name) != usual[name]]:
            wrong = "does not apply with a probe, which trains no model" if self.probe else "needs 'probe'"
            raise ValueError(f"'{given[0]}' {wrong}; remove it" + ("" if self.probe else ", or give --probe"))
        return self


@command(
    app,
    FinetuneCommand,
    without=("seed",),
    example="acclimate finetune --model adapted/ --task ner/ --seeds 5 --out finetuned/",
)
def finetune(options: FinetuneCommand) -> None:
    """Fine-tune a model on a labelled task, once per seed, and evaluate it on the test split.

    Each seed gets a folder seed-0, seed-1, ... in the output directory. With --probe the model is not trained: simple
    models learn the task from its states, with several numbers of labels, in little more time than to read the texts.
    """
    from acclimate.data.task_kinds import open_task
    from acclimate.engine.distributed import leave_process_group
    from acclimate.evaluation.scoring import make_scoring
    from acclimate.tasks.finetune import finetune as run
    from acclimate.tasks.splits import repartition as enlarge_test

    task = open_task(options.task, options)
    if options.repartition is not None:
        task = enlarge_test(task, options.repartition)
    if options.probe:
        return _probe(options, task)
    first = open_task(options.first)
    scores: list[dict[str, Any]] = []
    rate: float | None = None
    seeds = 1 if options.epochs == 0 else options.seeds  # without training there is nothing random
    for seed in range(seeds):
        own = {"task": task, "first": first, "seed": seed, "out": _inside(options.out, f"seed-{seed}")}
        own |= values(DEFAULT_READING)  # the task is read
        if options.tune and seed:
            own |= {"tune": False, "learning_rate": rate}
        result = run(**{**values(options, FinetuneOptions), **own})
        rate = result.learning_rate
        scores.append(result.metrics)
        if environment_integer("RANK"):
            continue
        scoring = make_scoring(result.kind, result.scoring)
        names = (*scoring.metrics, *scoring.errors, *(["ece"] if "ece" in result.metrics else []))
        if seeds > 1:
            echo(f"seed {seed}: " + "  ".join(f"{name} {result.metrics[name]:.4f}" for name in names))
        _print_references(result.metrics, names)
    leave_process_group()
    if environment_integer("RANK"):
        return
    for name in names:
        echo(f"{name}: {_mean_and_spread([score[name] for score in scores])}")
    _print_details(scores)
    if seeds == 1 and options.epochs != 0:
        echo("One seed says little about a model; --seeds 5 is the default.")
    _propose(options)


def _probe(options: FinetuneCommand, task: Any) -> None:
    """Print what simple models learn of a loaded task from the states of the model."""
    from acclimate.tasks.probing import probe

    for line in probe(**{**values(options, ProbeOptions), **values(DEFAULT_READING), "task": task}).describe():
        echo(line)
    _propose(options)


def _propose(options: FinetuneCommand) -> None:
    """Print what to run next."""
    if options.probe or options.epochs == 0:
        task = [*describe_text("--task", options.task, "TASK", column=options.text_column), *describe_reading(options)]
        print_next(["acclimate", "finetune", "--model", options.model, *task, "--out", "finetuned"], "to train it")
    elif options.out is None:
        echo("The models are not kept.")
        print_next(["acclimate", *sys.argv[1:], "--out", "finetuned"], "to keep them")
    else:
        print_next(["acclimate", "push", _inside(options.out, "seed-0"), "USER/NAME"], "to share a model")


@options
class DistillCommand(DistillOptions):
    """Options of ``acclimate distill``; the function takes one seed."""

    _: KW_ONLY
    seeds: Annotated[SeedCount, Option("Number of seeds of the student, counted from 0.")] = 1

    @model_validator(mode="after")
    def check_seeds(self) -> Any:
        """Check that there is one seed with few-shot examples, which it draws for the teacher, too."""
        if self.seeds > 1 and self.few_shot is not None:
            raise ValueError("each seed draws other few-shot examples, but all seeds share one teacher; give one seed")
        return self


@command(
    app,
    DistillCommand,
    without=("seed",),
    example="acclimate distill --teacher adapted/ --student distilroberta-base --task reviews/ --out distilled/",
)
def distill(options: DistillCommand) -> None:
    """Distill a task from a teacher that knows the domain into a model of another architecture.

    The output directory gets the teacher, if it is fine-tuned, and one student per seed. All students share a teacher.
    """
    from acclimate.data.task_kinds import open_task
    from acclimate.evaluation.scoring import make_scoring
    from acclimate.tasks.distillation.distill import distill as run

    task, teacher, out = open_task(options.task, options), options.teacher, options.out
    results = []
    with nullcontext() if out is None else output_lock(out):
        for seed in range(options.seeds):
            places = {"out": _inside(out, f"seed-{seed}"), "teacher_out": _inside(out, "teacher")}
            own = {"task": task, "teacher": teacher, "seed": seed, "teacher_seed": 0, **places}
            own |= values(DEFAULT_READING)  # the task is read
            result = run(**{**values(options, DistillOptions), **own})
            if out is not None and result.teacher_trained:
                teacher = str(Path(out) / "teacher")
            results.append(result)
            line = f"seed {seed}: {result.steps:,} steps in {format_duration(result.seconds)}"
            if curve := result.disagreement:
                line += (
                    f"; {curve[0]:.0f} of {result.units} units were active in only one of the models, "
                    f"{curve[result.distilled_epochs]:.0f} after distillation, {curve[-1]:.0f} at the end"
                )
            echo(line)
    names = make_scoring(results[0].kind, results[0].scoring).metrics
    for name in [*names, *(name for name in ("ece",) if name in results[0].metrics)]:
        before = statistics.mean(result.student_metrics[name] for result in results)
        after = _mean_and_spread([result.metrics[name] for result in results])
        echo(f"{name}: teacher {results[0].teacher_metrics[name]:.4f}, student {before:.4f} before and {after} after")
    if out is None:
        echo("The models are not kept.")
        print_next(["acclimate", *sys.argv[1:], "--out", "distilled"], "to keep them")
    else:
        print_next(["acclimate", "push", _inside(out, "seed-0"), "USER/NAME"], "to share a student")


def _print_details(scores: Sequence[dict[str, Any]]) -> None:
    """Print the mean F1 of each class over seeds, and what the kind of task notes on the last seed."""
    for label, row in scores[-1].get("per_class", {}).items():
        mean = statistics.mean(score["per_class"][label]["f1"] for score in scores)
        echo(f"  F1 {printable(cut(label, 100))}: {mean:.4f} ({row['support']} in test)")
    for note in scores[-1].get("notes", ()):
        echo(f"{note}{' (last seed)' if len(scores) > 1 else ''}")


def _print_references(metrics: dict[str, Any], names: Collection[str]) -> None:
    """Print the scores of baselines of the fine-tuned model, such as BM25."""
    for other, found in metrics.get("references", {}).items():
        echo(f"  {other}: " + "  ".join(f"{name} {found[name]:.4f}" for name in names if name in found))
    if "similarity" in metrics:
        from acclimate.evaluation.embeddings import SimilarityChange

        echo(f"  similarity, {SimilarityChange.from_dict(metrics['similarity']).describe()}")


def _inside(out: str | Path | None, name: str) -> Path | None:
    return None if out is None else Path(out) / name


def _mean_and_spread(values: list[float]) -> str:
    """Return the mean of a metric over seeds and, for several seeds, its standard deviation."""
    spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.4f}{spread}"


@command(
    app,
    PredictOptions,
    example="acclimate predict --model finetuned/seed-0 --data new.csv --out labelled.csv",
)
def predict(options: PredictOptions) -> None:
    """Predict the rows of a table with a fine-tuned model; with two models, list the rows that change."""
    from acclimate.tasks.prediction import predict as run

    result = run(**values(options))
    for line in result.describe():
        echo(printable(line))
    print_place("written", result.out)


@command(
    app,
    GenerateQueriesOptions,
    name="generate-queries",
    example="acclimate generate-queries --corpus passages.jsonl --generator queries.py:write --out generated/",
)
def generate_queries(options: GenerateQueriesOptions) -> None:
    """Build a retrieval dataset from unlabelled passages with a query generator (GPL)."""
    from acclimate.tasks.kinds.retrieval.generation import generate_queries as run

    result = run(**values(options))
    echo(f"{result.out}: {result.describe()}")
    words = ["--model", "MODEL", "--task", result.out, "--epochs", "1", "--batch-size", "64", "--out", "search"]
    print_next(["acclimate", "finetune", *words], "to train a retrieval model")
