"""Options of ``plan``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from acclimate.options.declaration import DATA, METHOD, MODEL, OUTPUT, TRAINING, Option, options
from acclimate.options.inspection import Folder
from acclimate.options.numbers import (
    Integer,
    NonNegative,
    Number,
    Positive,
    SeedCount,
    TokenCount,
)
from acclimate.options.studies import Places
from acclimate.options.training import Progress, Seed
from acclimate.registry import parse_number

if TYPE_CHECKING:
    Points = Any
    Numbers = Sequence[float]
else:
    Points = Any
    Numbers = tuple[Number, ...]


def read_points_option(value: Any) -> Any:
    """Return sources of points as a tuple; data frames, and rows in memory, stay as they are."""
    if isinstance(value, Mapping) or not isinstance(value, Iterable) or isinstance(value, str | bytes):
        return (value,)
    return value if hasattr(value, "columns") else tuple(value)


def read_numbers(value: Any) -> Any:
    """Return numbers as a tuple; they are given as a list, as one text such as ``"0.2,0.5,1"``, or both."""
    items = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    parts = [part for item in items for part in (item.split(",") if isinstance(item, str) else [item])]
    return tuple(parse_number(part) for part in parts if part != "")


def check_increasing(values: Any) -> Any:
    """Return numbers in increasing order, each once."""
    return tuple(sorted(set(values)))


Log = Annotated[
    Points,
    BeforeValidator(read_points_option),
    Option(
        "Measured points: .csv or .jsonl file, results.json or folder of a study.",
        DATA,
        more="Or rows in memory, as dictionaries or a data frame. docs/plan.md lists the columns.",
        many=True,
    ),
]
Resamples = Annotated[
    Integer, Field(ge=20, le=10_000), Option("Bootstrap samples of each fit, for the intervals.", METHOD)
]
AsJson = Annotated[bool, Option("Print the plan as JSON.", OUTPUT, flag="--json")]
Base = Annotated[str | None, Option("Base model whose points are used, if there are several.", DATA)]
Domain = Annotated[str | None, Option("Domain to plan for, if there are points of several.", DATA)]
Settings = Annotated[
    dict[str, Any] | None,
    Option("Further setting of the runs that --run makes, such as adapt.batch_size=64.", TRAINING, flag="--set"),
]
Run = Annotated[bool, Option("Make the runs first, as a study in --out; run again to resume.", TRAINING)]
Model = Annotated[str | None, Option("With --run: model folder or name on the Hugging Face Hub.", MODEL)]
Corpus = Annotated[Places, Option("With --run: domain text, as file, folder, glob or hf:NAME.", DATA, many=True)]
General = Annotated[
    Places,
    Option(
        "With --run: general text, as file, folder, glob or hf:NAME.",
        DATA,
        more="Some documents are measured on, and the others are replayed.",
        many=True,
    ),
]
Heldout = Annotated[
    Places,
    Option("With --run: domain text to measure on.", DATA, default="2 % of the documents of the corpus", many=True),
]


@options
class RatioOptions:
    """Options of :func:`acclimate.plan_ratio`."""

    log: Log = ()
    out: Folder = None
    _: KW_ONLY
    target_tokens: Annotated[
        TokenCount | None,
        Option("Tokens of the training that is planned.", default="four times the largest measured run"),
    ] = None
    tolerance: Annotated[
        NonNegative,
        Option("How much the loss on general text may rise above that of the base model.", METHOD, unit="nats"),
    ] = 0.05
    law: Annotated[
        Literal["auto", "cmr", "dcpt", "cross-domain"],
        Option(
            "Law to fit; auto is cmr or dcpt, whichever predicts the largest runs better from the smaller ones.",
            METHOD,
        ),
    ] = "auto"
    base_loss: Annotated[
        Positive | None,
        Option("Loss of the base model on general text.", DATA, unit="nats", default="that of rows with tokens 0"),
    ] = None
    base: Base = None
    domain: Domain = None
    parameters: Annotated[
        Positive | None, Option("Size of the model to plan for, if the runs are of models of several sizes.", DATA)
    ] = None
    domain_tokens: Annotated[
        TokenCount | None,
        Option(
            "Tokens of domain text that there are: the training ends when they are read once, in place of "
            "--target-tokens.",
            DATA,
        ),
    ] = None
    run: Run = False
    model: Model = None
    corpus: Corpus = ()
    general: General = ()
    heldout: Heldout = ()
    tokens: Annotated[TokenCount | None, Option("With --run: tokens of all runs together; required.", TRAINING)] = None
    shares: Annotated[
        Numbers,
        BeforeValidator(read_numbers),
        AfterValidator(check_increasing),
        Option(
            "With --run: shares of domain text, such as 0.2,0.6,1.",
            TRAINING,
            default="0.1,0.3,0.5,0.75,1",
            many=True,
        ),
    ] = (0.1, 0.3, 0.5, 0.75, 1.0)
    budgets: Annotated[
        Integer,
        Field(ge=3, le=8),
        Option("With --run: numbers of tokens per run, each a quarter of the next.", TRAINING),
    ] = 4
    seeds: Annotated[SeedCount, Option("With --run: adaptations of each share and number of tokens.", TRAINING)] = 1
    settings: Settings = None
    resamples: Resamples = 200
    seed: Annotated[Seed, Option("Random seed of fits and bootstrap.")] = 0
    as_json: AsJson = False
    progress: Progress = True
