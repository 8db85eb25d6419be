"""Options of ``judge``."""

from __future__ import annotations

from dataclasses import KW_ONLY
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field

from acclimate.base.bounds import Positive
from acclimate.base.options import DATA, METHOD, OUTPUT, Option, options
from acclimate.base.verbs import EVALUATE, register_verb
from acclimate.data.fields import Places, Require, Strings, read_names


@register_verb(
    "judge",
    "acclimate.labs.judge.judging:judge",
    show="show_judge",
    example="acclimate judge base.csv tuned.csv --require 'mmlu > 0' --out runs/judge",
    page="docs/judge.md",
    section=EVALUATE,
    order=5,
)
@options
class JudgeOptions:
    """Compare finished evaluations, also of other tools, item by item: which differences are true?"""

    logs: Annotated[
        Places,
        Field(min_length=2),
        Option(
            "Evaluations of the reference, then of each model that is compared with it: a file, a folder or a pattern "
            "of files, as PATH or NAME=PATH.",
            DATA,
            flag="A B",
            more="Several runs of one side are its seeds or adaptations.",
            many=True,
        ),
    ]
    out: Annotated[
        str | Path | None, Option("Output directory for the report and tables.", OUTPUT, default="nothing is saved")
    ] = None
    _: KW_ONLY
    require: Require = ()
    power: Annotated[
        Positive | None,
        Option(
            "Difference in percentage points, or in the unit of other scores: show how many items and runs would be "
            "needed to see it.",
            METHOD,
            more="With a probability of 80 %, from the variances of this comparison.",
        ),
    ] = None
    metrics: Annotated[
        Strings,
        BeforeValidator(read_names),
        Option(
            "Metric to compare; of several, the first that a task has decides.",
            DATA,
            default="all, and the first one decides",
            flag="--metric",
            many=True,
        ),
    ] = ()
    lower: Annotated[
        Strings,
        BeforeValidator(read_names),
        Option(
            "Metric of which lower is better.",
            DATA,
            more="Losses, perplexities and error rates are known; the output says which.",
            default="those with the name of a loss or an error",
            flag="--lower",
            many=True,
        ),
    ] = ()
