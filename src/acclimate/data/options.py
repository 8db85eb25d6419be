"""Options of ``select``, ``transform`` and ``inspect experts``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator

from acclimate.base.options import DATA, METHOD, OUTPUT, Option, options
from acclimate.base.verbs import TRAIN, register_verb
from acclimate.data.fields import Progress, TextInput
from acclimate.data.reading import LabelOptions, TextOptions

if TYPE_CHECKING:
    from acclimate.data.operations import Operation

    Operations = str | Operation | Mapping[str, Any] | Iterable[str | Operation | Mapping[str, Any]]
else:
    Operations = Any


def _read_operations(value: Any) -> Any:
    """Return operations as they are, without empty ones."""
    if value is None or (isinstance(value, str | tuple | list | dict) and not value):
        raise ValueError(
            "must name at least one operation, such as nearest (docs/prepare.md) or neighbors (docs/prepare.md)"
        )
    return value


DryRun = Annotated[
    bool,
    Option("Call no model or function; print prompts, and the number of calls and tokens.", OUTPUT, recorded=False),
]


def _describe_operations(kind: str, page: str) -> Option:
    """Return the option that takes operations of a kind, which a page of the documentation lists."""
    return Option(
        f"{kind} as NAME, or 'NAME parameter=value ...'; several run one after the other.",
        METHOD,
        more=f"Or ``{{name: parameters}}``. See {page}.",
        flag="--by",
        many=True,
    )


@options
class OperationOptions(LabelOptions, TextOptions):
    """Options of verbs that apply operations to a text."""

    corpus: Annotated[
        TextInput,
        Option(
            "Text to read: file, folder, glob or hf:NAME.",
            DATA,
            more="Or a :class:`acclimate.data.documents.Corpus`, or texts in memory.",
            many=True,
        ),
    ]
    by: Annotated[Operations, BeforeValidator(_read_operations), _describe_operations("Selection", "docs/prepare.md")]
    out: Annotated[
        str | Path | None, Option("JSON lines file to write.", OUTPUT, default="a file of the cache", recorded=False)
    ] = None
    _: KW_ONLY
    task: Annotated[
        Any,
        Option(
            "Labelled task whose texts are compared with: a folder, a file, or hf:NAME; only its train split is read.",
            DATA,
            more="Or rows in memory, or a loaded task.",
        ),
    ] = None
    target: Annotated[
        TextInput | None,
        Option("Text to compare with, instead of a task: file, folder, glob or hf:NAME.", DATA, many=True),
    ] = None
    general: Annotated[
        TextInput | None,
        Option("General text, for operations that read it: file, folder, glob or hf:NAME.", DATA, many=True),
    ] = None
    tokenizer: Annotated[
        str | Path | None,
        Option("Model whose tokenizer counts the tokens.", DATA, default="words and punctuation marks are counted"),
    ] = None
    progress: Progress = True


@options
class SelectOptions(OperationOptions):
    """Options of :func:`acclimate.select`."""

    _: KW_ONLY
    control: Annotated[
        str | Path | None,
        Option(
            "JSON lines file to write the control to: documents at random, with as many tokens.",
            OUTPUT,
            default="none is drawn",
            recorded=False,
        ),
    ] = None


@options
class TransformOptions(OperationOptions):
    """Options of :func:`acclimate.transform`."""

    by: Annotated[Operations, BeforeValidator(_read_operations), _describe_operations("Transform", "docs/prepare.md")]


@register_verb(
    "select",
    "acclimate.adaptation.corpus_verbs:select",
    command="select_to_file",
    dry_run="plan_selection",
    show="show_selection",
    example="acclimate select --corpus pool/ --by duplicates --by 'nearest k=50' --task task/ --out selected.jsonl",
    page="docs/prepare.md",
    section=TRAIN,
    order=1,
    plugins=True,
)
@options
class SelectCommand(SelectOptions):
    """Select the documents of a pool to adapt to, such as the nearest neighbors of a task."""

    out: Annotated[str | Path, Option("JSON lines file to write.", OUTPUT)] = field()  # else it inherits the default
    _: KW_ONLY
    dry_run: DryRun = False


@register_verb(
    "transform",
    "acclimate.adaptation.corpus_verbs:transform",
    command="transform_to_file",
    dry_run="plan_transform",
    show="show_transform",
    example="acclimate transform --corpus pool/ --by 'neighbors k=4' --task task/ --out transformed.jsonl",
    page="docs/prepare.md",
    section=TRAIN,
    order=2,
    plugins=True,
)
@options
class TransformCommand(TransformOptions):
    """Rewrite a corpus, such as each text of a task together with its nearest neighbors."""

    out: Annotated[str | Path, Option("JSON lines file to write.", OUTPUT)] = field()  # else it inherits the default
    _: KW_ONLY
    dry_run: DryRun = False
