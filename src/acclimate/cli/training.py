"""``acclimate select``, ``transform``, ``adapt``, ``pretrain`` and ``push``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator

from acclimate.adaptation.options import AdaptOptions, PretrainOptions
from acclimate.base.errors import cut, environment_integer, printable
from acclimate.base.options import MODEL, OUTPUT, Option, options, values
from acclimate.base.terminal import echo
from acclimate.cli.app import app, describe_plugins, describe_reading, describe_text, print_next
from acclimate.cli.options import command
from acclimate.data.fields import read_listed
from acclimate.data.options import SelectOptions, TransformOptions


@options
class AdaptCommand(AdaptOptions):
    """Options of ``acclimate adapt``; Python has :func:`acclimate.push_to_hub` for uploading."""

    _: KW_ONLY
    push_to_hub: Annotated[
        str | None,
        Option(
            "Upload the model to the Hugging Face Hub as USER/NAME at the end; a new repository is private.", OUTPUT
        ),
    ] = None


@command(
    app,
    AdaptCommand,
    plugins=True,
    example="acclimate adapt --model roberta-base --corpus reviews/ --method dga --epochs 1 --out adapted/",
)
def adapt(options: AdaptCommand) -> None:
    """Adapt a model to domain text."""
    from acclimate.adaptation.adapt import adapt as run
    from acclimate.cards.hub import check_repo_name, push_to_hub
    from acclimate.engine.distributed import leave_process_group

    if options.push_to_hub:
        check_repo_name(options.push_to_hub)
    result = run(**values(options, AdaptOptions))
    leave_process_group()
    if environment_integer("RANK"):
        return
    _print_result(result, options.keep_steps, result.method)
    if options.push_to_hub:
        echo(push_to_hub(result.out, options.push_to_hub))
    task = "TASK" if options.task is None else options.task
    reading = describe_reading(options)
    tuned = ["--task", task, *(reading if options.task is not None else [])]
    print_next(["acclimate", "finetune", "--model", result.out, *tuned, "--out", "finetuned"], "to train an end task")
    text = describe_text("--corpus", options.corpus, column=options.text_column)
    if options.heldout is not None:
        text += describe_text("--heldout", options.heldout, column=options.text_column)
    compared = [*text, "--task", task, *reading, "--methods", result.method, *describe_plugins()]
    words = ["--model", options.model, *compared, "--out", "runs/compare"]
    print_next(["acclimate", "compare", *words], "to see whether adaptation helps")


@command(
    app,
    PretrainOptions,
    example="acclimate pretrain --corpus text/ --architecture bert --size small --tokens 1000000000 --out pretrained/",
)
def pretrain(options: PretrainOptions) -> None:
    """Train a masked or causal language model and its tokenizer from scratch."""
    from acclimate.adaptation.pretrain import pretrain as run
    from acclimate.engine.distributed import leave_process_group

    result = run(**values(options))
    leave_process_group()
    if environment_integer("RANK"):
        return
    _print_result(result, options.keep_steps)
    print_next(["acclimate", "adapt", "--model", result.out, "--corpus", "TEXT", "--out", "adapted"])


@options
class SelectCommand(SelectOptions):
    """Options of ``acclimate select``; Python returns the selected text, which needs no file."""

    out: Annotated[str | Path, Option("JSON lines file to write.", OUTPUT)] = field()  # else it inherits the default


@command(
    app,
    SelectCommand,
    plugins=True,
    example="acclimate select --corpus pool/ --by duplicates --by 'nearest k=50' --task task/ --out selected.jsonl",
)
def select(options: SelectCommand) -> None:
    """Select the documents of a pool to adapt to, such as the nearest neighbors of a task."""
    from acclimate.adaptation.corpus_verbs import select as run
    from acclimate.data.operations import read_accounts

    run(**values(options))
    _print_accounts(options.out)
    if options.control is not None:
        echo(f"Control, {read_accounts(Path(options.control))[-1].summary()}: {options.control}")
    print_next(["acclimate", "adapt", "--model", "MODEL", "--corpus", options.out, "--out", "adapted"])


@options
class TransformCommand(TransformOptions):
    """Options of ``acclimate transform``; Python returns the new text, which needs no file."""

    out: Annotated[str | Path, Option("JSON lines file to write.", OUTPUT)] = field()  # else it inherits the default


@command(
    app,
    TransformCommand,
    plugins=True,
    example="acclimate transform --corpus pool/ --by 'neighbors k=4' --task task/ --out transformed.jsonl",
)
def transform(options: TransformCommand) -> None:
    """Rewrite a corpus, such as each text of a task together with its nearest neighbors."""
    from acclimate.adaptation.corpus_verbs import transform as run

    run(**values(options))
    _print_accounts(options.out)
    print_next(["acclimate", "adapt", "--model", "MODEL", "--corpus", options.out, "--out", "adapted"])


def _print_accounts(out: str | Path) -> None:
    """Print what operations did, and examples of what the last one kept and dropped."""
    from acclimate.data.operations import read_accounts
    from acclimate.data.sources import FileSource

    accounts = read_accounts(Path(out))
    for account in accounts:
        echo(account.summary())
    for name, texts in (("kept", accounts[-1].kept), ("dropped", accounts[-1].dropped)):
        echo("".join(f"  {name}: {printable(cut(text, 100))}\n" for text in texts), nl=False)
    echo(f"{out}; account: {FileSource(Path(out)).account}")


def _print_result(result: Any, kept: Iterable[int], method: str = "") -> None:
    """Print the result of a training, and where the models of intermediate steps are.

    Args:
        result: An :class:`acclimate.adaptation.result.AdaptResult`.
        kept: The steps after which the model was to be kept.
        method: Name of the method; empty where there is only one.
    """
    speed = f", {result.tokens / result.seconds:,.0f} tokens/s" if result.seconds else ""
    steps = f"{f'{method}, ' if method else ''}{result.steps:,} step{'s' * (result.steps != 1)}"
    echo(f"{result.out}: {steps}, {result.tokens:,} tokens{speed}")
    for line in _describe_losses(result):
        echo(line)
    for change in getattr(result, "similarity", ()):
        echo(f"Similarity, {change.describe()}")
    for step in kept:
        folder = result.out / f"step-{step:06d}"
        echo(str(folder) if folder.is_dir() else f"Training ended before step {step:,}, so there is no model of it.")


def _describe_losses(result: Any) -> Iterator[str]:
    """Yield lines on the loss in training, on held-out and on general text, as far as it was measured."""
    from acclimate.evaluation.dips import describe_dips
    from acclimate.results.adaptations import read_curves

    lines = _read_log(result.out)
    trained = [line for line in lines if "terms" in line]
    if terms := {name: value for name, value in result.losses.items() if name != "loss"}:
        before = [line["step"] for line in trained[:-1]]
        steps = _steps(before[-1] + 1 if before else 1, result.steps)
        first = f"; mean of {_steps(1, before[0])}: {_join(trained[0]['terms'])}" if before else ""
        yield f"Training loss in nats, mean of {steps}: {_join(terms)}{first}"
    for key, name in (("heldout", "Held-out"), ("general", "General")):
        measured = [line for line in lines if key in line]
        if measured:
            points = measured[:1] + measured[1:][-1:]
            found = "; ".join(f"{_join(point[key]['terms'])} after step {point['step']:,}" for point in points)
            yield f"{name} loss in nats: {found}"
    for dip in describe_dips(read_curves(result.out / "log.jsonl")):
        yield f"{dip[:1].upper()}{dip[1:]}."
    if getattr(result, "kept_step", None) is not None:
        yield f"The model is from step {result.kept_step:,}, with the lowest held-out loss."


def _steps(first: int, last: int) -> str:
    return f"step {last:,}" if first >= last else f"steps {first:,} to {last:,}"


def _read_log(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of the log of a training; none if there is no log, or it is damaged."""
    try:
        text = (folder / "log.jsonl").read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()]
    except (OSError, ValueError):
        return []


