"""``acclimate advise`` and ``methods``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from acclimate.cli.app import Json, Quiet, StopWords, TextColumn, app
from acclimate.options.declaration import DATA, METHOD, MODEL, TRAINING

SECTION = "Attributes:"
"""Heading of the parameters in the docstring of a method."""


@app.command(
    epilog="Example: acclimate advise --model roberta-base --corpus reviews/ --general wiki.txt --out advice.json"
)
def advise(
    model: Annotated[str, typer.Option(help="Model folder or name on the Hugging Face Hub.", rich_help_panel=MODEL)],
    corpus: Annotated[
        list[str],
        typer.Option(help="Domain text: file, folder, glob or hf:NAME. May be repeated.", rich_help_panel=DATA),
    ],
    general: Annotated[
        list[str],
        typer.Option(help="General text: file, folder, glob or hf:NAME. May be repeated.", rich_help_panel=DATA),
    ],
    task: Annotated[
        Path | None,
        typer.Option(help="Folder of a labelled task; its train split is inspected.", rich_help_panel=DATA),
    ] = None,
    out: Json = None,
    pilot_steps: Annotated[
        int, typer.Option(help="Optimizer steps of a pilot adaptation; 0 for none.", rich_help_panel=TRAINING)
    ] = 200,
    batch_size: Annotated[
        int, typer.Option(help="Texts per optimizer step of the pilot.", rich_help_panel=TRAINING)
    ] = 32,
    learning_rate: Annotated[
        float | None,
        typer.Option(help="Peak learning rate of the pilot (default: the method's).", rich_help_panel=TRAINING),
    ] = None,
    method: Annotated[
        str, typer.Option(help="Method of the pilot; `acclimate methods` lists them.", rich_help_panel=METHOD)
    ] = "mlm",
    documents: Annotated[
        int, typer.Option(help="Documents per text on which losses are measured.", rich_help_panel=DATA)
    ] = 200,
    max_length: Annotated[int, typer.Option(help="Maximum tokens per text.", rich_help_panel=DATA)] = 128,
    stop_words: StopWords = "english",
    text_column: TextColumn = "text",
    seed: Annotated[int, typer.Option(help="Random seed of the pilot.", rich_help_panel=TRAINING)] = 0,
    quiet: Quiet = False,
) -> None:
    """Measure, before adapting, how far the domain is from the model, and whether a pilot learns or forgets."""
    from rich.console import Console

    from acclimate.planning.advice import Pilot
    from acclimate.planning.advice import advise as run

    report = run(
        model,
        corpus,
        general,
        task,
        out,
        pilot=Pilot(pilot_steps, batch_size, learning_rate, method),
        documents=documents,
        max_length=max_length,
        stop_words=stop_words,
        text_column=text_column,
        seed=seed,
        progress=not quiet,
    )
    console = Console()
    for part in report["words"]:
        console.print(part["about"][:1].upper() + part["about"][1:], style="bold", markup=False, highlight=False)
        console.print(f"  {part['says']}", markup=False, highlight=False)
        console.print(f"  It does not say: {part['does_not_say']}", style="dim", markup=False, highlight=False)
    if out is not None:
        typer.echo(f"All figures: {out}")


@app.command(epilog="Example: acclimate methods dga")
def methods(
    name: Annotated[str | None, typer.Argument(help="Name of a method, to describe its parameters.")] = None,
) -> None:
    """List all methods with paper, parameters and defaults, or describe one, with its departures from the paper."""
    from acclimate.training.method import lookup, names

    for known in [name] if name else names():
        method = lookup(known)
        paper = f" ({method.paper})" if method.paper else ""
        typer.echo(f"{known}{paper}: {method.summary}")
        typer.echo(_describe(method) if name else _list_parameters(method), nl=False)


def _list_parameters(method: Any) -> str:
    return "".join(f"    {parameter} = {default!r}\n" for parameter, default in _defaults(method).items())


def _describe(method: Any) -> str:
    """Return the docstring of a method, with the default of each parameter."""
    import inspect

    about, _, parameters = (inspect.getdoc(method) or "").partition(SECTION)
    text, defaults = f"\n{about.strip()}\n\n", _defaults(method)
    for line in inspect.cleandoc("\n" + parameters).splitlines():
        parameter, colon, rest = line.partition(":")
        if colon and parameter in defaults:
            line = f"{parameter} = {defaults[parameter]!r}:{rest}"
        text += f"    {line}\n"
    return text.rstrip() + "\n" + _describe_paper(method, defaults)


def _describe_paper(method: Any, defaults: dict[str, Any]) -> str:
    """Return the published values that differ from the defaults of a method, and the options of the paper's runs."""
    import textwrap

    from acclimate.options import AdaptOptions, option_fields
    from acclimate.presets import published

    text = ""
    for name, mark in published(method).items():
        values = "; ".join(f"{preset}: {value!r}" for preset, value in mark.values.items())
        line = f"{name} = {defaults[name]!r} ({values})" + (f": {mark.reason}" if mark.reason else "")
        text += textwrap.fill(line, 119, initial_indent="    ", subsequent_indent="        ") + "\n"
    if text:
        text = f"\nDepartures from published values, which `--set preset=NAME` selects:\n\n{text}"
    if method.paper_options:
        fields = option_fields(AdaptOptions)
        flags = " ".join(f"{fields[name].flag} {value}" for name, value in method.paper_options.items())
        text += f"\nThe paper adapts with {flags}\n"
    return text


def _defaults(method: Any) -> dict[str, Any]:
    import dataclasses

    return {field.name: field.default for field in dataclasses.fields(method)}
