"""Results as HTML for the output of a notebook, and as a page: the figures and tables of the report."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from acclimate.report.masked_text import masked_examples
from acclimate.report.page import all_figures, render, render_template
from acclimate.report.summary import summarize
from acclimate.report.tables import tables
from acclimate.results.display import RENDERERS, Renderer
from acclimate.results.study import StudyResults

MAX_TABLES = 2
"""Maximum tables in the output of a notebook; the report has all of them."""


@RENDERERS.register("html")
class HtmlRenderer(Renderer):
    """HTML with the style of the report."""

    def fragment(self, lines: Sequence[str], results: StudyResults) -> str:
        """Return lines of text, the first figure and the first tables; for a study, its verdict and where it is."""
        if _is_study(results):
            place = [] if results.folder is None else [f"report: {results.folder / 'report.html'}"]
            lines = [lines[0], summarize(results).headline, *place]
        return _render(lines, results, figures=1, most=MAX_TABLES)

    def page(self, lines: Sequence[str], results: StudyResults) -> str:
        """Return the report of a study; for other results, a page with the lines and all figures and tables."""
        if _is_study(results):
            return render(results, results.folder)
        masked = masked_examples(results)
        return _render(lines, results, figures=None, most=None, whole=True, masked=masked)


def _is_study(results: StudyResults) -> bool:
    return bool(results.scores or results.losses)


def _render(
    lines: Sequence[str], results: StudyResults, *, figures: int | None, most: int | None, **values: Any
) -> str:
    style = render_template("acclimate.report", "style.css.j2")
    return render_template(
        "acclimate.report",
        "notebook.html.j2",
        title=results.title or results.name,
        lines=lines,
        figures=_draw(results, figures),
        tables=tables(results)[:most],
        **{"whole": False, "masked": None, **values},
        # The style of the report, limited to the fragment by nesting.
        style=Markup(style.replace(":root", "&")),
    )


def _draw(results: StudyResults, most: int | None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for figure in all_figures(results):
        if (most is None or len(found) < most) and (drawn := figure.draw(results)):
            # Outputs of a notebook share one page, so the ids must be unique there.
            unique = hashlib.sha256(drawn.encode()).hexdigest()[:8]
            svg = re.sub(r'(\bid="|xlink:href="#|url\(#)', rf"\g<1>{unique}-", drawn)
            found.append({"title": figure.title, "note": figure.note, "svg": Markup(svg)})
    return found
