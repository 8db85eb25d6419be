"""Options of ``merge``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from acclimate.adaptation.options import Overwrite
from acclimate.base.bounds import Count, Number, Positive
from acclimate.base.errors import UserError
from acclimate.base.options import DATA, METHOD, MODEL, OUTPUT, Option, options
from acclimate.base.registry import PartLike, declared_names
from acclimate.base.verbs import TRAIN, register_verb
from acclimate.data.fields import MaxLength, Progress, TextInput
from acclimate.data.reading import LabelOptions, TextOptions
from acclimate.merging.base import MERGES, Merge, read_numbers

PATH = ("domain", "general")
"""Texts on which the models of an interpolation path are measured."""
EXPERTS = ("target", "top", "rank", "corpora")
"""Options that select the models to merge."""
TOP = 2
"""Models that are merged of those that are ranked."""

if TYPE_CHECKING:
    Data = Any
    Folders = str | Path | Sequence[str | Path]
    Shares = float | Sequence[float]
else:
    Data = tuple[Any, ...]
    Folders = tuple[str | Path, ...]
    Shares = tuple[Annotated[Number, Field(ge=0, le=1)], ...]


def _read_folders(value: Any) -> Any:
    """Return one or several folders as a tuple; ``~`` is the home folder."""
    items = (value,) if isinstance(value, str | Path) or not isinstance(value, Iterable) else tuple(value)
    if any("\0" in str(item) for item in items):
        raise ValueError("must not contain a NUL character")
    return tuple(os.path.expanduser(item) if isinstance(item, str | Path) else item for item in items)


def _listed(value: Any) -> Any:
    """Return one or several tasks or texts as a tuple; ``~`` is the home folder."""
    items = tuple(value) if isinstance(value, list | tuple) else (value,)
    return tuple(os.path.expanduser(item) if isinstance(item, str | Path) else item for item in items)


def _text(what: str) -> Option:
    return Option(
        f"{what} on which --alphas measures the loss: file, folder, glob or hf:NAME.",
        DATA,
        more="Text that no model was trained on.",
        many=True,
    )


@register_verb(
    "merge",
    "acclimate.merging.merge:merge",
    show="show_merge",
    example=(
        "acclimate merge --method 'chat-vector instruct=Qwen/Qwen3-0.6B' --model adapted/ --base Qwen/Qwen3-0.6B-Base "
        "--out merged/"
    ),
    page="docs/merging.md",
    section=TRAIN,
    order=8,
)
@options
class MergeOptions(LabelOptions, TextOptions):
    """Merge models of one base model: interpolation, chat vectors, soups, Fisher weights, TIES and more."""

    models: Annotated[
        Folders,
        BeforeValidator(_read_folders),
        Field(min_length=1),
        Option(
            "Model folder or name on the Hugging Face Hub; several for soups, fisher, ties and dare.",
            MODEL,
            more="The first one determines architecture, vocabulary and types of the result.",
            flag="--model",
            many=True,
        ),
    ]
    method: Annotated[
        PartLike,
        Option(
            f"Method: {', '.join(sorted(declared_names('acclimate.merges')))}; with parameters, "
            "'NAME parameter=value ...', as in docs/merging.md.",
            METHOD,
            more="Or ``{name: parameters}``.",
        ),
    ]
    out: Annotated[str | Path, Option("Output directory.", OUTPUT, recorded=False)]
    _: KW_ONLY
    base: Annotated[
        str | Path | None,
        Option(
            "Model that the others were trained from: folder or name on the Hugging Face Hub.",
            MODEL,
            default="as recorded in the adapted model",
        ),
    ] = None
    alphas: Annotated[
        Annotated[Shares, Field(min_length=1)] | None,
        BeforeValidator(read_numbers),
        Option(
            "Shares at which an interpolation or a memory is measured on --domain and --general, such as 0.25,0.5.",
            METHOD,
            more="0 and 1 are always included. An interpolation without ``alpha`` writes only the measurements.",
            many=True,
        ),
    ] = None
    domain: Annotated[TextInput | None, _text("Domain text")] = None
    general: Annotated[TextInput | None, _text("General text")] = None
    data: Annotated[
        Data | None,
        BeforeValidator(lambda value: value if value is None else _listed(value)),
        Option(
            "What fisher and greedy-soup measure models on: labelled tasks, or text for language models; one for "
            "all, or for fisher one for each.",
            DATA,
            more="fisher reads the train split of a task without its labels, greedy-soup predicts its dev split. Give "
            "text that the models were not trained on.",
            many=True,
        ),
    ] = None
    target: Annotated[
        TextInput | None,
        Option(
            "Text of a new domain, or a labelled task of it: only the models that fit it best are merged (SaM).",
            DATA,
            many=True,
        ),
    ] = None
    top: Annotated[
        Count | None, Option("Number of models that are merged for --target.", METHOD, default=str(TOP))
    ] = None
    rank: Annotated[
        Literal["performance", "similarity"] | None,
        Option(
            "What ranks the models for --target: performance (loss on it) or similarity (of their --corpus to it).",
            METHOD,
            default="performance",
        ),
    ] = None
    corpora: Annotated[
        Data | None,
        BeforeValidator(lambda value: value if value is None else _listed(value)),
        Option("Text that each model was adapted to, in the order of --model.", DATA, flag="--corpus", many=True),
    ] = None
    documents: Annotated[Count, Option("Documents per text, or examples of a task, that are measured.", DATA)] = 200
    max_length: MaxLength = 128
    max_shard_gb: Annotated[
        Annotated[Positive, Field(le=10**6)], Option("Maximum size of a file of weights.", OUTPUT, unit="GB")
    ] = 5.0
    overwrite: Overwrite = False
    progress: Progress = True


def read_method(options: MergeOptions) -> Merge:
    """Return the merge with values for all parameters, after a check that it has and uses the options that it needs.

    Raises:
        UserError: If a name or a value is wrong, or an option is missing or does not apply.
    """
    method = MERGES.read(options.method)
    models: Any = options.models
    data: Any = options.data
    count, name = len(models), method.name
    path = ("alphas", *PATH)
    used = {"base": method.needs_base, "data": bool(method.data), **dict.fromkeys(path, bool(method.path))}
    for option in (*used, *EXPERTS):
        if getattr(options, option) is not None and not used.get(option, method.selects):
            raise UserError(f"'{option}' does not apply to {name}; leave it out.")
    if method.several is not None and method.several == (count == 1):
        expected = "several models" if method.several else "one --model"
        raise UserError(f"{name} needs {expected}, not {count}.")
    if method.data and data is None:
        raise UserError(f"{name} needs labelled tasks or text to measure the models on; give it with --data.")
    if data is not None and len(data) not in ((1,) if method.data == "one" else (1, count)):
        wanted = "one" if method.data == "one" else f"one for all models, or one for each of the {count}"
        raise UserError(f"There are {len(data)} --data; give {wanted}.")
    if options.alphas is None and not method.writes_model:
        raise UserError(f"{name} needs --alphas, the shares to measure{', or alpha' * method.merges_weights}.")
    given = [one for one in PATH if getattr(options, one) is not None]
    if options.alphas is None and given:
        raise UserError(f"--{given[0]} is only read with --alphas.")
    if options.alphas is not None and len(given) < len(PATH):
        raise UserError("--alphas needs held-out text; give --domain and --general.")
    _check_experts(options, method, count)
    return method.resolve(count if options.target is None else options.top or TOP)


def _check_experts(options: MergeOptions, method: Merge, models: int) -> None:
    if options.target is None:
        if given := next((name for name in EXPERTS if getattr(options, name) is not None), None):
            raise UserError(f"'{given}' is only read with 'target'; give it, or leave '{given}' out.")
        return
    if getattr(method, "weights", None) is not None:
        raise UserError("'weights' does not apply with 'target', which selects the models; leave one of them out.")
    corpora: Any = options.corpora
    if options.rank == "similarity" and len(corpora or ()) != models:
        raise UserError(
            f"'rank' is similarity, which needs the text of each of the {models} models, not {len(corpora or ())}; "
            "give them with --corpus, in the order of --model."
        )
    if options.rank != "similarity" and corpora is not None:
        raise UserError("'corpora' is only read with --rank similarity.")
    if not (options.top or TOP) <= models:
        raise UserError(f"'top' is {options.top or TOP}, but there are {models} models to choose from.")
