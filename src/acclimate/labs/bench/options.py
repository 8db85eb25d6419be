"""Options of ``bench``."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Annotated

from pydantic import BeforeValidator

from acclimate.base.bounds import Duration, Size
from acclimate.base.options import METHOD, MODEL, Option, options
from acclimate.data.fields import Precision, Progress, Strings, read_listed


@options
class BenchOptions:
    """Options of ``acclimate bench``."""

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
