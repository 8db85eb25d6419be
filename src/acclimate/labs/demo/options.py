"""Options of ``demo``."""

from __future__ import annotations

from dataclasses import KW_ONLY
from pathlib import Path
from typing import Annotated

from acclimate.base.bounds import SeedCount
from acclimate.base.options import OUTPUT, Option, options
from acclimate.base.verbs import EVALUATE, register_verb
from acclimate.data.fields import Progress


@register_verb(
    "demo",
    "acclimate.labs.demo.comparison:demo",
    show="show_demo",
    example="acclimate demo --out runs/demo",
    page="docs/commands.md",
    section=EVALUATE,
    order=1,
)
@options
class DemoOptions:
    """Adapt an included model to documentation that is on this machine, and report what changed.

    For your own model, text and task see 'acclimate compare'.
    """

    out: Annotated[str | Path, Option("Output directory for data, models, results.json and report.html.", OUTPUT)] = (
        "runs/demo"
    )
    _: KW_ONLY
    seeds: Annotated[SeedCount, Option("Number of seeds of adaptation and fine-tuning.")] = 3
    progress: Progress = True
