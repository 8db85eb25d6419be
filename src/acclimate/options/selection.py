"""Options of ``select``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator

from acclimate.options.declaration import DATA, METHOD, OUTPUT, Option, options
from acclimate.options.reading import Encoding, LabelOptions
from acclimate.options.training import Progress, TextColumn, TextInput

if TYPE_CHECKING:
    from acclimate.corpus.operations import Operation

    Selections = str | Operation | Mapping[str, Any] | Iterable[str | Operation | Mapping[str, Any]]
else:
    Selections = Any


def _read_selections(value: Any) -> Any:
    """Return selections as they are, without empty ones."""
    if value is None or (isinstance(value, str | tuple | list | dict) and not value):
        raise ValueError("must name at least one selection, such as nearest; see docs/select.md")
    return value


Selection = Option(
    "Selection as NAME, or 'NAME parameter=value ...'; several run one after the other.",
    METHOD,
    more="Or ``{name: parameters}``. See docs/select.md.",
    flag="--by",
    many=True,
)


@options
class SelectOptions(LabelOptions):
    """Options of :func:`acclimate.select`."""

    corpus: Annotated[
        TextInput,
        Option(
            "Text to select from: file, folder, glob or hf:NAME.",
            DATA,
            more="Or a :class:`acclimate.corpus.Corpus`, or texts in memory.",
            many=True,
        ),
    ]
    by: Annotated[Selections, BeforeValidator(_read_selections), Selection]
    out: Annotated[
        str | Path | None, Option("JSON lines file to write.", OUTPUT, default="a file of the cache", recorded=False)
    ] = None
    _: KW_ONLY
    task: Annotated[
        Any,
        Option(
            "Labelled task to select for: a folder, a file, or hf:NAME; only its train split is read.",
            DATA,
            more="Or rows in memory, or a loaded task.",
        ),
    ] = None
    target: Annotated[
        TextInput | None,
        Option("Text to select for, in place of a task: file, folder, glob or hf:NAME.", DATA, many=True),
    ] = None
    general: Annotated[
        TextInput | None,
        Option("General text, for selections that read it: file, folder, glob or hf:NAME.", DATA, many=True),
    ] = None
    tokenizer: Annotated[
        str | Path | None,
        Option("Model whose tokenizer counts the tokens.", DATA, default="words and punctuation marks are counted"),
    ] = None
    control: Annotated[
        str | Path | None,
        Option(
            "JSON lines file to write the control to: documents at random, with as many tokens.",
            OUTPUT,
            default="none is drawn",
            recorded=False,
        ),
    ] = None
    text_column: TextColumn = "text"
    encoding: Encoding = None
    progress: Progress = True
