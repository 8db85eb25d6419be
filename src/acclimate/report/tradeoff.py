"""Gain against forgetting: what each method won on the domain, over what it cost on general text."""

from __future__ import annotations

from typing import Any

from acclimate.report.figures import (
    CARD,
    GRID,
    INK,
    MUTED,
    colour_index,
    legend,
    marker,
    new_figure,
    series,
    styled,
    svg,
)
from acclimate.report.words import metric_name, place_name


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
