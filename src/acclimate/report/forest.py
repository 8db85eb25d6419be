"""The forest plot: the paired difference of each method to the baseline, with its interval."""

from __future__ import annotations

from typing import Any

from acclimate.report.figures import CARD, GRID, INK, colour_index, new_figure, series, short, styled, svg
from acclimate.report.words import metric_name, place_name, signed


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
