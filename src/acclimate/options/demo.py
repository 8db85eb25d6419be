"""Options of ``demo``."""

from __future__ import annotations

from dataclasses import KW_ONLY
from pathlib import Path
from typing import Annotated

from acclimate.options.declaration import OUTPUT, Option, options
from acclimate.options.fields import Progress
from acclimate.options.numbers import SeedCount


@options
class DemoOptions:
    """Options of :func:`acclimate.demo.demo`."""

    out: Annotated[str | Path, Option("Output directory for data, models, results.json and report.html.", OUTPUT)] = (
        "runs/demo"
    )
    _: KW_ONLY
    seeds: Annotated[SeedCount, Option("Number of seeds of adaptation and fine-tuning.")] = 3
    progress: Progress = True
