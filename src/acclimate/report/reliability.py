"""The reliability diagram: how often a classifier is right, over how sure it is (Niculescu-Mizil & Caruana, 2005)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from acclimate.report.cells import Entry, Table
from acclimate.report.figures import CARD, GRID, INK, colour_index, legend, panel_grid, series, styled, svg
from acclimate.report.words import place_name, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LARGEST = 240.0
"""Area of the dot of a bin that holds all predictions, in square points."""
SMALLEST = 6.0


@styled
def reliability(results: dict[str, Any]) -> str:
    """Draw a panel for each task, with a line for each method; empty if no task has bins of confidence."""
    panels: dict[str, list[dict[str, Any]]] = {}
    for row in results["scores"]:
        if row.get("reliability"):
            panels.setdefault(place_name(results, row), []).append(row)
    if not panels:
        return ""
    colours = colour_index(results)
    figure, grid = panel_grid(list(panels), (3.6, 2.9), "confidence, %", "right, %")
    for axes, rows in zip(grid, panels.values(), strict=True):
        _panel(axes, rows, colours)
    methods = list(dict.fromkeys(row["method"] for rows in panels.values() for row in rows))
    legend(figure, [("s", series(colours[method]), method) for method in methods])
    return svg(figure, "reliability", "Share of right predictions over their confidence")


def reliability_numbers(results: dict[str, Any]) -> Table:
    """Return the bins of confidence that the diagram shows, in points of 100."""
    table = Table(
        "Calibration", "", ["task", "method", "confidence", "right", "predictions"], [False] * 2 + [True] * 3
    )
    for row in results["scores"]:
        for entry in row.get("reliability") or []:
            shares = [Entry(plain(100 * entry[name]), entry[name]) for name in ("confidence", "accuracy")]
            count = Entry(f"{entry['count']:,}", entry["count"])
            table.rows.append([Entry(place_name(results, row)), Entry(row["method"]), *shares, count])
    return table


def _panel(axes: Axes, rows: list[dict[str, Any]], colours: dict[str, int]) -> None:
    """Draw the methods of one task; both axes start where the least sure predictions are."""
    axes.plot([0, 100], [0, 100], color=INK, linewidth=0.8, dashes=(5, 4))
    for row in rows:
        bins, colour = row["reliability"], series(colours[row["method"]])
        total = sum(entry["count"] for entry in bins)
        x = [100 * entry["confidence"] for entry in bins]
        y = [100 * entry["accuracy"] for entry in bins]
        areas = [max(SMALLEST, LARGEST * entry["count"] / total) for entry in bins]
        axes.plot(x, y, color=colour, linewidth=1.2, alpha=0.6)
        axes.scatter(x, y, s=areas, color=colour, edgecolors=CARD, linewidths=0.8, zorder=3)
    start = 10 * int(10 * min(entry["low"] for row in rows for entry in row["reliability"]))
    axes.set_xlim(start - 2, 103)
    axes.set_ylim(-4, 104)
    axes.grid(color=GRID, linewidth=0.8)
