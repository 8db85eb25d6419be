"""``acclimate finetune`` and ``distill``: the same training with several seeds, and its means."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from acclimate.base.errors import UserError, cut, environment_integer, printable
from acclimate.base.locks import output_lock
from acclimate.base.options import values
from acclimate.base.progress import format_duration
from acclimate.base.terminal import echo
from acclimate.base.verbs import Next, given_words
from acclimate.data.reading import DEFAULT_READING, reading_words, text_words
from acclimate.data.task_kinds import open_task
from acclimate.evaluation.embeddings import SimilarityChange
from acclimate.evaluation.scoring import make_scoring
from acclimate.results.requirements import Decision, parse_requirements
from acclimate.tasks.distillation.distill import DistillResult, distill
from acclimate.tasks.finetune import finetune
from acclimate.tasks.options import DistillCommand, DistillOptions, FinetuneCommand, FinetuneOptions, ProbeOptions
from acclimate.tasks.probing import probe
from acclimate.tasks.result import FinetuneResult, check_metrics, decide_scores, gain
from acclimate.tasks.splits import repartition

SEEDS = 5
"""Default number of seeds."""


def finetune_seeds(options: FinetuneCommand) -> Any:
    """Do what ``acclimate finetune`` does: train and score a model with each seed, or probe it.

    Returns:
        The results by seed, or what simple models learn from the states of the model.
    """
    task = open_task(options.task, options)
    if options.repartition is not None:
        task = repartition(task, options.repartition)
    if options.require:
        if options.all_labels or not task.test:
            raise UserError("--require needs scores, and no rows are left to test on: remove it, or --all-labels.")
        negative = tuple(options.negative or ())
        check_metrics(parse_requirements(options.require), task.scoring(negative=negative))
    if options.probe:
        return probe(**{**values(options, ProbeOptions), **values(DEFAULT_READING), "task": task})
    first = open_task(options.first, clean=options.clean, mask_personal=options.mask_personal)
    results = list[Any]()
    seeds = count_seeds(options)
    for seed in range(seeds):
        own = {"task": task, "first": first, "seed": seed, "out": _inside(options.out, f"seed-{seed}")}
        own |= values(DEFAULT_READING)  # the task is read
        if options.tune and seed:
            own |= {"tune": False, "learning_rate": results[-1].learning_rate}
        results.append(result := finetune(**{**values(options, FinetuneOptions), **own}))
        if environment_integer("RANK"):
            continue
        if seeds > 1:
            echo(f"seed {seed}: " + "  ".join(f"{name} {result.metrics[name]:.4f}" for name in _shown(result)))
        _print_references(result.metrics, _shown(result))
    return results


def count_seeds(options: FinetuneCommand) -> int:
    """Return the number of seeds of fine-tuning."""
    if options.epochs == 0:  # without training there is nothing random
        return 1
    return options.seeds or (1 if options.all_labels else SEEDS)


def show_finetuned(results: Any, options: FinetuneCommand) -> Iterator[Any]:
    """Yield what ``acclimate finetune`` prints at the end."""
    if options.probe:
        yield from results.describe()
    else:
        scores = [result.metrics for result in results]
        for name in _shown(results[-1]):
            yield f"{name}: {_mean_and_spread([score[name] for score in scores])}"
        yield from _describe_details(scores)
        if options.all_labels:
            yield f"Trained on all {results[-1].train_size:,} rows, so there is no score: no rows are left to test on."
        elif len(results) == 1 and options.epochs != 0:
            yield f"One seed says little about a model; --seeds {SEEDS} is the default."
    if options.sparse:
        return  # there is no training of sparse encoders
    if options.probe or options.epochs == 0:
        task = [*text_words("--task", options.task, "TASK", column=options.text_column), *reading_words(options)]
        task += ["--rerank"] * options.rerank
        task += ["--first-stage", str(options.first_stage)] if options.first_stage else []
        task += ["--dimensions", ",".join(map(str, options.dimensions))] if options.dimensions else []
        if options.probe or results[-1].train_size:
            yield Next(["finetune", "--model", options.model, *task, "--out", "finetuned"], "to train it")
    elif options.out is None:
        yield "The models are not kept."
        yield Next([*given_words(), "--out", "finetuned"], "to keep them")
    else:
        yield Next(["push", _inside(options.out, "seed-0"), "USER/NAME"], "to share a model")


def decide_finetuned(results: Sequence[FinetuneResult], options: FinetuneCommand) -> Decision:
    """Return whether the scores meet ``--require``."""
    return decide_scores(results, options.require)


def distill_seeds(options: DistillCommand) -> list[DistillResult]:
    """Do what ``acclimate distill`` does: train a student with each seed from one teacher."""
    task, teacher, out = open_task(options.task, options), options.teacher, options.out
    results = []
    with nullcontext() if out is None else output_lock(out):
        for seed in range(options.seeds):
            places = {"out": _inside(out, f"seed-{seed}"), "teacher_out": _inside(out, "teacher")}
            own = {"task": task, "teacher": teacher, "seed": seed, "teacher_seed": 0, **places}
            own |= values(DEFAULT_READING)  # the task is read
            result = distill(**{**values(options, DistillOptions), **own})
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
    return results


def show_students(results: Sequence[DistillResult], options: DistillCommand) -> Iterator[Any]:
    """Yield what ``acclimate distill`` prints at the end."""
    names = make_scoring(results[0].kind, results[0].scoring).metrics
    for name in [*names, *(name for name in ("ece",) if name in results[0].metrics)]:
        before = statistics.mean(result.student_metrics[name] for result in results)
        after = _mean_and_spread([result.metrics[name] for result in results])
        yield f"{name}: teacher {results[0].teacher_metrics[name]:.4f}, student {before:.4f} before and {after} after"
    if options.out is None:
        yield "The models are not kept."
        yield Next([*given_words(), "--out", "distilled"], "to keep them")
    else:
        yield Next(["push", _inside(options.out, "seed-0"), "USER/NAME"], "to share a student")


def _shown(result: Any) -> tuple[str, ...]:
    """Return the metrics that are printed of a result."""
    scoring = make_scoring(result.kind, result.scoring)
    return tuple(name for name in (*scoring.metrics, *scoring.errors, "ece") if name in result.metrics)


def _describe_details(scores: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the mean F1 of each class over seeds, and what the kind of task notes on the last seed."""
    for label, row in scores[-1].get("per_class", {}).items():
        mean = statistics.mean(score["per_class"][label]["f1"] for score in scores)
        yield f"  F1 {printable(cut(label, 100))}: {mean:.4f} ({row['support']} in test)"
    for note in scores[-1].get("notes", ()):
        yield f"{note}{' (last seed)' if len(scores) > 1 else ''}"


def _print_references(metrics: dict[str, Any], names: Collection[str]) -> None:
    """Print the scores of baselines of the fine-tuned model, such as BM25."""
    for other, found in metrics.get("references", {}).items():
        echo(f"  {other}: " + "  ".join(f"{name} {found[name]:.4f}" for name in names if name in found) + gain(found))
    for change in metrics.get("similarity", ()):
        echo(f"  similarity, {SimilarityChange.from_dict(change).describe()}")


def _inside(out: str | Path | None, name: str) -> Path | None:
    return None if out is None else Path(out) / name


def _mean_and_spread(values: list[float]) -> str:
    """Return the mean of a metric over seeds and, for several seeds, its standard deviation."""
    spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.4f}{spread}"
