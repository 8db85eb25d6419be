"""Options of ``demo``."""

from __future__ import annotations

from dataclasses import KW_ONLY
from pathlib import Path
from typing import Annotated

from acclimate.base.bounds import SeedCount
from acclimate.base.options import OUTPUT, Option, options
from acclimate.data.fields import Progress


@options
class DemoOptions:
    """Options of :func:`acclimate.labs.demo.comparison.demo`."""

    out: Annotated[str | Path, Option("Output directory for data, models, results.json and report.html.", OUTPUT)] = (
        "runs/demo"
    )
    _: KW_ONLY
    seeds: Annotated[SeedCount, Option("Number of seeds of adaptation and fine-tuning.")] = 3
    progress: Progress = True
