"""Options of ``predict``."""

from __future__ import annotations

from dataclasses import KW_ONLY
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator

from acclimate.base.bounds import Size
from acclimate.base.options import DATA, MODEL, OUTPUT, Option, options
from acclimate.base.verbs import FIRST, register_verb
from acclimate.data.fields import Precision, Progress, read_listed
from acclimate.data.reading import ReadingOptions


@register_verb(
    "predict",
    "acclimate.tasks.prediction:predict",
    show="show_predictions",
    example="acclimate predict --model finetuned/seed-0 --data new.csv --out labelled.csv",
    page="docs/predict.md",
    section=FIRST,
    order=4,
)
@options
class PredictOptions(ReadingOptions):
    """Predict the rows of a table with a fine-tuned model; with two models, list the rows that change."""

    model: Annotated[
        tuple[str | Path, ...],
        BeforeValidator(read_listed),
        Option(
            "Fine-tuned model or sentence encoder: a folder, or a name on the Hugging Face Hub.",
            MODEL,
            more="Two models are compared: what differs, and which is right where the rows have labels.",
            many=True,
        ),
    ]
    data: Annotated[
        Any,
        Option(
            "Rows to predict: a table, a folder, a text file with a text per line, or hf:NAME.",
            DATA,
            more="Or rows in memory, such as a data frame.",
        ),
    ]
    out: Annotated[
        str | Path | None,
        Option(
            "Output file; its ending says its format: .csv, .tsv, .jsonl, .json, .parquet or .xlsx.",
            OUTPUT,
            more="It has all columns of the rows, in their order, and those of the predictions. None writes nothing.",
            recorded=False,
        ),
    ] = "predictions.csv"
    _: KW_ONLY
    passages: Annotated[
        Any,
        Option(
            "Passages that an encoder or reranker ranks for each query: a table with id and text, or hf:NAME.", DATA
        ),
    ] = None
    top: Annotated[Size, Option("Passages per query.", DATA)] = 10
    hybrid: Annotated[bool, Option("Fuse the ranking of passages with BM25's, by reciprocal ranks.", DATA)] = False
    max_length: Annotated[
        Size | None,
        Option("Maximum tokens per text, or per window of a passage.", DATA, default="as in the fine-tuning"),
    ] = None
    precision: Precision = "fp32"
    overwrite: Annotated[bool, Option("Replace an existing output file.", OUTPUT, recorded=False)] = False
    progress: Progress = True
