"""Options of ``bench``."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Annotated

from pydantic import BeforeValidator

from acclimate.base.bounds import Duration, Size
from acclimate.base.options import METHOD, MODEL, Option, options
from acclimate.base.verbs import FIRST, PUBLISH, register_verb
from acclimate.data.fields import Precision, Progress, Strings, read_listed


@register_verb(
    "doctor",
    "acclimate.labs.bench.doctor:doctor",
    show="show_machine",
    example="acclimate doctor > machine.txt",
    page="docs/install.md",
    section=FIRST,
    order=5,
)
@options
class DoctorOptions:
    """Show versions, devices, caches and kernels for a bug report, and what would make this machine faster."""


@register_verb(
    "bench",
    "acclimate.labs.bench.bench:bench",
    show="show_speed",
    example="acclimate bench --json > bench.json",
    page="docs/cluster.md",
    section=PUBLISH,
    order=6,
    shared=True,
)
@options
class BenchOptions:
    """Measure how fast this machine trains, what limits it, and how the Trainer of transformers compares.

    Nothing is downloaded: models have random weights, and texts are made at random.
    """

    _: KW_ONLY
    shapes: Annotated[
        Strings,
        BeforeValidator(read_listed),
        Option(
            "Shape of a model: minilm, base or tiny.",
            MODEL,
            default="minilm and base on a GPU, else minilm",
            flag="--shape",
            many=True,
        ),
    ] = ()
    batch_size: Annotated[
        Size | None, Option("Texts per optimizer step.", METHOD, default="256 on a GPU, else 32")
    ] = None
    precision: Precision = "auto"
    minutes: Annotated[Duration, Option("Time for all measurements.", METHOD, unit="minutes")] = 5.0
    progress: Progress = True
