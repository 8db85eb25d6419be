"""``acclimate inspect leakage``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from acclimate.cli.app import Quiet, TextColumn, inspection


@inspection.command("leakage")
def inspect_leakage(
    task: Annotated[list[Path], typer.Option(help="Folder of a labelled task; several.")],
    corpus: Annotated[
        list[str] | None, typer.Option(help="Text: file, folder, glob or hf:NAME; several; none: train splits alone.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="JSON file to write, examples included.")] = None,
    near: Annotated[
        float, typer.Option(help="Least Jaccard similarity of letter sequences of near duplicates.")
    ] = 0.8,
    contained: Annotated[
        float, typer.Option(help="Least share of a text's word sequences that a document holds.")
    ] = 0.8,
    fewest_words: Annotated[int, typer.Option(help="Shorter texts are looked for as whole documents only.")] = 8,
    text_column: TextColumn = "text",
    quiet: Quiet = False,
) -> None:
    """Look for the dev and test texts of tasks in a text to adapt to, and in the train splits of these tasks."""
    from acclimate.corpus.contamination import MatchRules
    from acclimate.inspect.leakage import inspect_leakage as run

    report = run(
        corpus or None,
        task,
        out,
        rules=MatchRules(near, contained, fewest_words),
        text_column=text_column,
        progress=not quiet,
    )
    if corpus:
        typer.echo(f"{report['flagged']:,} of {report['documents']:,} documents hold a dev or test text.")
        _say(report, "texts")
    for found in report["train"]:
        _say(found, "texts in its own train split")
    if out is not None:
        typer.echo(f"All of it: {out}")


def _say(found: dict[str, Any], what: str) -> None:
    for row in found["texts"]:
        kinds = ", ".join(f"{row[kind]:,} {kind}" for kind in ("exact", "near", "contained"))
        short = f"; {row['short']:,} are short, and looked for as whole documents only" if row["short"] else ""
        typer.echo(f"{row['task']}, {row['split']}: {row['found']:,} of {row['texts']:,} {what} ({kinds}){short}")
    for example in found["examples"][:3]:
        kind = {"exact": "is", "near": "nearly is", "contained": "is in"}[example["kind"]]
        typer.echo(f"  '{_short(example['text'])}' {kind} '{_short(example['document'])}'")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 70 else line[:69] + "…"
