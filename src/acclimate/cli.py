"""The command line: verbs, nothing else."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from acclimate.errors import UserError, unknown
from acclimate.files import read_settings
from acclimate.locks import one_writer

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=(__import__("acclimate").__doc__)
)

inspection = typer.Typer(no_args_is_help=True, help="Look inside a model.")
app.add_typer(inspection, name="inspect")

Out = Annotated[Path, typer.Option(help="Folder to make.")]
Precision = Annotated[str, typer.Option(help="fp32, bf16, or auto: bf16 where the hardware has it.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bars.")]


@app.command()
def adapt(
    config: Annotated[
        Path | None, typer.Option(help="YAML or TOML file with any of these options; options given here win.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model folder or name on the hub.")] = None,
    corpus: Annotated[
        list[str] | None, typer.Option(help="Text: file, folder, glob or hf:NAME; may be given several times.")
    ] = None,
    method: Annotated[str | None, typer.Option(help="See `acclimate methods`.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to make.")] = None,
    steps: Annotated[int | None, typer.Option(help="Optimiser steps to train.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the corpus (default: 1).")] = None,
    tokens: Annotated[int | None, typer.Option(help="Tokens of text to read.")] = None,
    max_minutes: Annotated[float | None, typer.Option(help="Minutes of training.")] = None,
    seed: Annotated[int | None, typer.Option(help="Every random choice comes from it.")] = None,
    max_length: Annotated[int | None, typer.Option(help="Tokens of a text at most (default: 128).")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Texts a step (default: 64).")] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="Peak learning rate (default: the method's, mostly 1e-4).")
    ] = None,
    mask_rate: Annotated[float | None, typer.Option(help="Share of tokens to predict (default: 0.15).")] = None,
    text_column: Annotated[str | None, typer.Option(help="Where the text is in tables and JSON lines.")] = None,
    layout: Annotated[str | None, typer.Option(help="padded or packed rows.")] = None,
    precision: Annotated[str | None, typer.Option(help="fp32, bf16 or auto.")] = None,
    save_every: Annotated[
        int | None, typer.Option(help="Steps between checkpoints (default: every 5 minutes).")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Parameter of the method, as contrast_weight=0.5.")
    ] = None,
    overwrite: Annotated[bool | None, typer.Option("--overwrite", help="Replace another adaptation in --out.")] = None,
    quiet: Quiet = False,
) -> None:
    """Adapt a model to domain text."""
    given = {key: value for key, value in locals().items() if key not in ("config", "quiet", "settings")}
    from acclimate.training import adapt as run

    values = _read_config(config, {*given, "settings", "weight_decay", "warmup", "head_tokens"}) if config else {}
    values.update({key: value for key, value in given.items() if value is not None})
    values["settings"] = {**(values.get("settings") or {}), **_pairs(settings or [])}
    for name in ("model", "corpus", "out"):
        if not values.get(name):
            raise UserError(f"Say --{name} (or '{name}' in the configuration file).")
    result = run(**values, progress=not quiet)
    losses = ", ".join(f"{name} {value:.3f}" for name, value in result.losses.items() if name != "loss")
    speed = f", {result.tokens / result.seconds:,.0f} tokens/s" if result.seconds else ""
    typer.echo(f"{result.out}: {result.method}, {result.steps:,} steps, {result.tokens:,} tokens{speed}. {losses}")


@app.command()
@one_writer
def finetune(
    model: Annotated[str, typer.Option(help="Model folder or name on the hub.")],
    task: Annotated[Path, typer.Option(help="Folder with train, dev and test files.")],
    seeds: Annotated[int, typer.Option(help="How many seeds: 0, 1, ...")] = 5,
    out: Annotated[Path | None, typer.Option(help="Folder for the fine-tuned models, one a seed.")] = None,
    epochs: int = 5,
    learning_rate: float = 3e-5,
    batch_size: int = 16,
    max_length: int = 128,
    few_shot: Annotated[int | None, typer.Option(help="Train examples a class.")] = None,
    select: Annotated[
        Literal["last", "dev"], typer.Option(help="last: the last epoch; dev: the best on dev.")
    ] = "last",
    repartition: Annotated[
        float | None, typer.Option(help="Move dev and about 1 - this share of train to test, as the DGA paper does.")
    ] = None,
    precision: Precision = "auto",
    quiet: Quiet = False,
) -> None:
    """Fine-tune a model on a labelled task and score it on the test set."""
    import statistics

    from acclimate.tasks import finetune as run
    from acclimate.tasks import load_task
    from acclimate.tasks import repartition as enlarge_test

    if seeds < 1:
        raise UserError("seeds must be at least 1.")
    labelled = load_task(task) if repartition is None else enlarge_test(load_task(task), repartition)
    scores: list[dict[str, Any]] = []
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
            precision=precision,
            progress=not quiet,
        )
        scores.append(result.metrics)
        line = "  ".join(f"{name} {result.metrics[name]:.4f}" for name in ("accuracy", "macro_f1", "micro_f1"))
        typer.echo(f"seed {seed}: {line}")
    for name in ("accuracy", "macro_f1", "micro_f1"):
        values = [score[name] for score in scores]
        spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
        typer.echo(f"{name}: {statistics.mean(values):.4f}{spread}")
    for label, row in scores[-1]["per_class"].items():
        mean = statistics.mean(score["per_class"][label]["f1"] for score in scores)
        typer.echo(f"  F1 {label}: {mean:.4f} ({row['support']} in test)")


@app.command()
def compare(
    study: Annotated[Path, typer.Argument(help="YAML or TOML file that describes the study.")],
    out: Out,
    shard: Annotated[str | None, typer.Option(help="i/n: compute the i-th of n shares only, for job arrays.")] = None,
    report_only: Annotated[
        bool, typer.Option("--report-only", help="Compute nothing; write the report from what is there.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Run a study of models x methods x tasks x seeds; run it again to go on after a kill.

    Several processes may share --out, also on several machines: no cell is computed twice.
    """
    from acclimate.study import compare as run

    cells = run(study, out, shard=shard, report_only=report_only, progress=not quiet)["cells"]
    left = cells["total"] - cells["done"] - cells["reused"]
    if shard and left:
        typer.echo(f"Shard {shard} is through; {left} of {cells['total']} cells are left.")
    else:
        typer.echo(f"Report: {out / 'report.html'}")


