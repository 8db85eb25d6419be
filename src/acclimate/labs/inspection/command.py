"""``acclimate inspect``: models, importance, masks, embeddings, leakage and cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from acclimate.base.options import values
from acclimate.base.terminal import echo
from acclimate.cli.app import describe_reading, describe_text, inspection, print_next, print_place, print_tables
from acclimate.cli.options import command
from acclimate.evaluation.options import InspectBenchmarksOptions, InspectInstructionsOptions
from acclimate.labs.inspection.effect_options import (
    InspectExpertsOptions,
    InspectReviewOptions,
    InspectSensitivityOptions,
    InspectSpecificityOptions,
    InspectTaskWordsOptions,
)
from acclimate.labs.inspection.options import (
    InspectEmbeddingsOptions,
    InspectImportanceOptions,
    InspectLeakageOptions,
    InspectMasksOptions,
    InspectModelOptions,
)


@command(
    inspection,
    InspectModelOptions,
    name="model",
    example="acclimate inspect model HuggingFaceTB/SmolLM2-135M --out model.json",
)
def inspect_model(options: InspectModelOptions) -> None:
    """Show what a model is, how it will be run and why, what it can do, and the memory of each way of training."""
    from acclimate.labs.inspection.model import inspect_model as run
    from acclimate.labs.inspection.model import model_tables

    print_tables(model_tables(run(**values(options))))
    print_place("Full report", options.out)
    print_next(["acclimate", "adapt", "--model", options.model, "--corpus", "TEXT", "--out", "adapted"])


@command(
    inspection,
    InspectImportanceOptions,
    name="importance",
    example="acclimate inspect importance --model roberta-base --corpus reviews=reviews.txt --corpus news=news.txt "
    "--out importance/",
)
def inspect_importance(options: InspectImportanceOptions) -> None:
    """Measure the importance of heads and units for general knowledge on several domains, and compare with chance."""
    from acclimate.labs.inspection.importance import inspect_importance as run
    from acclimate.labs.inspection.importance_plots import importance_tables

    print_tables(importance_tables(run(**values(options)).report))
    print_place("Figures and numbers", options.out)
    words = ["--model", options.model, "--corpus", "TEXT", "--method", "dga", "--out", "adapted"]
    print_next(["acclimate", "adapt", *words], "to protect what is important")


@command(
    inspection,
    InspectMasksOptions,
    name="masks",
    plugins=True,
    example="acclimate inspect masks --model roberta-base --corpus reviews/ --masking whole-word --out masks/",
)
def inspect_masks(options: InspectMasksOptions) -> None:
    """Compare masking strategies: which tokens they mask, with counts."""
    from acclimate.labs.inspection.mask_summary import mask_tables
    from acclimate.labs.inspection.masks import PAGE
    from acclimate.labs.inspection.masks import inspect_masks as run

    print_tables(mask_tables(run(**values(options))))
    print_place("All texts, as a page", options.out and Path(options.out) / PAGE)
    words = ["--model", options.model, *describe_text("--corpus", options.corpus, column=options.text_column)]
    words += [*describe_reading(options), "--masking", "NAME"]
    print_next(["acclimate", "adapt", *words, "--out", "adapted"], "to train with one of them")


@command(
    inspection,
    InspectEmbeddingsOptions,
    name="embeddings",
    example="acclimate inspect embeddings --before roberta-base --after adapted/ --out embeddings/",
)
def inspect_embeddings(options: InspectEmbeddingsOptions) -> None:
    """Measure and draw how far adaptation moved the static word embeddings."""
    from acclimate.labs.inspection.embeddings import embedding_tables
    from acclimate.labs.inspection.embeddings import inspect_embeddings as run

    print_tables(embedding_tables(run(**values(options)).report))
    print_place("Figure and numbers", options.out)


@command(
    inspection,
    InspectLeakageOptions,
    name="leakage",
    example="acclimate inspect leakage --task reviews-task/ --corpus reviews/ --out leakage.json",
)
def inspect_leakage(options: InspectLeakageOptions) -> None:
    """Find dev and test texts of tasks in an adaptation corpus, and in the train splits of the tasks."""
    from acclimate.labs.inspection.leakage import inspect_leakage as run

    report = run(**values(options))
    if options.corpus:
        echo(f"{report['flagged']:,} of {report['documents']:,} documents contain a dev or test text.")
        _print_matches(report, "texts")
    for found in report["train"]:
        _print_matches(found, "texts in its own train split")
    print_place("Full report", options.out)
    if options.corpus and report["flagged"]:
        words = [word for task in options.tasks for word in ("--task", task)]
        words += describe_text("--corpus", options.corpus, column=options.text_column)
        words += [*describe_reading(options), "--set", "leakage=remove", "--out", "runs/compare"]
        print_next(["acclimate", "compare", "--model", "MODEL", *words], "to train without these documents")


@command(
    inspection,
    InspectExpertsOptions,
    name="experts",
    example="acclimate inspect experts --expert news=a/ --expert law=b/ --corpus news=news/ --corpus law=law/ "
    "--target reviews/",
)
def inspect_experts(options: InspectExpertsOptions) -> None:
    """Rank models adapted to other domains by how well they fit a new one, to merge the best of them."""
    from acclimate.labs.inspection.experts import inspect_experts as run

    report = run(**values(options))
    for row in report["experts"]:
        similarity = "" if row["similarity"] is None else f"similarity {row['similarity']:.3f}, "
        echo(f"{row['expert']}: {similarity}{row['nats']:.3f} nats, {row['bits_per_byte']:.3f} bits per byte")
    for line in report.describe():
        echo(line)
    print_place("Full report", options.out)
    models = [word for name in report["by_performance"] for word in ("--model", options.experts[name])]
    print_next(["acclimate", "merge", "--method", "ties", *models, "--out", "merged"], "to merge the best")


@command(
    inspection,
    InspectInstructionsOptions,
    name="instructions",
    example="acclimate inspect instructions --model adapted/ --base HuggingFaceTB/SmolLM2-135M-Instruct",
)
def inspect_instructions(options: InspectInstructionsOptions) -> None:
    """Measure how many instructions a chat model follows, and compare it with its base model."""
    from acclimate.evaluation.instructions import inspect_instructions as run

    report = run(**values(options))
    for name, side in (("base model", report.get("before")), ("model", report["after"])):
        if side:
            followed, count = sum(side["followed"]), len(side["followed"])
            cut = f"; {side['unfinished']} answers were cut" if side["unfinished"] else ""
            echo(f"{name}: follows {followed} of {count} instructions ({100 * side['share']:.1f} %){cut}")
    if difference := report.get("difference"):
        low, high = (f"{100 * difference[end]:+.1f}" for end in ("low", "high"))
        echo(f"difference: {100 * difference['difference']:+.1f} percentage points, 95 % interval {low} to {high}")
    print_place("Answers", options.out)


@command(
    inspection,
    InspectBenchmarksOptions,
    name="benchmarks",
    example="acclimate inspect benchmarks --model adapted/ --base gpt2 --task hellaswag --task arc_easy",
)
def inspect_benchmarks(options: InspectBenchmarksOptions) -> None:
    """Run multiple-choice and generation tasks of lm-eval, and compare a model with its base model item by item."""
    from acclimate.evaluation.benchmarks import inspect_benchmarks as run

    report = run(**values(options))
    for row in report["rows"]:
        text = f"{row['task']}, {row['metric']}: {row['after']:.4f} on {row['items']:,} items"
        if difference := row.get("difference"):
            low, high = (f"{difference[end]:+.4f}" for end in ("low", "high"))
            text += f"; base model {row['before']:.4f}, difference {difference['difference']:+.4f} [{low}, {high}]"
        echo(text)
    print_place("Full report", options.out)


@command(
    inspection,
    InspectSpecificityOptions,
    name="specificity",
    example="acclimate inspect specificity --before roberta-base --task tickets.csv --general general.txt "
    "--corpus tickets/",
)
def inspect_specificity(options: InspectSpecificityOptions) -> None:
    """Measure whether adapting to a domain helps with the text of a task, beyond general text."""
    from acclimate.labs.inspection.specificity import inspect_specificity as run

    _print_lines(run(**values(options)), options.out)
    text = "TEXT" if options.corpus is None else options.corpus
    words = ["--model", options.before, *describe_text("--corpus", text, column=options.text_column)]
    print_next(["acclimate", "compare", *words, "--task", options.task, "--out", "runs/compare"], "to score the task")


@command(
    inspection,
    InspectTaskWordsOptions,
    name="task-words",
    example="acclimate inspect task-words --before roberta-base --after adapted/ --task tickets.csv",
)
def inspect_task_words(options: InspectTaskWordsOptions) -> None:
    """Measure whether an adaptation taught the words that the labels of a task depend on."""
    from acclimate.labs.inspection.task_words import inspect_task_words as run

    _print_lines(run(**values(options)), options.out)
    print_next(["acclimate", "finetune", "--model", options.after, "--task", options.task], "to score the task")


@command(
    inspection,
    InspectSensitivityOptions,
    name="sensitivity",
    example="acclimate inspect sensitivity --before roberta-base --after adapted/ --corpus general.txt",
)
def inspect_sensitivity(options: InspectSensitivityOptions) -> None:
    """Measure whether an adapted model is harder to fine-tune: its loss under noise of the weights."""
    from acclimate.labs.inspection.sensitivity import inspect_sensitivity as run

    _print_lines(run(**values(options)), options.out)


@command(
    inspection,
    InspectReviewOptions,
    name="review",
    example="acclimate inspect review --result base=tuned-base/seed-0 --result adapted=tuned/seed-0 --positive hate "
    "--prevalence 0.002",
)
def inspect_review(options: InspectReviewOptions) -> None:
    """Score classifiers where their label is rare, and count what a budget of human review finds."""
    from acclimate.labs.inspection.review import inspect_review as run

    _print_lines(run(**values(options)), options.out)


def _print_lines(report: Any, out: str | Path | None) -> None:
    for line in report.describe():
        echo(line)
    print_place("Full report", out)


def _print_matches(found: dict[str, Any], what: str) -> None:
    for row in found["texts"]:
        kinds = ", ".join(f"{row[kind]:,} {kind}" for kind in ("exact", "near", "contained"))
        short = f"; {row['short']:,} are short, and only compared with whole documents" if row["short"] else ""
        echo(f"{row['task']}, {row['split']}: {row['found']:,} of {row['texts']:,} {what} ({kinds}){short}")
    for example in found["examples"][:3]:
        kind = {"exact": "is", "near": "nearly is", "contained": "is in"}[example["kind"]]
        echo(f"  '{_shorten(example['text'])}' {kind} '{_shorten(example['document'])}'")


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 70 else line[:69] + "…"
