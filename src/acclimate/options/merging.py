"""Options of ``merge``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from acclimate.options.declaration import DATA, METHOD, MODEL, OUTPUT, Option, options
from acclimate.options.training import (
    Count,
    Fraction,
    MaxLength,
    Number,
    Overwrite,
    Positive,
    Progress,
    Seed,
    TextColumn,
    TextInput,
    read_number,
)

MergeMethod = Literal["chat-vector", "interpolation", "soup", "ties", "dare-linear", "dare-ties"]
SPARSE = ("ties", "dare-linear", "dare-ties")
"""Methods that drop a part of each difference to the base model."""
DENSITY = 0.2
"""Share of a difference that is kept (Yadav et al., NeurIPS 2023)."""
PATH = ("domain", "general")
"""Texts on which the models of an interpolation path are measured."""
USED_BY = {
    "instruct": ("chat-vector",),
    "base": ("chat-vector", "interpolation", *SPARSE),
    "weights": ("chat-vector", "soup", *SPARSE),
    "alpha": ("interpolation",),
    "alphas": ("interpolation",),
    **dict.fromkeys(PATH, ("interpolation",)),
    "density": SPARSE,
}
"""The methods that use an option; with another method it is refused."""

if TYPE_CHECKING:
    Folders = str | Path | Sequence[str | Path]
    Weights = Shares = float | Sequence[float]
else:
    Folders = tuple[str | Path, ...]
    Weights = tuple[Annotated[Number, Field(ge=-1000, le=1000)], ...]
    Shares = tuple[Annotated[Number, Field(ge=0, le=1)], ...]


def _read_folders(value: Any) -> Any:
    """Return one or several folders as a tuple; ``~`` is the home folder."""
    items = (value,) if isinstance(value, str | Path) or not isinstance(value, Iterable) else tuple(value)
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
    method: Annotated[MergeMethod, Option("Method of merging; see docs/decoders.md.", METHOD)]
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
    weights: Annotated[
        Weights | None,
        BeforeValidator(lambda value: value if value is None else _read_numbers(value)),
        Option(
            "Weight of the chat vector, or of each model in the order of --model, such as 1,0.5.",
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
    density: Annotated[
        Fraction | None,
        Option("Share of each difference to the base model that ties and dare keep.", METHOD, default=str(DENSITY)),
    ] = None
    seed: Annotated[Seed, Option("Random seed of dare.", METHOD)] = 0
    max_shard_gb: Annotated[Positive, Option("Maximum size of a file of weights.", OUTPUT, unit="GB")] = 5.0
    overwrite: Overwrite = False
    progress: Progress = True

    @model_validator(mode="after")
    def check_method(self) -> Any:
        """Check that the method has what it needs, and that it uses what was given."""
        for name, methods in USED_BY.items():
            if getattr(self, name) is not None and self.method not in methods:
                raise ValueError(f"'{name}' is used by {', '.join(methods)}, not by {self.method}; leave it out")
        count, several = len(self.models), self.method in ("soup", *SPARSE)  # type: ignore[arg-type]
        if several == (count == 1):
            expected = "several models" if several else "one model, the adapted one"
            raise ValueError(f"{self.method} expects {expected}, not {count}")
        if self.method == "chat-vector" and self.instruct is None:
            raise ValueError("chat-vector needs the instruction-tuned model; give it with --instruct")
        self._check_weights(count)
        self._check_path()
        return self

    def _check_weights(self, models: int) -> None:
        weights: Any = self.weights
        if weights is None:
            return
        if len(weights) != models:
            raise ValueError(f"there are {len(weights)} weights for {models} models; give one for each")
        if self.method == "soup" and (min(weights) < 0 or not sum(weights) > 0):
            raise ValueError("the weights of a soup must be at least 0, and not all 0")

    def _check_path(self) -> None:
        if self.method == "interpolation" and self.alpha is None and self.alphas is None:
            raise ValueError("interpolation needs --alpha, or --alphas to measure several")
        given = [name for name in PATH if getattr(self, name) is not None]
        if self.alphas is None and given:
            raise ValueError(f"'{given[0]}' is only read with --alphas")
        if self.alphas is not None and len(given) < len(PATH):
            raise ValueError("--alphas needs held-out text: give --domain and --general")
