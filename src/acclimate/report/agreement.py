"""How students come to agree with their teachers: units that are active in only one of them (Eq. 4 of DoKTra)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from acclimate.report.cells import Entry, Table
from acclimate.report.figures import CARD, GRID, colour_index, marker, method_legend, panel_grid, series, styled, svg
from acclimate.report.words import place_name, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = dict[str, Any]


@styled
def agreement(results: dict[str, Any]) -> str:
    """Draw a panel for each student and task, with a line for each row of distillation; empty without any.

    All panels share the axis of percent, which begins at zero, so that they compare.
    """
    panels: dict[str, list[Row]] = {}
    for row in results.get("distillations") or []:
        panels.setdefault(place_name(results, row), []).append(row)
    if not panels:
        return ""
    from matplotlib.ticker import MaxNLocator

    colours = colour_index(results)
    methods = list(dict.fromkeys(row["method"] for rows in panels.values() for row in rows))
    figure, grid = panel_grid(list(panels), (3.2, 2.4), "epoch", "units that differ, %", sharey=True)
    for axes, rows in zip(grid, panels.values(), strict=True):
        for row in rows:
            _draw(axes, row, marker(methods.index(row["method"])), series(colours[row["method"]]))
        axes.grid(color=GRID, linewidth=0.8)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    grid[0].set_ylim(bottom=0)
    method_legend(figure, methods, colours)
    return svg(figure, "agreement", "Share of units that differ between teacher and student over training")


def agreement_numbers(results: dict[str, Any]) -> Table:
    """Return how many units differ before distillation and after each epoch."""
    names = ["where", "method", "epoch", "phase", "units that differ", "of", "%"]
    table = Table("Agreement with the teacher", "", names, [False, False, True, False, True, True, True])
    for row in results.get("distillations") or []:
        for epoch, (count, share) in enumerate(zip(row["disagreement"], _shares(row), strict=True)):
            phase = "before" if not epoch else "distillation" if epoch <= row["distilled_epochs"] else "refinement"
            cells = [Entry(place_name(results, row)), Entry(row["method"]), Entry(str(epoch), epoch), Entry(phase)]
            cells += [Entry(plain(count), count), Entry(f"{row['units']:,}", row["units"])]
            table.rows.append([*cells, Entry(plain(share), share)])
    return table


def _shares(row: Row) -> list[float]:
    """Return the units that differ in percent of all."""
    return [100 * count / row["units"] for count in row["disagreement"]]


def _draw(axes: Axes, row: Row, marker: str, colour: str) -> None:
    """Draw one row: filled to the end of distillation, hollow after it."""
    shares, switch = _shares(row), row["distilled_epochs"] + 1
    axes.plot(range(len(shares)), shares, color=colour, linewidth=1.5)
    for epochs, fill in ((range(switch), colour), (range(switch, len(shares)), CARD)):
        heights = [shares[epoch] for epoch in epochs]
        axes.plot(epochs, heights, marker, color=colour, markerfacecolor=fill, markersize=5)
