"""Options of ``periods``: dated text and tasks, divided into periods of time."""

from __future__ import annotations

from dataclasses import KW_ONLY
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from acclimate.base.bounds import Count, Duration, Fraction, SeedCount, Size
from acclimate.base.options import DATA, METHOD, MODEL, OUTPUT, Option, options
from acclimate.base.verbs import PUBLISH, register_group, register_verb
from acclimate.data.fields import Folder, MaxLength, Models, Progress, Seed, TextInput, read_models
from acclimate.data.reading import ReadingOptions, TextOptions
from acclimate.tasks.options import SupervisedOptions, TaskLike

DatedText = Annotated[
    TextInput,
    Option(
        "Text with dates: file, folder, glob or hf:NAME of rows such as JSON lines, CSV or Parquet.",
        DATA,
        more="Or rows in memory, as a data frame or a list of dictionaries.",
        flag="--corpus",
        many=True,
    ),
]
DatedTask = Annotated[
    TaskLike | str | Path,
    Option(
        "Labelled task whose rows have dates: a folder, a file, or hf:NAME; all its splits are read.",
        DATA,
        more="Or rows in memory.",
    ),
]
TestShare = Annotated[Fraction, Field(lt=1)]

register_group(
    "periods",
    help="Divide dated text and tasks into periods, and measure how models age.",
    example="acclimate periods gap --model roberta-base --task dated.csv --by year",
    page="docs/time.md",
    section=PUBLISH,
    order=2,
)


@options
class PeriodOptions:
    """Options for reading dates and dividing time into periods."""

    _: KW_ONLY
    by: Annotated[
        str,
        Option(
            "Periods: decade, year, quarter or month; or the dates at which new ones begin, as in 2008,2016-07.",
            DATA,
        ),
    ] = "year"
    least: Annotated[Count, Option("Minimum documents or rows of a period; others are left out and named.", DATA)] = 50
    date_column: Annotated[
        str | None, Option("Column of the date.", DATA, default="date, or a usual name such as created_at")
    ] = None
    date_format: Annotated[
        str | None,
        Option(
            "Format of the dates as in strptime, such as %d/%m/%Y.",
            DATA,
            default="ISO 8601, years, quarters, seconds since 1970 and names of months",
        ),
    ] = None


@register_verb(
    "periods split",
    "acclimate.labs.periods.split:periods_split",
    show="show_split",
    example="acclimate periods split --corpus posts.jsonl --by year --out years/",
    page="docs/time.md",
    order=1,
)
@options
class PeriodsSplitOptions(PeriodOptions, TextOptions):
    """Write rows with dates as one file per period."""

    corpus: DatedText
    out: Annotated[str | Path, Option("Output directory, with a file of JSON lines per period.", OUTPUT)]
    _: KW_ONLY
    progress: Progress = True


@options
class TemporalTaskOptions(SupervisedOptions, PeriodOptions, ReadingOptions):
    """Options of experiments that fine-tune on the rows of one period and evaluate on other periods."""

    _: KW_ONLY
    seeds: Annotated[SeedCount, Option("Number of seeds, counted from 0.")] = 3
    test_share: Annotated[TestShare, Option("Share of the rows of each period that a model is tested on.", DATA)] = 0.3


@register_verb(
    "periods gap",
    "acclimate.labs.periods.gap:periods_gap",
    show="show_gap",
    example="acclimate periods gap --model roberta-base --task dated.csv --by year --out gap/",
    page="docs/time.md",
    order=2,
    without=("seed",),
)
@options
class PeriodsGapOptions(TemporalTaskOptions):
    """Fine-tune on each period and score on all of them: how much worse models get with their age.

    All models learn from the same number of rows and are tested on the same rows; differences have intervals over
    rows and seeds.
    """

    model: Annotated[str | Path, Option("Model folder or name on the Hugging Face Hub.", MODEL)]
    task: DatedTask
    out: Folder = None
    _: KW_ONLY
    train_size: Annotated[
        Count | None,
        Option(
            "Train rows of each period, drawn at random for each seed.",
            DATA,
            default="as many as the smallest period has, so that periods differ in age and not in size",
        ),
    ] = None


