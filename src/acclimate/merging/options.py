"""Options of ``merge``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from acclimate.adaptation.options import Overwrite
from acclimate.base.bounds import Count, Fraction, Integer, Number, Positive, read_number
from acclimate.base.errors import UserError, unknown_name_error
from acclimate.base.options import DATA, METHOD, MODEL, OUTPUT, Option, options
from acclimate.data.fields import MaxLength, Progress, Seed, TextColumn, TextInput
from acclimate.data.reading import Encoding, LabelOptions


@dataclass(frozen=True)
class MergeMethod:
    """A method of merging: what it computes and which options it uses.

    Attributes:
        formula: What the merged model is.
        paper: Where the method is from.
        uses: The options that not all methods have, of those that this one has.
        needs: Those of them that must be given.
        several: Whether it merges several models or one; None for any number.
        weight: Default weight of each model; None for equal shares.
        joins_tasks: Whether it merges models of different tasks, all but their heads.
    """

    formula: str
    paper: str
    uses: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    several: bool | None = True
    weight: float | None = 1.0
    joins_tasks: bool = False

    @property
    def needs_base(self) -> bool:
        """Whether the base model of the others is one of the models that are merged."""
        return "base" in self.uses


PATH = ("domain", "general")
"""Texts on which the models of an interpolation path are measured."""
EXPERTS = ("target", "top", "rank", "corpora")
"""Options that select the models to merge."""
_SPARSE = ("base", "weights", "density", *EXPERTS)
METHODS = {
    "chat-vector": MergeMethod(
        "model + weight (instruct - base)",
        "Huang et al., ACL 2024",
        ("base", "instruct", "weights"),
        ("instruct",),
        several=False,
    ),
    "skill": MergeMethod(
        "model + weight (skill - base)",
        "Huang et al., EMNLP 2023",
        ("base", "skill", "weights"),
        ("skill",),
        several=False,
    ),
    "task-arithmetic": MergeMethod(
        "base + sum of weight (model - base)",
        "Ilharco et al., ICLR 2023",
        ("base", "weights", *EXPERTS),
        several=None,
        weight=0.4,
        joins_tasks=True,
    ),
    "interpolation": MergeMethod(
        "(1 - alpha) base + alpha model",
        "Wortsman et al., CVPR 2022",
        ("base", "alpha", "alphas", *PATH),
        several=False,
    ),
    "soup": MergeMethod(
        "weighted mean of the models", "Wortsman et al., ICML 2022", ("weights", *EXPERTS), weight=None
    ),
    "greedy-soup": MergeMethod(
        "mean of the models that do not lower the dev score of the mean, added from the best to the worst",
        "Wortsman et al., ICML 2022",
        ("data", "metric"),
        ("data",),
    ),
    "fisher": MergeMethod(
        "mean of the models, each parameter weighted by its Fisher information",
        "Matena and Raffel, NeurIPS 2022",
        ("data", "weights", *EXPERTS),
        ("data",),
        weight=None,
        joins_tasks=True,
    ),
    "ties": MergeMethod(
        "base + TIES of the differences to it",
        "Yadav et al., NeurIPS 2023",
        (*_SPARSE, "trim"),
        several=None,
        joins_tasks=True,
    ),
    "dare-linear": MergeMethod(
        "base + weighted sum of the differences to it after DARE",
        "Yu et al., ICML 2024",
        _SPARSE,
        several=None,
        weight=None,
        joins_tasks=True,
    ),
    "dare-ties": MergeMethod(
        "base + TIES of the differences to it after DARE",
        "Yu et al., ICML 2024",
        _SPARSE,
        several=None,
        joins_tasks=True,
    ),
    "layers": MergeMethod(
        "embeddings and first layers of the domain model, all else of the model",
        "Vast et al., ECIR 2024",
        ("domain_model", "layers"),
        ("domain_model",),
        several=False,
        joins_tasks=True,
    ),
    "memory": MergeMethod(
        "(1 - alpha) p + alpha p of the memory, for every token",
        "Cao et al., 2025",
        ("memory", "alphas", *PATH),
        ("memory", "alphas", *PATH),
        several=False,
    ),
}
"""The methods, by name."""
OTHER_MODELS = ("instruct", "skill", "domain_model", "memory")
"""Options that name a further model."""
DENSITY = 0.2
"""Share of a difference that is kept (Yadav et al., NeurIPS 2023)."""
LAYERS = 2
"""Layers that are taken from the domain model (Vast et al., ECIR 2024)."""
TOP = 2
"""Models that are merged of those that are ranked."""
WHAT = {
    "instruct": "the instruction-tuned model",
    "skill": "the model that has it",
    "domain_model": "the model that was adapted to the domain",
    "memory": "the memory",
    "alphas": "the shares of the memory to measure",
    **dict.fromkeys(PATH, "held-out text to measure on"),
    "data": "labelled tasks or text to measure the models on",
}
"""What the options are that a method needs, for messages."""

if TYPE_CHECKING:
    Data = Any
    Folders = str | Path | Sequence[str | Path]
    Weights = float | Sequence[float]
    Shares = float | Sequence[float]
else:
    Data = tuple[Any, ...]
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


@options
class MergeOptions(LabelOptions):
    """Options of :func:`acclimate.merge`."""

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
        str,
        Option(
            "Method: chat-vector, skill, task-arithmetic, interpolation, soup, greedy-soup, fisher, ties, "
            "dare-linear, dare-ties, layers or memory.",
            METHOD,
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
            default="1; 0.4 for task-arithmetic; equal shares for soup, fisher and dare-linear",
            more="Those of a soup or of fisher are divided by their sum. With task-arithmetic, a negative one takes "
            "away what a model learned.",
            flag="--weight",
            many=True,
        ),
    ] = None
    domain_model: Annotated[
        str | Path | None,
        Option("Model whose embeddings and first layers the result gets, for layers.", MODEL),
    ] = None
    memory: Annotated[
        str | Path | None,
        Option(
            "Smaller model of the same tokens whose predictions are mixed with those of --model, for memory.",
            MODEL,
            more="The method ``memory`` of ``adapt`` trains one.",
        ),
    ] = None
    layers: Annotated[
        Annotated[Integer, Field(ge=0, le=10_000)] | None,
        Option("Number of layers, counted from the embeddings, that layers takes.", METHOD, default=str(LAYERS)),
    ] = None
    alpha: Annotated[
        Annotated[Number, Field(ge=0, le=1)] | None,
        Option("Share of the adapted model in an interpolation; 0 is the base model.", METHOD),
    ] = None
    alphas: Annotated[
        Annotated[Shares, Field(min_length=1)] | None,
        BeforeValidator(lambda value: value if value is None else _read_numbers(value)),
        Option(
            "Shares at which an interpolation or a memory is measured on --domain and --general, such as 0.25,0.5.",
            METHOD,
            more="0 and 1 are always included. Without ``alpha``, only the measurements are written.",
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
    metric: Annotated[
        str | None,
        Option("Metric of the dev split that decides a greedy soup.", METHOD, default="the first one of the task"),
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
    text_column: TextColumn = "text"
    encoding: Encoding = None
    density: Annotated[
        Fraction | None,
        Option("Share of each difference to the base model that ties and dare keep.", METHOD, default=str(DENSITY)),
    ] = None
    trim: Annotated[
        Literal["tensor", "model"] | None,
        Option(
            "Where ties keeps the largest entries: of each tensor, or of the whole model, which reads it twice more.",
            METHOD,
            default="tensor, as peft and mergekit do; the paper: model",
        ),
    ] = None
    seed: Annotated[Seed, Option("Random seed of dare, and of labels that fisher samples.", METHOD)] = 0
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
    name, models = options.method, options.models
    if name not in METHODS:
        raise unknown_name_error("method of merging", name, METHODS)
    method = METHODS[name]
    for option in dict.fromkeys(option for every in METHODS.values() for option in every.uses):
        if getattr(options, option) is not None and option not in method.uses:
            users = ", ".join(user for user, other in METHODS.items() if option in other.uses)
            raise UserError(f"'{option}' does not apply to {name}, only to {users}; leave it out.")
    if method.several is not None and method.several == (len(models) == 1):
        expected = "several models" if method.several else "one --model"
        raise UserError(f"{name} needs {expected}, not {len(models)}.")
    for option in method.needs:
        if getattr(options, option) is None:
            raise UserError(f"{name} needs {WHAT[option]}; give it with --{option.replace('_', '-')}.")
    _check_numbers(options, len(models))
    if name == "interpolation":
        _check_path(options)
    _check_experts(options, len(models))


def _check_numbers(options: MergeOptions, models: int) -> None:
    weights: Any = options.weights
    data: Any = options.data
    if weights is not None and len(weights) != models:
        raise UserError(f"There are {len(weights)} weights for {models} models; give one for each.")
    if weights is not None and options.method in ("soup", "fisher") and (min(weights) < 0 or not sum(weights) > 0):
        raise UserError(f"The weights of a {options.method} must be at least 0, and not all 0.")
    if data is not None and len(data) not in ((1,) if options.method == "greedy-soup" else (1, models)):
        wanted = "one" if options.method == "greedy-soup" else f"one for all models, or one for each of the {models}"
        raise UserError(f"There are {len(data)} --data; give {wanted}.")


def _check_experts(options: MergeOptions, models: int) -> None:
    if options.target is None:
        if given := next((name for name in EXPERTS if getattr(options, name) is not None), None):
            raise UserError(f"'{given}' is only read with 'target'; give it, or leave '{given}' out.")
        return
    if options.weights is not None:
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


def _check_path(options: MergeOptions) -> None:
    if options.alpha is None and options.alphas is None:
        raise UserError("interpolation needs --alpha, or --alphas to measure several.")
    given = [name for name in PATH if getattr(options, name) is not None]
    if options.alphas is None and given:
        raise UserError(f"--{given[0]} is only read with --alphas.")
    if options.alphas is not None and len(given) < len(PATH):
        raise UserError("--alphas needs held-out text; give --domain and --general.")
