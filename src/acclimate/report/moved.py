"""How far adaptation moved each layer: linear CKA of hidden states before and after, from the input to the last."""

from __future__ import annotations

from typing import Any

from acclimate.report.cells import Entry, Table
from acclimate.report.figures import (
    GRID,
    INK,
    colour_index,
    marker,
    method_legend,
    new_figure,
    series,
    short,
    styled,
    svg,
)
from acclimate.report.words import method_name, place_name, plain

NARROWEST = 0.05
"""Least extent of the axis of CKA, so that next to no movement does not look like much."""


@styled
def layers(results: dict[str, Any]) -> str:
    """Draw a panel for each model and domain, with a line for each method; empty if movement was not measured."""
    rows = results.get("moved") or []
    if not rows:
        return ""
    colours = colour_index(results)
    panels = list(dict.fromkeys((row["model"], row["domain"]) for row in rows))
    methods = list(dict.fromkeys(row["method"] for row in rows))
    figure = new_figure(0.5 + 2.4 * len(panels))
    grid = figure.subplots(len(panels), 1, squeeze=False)
    for axes, (model, domain) in zip(grid[:, 0], panels, strict=True):
        mine = [row for row in rows if (row["model"], row["domain"]) == (model, domain)]
        lowest = 1 - NARROWEST
        for row in mine:
            ckas = [layer["cka"] for layer in row["layers"]]
            lowest = min(lowest, *ckas)
            line = f"{marker(methods.index(row['method']))}-"
            axes.plot(range(len(ckas)), ckas, line, color=series(colours[row["method"]]), markersize=4.5)
        axes.axhline(1, color=INK, linewidth=0.8)
        axes.set_ylim(1 - 1.08 * (1 - lowest), 1 + 0.05 * (1 - lowest))
        most = max(len(row["layers"]) for row in mine)
        axes.set_xticks(range(0, most, 1 + most // 16))
        axes.grid(color=GRID, linewidth=0.8)
        axes.set_ylabel("CKA with before")
        if len(panels) > 1:
            axes.set_title(short(place_name(results, {"model": model, "domain": domain}), 50), loc="left")
    grid[-1, 0].set_xlabel("layer")
    method_legend(figure, methods, colours)
    return svg(figure, "movement", "Linear CKA of each layer before and after adaptation")


def layer_numbers(results: dict[str, Any]) -> Table:
    """Return what was measured of each layer, also what CKA does not see: distances."""
    names = ["where", "method", "layer", "CKA", "distance", "% of length", "cosine"]
    table = Table("How far each layer moved", "", names, [False] * 2 + [True] * 5)
    for row in results.get("moved") or []:
        place = place_name(results, {"model": row["model"], "domain": row["domain"]})
        for number, layer in enumerate(row["layers"]):
            shown = [(layer["cka"], 3), (layer["distance"], 3), (100 * layer["share"], 2), (layer["cosine"], 4)]
            cells = [Entry(plain(value, digits), value) for value, digits in shown]
            table.rows.append([Entry(place), Entry(method_name(row)), Entry(str(number), number), *cells])
    return table
