"""``acclimate inspect``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from acclimate.cli.app import Out, Precision, Quiet, StopWords, TextColumn, inspection
from acclimate.cli.options import named_values
from acclimate.errors import UserError


@inspection.command("importance")
def inspect_importance(
    model: Annotated[str, typer.Option(help="Model folder or name on the hub.")],
    corpus: Annotated[list[str], typer.Option(help="NAME=TEXT of a domain: file, folder, glob or hf:NAME; several.")],
    out: Out,
    parts: Annotated[str, typer.Option(help="H heads, I and O feed-forward, E embedding, as H,I.")] = "H",
    tokens: Annotated[int, typer.Option(help="Tokens of each domain to measure on, at most.")] = 1_640_000,
    error: Annotated[
        float, typer.Option(help="Standard error of what is measured at which to stop; 0 reads all tokens.")
    ] = 0.03,
    seed: Annotated[list[int] | None, typer.Option(help="May be given several times (default: 0).")] = None,
    reads: Annotated[Literal["hidden", "logits"], typer.Option(help="What the divergence is between.")] = "hidden",
    protect: Annotated[
        Literal["unusual", "important"], typer.Option(help="Eq. 10 of the DGA paper, or its upper side only.")
    ] = "unusual",
    max_length: Annotated[int, typer.Option(help="Tokens of a text at most.")] = 128,
    dropout: Annotated[
        float | None, typer.Option(help="Of the encoder (default: what its configuration says).")
    ] = None,
    text_column: TextColumn = "text",
    precision: Precision = "auto",
    quiet: Quiet = False,
) -> None:
    """Measure what matters for general knowledge on several domains, and compare it with chance."""
    from rich.console import Console

    from acclimate.inspect import inspect_importance as run
    from acclimate.inspect.table import importance_tables

    result = run(
        model,
        _domains(corpus),
        out,
        parts=parts,
        tokens=tokens,
        error=error,
        seeds=seed or [0],
        reads=reads,
        protect=protect,
        max_length=max_length,
        dropout=dropout,
        precision=precision,
        text_column=text_column,
        progress=not quiet,
    )
    console = Console()
    for shown in importance_tables(result.report):
        console.print(shown, highlight=False, markup=False)
    typer.echo(f"Figures and numbers: {out}")


@inspection.command("masks")
def inspect_masks(
    model: Annotated[
        str, typer.Option(help="Model folder or name on the hub; without --task only its tokenizer is read.")
    ],
    corpus: Annotated[
        list[str], typer.Option(help="Text: file, folder, glob or hf:NAME; may be given several times.")
    ],
    out: Out,
    masking: Annotated[
        list[str] | None,
        typer.Option(help="NAME, or 'NAME parameter=value ...'; several. Default: those that need no word list."),
    ] = None,
    task: Annotated[
        Path | None, typer.Option(help="Labelled task: shows selective masking, too, and what is important to it.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Parameter of selective masking, as delta=0.02.")
    ] = None,
    mask_rate: Annotated[float, typer.Option(help="Share of tokens to mask.")] = 0.15,
    texts: Annotated[int, typer.Option(help="Texts to show.")] = 6,
    tokens: Annotated[int, typer.Option(help="Tokens of the corpus to count on.")] = 200_000,
    max_length: Annotated[int, typer.Option(help="Tokens of a text at most.")] = 128,
    seed: Annotated[int, typer.Option(help="Chooses texts and masks.")] = 0,
    stop_words: StopWords = "english",
    text_column: TextColumn = "text",
    precision: Precision = "auto",
    quiet: Quiet = False,
) -> None:
    """Show what ways to mask would hide in a text, and count."""
    from rich.console import Console

    from acclimate.inspect.masks import PAGE, SHOWN_BY_DEFAULT
    from acclimate.inspect.masks import inspect_masks as run
    from acclimate.inspect.masks_page import in_terminal

    report = run(
        model,
        corpus,
        out,
        maskings=masking or SHOWN_BY_DEFAULT,
        task=task,
        settings=named_values(settings or []),
        mask_rate=mask_rate,
        texts=texts,
        tokens=tokens,
        max_length=max_length,
        seed=seed,
        stop_words=stop_words,
        text_column=text_column,
        precision=precision,
        progress=not quiet,
    )
    console = Console()
    for shown in in_terminal(report):
        console.print(shown, highlight=False)
    typer.echo(f"All texts, as a page: {out / PAGE}")


@inspection.command("embeddings")
def inspect_embeddings(
    before: Annotated[str, typer.Option(help="The model that was adapted: folder or name on the hub.")],
    after: Annotated[list[str], typer.Option(help="An adapted model, DIR or NAME=DIR; several.")],
    out: Out,
    corpus: Annotated[
        list[str] | None, typer.Option(help="Text of the domain: file, folder, glob or hf:NAME; several.")
    ] = None,
    against: Annotated[
        list[str] | None, typer.Option(help="Other text, from which the domain's own words are told apart.")
    ] = None,
    word: Annotated[list[str] | None, typer.Option(help="Word to label; several. Default: chosen.")] = None,
    words: Annotated[int, typer.Option(help="How many are chosen.")] = 10,
    stop_words: StopWords = "english",
    text_column: TextColumn = "text",
    quiet: Quiet = False,
) -> None:
    """Measure how far adaptation moved the static word embeddings, and draw them."""
    from rich.console import Console

    from acclimate.inspect.embedding_plot import embedding_tables
    from acclimate.inspect.embeddings import inspect_embeddings as run

    named = {
        (name if sign else Path(name).name): path or name for name, sign, path in (a.partition("=") for a in after)
    }
    if len(named) < len(after):
        raise UserError("Two of the adapted models have the same name; give each a name of its own as NAME=DIR.")
    result = run(
        before,
        named,
        out,
        text=corpus,
        against=against,
        words=word or [],
        count=words,
        stop_words=stop_words,
        text_column=text_column,
        progress=not quiet,
    )
    console = Console()
    for shown in embedding_tables(result.report):
        console.print(shown, highlight=False, markup=False)
    typer.echo(f"Figure and numbers: {out}")


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
