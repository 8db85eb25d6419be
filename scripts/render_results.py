"""Render the pages under docs/results from the results of their studies, and the table in README.md.

    python scripts/render_results.py                          # render every page
    python scripts/render_results.py --add runs/NAME          # copy the results of a run first
    python scripts/render_results.py --add runs/NAME PAGE     # as NAME.json of another page

A folder `docs/results/NAME` holds `study.yaml`, `results.json`, the template `page.md.j2` and the page, `README.md`.
Every number of a page comes from JSON files in its folder. Rows in
`grouped.json`, computed by `regroup_results.py`, replace those of `results.json`.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jinja2
import numpy as np
from rich.console import Console

from acclimate import plan_ratio
from acclimate.base.files import read_json_object
from acclimate.evaluation.significance import holm, mean_interval
from acclimate.labs.plan.logs import loss_points
from acclimate.labs.sequence.report import sequence_matrices
from acclimate.report.figures import GRID, INK, MUTED, new_figure, series, styled, svg
from acclimate.report.page import render_template
from acclimate.report.score_figures import forest_plot, tradeoff_plot
from acclimate.report.summary import summarize
from acclimate.report.text import markdown, results_table
from acclimate.results.cells import interval_text, plain, signed
from acclimate.results.scores import MeanRow
from acclimate.results.study import StudyResults
from acclimate.study.jobs.probe import probe_differences
from acclimate.study.summary import correct_for_multiple_comparisons, count_verdicts

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "results"
TEMPLATE, CONTROL, GROUPED = "page.md.j2", "control.json", "grouped.json"
OTHERS = "meters", "wiki", "control", "decoder"
"""Names of further results of a page, and of their values in its template."""
README = ROOT / "README.md"
PRINTED = r"(<!-- Printed from the results of docs/results/(\S+) by `make docs`. -->\n```text\n)(.*?)(```)"


def read_results(file: Path) -> StudyResults:
    """Return results; rows of tasks whose items have groups are those that `regroup_results.py` computed."""
    results = StudyResults.load(file)
    if new := (read_json_object(file.with_name(GROUPED)) or {}).get(file.name):
        keys = "model", "domain", "task", "method", "probe", "labels_per_class"

        def merged(rows: list[Any], changed: list[dict[str, Any]]) -> list[Any]:
            found = {tuple(row.get(key) for key in keys): row for row in changed}
            changes = [found.get(tuple(row.get(key) for key in keys), {}) for row in rows]
            return [type(row).from_dict({**row.to_dict(), **own}) for row, own in zip(rows, changes, strict=True)]

        results.scores, probes = merged(results.scores, new["scores"]), results.rows.get("probe", [])
        probes[:] = merged(probes, new["probes"])
        results.means = [MeanRow.from_dict(row) for row in new["means"]] or results.means
        for rows in (results.scores, probes):
            correct_for_multiple_comparisons(rows)
        results.verdict_counts = count_verdicts(results.scores)
    return results


def checked_plan(results: StudyResults) -> dict[str, Any]:
    """Return the plan that the smaller runs of a study give, and the largest runs, which check it."""
    points, tolerance = list(loss_points(results)), 0.05
    largest = max(row["tokens"] for row in points)
    pilots = [row for row in points if row["tokens"] < 0.9 * largest]
    return {
        "plan": plan_ratio(pilots, target_tokens=largest, tolerance=tolerance, resamples=60),
        "checks": [row for row in points if row["tokens"] >= 0.9 * largest],
        "tolerance": tolerance,
        "times": largest / max(row["tokens"] for row in pilots),
    }


@styled
def plan_plot(results: StudyResults) -> str:
    """Draw the planned losses with their intervals over the share of domain text, and those that were measured."""
    made = checked_plan(results)
    figure = new_figure(2.9)
    for axes, text in zip(figure.subplots(1, 2), ("domain", "general"), strict=True):
        shares = [row["domain share"] for row in made["plan"]["rows"]]
        ends = [[row[f"{text} loss, {end}"] for row in made["plan"]["rows"]] for end in ("low", "high")]
        axes.fill_between(shares, *ends, color=series(1), alpha=0.25, linewidth=0)
        axes.plot(shares, [row[f"{text} loss"] for row in made["plan"]["rows"]], color=series(1), label="planned")
        measured = [row[f"{text}_loss"] for row in made["checks"]]
        axes.plot([row["share"] for row in made["checks"]], measured, "o", color=INK, label="measured", markersize=4.5)
        axes.set(xlabel="share of domain text", ylabel=f"loss on {text} text, nats")
        axes.grid(color=GRID, linewidth=0.8)
    axes.axhline(made["plan"]["base"]["general"] + made["tolerance"], color=MUTED, linestyle=":", label="limit")
    axes.legend(frameon=False)
    return svg(figure, "plan", "Planned and measured losses by share of domain text")


@styled
def claims_plot(results: StudyResults) -> str:
    """Draw how often a tournament hands back an adapted model, and how often wrongly, with 95 % intervals."""
    table = results.tables[0]
    names = ("worlds", "adapted model handed back, %", "wrongly, %", "its interval")
    rows = [[row[table.columns.index(name)] for name in names] for row in table.rows]
    figure = new_figure(0.8 + 0.3 * len(rows))
    axes = figure.subplots()
    axes.axvline(5, color=MUTED, linestyle=":")
    for y, (_, back, wrongly, interval) in enumerate(rows):
        axes.plot([back], [y], "s", color=INK, markersize=4.5, label="" if y else "adapted model handed back")
        axes.plot([float(end) for end in interval.split(" to ")], [y, y], color=series(1), linewidth=2)
        axes.plot([wrongly], [y], "o", color=series(1), label="" if y else "wrongly")
    axes.set_yticks(range(len(rows)), [row[0] for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("worlds, %")
    axes.grid(axis="x", color=GRID, linewidth=0.8)
    figure.legend(loc="outside upper left", ncols=2, frameon=False)
    return svg(figure, "claims", "How often an adapted model is handed back, and how often wrongly, by kind of world")


def loss_plot(results: StudyResults) -> str:
    """Draw what is learned of the domain against what is forgotten, also if the study has end tasks."""
    return tradeoff_plot(StudyResults.from_dict({**results.to_dict(), "scores": []}))


PICTURES = {
    "losses.svg": loss_plot,
    "sequence.svg": sequence_matrices,
    "probes.svg": probe_differences,
    "differences.svg": forest_plot,
    "plan.svg": plan_plot,
    "claims.svg": claims_plot,
}


def relative(value: Any) -> Any:
    """Return results whose paths in the checkout, and in the folder `shared` next to it, are relative to it."""
    shared = ROOT.parent / "shared"
    return json.loads(json.dumps(value).replace(f"{shared.resolve()}/", "../shared/").replace(f"{ROOT}/", ""))


def sections(results: StudyResults) -> dict[str, str]:
    """Return the tables of `results.md` with their notes, by title, one level of headings deeper."""
    _, *parts = re.split(r"^## (.+)$", markdown(results), flags=re.M)
    tables = dict(zip(parts[::2], parts[1::2], strict=True))
    return {title: text.partition("\nFinished ")[0].strip() for title, text in tables.items()}


def estimate(found: Any, factor: float, digits: int = 1) -> str:
    """Return a difference with its interval in brackets, multiplied by a factor (an object or a dictionary)."""
    found = SimpleNamespace(**found) if isinstance(found, dict) else found
    return f"{signed(factor * found.difference, digits)} ({interval_text(found, factor, digits)})"


def mean_of(found: np.ndarray) -> Any:
    """Return the mean of one value per adaptation, with its 95 % interval (Student)."""
    low, high = mean_interval(found)
    return SimpleNamespace(difference=float(found.mean()), low=low, high=high)


def above_curve(forgot: np.ndarray, learned: np.ndarray, at: np.ndarray, of: np.ndarray) -> np.ndarray:
    """Return how much more is learned than by a curve at the same forgetting, all of shape (domain, adaptation).

    The curve starts at the base model, (0, 0). Its other points forget ``at`` and learn ``of``, both of shape (point,
    domain, adaptation), and are ordered by forgetting. It is linear between its points and constant beyond them.
    """
    found = np.empty_like(learned)
    for place in np.ndindex(learned.shape):
        xs, ys = (np.append(0, points[(slice(None), *place)]) for points in (at, of))
        assert (np.diff(xs) > 0).all(), f"the points of the curve are not ordered by forgetting: {xs}"
        found[place] = learned[place] - np.interp(forgot[place], xs, ys)
    return found


def template_values(results: StudyResults) -> dict[str, Any]:
    """Return functions that find a table, a score, a loss, and the paired difference of two losses, for templates."""
    tables = sections(results)

    def section(title: str) -> str:
        return tables[next(name for name in tables if name.startswith(title))]

    def score(method: str, task: str, model: str | None = None) -> Any:
        rows = (row for row in results.scores if model in (None, row.model))
        return next(row for row in rows if (row.method, row.task) == (method, task))

    def loss(method: str, domain: str, text: str = "general") -> Any:
        return next(row for row in results.losses if (row.method, row.domain, row.text) == (method, domain, text))

    def against(method: str, other: str, domain: str, text: str = "general") -> Any:
        one, two = (np.array(loss(name, domain, text).by_seed) for name in (method, other))
        return mean_of(one - two)

    def beyond(method: str, *curve: str) -> Any:
        def changes(name: str, text: str) -> np.ndarray:
            rows = (loss(name, domain, text) for domain in results.domains)
            return np.array([np.array(row.by_seed) - row.before for row in rows])

        forgot = {name: changes(name, "general") for name in (method, *curve)}
        learned = {name: -changes(name, "domain") for name in (method, *curve)}
        at, of = (np.array([change[name] for name in curve]) for change in (forgot, learned))
        return mean_of(above_curve(forgot[method], learned[method], at, of).mean(0))

    functions = {"section": section, "score": score, "loss": loss, "against": against, "beyond": beyond}
    return {"results": results, "summary": summarize(results), **functions}


def render(folder: Path) -> str:
    """Return the page of a folder; ``control.json`` has the same jobs, compared with another baseline."""
    results = read_results(folder / "results.json")

    def nearest(rows: list[dict[str, Any]], key: str, value: float) -> dict[str, Any]:
        return min(rows, key=lambda row: abs(row[key] - value))

    extras: dict[str, Any] = {"checked_plan": checked_plan, "nearest": nearest, "holm": holm}
    for name in OTHERS:
        file = folder / f"{name}.json"
        extras[name] = template_values(read_results(file)) if file.exists() else None
    extras |= {name: read_json_object(folder / f"{name}.json") for name in ("advice", "hybrid")}
    rivals = extras["rivals"] = (read_json_object(PAGES / "rivals.json") or {}).get(folder.name)

    def apart(method: str, text: str, domain: str | None = None) -> str:
        rows = (row for row in rivals[method]["differences"] if domain in (None, row["domain"]))
        return estimate(next(row for row in rows if row.get("text") == text), 1, 3)

    extras["apart"] = apart
    extras["tournaments"] = [read_json_object(path) for path in sorted((folder / "tournaments").glob("*.json"))]
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters |= {"plain": plain, "signed": signed, "interval": interval_text, "estimate": estimate}
    return environment.from_string((folder / TEMPLATE).read_text(encoding="utf-8")).render(
        template_values(results) | extras
    )


def render_readme() -> str:
    """Return the README with the scores that `acclimate compare` prints for the study that it names."""

    def printed(found: re.Match[str]) -> str:
        results = read_results(PAGES / found[2] / "results.json")
        for row in results.scores:
            row.test_units = None  # the page says what they are
        console = Console(width=100, color_system=None)
        with console.capture() as capture:
            console.print(*results_table(results))
        lines = [line.rstrip() for line in capture.get().splitlines()]
        return found[1] + "\n".join(lines).strip() + "\n" + found[4]

    return re.sub(PRINTED, printed, README.read_text(encoding="utf-8"), count=1, flags=re.S)


def add(run: Path, page: str = "") -> None:
    """Copy the results of a run, and those with another baseline, into the folder of the same name, or to a page."""
    for file in ("results.json", CONTROL):
        if file == CONTROL and not (run / file).exists():
            continue
        made = relative(StudyResults.load(run / file).to_dict())
        text = json.dumps(made, ensure_ascii=False).replace(f"{run.resolve()}/", f"runs/{run.name}/")
        (PAGES / page / f"{run.name}.json" if page else PAGES / run.name / file).write_text(
            text + "\n", encoding="utf-8"
        )


def draw(folder: Path) -> None:
    """Write the figures of the report that the page shows, with the colours of the report."""
    for name, plot in PICTURES.items():
        if f"({name})" in (folder / TEMPLATE).read_text(encoding="utf-8"):
            colours = render_template("acclimate.report", "style.css.j2").partition("@media")[0]
            look = "color: var(--ink); background: var(--card); font-family: sans-serif"
            style = f"<style>{colours} svg {{ {look} }}</style>"
            text = plot(read_results(folder / "results.json"))
            (folder / name).write_text(re.sub(r"(<svg[^>]*>)", rf"\1{style}", text, count=1) + "\n", encoding="utf-8")


def main(arguments: list[str]) -> None:
    """Render all pages, after adding the results of a run."""
    if arguments[:1] == ["--add"]:
        add(Path(arguments[1]), *arguments[2:3])
    for results in sorted(PAGES.glob("*/results.json")):
        results.with_name("README.md").write_text(render(results.parent), encoding="utf-8")
        draw(results.parent)
    README.write_text(render_readme(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
