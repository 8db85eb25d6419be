"""``acclimate inspect leakage``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from acclimate.cli.app import Quiet, inspection


@inspection.command("leakage")
def inspect_leakage(
    corpus: Annotated[
        list[str], typer.Option(help="Text: file, folder, glob or hf:NAME; may be given several times.")
    ],
    task: Annotated[list[Path], typer.Option(help="Folder of a labelled task; several.")],
    out: Annotated[Path | None, typer.Option(help="JSON file to write, examples included.")] = None,
    near: Annotated[
        float, typer.Option(help="Least Jaccard similarity of letter sequences of near duplicates.")
    ] = 0.8,
    contained: Annotated[
        float, typer.Option(help="Least share of a text's word sequences that a document holds.")
    ] = 0.8,
    fewest_words: Annotated[int, typer.Option(help="Shorter texts are looked for as whole documents only.")] = 8,
    text_column: Annotated[str, typer.Option(help="Where the text is in tables and JSON lines.")] = "text",
    quiet: Quiet = False,
) -> None:
    """Look for the dev and test texts of tasks in a text to adapt to."""
    from acclimate.analysis.leakage import inspect_leakage as run
    from acclimate.corpus.text_index import Rules

    report = run(
        corpus,
        task,
        out,
        rules=Rules(near, contained, fewest_words),
        text_column=text_column,
        progress=not quiet,
    )
    typer.echo(f"{report['flagged']:,} of {report['documents']:,} documents hold a dev or test text.")
    for row in report["texts"]:
        kinds = ", ".join(f"{row[kind]:,} {kind}" for kind in ("exact", "near", "contained"))
        short = f"; {row['short']:,} are short, and looked for as whole documents only" if row["short"] else ""
        typer.echo(f"{row['task']}, {row['split']}: {row['found']:,} of {row['texts']:,} texts ({kinds}){short}")
    for example in report["examples"][:3]:
        kind = {"exact": "is", "near": "nearly is", "contained": "is in"}[example["kind"]]
        typer.echo(f"  '{_short(example['text'])}' {kind} '{_short(example['document'])}'")
    if out is not None:
        typer.echo(f"All of it: {out}")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 70 else line[:69] + "…"
