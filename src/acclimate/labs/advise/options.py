"""Options of ``advise``."""

from __future__ import annotations

from dataclasses import KW_ONLY
from pathlib import Path
from typing import Annotated

from pydantic import Field

from acclimate.base.bounds import Count, Integer
from acclimate.base.options import DATA, METHOD, MODEL, Option, options
from acclimate.base.verbs import EVALUATE, PUBLISH, register_verb
from acclimate.data.fields import (
    JsonFile,
    MaxLength,
    Model,
    PilotBatch,
    PilotMethod,
    PilotRate,
    PilotSeed,
    Places,
    Progress,
    StopWords,
    TextInput,
    text_option,
)
from acclimate.data.reading import LabelOptions, TextOptions
from acclimate.tasks.options import TaskLike


@register_verb(
    "advise",
    "acclimate.labs.advise.advice:advise",
    show="show_advice",
    example="acclimate advise --model roberta-base --corpus reviews/ --general wiki.txt --out advice.json",
    page="docs/guides/domain.md",
    section=EVALUATE,
    order=2,
    plugins=True,
)
@options
class AdviseOptions(LabelOptions, TextOptions):
    """Measure how far the domain is from general text, and what a pilot adaptation learns and forgets."""

    model: Annotated[
        Model,
        Option(
            "Model folder or name on the Hugging Face Hub.",
            MODEL,
            more="For a model without a masked-LM head, a head is first trained on half of the general text, which is "
            "then excluded from the measurements.",
        ),
    ]
    corpus: Annotated[TextInput, text_option("Domain text")]
    general: Annotated[TextInput, text_option("General text")]
    task: Annotated[
        TaskLike | str | Path | None,
        Option("Labelled task: a folder, a file, or hf:NAME; its train split is inspected.", DATA),
    ] = None
    out: JsonFile = None
    _: KW_ONLY
    pilot_steps: Annotated[
        Integer,
        Field(ge=0, le=10**6),
        Option("Optimizer steps of a pilot adaptation; 0 for none.", more="The model of the pilot is discarded."),
    ] = 200
    batch_size: PilotBatch = 32
    learning_rate: PilotRate = None
    method: PilotMethod = "lm"
    documents: Annotated[Count, Option("Documents per corpus on which losses are measured.", DATA)] = 200
    plans: Annotated[
        Places,
        Option("Plan to follow: folder or plan.json of `acclimate plan`.", DATA, flag="--plan", many=True),
    ] = ()
    max_length: MaxLength = 128
    stop_words: StopWords = "english"
    seed: PilotSeed = 0
    progress: Progress = True


@register_verb(
    "methods",
    "acclimate.labs.advise.methods:methods",
    show="show_methods",
    example="acclimate methods dga",
    page="docs/methods.md",
    section=PUBLISH,
    order=3,
    plugins=True,
)
@options
class MethodsOptions:
    """List all methods by purpose, with their cost, or describe one with its paper, parameters and defaults."""

    name: Annotated[str | None, Option("Name of a method, to describe its parameters.", METHOD, flag="NAME")] = None
