"""Options of ``inspect instructions`` and ``inspect benchmarks``."""

from __future__ import annotations

from dataclasses import KW_ONLY
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from acclimate.base.bounds import Count, Integer, Size
from acclimate.base.options import DATA, METHOD, MODEL, TRAINING, Option, options
from acclimate.base.verbs import register_verb
from acclimate.data.fields import JsonFile, Model, Strings, read_counts, read_listed


@register_verb(
    "inspect instructions",
    "acclimate.labs.benchmarks.instructions:inspect_instructions",
    show="show_instructions",
    example="acclimate inspect instructions --model adapted/ --base HuggingFaceTB/SmolLM2-135M-Instruct",
    page="docs/decoders.md",
    order=7,
)
@options
class InspectInstructionsOptions:
    """Measure how many instructions a chat model follows, and compare it with its base model."""

    model: Model
    base: Annotated[str | Path | None, Option("Base model to compare with.", MODEL)] = None
    out: JsonFile = None
    _: KW_ONLY
    prompts: Annotated[
        str | Path | None,
        Option(
            "JSONL file of instructions.",
            DATA,
            default="those that are included",
            more="Each line is an object with ``prompt`` and ``checks``, a list of checks of "
            ":data:`acclimate.evaluation.instructions.CHECKS` with their arguments.",
        ),
    ] = None
    max_tokens: Annotated[Count, Option("Maximum tokens of an answer.", METHOD)] = 160


@register_verb(
    "inspect benchmarks",
    "acclimate.labs.benchmarks.harness:inspect_benchmarks",
    show="show_benchmarks",
    example="acclimate inspect benchmarks --model adapted/ --base gpt2 --task hellaswag --task arc_easy",
    page="docs/decoders.md",
    order=8,
)
@options
class InspectBenchmarksOptions:
    """Run multiple-choice and generation tasks of lm-eval, and compare a model with its base model item by item."""

    model: Model
    tasks: Annotated[
        Strings,
        BeforeValidator(read_listed),
        Field(min_length=1),
        Option("Name of a task of lm-eval.", DATA, flag="--task", many=True),
    ]
    base: Annotated[str | Path | None, Option("Base model to compare with.", MODEL)] = None
    out: JsonFile = None
    _: KW_ONLY
    include_path: Annotated[str | Path | None, Option("Folder with more tasks of lm-eval, as YAML files.", DATA)] = (
        None
    )
    few_shot: Annotated[
        tuple[Annotated[Integer, Field(ge=0, le=1000)], ...] | None,
        BeforeValidator(read_counts),
        Option(
            "Solved examples before each item, such as 5, or 0,5: of several, each model gets the best on dev.",
            METHOD,
            default="the task's number",
        ),
    ] = None
    limit: Annotated[Count | None, Option("Maximum items per task.", DATA, default="all")] = None
    chat_template: Annotated[
        Literal["no", "yes", "choose"],
        BeforeValidator(lambda value: ("no", "yes")[value] if isinstance(value, bool) else value),
        Option("Whether to ask through the chat template, or what is better for each model on dev.", METHOD),
    ] = "no"
    backend: Annotated[
        Literal["transformers", "vllm"],
        Option(
            "What runs the model; vLLM needs the extra vllm and a GPU.",
            TRAINING,
            more="It has been tested with a replacement of the package only, on no device.",
        ),
    ] = "transformers"
    batch_size: Annotated[Size, Option("Sequences per forward pass.", METHOD)] = 8
