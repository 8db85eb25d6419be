"""``acclimate advise``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from acclimate.cli.app import Quiet, StopWords, TextColumn, app


@app.command()
def advise(
    model: Annotated[str, typer.Option(help="Model folder or name on the hub.")],
    corpus: Annotated[
        list[str], typer.Option(help="Text of the domain: file, folder, glob or hf:NAME; may be given several times.")
    ],
    general: Annotated[list[str], typer.Option(help="General text, as --corpus.")],
    task: Annotated[
        Path | None, typer.Option(help="Folder of a labelled task; its train texts are looked at.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None,
    pilot_steps: Annotated[int, typer.Option(help="Steps of a pilot adaptation; 0 for none.")] = 200,
    batch_size: Annotated[int, typer.Option(help="Texts a step of the pilot.")] = 32,
    learning_rate: Annotated[float | None, typer.Option(help="Of the pilot (default: the method's).")] = None,
    method: Annotated[str, typer.Option(help="Of the pilot; see `acclimate methods`.")] = "mlm",
    documents: Annotated[int, typer.Option(help="Documents of each text on which losses are measured.")] = 200,
    max_length: Annotated[int, typer.Option(help="Tokens of a text at most.")] = 128,
    stop_words: StopWords = "english",
    text_column: TextColumn = "text",
    seed: Annotated[int, typer.Option(help="Of the pilot.")] = 0,
    quiet: Quiet = False,
) -> None:
    """Say before an adaptation what can be known: is the domain far away, does a pilot learn, does it forget."""
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
