"""Options of ``plan``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from acclimate.adaptation.replay_options import MixSources
from acclimate.base.bounds import Count, Integer, NonNegative, Number, Positive, Price, SeedCount, TokenCount
from acclimate.base.options import DATA, METHOD, MODEL, TRAINING, Option, options
from acclimate.base.registry import parse_number
from acclimate.base.verbs import EVALUATE, register_group, register_verb
from acclimate.data.fields import Folder, MaxLength, Places, Progress, Seed, Strings, read_listed
from acclimate.data.reading import TextOptions

if TYPE_CHECKING:
    Points = Any
    Numbers = Sequence[float]
    Counts = Sequence[int]
    Prices = Sequence[float]
else:
    Points = Any
    Numbers = tuple[Number, ...]
    Counts = tuple[Count, ...]
    Prices = tuple[Price, ...]


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


def sort_numbers(values: Any) -> Any:
    """Return numbers in increasing order, each once."""
    return tuple(sorted(set(values)))


Settings = Annotated[
    dict[str, Any] | None,
    Option("With --run: change of the study, such as adapt.batch_size=64.", TRAINING, flag="--set"),
]

register_group(
    "plan",
    help="Extrapolate a training plan from small runs.",
    example="acclimate plan ratio --log runs.csv --target-tokens 100000000 --out plan/",
    page="docs/plan.md",
    section=EVALUATE,
    order=3,
)


@options
class PlanOptions:
    """Options of every plan."""

    log: Annotated[
        Points,
        BeforeValidator(read_points_option),
        Option(
            "Measured points: .csv or .jsonl file, results.json or folder of a study; docs/plan.md lists the columns.",
            DATA,
            more="Or rows in memory, as dictionaries or a data frame.",
            many=True,
        ),
    ] = ()
    out: Folder = None
    _: KW_ONLY
    resamples: Annotated[
        Integer, Field(ge=10, le=10_000), Option("Bootstrap samples of each fit, for the intervals.", METHOD)
    ] = 200
    seed: Annotated[Seed, Option("Random seed of fits and bootstrap.")] = 0
    progress: Progress = True


@options
class PilotOptions(PlanOptions, TextOptions):
    """Options of plans whose points may come from a study that they run themselves."""

    _: KW_ONLY
    base: Annotated[str | None, Option("Base model whose points are used, if there are several.", DATA)] = None
    domain: Annotated[str | None, Option("Domain to plan for, if there are points of several.", DATA)] = None
    run: Annotated[bool, Option("Make the runs first, as a study in --out; run again to resume.", TRAINING)] = False
    model: Annotated[str | None, Option("With --run: model folder or name on the Hugging Face Hub.", MODEL)] = None
    corpus: Annotated[
        Places, Option("With --run: domain text, as file, folder, glob or hf:NAME.", DATA, many=True)
    ] = ()
    heldout: Annotated[
        Places,
        Option(
            "With --run: domain text to measure on.", DATA, default="2 % of the documents of the corpus", many=True
        ),
    ] = ()
    seeds: Annotated[SeedCount, Option("With --run: seeds of each run.", TRAINING)] = 1
    settings: Settings = None


@register_verb(
    "plan ratio",
    "acclimate.labs.plan.pilots:plan_ratio",
    show="show_ratio",
    example=(
        "acclimate plan ratio --run --model roberta-base --corpus reviews/ --general wiki.txt --tokens 2000000 --out "
        "plan/"
    ),
    page="docs/plan.md",
    order=1,
)
@options
class RatioOptions(PilotOptions):
    """Find the largest share of domain text that keeps the loss on general text within a tolerance."""

    _: KW_ONLY
    target_tokens: Annotated[
        TokenCount | None,
        Option("Tokens of the training that is planned.", default="four times the largest measured run"),
    ] = None
    tolerance: Annotated[
        NonNegative,
        Option("Maximum rise of the loss on general text above the base model's.", METHOD, unit="nats"),
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
        Option("Loss of the base model on general text.", DATA, unit="nats", default="the loss of rows with tokens 0"),
    ] = None
    parameters: Annotated[
        Positive | None, Option("Size of the model to plan for, if the runs are of models of several sizes.", DATA)
    ] = None
    domain_tokens: Annotated[
        TokenCount | None,
        Option(
            "Tokens of domain text available: the training ends when they have been read once, instead of "
            "--target-tokens.",
            DATA,
        ),
    ] = None
    repeat: Annotated[
        bool,
        Option(
            "Repeat the text of --domain-tokens until --target-tokens; the runs have to read theirs as often.",
            METHOD,
            more="With --run the corpus is this text, and each run reads as small a part of it as the run is.",
        ),
    ] = False
    general: Annotated[
        Places,
        Option(
            "With --run: general text, as file, folder, glob or hf:NAME.",
            DATA,
            more="Some documents are measured on, and the others are replayed.",
            many=True,
        ),
    ] = ()
    tokens: Annotated[TokenCount | None, Option("With --run: tokens of all runs together; required.", TRAINING)] = None
    shares: Annotated[
        Numbers,
        BeforeValidator(read_numbers),
        AfterValidator(sort_numbers),
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


@register_verb(
    "plan mixture",
    "acclimate.labs.plan.pilots:plan_mixture",
    show="show_mixture",
    example=(
        "acclimate plan mixture --model roberta-base --corpus reviews/ --source wiki=wiki.txt --tokens 1000000 --out "
        "plan/"
    ),
    page="docs/plan.md",
    order=4,
)
@options
class MixtureOptions(TextOptions):
    """Rank mixtures of several texts by models that are simulated from one adaptation to each text."""

    _: KW_ONLY
    model: Annotated[str | None, Option("Model folder or name on the Hugging Face Hub; required.", MODEL)] = None
    corpus: Annotated[Places, Option("Domain text, as file, folder, glob or hf:NAME; required.", DATA, many=True)] = ()
    sources: MixSources = None
    out: Folder = None
    tokens: Annotated[TokenCount | None, Option("Tokens of all adaptations together; required.", TRAINING)] = None
    mixtures: Annotated[
        Integer, Field(ge=4, le=1000), Option("Mixtures to try before the search refines.", METHOD)
    ] = 16
    domain_weight: Annotated[
        Number | None,
        Field(ge=0, le=1),
        Option("Weight of the loss on domain text in the goal; the others share the rest.", METHOD, default="equal"),
    ] = None
    documents: Annotated[Count, Option("Maximum held-out documents per text.", DATA)] = 200
    max_length: MaxLength = 128
    settings: Annotated[
        dict[str, Any] | None,
        Option("Option of the adaptations, such as adapter='lora r=16' or batch_size=64.", TRAINING, flag="--set"),
    ] = None
    seed: Annotated[Seed, Option("Random seed.")] = 0
    progress: Progress = True


@register_verb(
    "plan budget",
    "acclimate.labs.plan.pilots:plan_budget",
    show="show_budget",
    example="acclimate plan budget --log scores.csv --price 0.5 --cost 20 --budget 300 --out plan/",
    page="docs/plan.md",
    order=2,
)
@options
class BudgetOptions(PilotOptions):
    """Decide between labels alone, and adapting first and labelling with what is left of a budget."""

    _: KW_ONLY
    price: Annotated[Price | None, Option("Price of one labelled example; required.", DATA)] = None
    cost: Annotated[
        Number | None,
        Field(ge=0, le=1e12),
        Option("Cost of the adaptation, in the same currency as --price.", DATA),
    ] = None
    hour_price: Annotated[
        Price | None, Option("Price of an hour of this machine, instead of --cost: times the measured time.", DATA)
    ] = None
    budget: Annotated[
        Prices,
        BeforeValidator(read_numbers),
        AfterValidator(sort_numbers),
        Option("Budget to spend, such as 500 or 500,2000.", DATA, default="only the switch-over is found", many=True),
    ] = ()
    max_labels: Annotated[Count | None, Option("Examples available to label.", DATA, default="no limit")] = None
    task: Annotated[
        str | None,
        Option("Task whose points are used, if there are several; with --run a folder, file or hf:NAME.", DATA),
    ] = None
    method: Annotated[str | None, Option("Method whose points are used, if there are several.", DATA)] = None
    seeds: Annotated[
        SeedCount, Option("With --run: seeds of each run, each with an adaptation of its own (at most 3).", TRAINING)
    ] = 3
    labels: Annotated[
        Counts,
        BeforeValidator(read_numbers),
        AfterValidator(sort_numbers),
        Option("With --run: numbers of labelled examples.", TRAINING, default="50,100,200,400,800", many=True),
    ] = (50, 100, 200, 400, 800)
    tokens: Annotated[
        TokenCount | None,
        Option("With --run: tokens of the adaptation.", TRAINING, default="one pass over the corpus"),
    ] = None


@register_verb(
    "plan schedule",
    "acclimate.labs.plan.pilots:plan_schedule",
    show="show_schedule",
    example="acclimate plan schedule --log short/ --log shorter/ --schedule 'linear steps=20000 peak=1e-4'",
    page="docs/plan.md",
    order=3,
)
@options
class ScheduleOptions(PlanOptions):
    """Predict the loss of trainings with other learning-rate schedules from the logs of some."""

    _: KW_ONLY
    schedule: Annotated[
        Strings,
        BeforeValidator(read_listed),
        Option(
            "Schedule to predict, as 'NAME steps=2000 peak=3e-4 warmup=0.1'; NAME is linear, cosine, constant or wsd.",
            METHOD,
            default="linear with the measured peak and half of it, for 1, 2 and 4 times the measured steps",
            many=True,
        ),
    ] = ()
    loss: Annotated[
        str | None,
        Option("Column of the loss.", DATA, default="the first that there is: heldout, general, eval_loss, loss"),
    ] = None
    decay: Annotated[
        Number,
        Field(gt=0, lt=1),
        Option("Factor per step at which the effect of a change of the learning rate fades.", METHOD),
    ] = 0.999
