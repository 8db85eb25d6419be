"""Options of ``inspect specificity``, ``task-words``, ``sensitivity`` and ``review``."""

from __future__ import annotations

from dataclasses import KW_ONLY
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import BeforeValidator, Field

from acclimate.base.bounds import Count, Fraction, Integer, Number, SeedCount
from acclimate.base.options import DATA, METHOD, MODEL, Option, options
from acclimate.base.verbs import register_verb
from acclimate.data.fields import (
    JsonFile,
    MaxLength,
    Models,
    PilotBatch,
    PilotMethod,
    PilotRate,
    PilotSeed,
    Progress,
    Seed,
    StopWords,
    TextInput,
    Texts,
    read_listed,
    read_models,
)
from acclimate.data.reading import LabelOptions, ReadingOptions, TextOptions
from acclimate.tasks.options import TaskLike

if TYPE_CHECKING:
    from collections.abc import Sequence

    Numbers = Sequence[float]
    Budgets = Sequence[float]
else:
    Numbers = tuple[Annotated[Number, Field(gt=0, lt=10)], ...]
    Budgets = tuple[Fraction, ...]

Before = Annotated[str | Path, Option("Base model: folder or name on the Hugging Face Hub.", MODEL)]
After = Annotated[str | Path, Option("Adapted model: folder or name on the Hugging Face Hub.", MODEL)]
Task = Annotated[TaskLike | str | Path, Option("Labelled task: a folder, a file, or hf:NAME.", DATA)]


@register_verb(
    "inspect specificity",
    "acclimate.labs.inspection.specificity:inspect_specificity",
    show="show_specificity",
    example=(
        "acclimate inspect specificity --before roberta-base --task tickets.csv --general general.txt --corpus "
        "tickets/"
    ),
    page="docs/analyses.md",
    order=9,
)
@options
class InspectSpecificityOptions(LabelOptions, TextOptions):
    """Measure whether adapting to a domain helps with the text of a task, beyond general text."""

    before: Before
    task: Annotated[
        TaskLike | str | Path,
        Option("Labelled task: a folder, a file, or hf:NAME; only the texts of its train split are read.", DATA),
    ]
    general: Annotated[TextInput, Option("General text: file, folder, glob or hf:NAME.", DATA, many=True)]
    after: Annotated[
        str | Path | None,
        Option(
            "Adapted model: folder or name on the Hugging Face Hub.",
            MODEL,
            default="the model of a pilot adaptation to --corpus",
        ),
    ] = None
    out: JsonFile = None
    _: KW_ONLY
    corpus: Annotated[
        TextInput | None,
        Option("Domain text for the pilot: file, folder, glob or hf:NAME.", DATA, default="no pilot", many=True),
    ] = None
    pilot_steps: Annotated[
        Integer,
        Field(ge=1, le=10**6),
        Option("Optimizer steps of the pilot.", more="The model of the pilot is discarded."),
    ] = 200
    batch_size: PilotBatch = 32
    learning_rate: PilotRate = None
    method: PilotMethod = "lm"
    documents: Annotated[Count, Option("Documents on which each loss is measured.", DATA)] = 200
    max_length: MaxLength = 128
    seed: PilotSeed = 0
    progress: Progress = True


@register_verb(
    "inspect task-words",
    "acclimate.labs.inspection.task_words:inspect_task_words",
    show="show_task_words",
    example="acclimate inspect task-words --before roberta-base --after adapted/ --task tickets.csv",
    page="docs/analyses.md",
    order=10,
)
@options
class InspectTaskWordsOptions(ReadingOptions):
    """Measure whether an adaptation taught the words that the labels of a task depend on."""

    before: Before
    after: After
    task: Task
    out: JsonFile = None
    _: KW_ONLY
    words: Annotated[Count, Option("Number of words to choose, and of words to compare with.", METHOD)] = 100
    occurrences: Annotated[Count, Option("Maximum occurrences of a word on which its loss is measured.", DATA)] = 10
    fewest: Annotated[Count, Option("Minimum train texts that contain a word.", METHOD)] = 5
    max_length: MaxLength = 128
    stop_words: StopWords = "english"
    seed: Annotated[Seed, Option("Random seed of the sample of occurrences.")] = 0
    progress: Progress = True