def _join(terms: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.3f}" for name, value in terms.items())


@options
class PushCommand:
    """Options of ``acclimate push``."""

    folder: Annotated[
        str | Path, Option("Model folder, such as adapted/ or runs/study/models/KEY.", MODEL, flag="FOLDER")
    ]
    repo: Annotated[str, Option("Repository on the Hugging Face Hub, as USER/NAME.", MODEL, flag="REPO")]
    _: KW_ONLY
    public: Annotated[bool, Option("Make a new repository public.", OUTPUT)] = False
    license: Annotated[
        str | None,
        Option("License in the card, such as apache-2.0.", OUTPUT, default="the base model's, if known"),
    ] = None
    language: Annotated[
        tuple[str, ...],
        BeforeValidator(read_listed),
        Option("Language in the card, such as en.", OUTPUT, default="the base model's, if known"),
    ] = ()
    base_model_name: Annotated[
        str | None, Option("Base model in the card, as its name on the Hub.", OUTPUT, default="as trained, if known")
    ] = None


@command(app, PushCommand, example="acclimate push adapted/ me/roberta-reviews")
def push(options: PushCommand) -> None:
    """Upload a model with its card to the Hugging Face Hub."""
    from acclimate.cards.hub import missing_metadata, push_to_hub

    given: dict[str, Any] = {"license": options.license, "language": options.language}
    given["base_model"] = options.base_model_name
    echo(push_to_hub(options.folder, options.repo, private=not options.public, **given))
    if missing := missing_metadata(options.folder):
        flags = " ".join(f"--{name.replace('_model', '-model-name')} ..." for name in missing)
        echo(f"The card does not name {', '.join(missing).replace('_', ' ')}; push again with {flags}", err=True)
    print_next(["acclimate", "finetune", "--model", options.repo, "--task", "TASK"], "on any machine")
