"""Render the pages under docs/results from the results of their studies, and the table in README.md.

    python scripts/render_results.py                          # render every page
    python scripts/render_results.py --add runs/NAME          # copy the results of a run first

A folder `docs/results/NAME` holds `study.yaml`, `results.json`, the template `page.md.j2` and the page, `README.md`.
Every number of a page comes from `results.json`: prose in a template has none of its own.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import jinja2
from rich.console import Console

from acclimate import plan_ratio
from acclimate.files import read_json_object
from acclimate.planning.logs import loss_points
from acclimate.report.formatting import interval_text, plain, signed
from acclimate.report.html import render_template
from acclimate.report.score_figures import forest_plot, probe_differences, tradeoff_plot
from acclimate.report.sequences import sequence_matrices
from acclimate.report.summary import summarize
from acclimate.report.text import markdown, results_table
from acclimate.results import StudyResults

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "results"
TEMPLATE = "page.md.j2"
PICTURES = {
    "tradeoff.svg": tradeoff_plot,
    "sequence.svg": sequence_matrices,
    "probes.svg": probe_differences,
    "differences.svg": forest_plot,
}
README = ROOT / "README.md"
PRINTED = r"(<!-- Printed from the results of docs/results/(\S+) by `make docs`. -->\n```text\n)(.*?)(```)"
SHOWN = ("lm, 1e-4",)
"""The methods in the table of the README, which has room for few."""


def relative(value: Any) -> Any:
    """Return results whose paths in the checkout and in the folder `shared` beside it are relative to the checkout."""
    shared = ROOT.parent / "shared"
    return json.loads(json.dumps(value).replace(f"{shared.resolve()}/", "../shared/").replace(f"{ROOT}/", ""))


def sections(results: StudyResults) -> dict[str, str]:
    """Return the tables of `results.md` with their notes, by title, one level of headings deeper."""
    _, *parts = re.split(r"^## (.+)$", markdown(results), flags=re.M)
    tables = dict(zip(parts[::2], parts[1::2], strict=True))
    return {title: text.partition("\nFinished ")[0].strip() for title, text in tables.items()}


def estimate(found: Any, factor: float, digits: int = 1) -> str:
    """Return a difference with its interval in brackets, multiplied by a factor."""
    return f"{signed(factor * found.difference, digits)} ({interval_text(found, factor, digits)})"


def render(folder: Path) -> str:
    """Return the page of a folder."""
    results = StudyResults.load(folder / "results.json")
    tables = sections(results)

    def section(title: str) -> str:
        return tables[next(name for name in tables if name.startswith(title))]

    def score(method: str, task: str, model: str | None = None) -> Any:
        rows = (row for row in results.scores if model in (None, row.model))
        return next(row for row in rows if (row.method, row.task) == (method, task))

    def loss(method: str, domain: str, text: str = "general") -> Any:
        return next(row for row in results.losses if (row.method, row.domain, row.text) == (method, domain, text))

    def nearest(rows: list[dict[str, Any]], key: str, value: float) -> dict[str, Any]:
        return min(rows, key=lambda row: abs(row[key] - value))

    planning = {"points": list(loss_points(results)), "plan_ratio": plan_ratio, "nearest": nearest}
    planning["advice"] = read_json_object(folder / "advice.json")
    planning["tournaments"] = [read_json_object(path) for path in sorted((folder / "tournaments").glob("*.json"))]
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters |= {"plain": plain, "signed": signed, "interval": interval_text, "estimate": estimate}
    return environment.from_string((folder / TEMPLATE).read_text(encoding="utf-8")).render(
        results=results, summary=summarize(results), section=section, score=score, loss=loss, **planning
    )


def render_readme() -> str:
    """Return the README with the table that `acclimate compare` prints for the study that it names."""

    def printed(found: re.Match[str]) -> str:
        results = StudyResults.load(PAGES / found[2] / "results.json")
        results.scores = [row for row in results.scores if row.method in SHOWN]
        results.losses = [row for row in results.losses if row.method in SHOWN]
        console = Console(width=100, color_system=None)
        with console.capture() as capture:
            console.print(*results_table(results))
        lines = [line.rstrip() for line in capture.get().splitlines()]
        return found[1] + "\n".join(lines).strip() + "\n" + found[4]

    return re.sub(PRINTED, printed, README.read_text(encoding="utf-8"), count=1, flags=re.S)


def add(run: Path) -> None:
    """Copy the results of a run into the folder of the same name."""
    results = StudyResults.load(run / "results.json")
    text = json.dumps(relative(results.to_dict()), ensure_ascii=False).replace(
        f"{run.resolve()}/", f"runs/{run.name}/"
    )
    (PAGES / run.name / "results.json").write_text(text + "\n", encoding="utf-8")


def draw(folder: Path) -> None:
    """Write the figures of the report that the page shows, with the colours of the report."""
    for name, plot in PICTURES.items():
        if f"({name})" in (folder / TEMPLATE).read_text(encoding="utf-8"):
            colours = render_template("acclimate.report", "style.css.j2").partition("@media")[0]
            look = "color: var(--ink); background: var(--card); font-family: sans-serif"
            style = f"<style>{colours} svg {{ {look} }}</style>"
            text = plot(StudyResults.load(folder / "results.json"))
            (folder / name).write_text(re.sub(r"(<svg[^>]*>)", rf"\1{style}", text, count=1) + "\n", encoding="utf-8")


def main(arguments: list[str]) -> None:
    """Render all pages, after adding the results of a run."""
    if arguments[:1] == ["--add"]:
        add(Path(arguments[1]))
    for results in sorted(PAGES.glob("*/results.json")):
        results.with_name("README.md").write_text(render(results.parent), encoding="utf-8")
        draw(results.parent)
    README.write_text(render_readme(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
