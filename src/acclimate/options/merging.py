"""Options of ``merge``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field

from acclimate.errors import UserError, unknown_name_error
from acclimate.options.declaration import DATA, METHOD, MODEL, OUTPUT, Option, options
from acclimate.options.numbers import Count, Fraction, Number, Positive, read_number
from acclimate.options.reading import Encoding
from acclimate.options.training import MaxLength, Overwrite, Progress, Seed, TextColumn, TextInput

METHODS = ("chat-vector", "skill", "interpolation", "soup", "ties", "dare-linear", "dare-ties")
SPARSE = ("ties", "dare-linear", "dare-ties")
"""Methods that drop a part of each difference to the base model."""
DENSITY = 0.2
"""Share of a difference that is kept (Yadav et al., NeurIPS 2023)."""
PATH = ("domain", "general")
"""Texts on which the models of an interpolation path are measured."""
USED_BY = {
    "instruct": ("chat-vector",),
    "skill": ("skill",),
    "base": ("chat-vector", "skill", "interpolation", *SPARSE),
    "weights": ("chat-vector", "skill", "soup", *SPARSE),
    "alpha": ("interpolation",),
    "alphas": ("interpolation",),
    **dict.fromkeys(PATH, ("interpolation",)),
    "density": SPARSE,
}
"""The methods that use an option; with another method it is refused."""

if TYPE_CHECKING:
    Folders = str | Path | Sequence[str | Path]
    Weights = float | Sequence[float]
    Shares = float | Sequence[float]
else:
    Folders = tuple[str | Path, ...]
    Weights = tuple[Annotated[Number, Field(ge=-1000, le=1000)], ...]
    Shares = tuple[Annotated[Number, Field(ge=0, le=1)], ...]


def _read_folders(value: Any) -> Any:
    """Return one or several folders as a tuple; ``~`` is the home folder."""
    items = (value,) if isinstance(value, str | Path) or not isinstance(value, Iterable) else tuple(value)
    if any("\0" in str(item) for item in items):
        raise ValueError("must not contain a NUL character")
    return tuple(os.path.expanduser(item) if isinstance(item, str | Path) else item for item in items)


def _read_numbers(value: Any) -> Any:
    """Return numbers as a tuple; they are given as such, or as text such as ``"0,0.5,1"``."""
    items = (value,) if isinstance(value, str) or not isinstance(value, Iterable) else tuple(value)
    split = [part for item in items for part in (item.split(",") if isinstance(item, str) else (item,))]
    return tuple(read_number(part) for part in split)


def _text(what: str) -> Option:
    return Option(
        f"{what} on which --alphas measures the loss: file, folder, glob or hf:NAME.",
        DATA,
        more="Text that no model was trained on.",
        many=True,
    )


@options
class MergeOptions:
    """Options of :func:`acclimate.merge`."""

    models: Annotated[
        Folders,
        BeforeValidator(_read_folders),
        Field(min_length=1),
        Option(
            "Model folder or name on the Hugging Face Hub; several for soup, ties and dare.",
            MODEL,
            more="The first one determines architecture, vocabulary and types of the result.",
            flag="--model",
            many=True,
        ),
    ]
    method: Annotated[
        str, Option("Method: chat-vector, skill, interpolation, soup, ties, dare-linear or dare-ties.", METHOD)
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
    instruct: Annotated[
        str | Path | None,
        Option("Instruction-tuned model of the same base, for chat-vector.", MODEL),
    ] = None
    skill: Annotated[
        str | Path | None,
        Option(
            "Model of the same base that has learned something else, such as a sentence encoder, for skill.", MODEL
        ),
    ] = None
    weights: Annotated[
        Weights | None,
        BeforeValidator(lambda value: value if value is None else _read_numbers(value)),
        Option(
            "Weight of the chat vector or the skill, or of each model in the order of --model, such as 1,0.5.",
            METHOD,
            default="1; equal shares for soup and dare-linear",
            more="Those of a soup are divided by their sum.",
            flag="--weight",
            many=True,
        ),
    ] = None
    alpha: Annotated[
        Annotated[Number, Field(ge=0, le=1)] | None,
        Option("Share of the adapted model in an interpolation; 0 is the base model.", METHOD),
    ] = None
    alphas: Annotated[
        Annotated[Shares, Field(min_length=1)] | None,
        BeforeValidator(lambda value: value if value is None else _read_numbers(value)),
        Option(
            "Shares at which an interpolation is measured on --domain and --general, such as 0.25,0.5,0.75.",
            METHOD,
            more="0 and 1 are always included. Without ``alpha``, only the measurements are written.",
            many=True,
        ),
    ] = None
    domain: Annotated[TextInput | None, _text("Domain text")] = None
    general: Annotated[TextInput | None, _text("General text")] = None
    documents: Annotated[Count, Option("Documents per text on which losses are measured.", DATA)] = 200
    max_length: MaxLength = 128
    text_column: TextColumn = "text"
    encoding: Encoding = None
    density: Annotated[
        Fraction | None,
        Option("Share of each difference to the base model that ties and dare keep.", METHOD, default=str(DENSITY)),
    ] = None
    seed: Annotated[Seed, Option("Random seed of dare.", METHOD)] = 0
    max_shard_gb: Annotated[
        Annotated[Positive, Field(le=10**6)], Option("Maximum size of a file of weights.", OUTPUT, unit="GB")
    ] = 5.0
    overwrite: Overwrite = False
    progress: Progress = True


def check_options(options: MergeOptions) -> None:
    """Check that a method has what it needs, and uses what was given.

    Raises:
        UserError: If an option is missing or does not apply.
    """
    models: Any
    weights: Any
    method, models, weights = options.method, options.models, options.weights
    if method not in METHODS:
        raise unknown_name_error("method of merging", method, METHODS)
    for name, methods in USED_BY.items():
        if getattr(options, name) is not None and method not in methods:
            raise UserError(f"'{name}' does not apply to {method}, only to {', '.join(methods)}; leave it out.")
    several = method in ("soup", *SPARSE)
    if several == (len(models) == 1):
        expected = "several models" if several else "one --model, the adapted one"
        raise UserError(f"{method} needs {expected}, not {len(models)}.")
    if method == "chat-vector" and options.instruct is None:
        raise UserError("chat-vector needs the instruction-tuned model; give it with --instruct.")
    if method == "skill" and options.skill is None:
        raise UserError("skill needs the model that has it; give it with --skill.")
    if weights is not None and len(weights) != len(models):
        raise UserError(f"There are {len(weights)} weights for {len(models)} models; give one for each.")
    if weights is not None and method == "soup" and (min(weights) < 0 or not sum(weights) > 0):
        raise UserError("The weights of a soup must be at least 0, and not all 0.")
    if method == "interpolation":
        _check_path(options)


def _check_path(options: MergeOptions) -> None:
    if options.alpha is None and options.alphas is None:
        raise UserError("interpolation needs --alpha, or --alphas to measure several.")
    given = [name for name in PATH if getattr(options, name) is not None]
    if options.alphas is None and given:
        raise UserError(f"--{given[0]} is only read with --alphas.")
    if options.alphas is not None and len(given) < len(PATH):
        raise UserError("--alphas needs held-out text; give --domain and --general.")
