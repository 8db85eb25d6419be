"""The report: one HTML file that needs nothing else, neither network nor library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from acclimate.files import write_text
from acclimate.report import plots
from acclimate.report.curves import curves
from acclimate.report.figures import colour_index
from acclimate.report.reliability import reliability
from acclimate.report.table import tables
from acclimate.report.words import VERDICTS, answer


def write_report(results: dict[str, Any], path: str | Path) -> Path:
    """Write the report of a study as one HTML file; return its path.

    Everything that comes from the user (names, notes, samples, messages) is escaped. The page loads nothing from
    elsewhere, follows the light or dark scheme of the reader, and can be read without JavaScript.

    Args:
        results: As ``acclimate.compare`` returns and stores in ``results.json``.
        path: The file to write.
    """
    return write_text(path, render(results))


def render(results: dict[str, Any]) -> str:
    """Return the report as HTML."""
    environment = Environment(
        loader=PackageLoader("acclimate.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    colours = colour_index(results)
    figures = [
        {"title": title, "note": note, "svg": Markup(svg)}
        for title, note, svg in (
            ("Differences", _FOREST, plots.forest(results)),
            ("Calibration", _RELIABILITY, reliability(results)),
            ("Gain against forgetting", _TRADEOFF, plots.tradeoff(results)),
            ("Learning curves", _CURVES, curves(results)),
        )
        if svg
    ]
    return environment.get_template("template.html.j2").render(
        results=results,
        answer=answer(results),
        verdicts=VERDICTS,
        colours=colours,
        figures=figures,
        tables=tables(results),
        settings=yaml.safe_dump(results["config"], sort_keys=False, allow_unicode=True, width=100),
        parameters={
            method["label"]: ", ".join(f"{key} = {value}" for key, value in method["parameters"].items())
            for method in results["methods"]
        },
    )


_FOREST = "Each line is a 95 % interval; the dot is hollow where the interval includes zero."
_TRADEOFF = "Up is a gain on the domain, right is general knowledge lost; thin lines are 95 % intervals."
_RELIABILITY = (
    "The share of right answers among predictions of about the same confidence, over all seeds; the larger the dot, "
    "the more of them. On the dashed line a model is right as often as it believes; below it, it is too sure."
)
_CURVES = (
    "Training loss as logged (thin) and smoothed (thick), in the term that all methods have. Where it was asked for, "
    "the loss on held-out text, without dropout, is dashed, and other terms have panels of their own."
)