@register_verb(
    "inspect sensitivity",
    "acclimate.labs.inspection.sensitivity:inspect_sensitivity",
    example="acclimate inspect sensitivity --before roberta-base --after adapted/ --corpus general.txt",
    page="docs/analyses.md",
    order=11,
)
@options
class InspectSensitivityOptions(TextOptions):
    """Measure whether an adapted model is harder to fine-tune: its loss under noise of the weights."""

    before: Before
    after: After
    text: Annotated[
        TextInput,
        Option(
            "Text on which the loss is measured, usually general text: file, folder, glob or hf:NAME.",
            DATA,
            flag="--corpus",
            many=True,
        ),
    ]
    out: JsonFile = None
    _: KW_ONLY
    scales: Annotated[
        Numbers,
        BeforeValidator(read_listed),
        Field(min_length=1),
        Option(
            "Standard deviation of the noise, relative to the root mean square of each weight matrix before.",
            METHOD,
            default="0.025, 0.05, 0.1 and 0.2",
            flag="--scale",
            many=True,
        ),
    ] = (0.025, 0.05, 0.1, 0.2)
    draws: Annotated[SeedCount, Option("Random draws of the noise; both models get the same.", METHOD)] = 5
    documents: Annotated[Count, Option("Documents on which the loss is measured.", DATA)] = 100
    max_length: MaxLength = 128
    seed: Annotated[Seed, Option("Random seed of the noise.")] = 0
    progress: Progress = True


@register_verb(
    "inspect review",
    "acclimate.labs.inspection.review:inspect_review",
    example=(
        "acclimate inspect review --result base=tuned-base/seed-0 --result adapted=tuned/seed-0 --positive hate "
        "--prevalence 0.002"
    ),
    page="docs/analyses.md",
    order=12,
)
@options
class InspectReviewOptions:
    """Score classifiers where their label is rare, and count what a budget of human review finds."""

    results: Annotated[
        Models,
        BeforeValidator(read_models),
        Field(min_length=1),
        Option(
            "Folder of a seed that finetune made, as FOLDER or NAME=FOLDER; the others are compared with the first.",
            DATA,
            more="Or folders by name. They must have the same test split.",
            flag="--result",
            many=True,
        ),
    ]
    positive: Annotated[str, Option("Positive label.", DATA)]
    prevalence: Annotated[
        Number,
        Field(gt=0, lt=1),
        Option("Prevalence of the positive label in deployment.", DATA),
    ]
    out: JsonFile = None
    _: KW_ONLY
    budgets: Annotated[
        Budgets,
        BeforeValidator(read_listed),
        Field(min_length=1),
        Option(
            "Review budgets as fractions of all texts, highest scores first.",
            METHOD,
            default="0.001, 0.005, 0.01, 0.05, 0.1 and 0.2",
            flag="--budget",
            many=True,
        ),
    ] = (0.001, 0.005, 0.01, 0.05, 0.1, 0.2)
    resamples: Annotated[Count, Option("Bootstrap resamples of the test items.", METHOD)] = 1_000
    seed: Annotated[Seed, Option("Random seed of the resamples.")] = 0


@register_verb(
    "inspect experts",
    "acclimate.labs.inspection.experts:inspect_experts",
    show="show_experts",
    example=(
        "acclimate inspect experts --expert news=a/ --expert law=b/ --corpus news=news/ --corpus law=law/ --target "
        "reviews/"
    ),
    page="docs/merging.md",
    order=6,
)
@options
class InspectExpertsOptions(TextOptions):
    """Rank models adapted to other domains by how well they fit a new one, to merge the best of them."""

    experts: Annotated[
        Models,
        BeforeValidator(read_models),
        Field(min_length=2),
        Option(
            "Model adapted to another domain, as FOLDER or NAME=FOLDER.",
            MODEL,
            more="Or folders by name.",
            flag="--expert",
            many=True,
        ),
    ]
    target: Annotated[
        TextInput,
        Option("Text of the new domain: file, folder, glob or hf:NAME.", DATA, many=True),
    ]
    out: JsonFile = None
    _: KW_ONLY
    corpora: Annotated[
        Texts | None,
        Option(
            "Text that an expert was adapted to, as NAME=TEXT, to compare the domains.",
            DATA,
            default="only the losses are compared",
            flag="--corpus",
        ),
    ] = None
    top: Annotated[Count, Option("Number of experts to propose by each measure.", METHOD)] = 2
    documents: Annotated[Count, Option("Maximum documents of each text.", DATA)] = 200
    encoder: Annotated[
        str | Path | None,
        Option("Model that embeds the texts.", MODEL, default="TF-IDF, reduced by a singular value decomposition"),
    ] = None
    max_length: MaxLength = 128
    progress: Progress = True
