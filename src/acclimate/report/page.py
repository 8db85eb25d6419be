"""The report as one self-contained HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from acclimate.base.files import write_text
from acclimate.base.version import docs_page
from acclimate.report.figures import colour_index
from acclimate.report.masked_text import masked_examples
from acclimate.report.next_steps import next_steps
from acclimate.report.score_figures import (
    forest_plot,
    race_plot,
    reliability_diagram,
    reliability_table,
    tradeoff_plot,
)
from acclimate.report.summary import summarize
from acclimate.report.tables import overview, tables
from acclimate.report.training_figures import (
    importance_heat_map,
    importance_table,
    learning_curve_table,
    learning_curves,
    stability,
    stability_table,
)
from acclimate.results.study import Figure, StudyResults

GAINS = 3
"""Number of :data:`FIGURES` that show gains; the figures of kinds of jobs follow them."""
FIGURES = (
    Figure(
        "race",
        "The race",
        "Gain over the base model on the items that the race is decided on, by tokens per adaptation. Crosses mark "
        "entrants that were dropped. The highest gain is flattered by the choice; the claim is not.",
        race_plot,
    ),
    Figure(
        "differences",
        "Paired differences",
        "Lines are 95 % intervals; the dot is hollow if the interval includes zero.",
        forest_plot,
    ),
    Figure(
        "tradeoff",
        "Gain against forgetting",
        "Vertical: gain on the domain. Horizontal: increase of the loss on general text. Thin lines are 95 % "
        "intervals.",
        tradeoff_plot,
    ),
    Figure(
        "curves",
        "Learning curves",
        "Training loss as logged (thin) and smoothed (thick): first the term that all methods share, then each other "
        "term. Dashed: loss on held-out text without dropout, if it was measured.",
        learning_curves,
        learning_curve_table,
    ),
    Figure(
        "stability",
        "Stability",
        "Loss on held-out and on general text minus the base model's, by step. A rise at the start that falls "
        "again later is usual (Guo et al., 2024): a model of that time says little about the method. Rings mark the "
        "largest rise.",
        stability,
        stability_table,
    ),
    Figure(
        "calibration",
        "Calibration",
        "Accuracy of predictions by confidence, over all seeds; larger dots stand for more predictions. On the dashed "
        "line a model is perfectly calibrated, below it overconfident.",
        reliability_diagram,
        reliability_table,
    ),
    Figure(
        "importance",
        "Importance",
        "Protection of each unit during adaptation, from 0 to 1. The colour says whether its importance is above or "
        "below the mean of its layer: Eq. 10 of DGA protects unusual units on either side.",
        importance_heat_map,
        importance_table,
    ),
)


def all_figures(results: StudyResults) -> list[Figure]:
    """Return the figures of the report; the figures of kinds of jobs follow the gains."""
    return [*FIGURES[:GAINS], *(figure for kind in results.kinds for figure in kind.figures()), *FIGURES[GAINS:]]


def write_report(results: StudyResults, path: str | Path) -> Path:
    """Write the report of a study as one HTML file; return its path.

    All text from users and data is escaped. The page loads nothing from elsewhere, follows the light or dark scheme
    of the reader, and works without JavaScript.

    Args:
        results: As returned by ``acclimate.compare`` and stored in ``results.json``.
        path: Output file.
    """
    return write_text(path, render(results, Path(path).parent))


def render(results: StudyResults, folder: Path | None = None) -> str:
    """Return the report as HTML.

    Args:
        results: Results of a study.
        folder: Folder of the study, for the commands that the report proposes; by default ``runs/NAME``.
    """
    results = StudyResults.from_dict(results)
    found = tables(results)
    figures = [
        {
            "name": figure.name,
            "title": figure.title,
            "note": figure.note,
            "svg": Markup(drawn),
            "table": figure.tabulate(results) if figure.tabulate else None,
        }
        for figure in all_figures(results)
        if (drawn := figure.draw(results))
    ]
    return render_template(
        "acclimate.report",
        "template.html.j2",
        results=results,
        summary=summarize(results),
        overview=overview(results),
        steps=next_steps(results, folder),
        docs_page=docs_page,
        colours=colour_index(results),
        figures=figures,
        before=[table for table in found if table.first],
        tables=[table for table in found if not table.first],
        masked=masked_examples(results),
        settings=yaml.safe_dump(results.config, sort_keys=False, allow_unicode=True, width=100),
        parameters={
            method.label: ", ".join(f"{key} = {value}" for key, value in method.parameters.items())
            for method in results.methods
        },
    )


def render_template(package: str, name: str, **values: Any) -> str:
    """Render a Jinja template of a package; it can include templates of this package, such as ``style.css.j2``.

    Args:
        package: Package that contains the template.
        name: File name of the template.
        **values: Variables of the template. Everything except ``Markup`` is escaped.
    """
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package, "."), PackageLoader("acclimate.report", ".")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name).render(**values)
