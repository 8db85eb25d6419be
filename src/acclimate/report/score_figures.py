"""Figures of task scores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from acclimate.report.figures import (
    CARD,
    GRID,
    INK,
    MUTED,
    colour_index,
    legend,
    marker,
    new_figure,
    panel_grid,
    series,
    short,
    styled,
    svg,
)
from acclimate.report.formatting import Entry, Table, metric_name, place_name, plain, signed

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@styled
def forest(results: dict[str, Any]) -> str:
    """Draw the paired difference of each method to the baseline with its interval; empty if there is none."""
    rows = [row for row in results["scores"] if row.get("difference")]
    if not rows:
        return ""
    from matplotlib.transforms import blended_transform_factory

    colours = colour_index(results)
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(f"{place_name(results, row)} ({metric_name(row['metric'])})", []).append(row)
    lines: list[tuple[str, dict[str, Any] | None]] = []
    for name, members in groups.items():
        lines += [(name, None), *((row["method"], row) for row in members)]
    figure = new_figure(0.75 + 0.27 * len(lines))
    axes = figure.subplots()
    axes.axvline(0, color=INK, linewidth=1)
    for y, (_, row) in enumerate(lines):
        if row is not None:
            entry = row["difference"][row["metric"]]
            colour = series(colours[row["method"]])
            axes.plot([100 * entry["low"], 100 * entry["high"]], [y, y], color=colour, linewidth=2)
            fill = CARD if entry["verdict"] == "tie" else colour
            axes.plot([100 * entry["difference"]], [y], "o", color=colour, markerfacecolor=fill, markersize=7, mew=1.8)
    axes.set_yticks(range(len(lines)), ["" if row is None else short(name, 26) for name, row in lines])
    for y, (name, row) in enumerate(lines):
        if row is None:  # a heading starts at the edge of the figure and takes no room from the axes
            place = blended_transform_factory(figure.transFigure, axes.transData)
            text = axes.text(0.01, y, short(name, 60), transform=place, va="center", fontweight="bold")
            text.set_bbox({"facecolor": CARD, "edgecolor": "none", "pad": 1.5})
            text.set_in_layout(False)
    values = axes.twinx()
    values.set_yticks(range(len(lines)), [_numbers(row) for _, row in lines])
    for side in (axes, values):
        side.set_ylim(len(lines) - 0.4, -0.7)
        side.tick_params(axis="y", length=0, labelcolor=INK)
        side.spines[["left", "right", "top", "bottom"]].set_visible(False)
    axes.grid(axis="x", color=GRID, linewidth=0.8)
    axes.margins(x=0.06)
    axes.locator_params(axis="x", nbins=7)
    axes.set_xlabel(f"points against {short(results['baseline'], 30)} (right is better)")
    return svg(figure, "forest", "Paired differences to the baseline with 95 % intervals")


def _numbers(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    entry = row["difference"][row["metric"]]
    low, high = (signed(100 * entry[end]) for end in ("low", "high"))
    return f"{signed(100 * entry['difference'])}  [{low}, {high}]"


@styled
def tradeoff(results: dict[str, Any]) -> str:
    """Draw what was gained against what was forgotten; empty if either was not measured."""
    costs = {
        (*_key(row), row.get("task")): row["difference"]
        for row in results["losses"]
        if row["text"] == "general" and "difference" in row
    }

    def cost_of(row: dict[str, Any]) -> dict[str, Any] | None:
        """Return what it cost: for the task of the row alone, or for all tasks of its domain."""
        return costs.get((*_key(row), row.get("task"))) or costs.get((*_key(row), None))

    rows = [row for row in results["scores"] if row.get("difference")]
    if rows:
        points = [(row, row["difference"][row["metric"]], 100.0) for row in rows]
        names = {metric_name(row["metric"]) for row in rows}
        label = f"gain in {' / '.join(sorted(names))}, points"
    else:
        learnt = [row for row in results["losses"] if row["text"] == "domain" and "difference" in row]
        points = [(row, row["difference"], -1.0) for row in learnt]
        label = "fall of the loss on domain text, nats"
    points = [point for point in points if cost_of(point[0])]
    if not points:
        return ""
    colours = colour_index(results)
    places = list(dict.fromkeys(place_name(results, row) for row, _, _ in points))
    figure = new_figure(4.1)
    axes = figure.subplots()
    axes.axhline(0, color=INK, linewidth=1)
    axes.axvline(0, color=INK, linewidth=1)
    for row, gain, scale in points:
        cost, colour = cost_of(row) or {}, series(colours[row["method"]])
        x, y = cost["difference"], scale * gain["difference"]
        axes.plot([cost["low"], cost["high"]], [y, y], color=colour, linewidth=1.2, alpha=0.55)
        axes.plot([x, x], [scale * gain["low"], scale * gain["high"]], color=colour, linewidth=1.2, alpha=0.55)
        mark = marker(places.index(place_name(results, row)))
        axes.plot([x], [y], mark, color=colour, markersize=8, markeredgecolor=CARD)
    methods = list(dict.fromkeys(row["method"] for row, _, _ in points))
    entries = [("s", series(colours[method]), method) for method in methods]
    if len(places) > 1:
        entries += [(marker(i), MUTED, place) for i, place in enumerate(places)]
    legend(figure, entries)
    axes.grid(color=GRID, linewidth=0.8)
    axes.margins(0.12)
    axes.locator_params(axis="x", nbins=6)
    axes.set_xlabel("general text: change of the masked-LM loss, nats (left is better)")
    axes.set_ylabel(label)
    return svg(figure, "tradeoff", "Gain on the domain against forgetting of general text")


def _key(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["model"], row["domain"], row["method"]


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