@inspection.command("importance")
def inspect_importance(
    model: Annotated[str, typer.Option(help="Model folder or name on the hub.")],
    corpus: Annotated[list[str], typer.Option(help="NAME=TEXT of a domain: file, folder, glob or hf:NAME; several.")],
    out: Out,
    parts: Annotated[str, typer.Option(help="H heads, I and O feed-forward, E embedding, as H,I.")] = "H",
    tokens: Annotated[int, typer.Option(help="Tokens of each domain to measure on.")] = 1_640_000,
    seed: Annotated[list[int] | None, typer.Option(help="May be given several times (default: 0).")] = None,
    reads: Annotated[Literal["hidden", "logits"], typer.Option(help="What the divergence is between.")] = "hidden",
    protect: Annotated[
        Literal["unusual", "important"], typer.Option(help="Eq. 10 of the DGA paper, or its upper side only.")
    ] = "unusual",
    max_length: Annotated[int, typer.Option(help="Tokens of a text at most.")] = 128,
    text_column: Annotated[str, typer.Option(help="Where the text is in tables and JSON lines.")] = "text",
    precision: Precision = "auto",
    quiet: Quiet = False,
) -> None:
    """Measure what matters for general knowledge on several domains, and compare it with chance."""
    from rich.console import Console

    from acclimate.analysis import inspect_importance as run
    from acclimate.analysis.table import importance_tables

    result = run(
        model,
        _domains(corpus),
        out,
        parts=parts,
        tokens=tokens,
        seeds=seed or [0],
        reads=reads,
        protect=protect,
        max_length=max_length,
        precision=precision,
        text_column=text_column,
        progress=not quiet,
    )
    console = Console()
    for shown in importance_tables(result.report):
        console.print(shown, highlight=False, markup=False)
    typer.echo(f"Figures and numbers: {out}")


@app.command()
def methods() -> None:
    """List every method with its paper, parameters and defaults."""
    import dataclasses

    from acclimate.training.method import lookup, names

    for name in names():
        method = lookup(name)
        paper = f" ({method.paper})" if method.paper else ""
        typer.echo(f"{name}{paper}: {method.summary}")
        for field in dataclasses.fields(method):
            typer.echo(f"    {field.name} = {field.default!r}")


@app.command()
def demo(
    out: Out = Path("runs/demo"),
    model: Annotated[str | None, typer.Option(help="Instead of the packaged model.")] = None,
    corpus: Annotated[list[str] | None, typer.Option(help="Instead of the documentation on this machine.")] = None,
    general: Annotated[str | None, typer.Option(help="Instead of the documentation of the standard library.")] = None,
    task: Annotated[Path | None, typer.Option(help="Instead of the derived task.")] = None,
    seeds: int = 3,
    quiet: Quiet = False,
) -> None:
    """Adapt a real model to text that is on this machine, and report whether it helped."""
    from acclimate.demo import demo as run

    run(out, model=model, corpus=corpus, general=general, task=task, seeds=seeds, progress=not quiet)
    typer.echo(f"Report: {out / 'report.html'}")


def _read_config(path: Path, known: set[str]) -> dict[str, Any]:
    """Read a YAML or TOML file of options; hyphens and underscores are the same."""
    if not path.is_file():
        raise UserError(f"There is no configuration file '{path}'.")
    values = read_settings(path, "configuration file")
    if not isinstance(values, dict):
        raise UserError(f"The configuration file '{path}' must hold names and values.")
    values = {str(key).replace("-", "_"): value for key, value in values.items()}
    for key in values:
        if key not in known:
            raise unknown(f"option in '{path}':", key, known)
    return values


def _pairs(items: list[str]) -> dict[str, str]:
    pairs = {}
    for item in items:
        key, sign, value = item.partition("=")
        if not sign or not key:
            raise UserError(f"--set wants name=value, not '{item}'.")
        pairs[key.strip()] = value.strip()
    return pairs


def _domains(items: list[str]) -> dict[str, str]:
    domains: dict[str, str] = {}
    for item in items:
        name, sign, source = item.partition("=")
        if not sign or not name or not source:
            raise UserError(f"--corpus wants NAME=TEXT here, such as reviews=reviews/*.jsonl, not '{item}'.")
        if name in domains:
            raise UserError(f"The domain '{name}' is given twice; give each a name of its own.")
        domains[name] = source
    return domains


def _quieten() -> None:
    """Keep the libraries below from writing between our lines."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def main() -> None:
    """Run the command line; an error that the user can mend is one line and exit code 2."""
    _quieten()
    try:
        app()
    except UserError as error:
        typer.echo(f"Error: {error}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        typer.echo("Stopped. The same command goes on from the last checkpoint.", err=True)
        sys.exit(130)
