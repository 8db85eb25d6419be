"""Options of ``auto``."""

from __future__ import annotations

from dataclasses import KW_ONLY
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator

from acclimate.base.bounds import Count, Duration, NonNegative, TokenCount, number_or_auto
from acclimate.base.options import DATA, METHOD, MODEL, OUTPUT, TRAINING, Option, options
from acclimate.base.verbs import EVALUATE, register_verb
from acclimate.data.fields import Progress, Require, Seed, Strings, read_names, text_option
from acclimate.data.reading import LabelOptions, TextOptions
from acclimate.study.options import MAX_WORKERS, Keep, ReportTo

_text = partial(text_option, more="Or texts in memory.")


@register_verb(
    "auto",
    "acclimate.labs.auto.auto:auto",
    show="show_auto",
    example=(
        "acclimate auto --model roberta-base --corpus reviews/ --task tasks/restaurant --general wiki.txt --minutes "
        "120 --forget-at-most 0.05 --out runs/auto"
    ),
    page="docs/auto.md",
    section=EVALUATE,
    order=4,
)
@options
class AutoOptions(LabelOptions, TextOptions):
    """Race ways to adapt a model under a budget; return the best one with a proof, or the base model.

    Run it again to resume after an interruption.
    """

    model: Annotated[str | Path, Option("Base model: folder or name on the Hugging Face Hub.", MODEL)]
    corpus: Annotated[Any, _text("Domain text")]
    task: Annotated[
        Any,
        Option(
            "Labelled task with a dev split: folder, file or hf:NAME; data.csv:body names the text column.",
            DATA,
            more="Or one in memory: a Dataset, a data frame, a list of rows, or one of these by split. Of several "
            "tasks the mean of the scores counts.",
            many=True,
        ),
    ]
    out: Annotated[str | Path, Option("Output directory.", OUTPUT)]
    _: KW_ONLY
    minutes: Annotated[
        Duration,
        Option("Time for everything; this machine is timed, and entrants and tokens are cut to fit."),
    ]
    heldout: Annotated[Any, _text("Domain text to measure on", default="2 % of the documents of the corpus")] = ()
    general: Annotated[Any, _text("General text, to measure forgetting and to replay", default="not measured")] = ()
    forget_at_most: Annotated[
        NonNegative | None,
        Option(
            "Largest increase of the loss on general text that is accepted, in nats per token.",
            METHOD,
            default="measured, without a limit",
            more="The upper bound of its confidence interval has to be below it; else the base model is returned.",
        ),
    ] = None
    test: Annotated[
        bool,
        Option(
            "Make the claim on the test split, not on the half of the dev split that the race has not read.",
            DATA,
        ),
    ] = False
    instruct: Annotated[
        str | Path | None,
        Option("Instruction-tuned model of the same base, whose chat vector is added afterwards.", METHOD),
    ] = None
    methods: Annotated[
        Strings,
        BeforeValidator(read_names),
        Option(
            "Methods that may take part besides plain lm, such as tapt,dga; lm itself stands for its variants.",
            METHOD,
            default="all that fit",
            many=True,
        ),
    ] = ()
    tokens: Annotated[
        TokenCount | None, Option("Maximum tokens per adaptation.", default="one pass over the corpus")
    ] = None
    settings: Annotated[
        dict[str, Any] | None,
        Option(
            "Change of a value of the studies, such as finetune.epochs=2 or domains.0.tasks.0.limit_train=2000.",
            TRAINING,
            more="See :func:`acclimate.study.changes.change_values`.",
            flag="--set",
        ),
    ] = None
    keep: Keep = None
    require: Require = ()
    report_to: ReportTo = None
    seed: Seed = 0
    workers: Annotated[
        int | str | None,
        number_or_auto(MAX_WORKERS),
        Option(
            "Number of processes that compute the jobs, each with its own GPU and share of the cores, or auto.",
            TRAINING,
            default="this process computes them",
        ),
    ] = None
    per_gpu: Annotated[
        Count | None, Option("Workers on each GPU, which share its memory.", default="as few as possible")
    ] = None
    dry_run: Annotated[bool, Option("Time this machine, print the plan, and train nothing else.", OUTPUT)] = False
    progress: Progress = True
    backend: Annotated[
        Any, Option("The expensive functions.", TRAINING, default="the functions of this package", cli=False)
    ] = None
