"""``acclimate inspect``: importance, masks, embeddings, leakage and cost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from acclimate.cli.app import Json, Out, Precision, Quiet, StopWords, TextColumn, inspection
from acclimate.cli.options import named_values
from acclimate.errors import UserError
from acclimate.options.declaration import DATA, METHOD, MODEL, OUTPUT

Seed = Annotated[int, typer.Option(help="Random seed.", rich_help_panel=METHOD)]
MaxLength = Annotated[int, typer.Option(help="Maximum tokens per text.", rich_help_panel=DATA)]


@inspection.command(
    "importance",
    epilog="Example: acclimate inspect importance --model roberta-base --corpus reviews=reviews.txt "
    "--corpus news=news.txt --out importance/",
)
def inspect_importance(
    model: Annotated[str, typer.Option(help="Model folder or name on the Hugging Face Hub.", rich_help_panel=MODEL)],
    corpus: Annotated[
        list[str],
        typer.Option(
            help="Text of a domain as NAME=TEXT: file, folder, glob or hf:NAME. May be repeated.", rich_help_panel=DATA
        ),
    ],
    out: Out,
    parts: Annotated[
        str,
        typer.Option(
            help="Parts of the model: H heads, I and O feed-forward layers, E embeddings, such as H,I.",
            rich_help_panel=METHOD,
        ),
    ] = "H",
    tokens: Annotated[int, typer.Option(help="Maximum tokens per domain.", rich_help_panel=DATA)] = 1_640_000,
    error: Annotated[
        float,
        typer.Option(help="Standard error at which to stop; 0 reads all tokens.", rich_help_panel=METHOD),
    ] = 0.03,
    seed: Annotated[
        list[int] | None, typer.Option(help="Random seed. May be repeated (default: 0).", rich_help_panel=METHOD)
    ] = None,
    reads: Annotated[
        Literal["hidden", "logits"],
        typer.Option(help="Outputs whose divergence is measured.", rich_help_panel=METHOD),
    ] = "hidden",
    protect: Annotated[
        Literal["unusual", "important"],
        typer.Option(help="Eq. 10 of the DGA paper (unusual), or only its upper side.", rich_help_panel=METHOD),
    ] = "unusual",
    max_length: MaxLength = 128,
    dropout: Annotated[
        float | None,
        typer.Option(help="Dropout probability (default: that of the model's configuration).", rich_help_panel=MODEL),
    ] = None,
    text_column: TextColumn = "text",
    precision: Precision = "auto",
    quiet: Quiet = False,
) -> None:
    """Measure the importance of heads and units for general knowledge on several domains, and compare with chance."""
    from rich.console import Console

    from acclimate.inspect import inspect_importance as run
    from acclimate.inspect.importance_plots import importance_tables

    result = run(
        model,
        _named_domains(corpus),
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


@inspection.command(
    "masks",
    epilog="Example: acclimate inspect masks --model roberta-base --corpus reviews/ --masking whole-word --out masks/",
)
def inspect_masks(
    model: Annotated[
        str,
        typer.Option(
            help="Model folder or name on the Hugging Face Hub; without --task only its tokenizer is read.",
            rich_help_panel=MODEL,
        ),
    ],
    corpus: Annotated[
        list[str],
        typer.Option(help="Text: file, folder, glob or hf:NAME. May be repeated.", rich_help_panel=DATA),
    ],
    out: Out,
    masking: Annotated[
        list[str] | None,
        typer.Option(
            help="Masking strategy as NAME, or 'NAME parameter=value ...'. May be repeated (default: those that need "
            "no word list).",
            rich_help_panel=METHOD,
        ),
    ] = None,
    task: Annotated[
        Path | None,
        typer.Option(
            help="Folder of a labelled task: shows selective masking, too, and which tokens the labels depend on.",
            rich_help_panel=DATA,
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Parameter of selective masking, such as delta=0.02. May be repeated.",
            rich_help_panel=METHOD,
        ),
    ] = None,
    mask_rate: Annotated[float, typer.Option(help="Share of tokens to mask.", rich_help_panel=METHOD)] = 0.15,
    texts: Annotated[int, typer.Option(help="Number of texts to show.", rich_help_panel=OUTPUT)] = 6,
    tokens: Annotated[int, typer.Option(help="Tokens of the corpus to count on.", rich_help_panel=DATA)] = 200_000,
    max_length: MaxLength = 128,
    seed: Seed = 0,
    stop_words: StopWords = "english",
    text_column: TextColumn = "text",
    precision: Precision = "auto",
    quiet: Quiet = False,
) -> None:
    """Show and count what masking strategies hide in a text."""
    from rich.console import Console

    from acclimate.inspect.mask_summary import mask_tables
    from acclimate.inspect.masks import DEFAULT_MASKINGS, PAGE
    from acclimate.inspect.masks import inspect_masks as run

    report = run(
        model,
        corpus,
        out,
        maskings=masking or DEFAULT_MASKINGS,
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
    for shown in mask_tables(report):
        console.print(shown, highlight=False)
    typer.echo(f"All texts, as a page: {out / PAGE}")


@inspection.command(
    "embeddings",
    epilog="Example: acclimate inspect embeddings --before roberta-base --after adapted/ --out embeddings/",
)
def inspect_embeddings(
    before: Annotated[
        str,
        typer.Option(help="Base model: folder or name on the Hugging Face Hub.", rich_help_panel=MODEL),
    ],
    after: Annotated[
        list[str],
        typer.Option(help="Adapted model, as DIR or NAME=DIR. May be repeated.", rich_help_panel=MODEL),
    ],
    out: Out,
    corpus: Annotated[
        list[str] | None,
        typer.Option(help="Domain text: file, folder, glob or hf:NAME. May be repeated.", rich_help_panel=DATA),
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(
            help="Other text; words that are much more frequent in --corpus than here are the domain's own. May be "
            "repeated.",
            rich_help_panel=DATA,
        ),
    ] = None,
    word: Annotated[
        list[str] | None,
        typer.Option(help="Word to label. May be repeated (default: chosen automatically).", rich_help_panel=OUTPUT),
    ] = None,
    words: Annotated[int, typer.Option(help="Number of words to choose.", rich_help_panel=OUTPUT)] = 10,
    stop_words: StopWords = "english",
    text_column: TextColumn = "text",
    quiet: Quiet = False,
) -> None:
    """Measure and draw how far adaptation moved the static word embeddings."""
    from rich.console import Console

    from acclimate.inspect.embeddings import embedding_tables
    from acclimate.inspect.embeddings import inspect_embeddings as run

    models: dict[str, str] = {}
    for item in after:
        name, folder = _split_name(item)
        name = name or Path(folder).name
        if name in models:
            raise UserError(f"Two adapted models are called '{name}'; give each its own name as NAME=DIR.")
        models[name] = folder
    result = run(
        before,
        models,
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


@inspection.command(
    "leakage", epilog="Example: acclimate inspect leakage --task reviews-task/ --corpus reviews/ --out leakage.json"
)
def inspect_leakage(
    task: Annotated[
        list[Path], typer.Option(help="Folder of a labelled task. May be repeated.", rich_help_panel=DATA)
    ],
    corpus: Annotated[
        list[str] | None,
        typer.Option(
            help="Text: file, folder, glob or hf:NAME. May be repeated (default: only train splits are searched).",
            rich_help_panel=DATA,
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="JSON file to write, with examples.", rich_help_panel=OUTPUT)
    ] = None,
    near: Annotated[
        float,
        typer.Option(
            help="Minimum Jaccard similarity of the character n-grams of near duplicates.", rich_help_panel=METHOD
        ),
    ] = 0.8,
    contained: Annotated[
        float,
        typer.Option(help="Minimum share of a text's word n-grams that a document contains.", rich_help_panel=METHOD),
    ] = 0.8,
    fewest_words: Annotated[
        int,
        typer.Option(help="Shorter texts are only compared with whole documents.", rich_help_panel=METHOD),
    ] = 8,
    text_column: TextColumn = "text",
    quiet: Quiet = False,
) -> None:
    """Find dev and test texts of tasks in a text to adapt to, and in the train splits of these tasks."""
    from acclimate.corpus.contamination import MatchRules
    from acclimate.inspect.leakage import inspect_leakage as run

    rules = MatchRules(near, contained, fewest_words)
    report = run(corpus or None, task, out, rules=rules, text_column=text_column, progress=not quiet)
    if corpus:
        typer.echo(f"{report['flagged']:,} of {report['documents']:,} documents hold a dev or test text.")
        _print_matches(report, "texts")
    for found in report["train"]:
        _print_matches(found, "texts in its own train split")
    if out is not None:
        typer.echo(f"Full report: {out}")


@inspection.command(
    "cost", epilog="Example: acclimate inspect cost --adapted selective/ --pretrained pretrained/ --finetuned tuned/"
)
def inspect_cost(
    adapted: Annotated[
        list[str],
        typer.Option(
            help="Result of adapt --method selective, as DIR or NAME=DIR; each is a column. May be repeated.",
            rich_help_panel=MODEL,
        ),
    ],
    pretrained: Annotated[
        Path | None,
        typer.Option(help="Result of pretrain --keep-steps that the adaptations started from.", rich_help_panel=MODEL),
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(
            help="Step after which the model that they started from was kept (default: as recorded).",
            rich_help_panel=MODEL,
        ),
    ] = None,
    finetuned: Annotated[
        list[str] | None,
        typer.Option(
            help="Result of finetune, as DIR, or NAME=DIR with the name of a column. May be repeated.",
            rich_help_panel=MODEL,
        ),
    ] = None,
    out: Json = None,
) -> None:
    """Compare the minutes that task-guided pre-training takes with those that stopping early saved."""
    from acclimate.methods.selective.cost import cost_table
    from acclimate.planning.cost import inspect_cost as run

    columns: dict[str, str] = {}
    for item in adapted:
        name, folder = _split_name(item)
        name = name or Path(folder).name
        if name in columns:
            raise UserError(f"Two adaptations are called '{name}'; give each its own name as NAME=DIR.")
        columns[name] = folder
    tuned: dict[str, list[str]] = {}
    for item in finetuned or []:
        name, folder = _split_name(item)
        if not name and len(columns) > 1:
            raise UserError(f"'{folder}' could belong to several columns; write --finetuned NAME={folder}.")
        tuned.setdefault(name or next(iter(columns)), []).append(folder)
    typer.echo(cost_table(run(columns, out, pretrained=pretrained, step=step, finetuned=tuned)))
    if out is not None:
        typer.echo(f"Full report: {out}")


def _split_name(item: str) -> tuple[str, str]:
    """Split ``NAME=DIR``; the name of a folder alone is empty."""
    name, sign, folder = item.partition("=")
    return (name, folder) if sign and name and folder else ("", item)


def _named_domains(items: list[str]) -> dict[str, str]:
    domains: dict[str, str] = {}
    for item in items:
        name, sign, source = item.partition("=")
        if not sign or not name or not source:
            raise UserError(f"--corpus expects NAME=TEXT here, such as reviews=reviews/*.jsonl, not '{item}'.")
        if name in domains:
            raise UserError(f"The domain '{name}' is given twice; give each its own name.")
        domains[name] = source
    return domains


def _print_matches(found: dict[str, Any], what: str) -> None:
    for row in found["texts"]:
        kinds = ", ".join(f"{row[kind]:,} {kind}" for kind in ("exact", "near", "contained"))
        short = f"; {row['short']:,} are short, and only compared with whole documents" if row["short"] else ""
        typer.echo(f"{row['task']}, {row['split']}: {row['found']:,} of {row['texts']:,} {what} ({kinds}){short}")
    for example in found["examples"][:3]:
        kind = {"exact": "is", "near": "nearly is", "contained": "is in"}[example["kind"]]
        typer.echo(f"  '{_shorten(example['text'])}' {kind} '{_shorten(example['document'])}'")


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 70 else line[:69] + "…"
