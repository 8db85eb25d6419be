"""Figures of scores: differences to the baseline, gain against forgetting, calibration, and races."""

from __future__ import annotations

from typing import TYPE_CHECKING

from acclimate.report.figures import (
    CARD,
    GRID,
    INK,
    MUTED,
    SERIES,
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
from acclimate.report.formatting import loss_name, metric_name, row_place
from acclimate.results.cells import Entry, Table, bracket_text, count_entry, number_entry
from acclimate.results.scores import BETTER, HELPED, HURT, WORSE, Interval, LossRow, ScoreRow
from acclimate.results.study import StudyResults

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_DOT, MIN_DOT = 240.0, 6.0
"""Area in square points of the dot of a confidence bin with all predictions, and of the smallest dot."""

RACE = "The race"
"""Title of the table that :func:`race_plot` draws."""

MIN_SPAN = 2.0
"""Percentage points that the axis of differences covers at least."""


@styled
def forest_plot(results: StudyResults) -> str:
    """Draw the paired difference of each method to the baseline with its interval; empty without comparisons."""
    rows = [row for row in results.scores if row.comparison]
    if not rows:
        return ""
    from matplotlib.transforms import blended_transform_factory

    colours = colour_index(results)
    groups: dict[str, list[ScoreRow]] = {}
    for row in rows:
        groups.setdefault(f"{row_place(results, row)} ({metric_name(row.metric)})", []).append(row)
    lines: list[tuple[str, ScoreRow | None]] = []
    for name, members in groups.items():
        lines += [(name, None), *((row.method, row) for row in members)]
    figure = new_figure(0.75 + 0.27 * len(lines))
    axes = figure.subplots()
    axes.axvline(0, color=INK, linewidth=1)
    for y, (_, line) in enumerate(lines):
        if line is not None and (entry := line.comparison):
            colour = series(colours[line.method])
            axes.plot([100 * entry.low, 100 * entry.high], [y, y], color=colour, linewidth=2)
            fill = colour if entry.verdict in (HELPED, HURT, BETTER, WORSE) else CARD
            axes.plot([100 * entry.difference], [y], "o", color=colour, markerfacecolor=fill, markersize=7, mew=1.8)
    axes.set_yticks(range(len(lines)), ["" if line is None else short(name, 26) for name, line in lines])
    for y, (name, line) in enumerate(lines):
        if line is None:  # group headings start at the edge of the figure and take no space from the axes
            position = blended_transform_factory(figure.transFigure, axes.transData)
            text = axes.text(0.01, y, short(name, 60), transform=position, va="center", fontweight="bold")
            text.set_bbox({"facecolor": CARD, "edgecolor": "none", "pad": 1.5})
            text.set_in_layout(False)
    values = axes.twinx()
    comparisons = [line.comparison if line else None for _, line in lines]
    numbers = ["" if entry is None else bracket_text(entry, 100).replace(" [", "  [") for entry in comparisons]
    values.set_yticks(range(len(lines)), numbers)
    for side in (axes, values):
        side.set_ylim(len(lines) - 0.4, -0.7)
        side.tick_params(axis="y", length=0, labelcolor=INK)
        side.spines[["left", "right", "top", "bottom"]].set_visible(False)
    axes.grid(axis="x", color=GRID, linewidth=0.8)
    axes.margins(x=0.06)
    axes.set_xlim(*at_least(MIN_SPAN, *axes.get_xlim()))
    axes.locator_params(axis="x", nbins=7)
    axes.set_xlabel(f"difference to {short(results.baseline, 30)}, percentage points (right is better)")
    return svg(figure, "forest", "Paired differences with 95 % intervals")


def at_least(span: float, low: float, high: float) -> tuple[float, float]:
    """Return the limits of an axis, wide enough that rounding errors do not look like differences."""
    missing = max(0.0, span - (high - low)) / 2
    return low - missing, high + missing


@styled
def tradeoff_plot(results: StudyResults) -> str:
    """Draw the gain on the domain against forgetting of general text; empty unless both were measured."""
    costs = {
        (row.model, row.domain, row.method, row.task): row.difference
        for row in results.losses
        if row.text == "general" and row.difference
    }

    def cost_of(row: ScoreRow | LossRow) -> Interval | None:
        """Return the change in loss on general text of the model adapted for this task, or else for its domain."""
        place = (row.model, row.domain, row.method)
        return costs.get((*place, row.task)) or costs.get((*place, None))

    points: list[tuple[ScoreRow | LossRow, Interval, float]] = [
        (row, entry, 100.0) for row in results.scores if (entry := row.comparison)
    ]
    if points:
        names = sorted({metric_name(row.metric) for row in results.scores if row.comparison})
        label = f"gain in {' / '.join(names)}, percentage points"
    else:
        points = [(row, row.difference, -1.0) for row in results.losses if row.text == "domain" and row.difference]
        label = "decrease of the loss on domain text, nats"
    points = [point for point in points if cost_of(point[0])]
    if not points:
        return ""
    colours = colour_index(results)
    places = list(dict.fromkeys(row_place(results, row) for row, _, _ in points))
    figure = new_figure(4.1)
    axes = figure.subplots()
    axes.axhline(0, color=INK, linewidth=1)
    axes.axvline(0, color=INK, linewidth=1)
    for row, gain, scale in points:
        cost, colour = cost_of(row), series(colours[row.method])
        assert cost is not None
        x, y = cost.difference, scale * gain.difference
        axes.plot([cost.low, cost.high], [y, y], color=colour, linewidth=1.2, alpha=0.55)
        axes.plot([x, x], [scale * gain.low, scale * gain.high], color=colour, linewidth=1.2, alpha=0.55)
        mark = marker(places.index(row_place(results, row)))
        axes.plot([x], [y], mark, color=colour, markersize=8, markeredgecolor=CARD)
    methods = list(dict.fromkeys(row.method for row, _, _ in points))
    entries = [("s", series(colours[method]), method) for method in methods]
    if len(places) > 1:
        entries += [(marker(i), MUTED, place) for i, place in enumerate(places)]
    legend(figure, entries)
    axes.grid(color=GRID, linewidth=0.8)
    axes.margins(0.12)
    axes.set_ylim(*at_least(MIN_SPAN if points[0][2] == 100 else 0.0, *axes.get_ylim()))
    axes.locator_params(axis="x", nbins=6)
    axes.set_xlabel(f"change of the {loss_name(results.losses)} on general text, nats (left is better)")
    axes.set_ylabel(label)
    return svg(figure, "tradeoff", "Gain on the domain against forgetting of general text")


@styled
def reliability_diagram(results: StudyResults) -> str:
    """Draw accuracy over confidence, a panel per task and a line per method (Niculescu-Mizil & Caruana, 2005).

    Empty if no task has confidence bins.
    """
    panels: dict[str, list[ScoreRow]] = {}
    for row in results.scores:
        if row.reliability:
            panels.setdefault(row_place(results, row), []).append(row)
    if not panels:
        return ""
    colours = colour_index(results)
    figure, grid = panel_grid(list(panels), (3.6, 2.9), "confidence, %", "accuracy, %")
    for axes, rows in zip(grid, panels.values(), strict=True):
        _reliability_panel(axes, rows, colours)
    methods = list(dict.fromkeys(row.method for rows in panels.values() for row in rows))
    legend(figure, [("s", series(colours[method]), method) for method in methods])
    return svg(figure, "reliability", "Accuracy of predictions over their confidence")


def reliability_table(results: StudyResults) -> Table:
    """Return the confidence bins of the reliability diagram."""
    names = ["task", "method", "confidence, %", "accuracy, %", "predictions"]
    table = Table("Calibration", "", names)
    for row in results.scores:
        for entry in row.reliability or []:
            shares = [number_entry(value, scale=100) for value in (entry.confidence, entry.accuracy)]
            table.rows.append([Entry(row_place(results, row)), Entry(row.method), *shares, count_entry(entry.count)])
    return table


def _reliability_panel(axes: Axes, rows: list[ScoreRow], colours: dict[str, int]) -> None:
    """Draw the methods of one task; the x axis starts at the lowest occupied bin."""
    axes.plot([0, 100], [0, 100], color=INK, linewidth=0.8, dashes=(5, 4))
    for row in rows:
        bins, colour = row.reliability or [], series(colours[row.method])
        total = sum(entry.count for entry in bins)
        x = [100 * entry.confidence for entry in bins]
        y = [100 * entry.accuracy for entry in bins]
        areas = [max(MIN_DOT, MAX_DOT * entry.count / total) for entry in bins]
        axes.plot(x, y, color=colour, linewidth=1.2, alpha=0.6)
        axes.scatter(x, y, s=areas, color=colour, edgecolors=CARD, linewidths=0.8, zorder=3)
    start = 10 * int(10 * min(entry.low for row in rows for entry in row.reliability or []))
    axes.set_xlim(start - 2, 103)
    axes.set_ylim(-4, 104)
    axes.grid(color=GRID, linewidth=0.8)


@styled
def race_plot(results: StudyResults) -> str:
    """Draw the gain of each entrant of a tournament over the base model by tokens; empty without a race."""
    table = next((table for table in results.tables if table.title == RACE), None)
    if table is None:
        return ""
    places = [table.columns.index(name) for name in ("entrant", "tokens", "gain", "decision")]
    lines: dict[str, list[tuple[int, float, str]]] = {}
    for label, tokens, gain, decision in ([row[place] for place in places] for row in table.rows):
        if gain is not None:
            lines.setdefault(label, []).append((tokens, gain, decision))
    if not lines:
        return ""
    figure = new_figure(3.6)
    axes = figure.subplots()
    axes.axhline(0, color=INK, linewidth=1)
    for number, points in enumerate(lines.values()):
        tokens, gains, decisions = zip(*points, strict=True)
        colour = series(number % SERIES)
        axes.plot(tokens, gains, color=colour, linewidth=1.6, marker=marker(number), markersize=5)
        if decisions[-1].startswith("dropped"):
            axes.plot(tokens[-1:], gains[-1:], "x", color=MUTED, markersize=11, mew=1.6)
    axes.set_xscale("log")
    sizes = sorted({point[0] for points in lines.values() for point in points})
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.minorticks_off()
    axes.set_xlabel("tokens per adaptation")
    axes.set_ylabel("gain, percentage points")
    axes.grid(color=GRID, linewidth=0.6)
    legend(figure, [(marker(number), series(number % SERIES), label) for number, label in enumerate(lines)])
    return svg(figure, "race", "Gain of each entrant over the base model by tokens")
