"""What the verbs that train on a text have in common: their options, and what they say at the end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from acclimate.cli.app import named_values, read_options
from acclimate.errors import UserError

KINDS: dict[type, str] = {int: "a whole number", float: "a number", bool: "true or false"}
"""What a configuration file gives as it is meant, whatever YAML makes of it."""
Config = Annotated[
    Path | None, typer.Option(help="YAML or TOML file with any of these options; options given here win.")
]
Corpus = Annotated[
    list[str] | None, typer.Option(help="Text: file, folder, glob or hf:NAME; may be given several times.")
]
Folder = Annotated[Path | None, typer.Option(help="Folder to make.")]
Steps = Annotated[int | None, typer.Option(help="Optimiser steps to train.")]
Tokens = Annotated[int | None, typer.Option(help="Tokens of text to read.")]
Minutes = Annotated[float | None, typer.Option(help="Minutes of training.")]
Seed = Annotated[int | None, typer.Option(help="Every random choice comes from it.")]
WeightDecay = Annotated[float | None, typer.Option(help="Of AdamW, on matrices (default: 0; pretrain: 0.01).")]
Warmup = Annotated[
    float | None,
    typer.Option(help="Share of the training in which the rate rises (default: 0.1; pretrain: 0.01)."),
]
MaskRate = Annotated[float | None, typer.Option(help="Share of tokens to predict (default: 0.15).")]
Masking = Annotated[
    str | None, typer.Option(help="How they are chosen, as whole-word (default: random); docs/masking.md has all.")
]
MaskingSet = Annotated[
    list[str] | None, typer.Option("--masking-set", help="Parameter of the masking, as lexicon=words.txt.")
]
TextColumn = Annotated[str | None, typer.Option(help="Where the text is in tables and JSON lines.")]
Heldout = Annotated[
    list[str] | None, typer.Option(help="Text on which the loss is measured during training, as --corpus.")
]
HeldoutEvery = Annotated[int | None, typer.Option(help="Steps between two of these (default: 50).")]
Layout = Annotated[str | None, typer.Option(help="padded or packed rows.")]
PrecisionKind = Annotated[str | None, typer.Option(help="fp32, bf16 or auto.")]
SaveEvery = Annotated[int | None, typer.Option(help="Steps between checkpoints (default: every 5 minutes).")]
KeepSteps = Annotated[
    list[str] | None, typer.Option(help="Keep the model after these steps, as 1000,2000; 0 is the start.")
]
ReportTo = Annotated[
    list[str] | None, typer.Option(help="Tracker of experiments, as tensorboard or wandb; may be repeated.")
]


def gather(
    config: Path | None,
    given: Mapping[str, Any],
    pairs: Mapping[str, tuple[str, list[str] | None]],
    command: Callable[..., Any],
) -> dict[str, Any]:
    """Join a configuration file and the command line, which wins.

    Args:
        config: The file, or None.
        given: Options by name; those that are None were not given.
        pairs: Options of names and values: the option, and its items as ``name=value``, by what the file calls them.
        command: Whose options they are: the types of its parameters are those of the values in the file.

    Raises:
        UserError: If the file is missing or says something that is not known, or an option is malformed.
    """
    values: dict[str, Any] = {}
    if config:
        also = {option.lstrip("-").replace("-", "_"): name for name, (option, _) in pairs.items()}
        kinds = get_type_hints(command)
        for name, value in read_options(config, {*given, *pairs}, also).items():
            values[name] = _of_kind(value, kinds.get(name), f"'{config}': '{name}'")
        for name in pairs:
            if not isinstance(values.get(name) or {}, Mapping):
                raise UserError(f"'{config}': '{name}' wants names with values, as {{temperature: 0.1}}.")
    values.update({key: value for key, value in given.items() if value is not None})
    if steps := values.get("keep_steps"):
        values["keep_steps"] = step_numbers([str(step) for step in (steps if isinstance(steps, list) else [steps])])
    for name, (option, items) in pairs.items():
        if items:
            values[name] = {**(values.get(name) or {}), **named_values(items, option)}
    return values


def _of_kind(value: Any, kind: Any, where: str) -> Any:
    """Convert a value of a file to the type of its option, as YAML reads 1e-4 as text; what is no number stays."""
    from pydantic import TypeAdapter, ValidationError

    from acclimate.registry import parse_number

    kinds = (kind, *get_args(kind))
    wanted = next((each for each in KINDS if each in kinds), None)
    if isinstance(value, int | float) and wanted is None and (str in kinds or Path in kinds):
        return str(value)  # a folder may be called 2024
    if value is None or wanted is None:
        return value
    try:
        return TypeAdapter(wanted).validate_python(parse_number(value))
    except ValidationError as error:
        raise UserError(f"{where} wants {KINDS[wanted]}, not {value!r}.") from error


def require(values: Mapping[str, Any], names: Collection[str]) -> None:
    """Raise UserError for what neither the command line nor the configuration file says."""
    for name in names:
        if not values.get(name):
            raise UserError(f"Say --{name} (or '{name}' in the configuration file).")


def step_numbers(items: list[str]) -> list[int]:
    """Read ``--keep-steps 100,200 --keep-steps 300``."""
    try:
        return [int(number) for item in items for number in item.replace("_", "").split(",")]
    except ValueError as error:
        raise UserError(f"--keep-steps wants numbers, as 1000,2000, not '{','.join(items)}'.") from error


def tell(result: Any, kept: list[int], method: str = "") -> None:
    """Print what a training did, and where the models of kept steps are.

    Args:
        result: An :class:`acclimate.training.AdaptResult`.
        kept: The steps whose models were to be kept.
        method: How the training is called; empty where there is only one.
    """
    losses = ", ".join(f"{name} {value:.3f}" for name, value in result.losses.items() if name != "loss")
    speed = f", {result.tokens / result.seconds:,.0f} tokens/s" if result.seconds else ""
    what = f"{method}, {result.steps:,} steps" if method else f"{result.steps:,} steps"
    typer.echo(f"{result.out}: {what}, {result.tokens:,} tokens{speed}. {losses}")
    for step in kept:
        folder = result.out / f"step-{step:06d}"
        typer.echo(str(folder) if folder.is_dir() else f"The training ended before step {step:,}: it was not kept.")