@register_verb(
    "periods self-train",
    "acclimate.labs.periods.self_training:periods_self_train",
    show="show_self_training",
    example="acclimate periods self-train --model roberta-base --task dated.csv --by year --out updated/",
    page="docs/time.md",
    order=3,
    without=("seed",),
)
@options
class PeriodsSelfTrainOptions(TemporalTaskOptions):
    """Carry the labels of the first period to later ones by labels that the model predicts, and test on all.

    True labels of later periods only test. Each difference compares with the model of the first period.
    """

    model: Annotated[str | Path, Option("Model folder or name on the Hugging Face Hub.", MODEL)]
    task: DatedTask
    out: Annotated[str | Path, Option("Output directory, with the model of the last period for each seed.", OUTPUT)]
    _: KW_ONLY
    corpus: Annotated[
        TextInput | None,
        Option(
            "Text with dates and without labels, to learn later periods from.",
            DATA,
            default="the train rows of later periods, without their labels",
            many=True,
        ),
    ] = None
    confidence: Annotated[
        Fraction, Option("Minimum probability of a predicted label that the next model learns.", METHOD)
    ] = 0.9
    start: Annotated[
        Literal["previous", "base"],
        Option(
            "Where the model of a period starts: from the model of the previous period, or from the base model.",
            METHOD,
        ),
    ] = "previous"
    learn: Annotated[
        Literal["all", "new"],
        Option(
            "What the model of a period learns: labels of the first period and of all periods so far, or only the new "
            "ones.",
            METHOD,
        ),
    ] = "all"
    documents: Annotated[Count, Option("Maximum unlabelled documents per period, drawn at random.", DATA)] = 5_000


@register_verb(
    "periods surprisal",
    "acclimate.labs.periods.surprisal:periods_surprisal",
    show="show_surprisal",
    example="acclimate periods surprisal --model roberta-base --corpus posts.jsonl --by year --out surprisal/",
    page="docs/time.md",
    order=4,
    plugins=True,
)
@options
class PeriodsSurprisalOptions(PeriodOptions, TextOptions):
    """Adapt a model to the text of each period, and measure held-out text of all periods under each of them.

    The losses show how language changes, and the model that is surprised least is a guess of the date of a text.
    """

    models: Annotated[
        Models,
        BeforeValidator(read_models),
        Option(
            "Base model, of which one is adapted to each period; or several models of periods, as 2019=FOLDER.",
            MODEL,
            more="Or folders by name.",
            flag="--model",
            many=True,
        ),
    ]
    corpus: DatedText
    out: Annotated[str | Path, Option("Output directory, with the models and what was measured.", OUTPUT)]
    _: KW_ONLY
    method: Annotated[str, Option("Method of adaptation; `acclimate methods` lists them.", METHOD)] = "lm"
    epochs: Annotated[Duration, Option("Passes over the text of each period.")] = 1
    documents: Annotated[
        Count | None,
        Option(
            "Documents of each period to adapt to, drawn at random.",
            DATA,
            default="as many as the smallest period has, so that periods differ in age and not in size",
        ),
    ] = None
    heldout: Annotated[
        TestShare,
        Option(
            "Share of the text of each period that is measured and not adapted to; texts of one day stay together.",
            DATA,
        ),
    ] = 0.1
    measured: Annotated[Size, Option("Maximum held-out documents of each period.", DATA)] = 200
    max_length: MaxLength = 128
    seed: Seed = 0
    progress: Progress = True


@register_verb(
    "periods questions",
    "acclimate.labs.periods.questions:periods_questions",
    show="acclimate.labs.periods.dated_tasks:show_periods",
    example="acclimate periods questions --model gpt2 --model adapted/ --questions news.jsonl --by 2023-06",
    page="docs/time.md",
    order=5,
)
@options
class PeriodsQuestionsOptions(PeriodOptions, ReadingOptions):
    """Answer dated multiple-choice questions with decoders as they are: what they know of each period.

    The first model, such as the base model, is what the others are compared with, question by question.
    """

    models: Annotated[
        Models,
        BeforeValidator(read_models),
        Option(
            "Decoder, as FOLDER or NAME=FOLDER; the others are compared with the first.",
            MODEL,
            more="Or folders by name.",
            flag="--model",
            many=True,
        ),
    ]
    task: Annotated[
        TaskLike | str | Path,
        Option(
            "Multiple-choice questions with the dates of their answers: a file, a folder, or hf:NAME.",
            DATA,
            more="Or rows in memory.",
            flag="--questions",
        ),
    ]
    out: Folder = None
    _: KW_ONLY
    max_length: Annotated[Size | None, Option("Maximum tokens of a question with one choice.", DATA)] = None
    progress: Progress = True
