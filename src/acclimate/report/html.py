"""The report as one HTML file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from acclimate.files import write_text
from acclimate.report.figures import colour_index
from acclimate.report.formatting import VERDICTS, Table
from acclimate.report.masked_text import masked_samples
from acclimate.report.score_figures import forest, reliability, reliability_numbers, tradeoff
from acclimate.report.summary import answer
from acclimate.report.tables import tables
from acclimate.report.training_figures import (
    agreement,
    agreement_numbers,
    curve_numbers,
    curves,
    heat_map,
    heat_numbers,
    layer_numbers,
    layers,
)


@dataclass(frozen=True)
class Figure:
    """A figure of the report.

    Attributes:
        name: Its place on the page.
        title: Above it.
        note: What it shows, and how to read it.
        draw: From results to SVG; empty if there is nothing to show.
        tabulate: From results to its numbers, where no other table has them.
    """

    name: str
    title: str
    note: str
    draw: Callable[[dict[str, Any]], str]
    tabulate: Callable[[dict[str, Any]], Table | None] | None = None


FIGURES = (
    Figure(
        "differences",
        "Differences",
        "Each line is a 95 % interval; the dot is hollow where the interval includes zero.",
        forest,
    ),
    Figure(
        "tradeoff",
        "Gain against forgetting",
        "Up is a gain on the domain, right is general knowledge lost; thin lines are 95 % intervals.",
        tradeoff,
    ),
    Figure(
        "movement",
        "How far each layer moved",
        "Linear CKA of the hidden states of the same general text, adapted against as it came: 1 where one is a "
        "rotation of the other, lower the further the layer moved. Layer 0 is what enters the first.",
        layers,
        layer_numbers,
    ),
    Figure(
        "curves",
        "Learning curves",
        "Training loss as logged (thin) and smoothed (thick): first the term that all methods have, then each other "
        "term. Where it was asked for, the loss on held-out text, without dropout, is dashed.",
        curves,
        curve_numbers,
    ),
    Figure(
        "agreement",
        "Agreement with the teacher",
        "How many units of the representation are active in only one of teacher and student (Eq. 4 of DoKTra), on "
        "train examples without dropout, a mean over seeds: before distillation, then after each epoch. Hollow: "
        "epochs of refinement, without the teacher.",
        agreement,
        agreement_numbers,
    ),
    Figure(
        "calibration",
        "Calibration",
        "The share of right answers among predictions of about the same confidence, over all seeds; the larger the "
        "dot, the more of them. On the dashed line a model is right as often as it believes; below it, it is too "
        "sure.",
        reliability,
        reliability_numbers,
    ),
    Figure(
        "importance",
        "Importance",
        "How strongly each unit is protected while the model adapts, from 0 to 1. The colour says whether its "
        "importance is above or below the mean of its layer: Eq. 10 of DGA protects what is unusual on either side.",
        heat_map,
        heat_numbers,
    ),
)


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
    figures = [
        {
            "name": figure.name,
            "title": figure.title,
            "note": figure.note,
            "svg": Markup(drawn),
            "numbers": figure.tabulate(results) if figure.tabulate else None,
        }
        for figure in FIGURES
        if (drawn := figure.draw(results))
    ]
    return fill(
        "acclimate.report",
        "template.html.j2",
        results=results,
        answer=answer(results),
        verdicts=VERDICTS,
        colours=colour_index(results),
        figures=figures,
        tables=tables(results),
        masked=masked_samples(results),
        settings=yaml.safe_dump(results["config"], sort_keys=False, allow_unicode=True, width=100),
        parameters={
            method["label"]: ", ".join(f"{key} = {value}" for key, value in method["parameters"].items())
            for method in results["methods"]
        },
    )


def fill(package: str, name: str, **values: Any) -> str:
    """Fill a template of a package; it may include those of this one, such as ``style.css.j2``.

    Args:
        package: Where the template is.
        name: Its file.
        values: What it asks for. All but markup is escaped.
    """
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package, "."), PackageLoader("acclimate.report", ".")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name).render(**values)
