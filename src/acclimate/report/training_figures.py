"""Figures of training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from acclimate.report.figures import (
    CARD,
    COOL,
    GRID,
    INK,
    MUTED,
    WARM,
    colour_index,
    legend,
    marker,
    method_legend,
    new_figure,
    panel_grid,
    series,
    short,
    styled,
    svg,
)
from acclimate.report.formatting import Entry, Table, method_name, place_name, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes


Run = dict[str, Any]


@styled
def curves(results: dict[str, Any]) -> str:
    """Draw the loss of each adaptation over tokens read; empty if there is no log.

    A panel for each model and domain shows the term that all methods have; every other term has a panel, too.
    """
    runs = [run for run in results["adaptations"] if len(run["curve"]) > 1 and not run["head"]]
    if not runs:
        return ""
    colours = colour_index(results)
    panels = _panels(runs)
    figure = new_figure(0.5 + 2.6 * len(panels))
    grid = figure.subplots(len(panels), 1, squeeze=False)
    several = len({panel[:2] for panel in panels}) > 1
    for axes, (model, domain, term) in zip(grid[:, 0], panels, strict=True):
        for run in runs:
            if (run["model"], run["domain"]) == (model, domain):
                _draw(axes, run, term, series(colours[run["method"]]))
        if several:
            axes.set_title(short(place_name(results, {"model": model, "domain": domain}), 50), loc="left")
        axes.grid(color=GRID, linewidth=0.8)
        axes.set_ylabel("masked-LM loss, nats" if term == "mlm" else _label(term, common=term == panels[0][2]))
    grid[-1, 0].set_xlabel("thousands of tokens read")
    methods = list(dict.fromkeys(run["method"] for run in runs))
    entries = [("s", series(colours[method]), method) for method in methods]
    if any(run.get("heldout_curve") for run in runs):
        entries.append(("o", MUTED, "held-out text, dashed"))
    legend(figure, entries)
    return svg(figure, "curves", "Training loss over tokens read")


def curve_numbers(results: dict[str, Any]) -> Table:
    """Return where each term of each adaptation began and ended, in training and on held-out text."""
    names = ["where", "method", "seed", "term", "first", "last", "held out, first", "held out, last"]
    table = Table("Learning curves", "", names, [False, False, True, False, True, True, True, True])
    for run in results["adaptations"]:
        if len(run["curve"]) < 2 or run["head"]:
            continue
        place = [Entry(place_name(results, run)), Entry(method_name(run)), Entry(str(run["seed"]), run["seed"])]
        for term in {name: None for point in run["curve"] for name in point.get("terms", {})}:
            ends: list[Entry] = []
            for points in (run["curve"], run.get("heldout_curve") or []):
                _, found = values(points, term)
                ends += [Entry(plain(end, 3), end) for end in (found[0], found[-1])] if found else [Entry("–")] * 2
            table.rows.append([*place, Entry(term), *ends])
    return table


def _label(term: str, common: bool) -> str:
    return f"{short(term, 20)}, nats" if common else short(term, 24)


def _panels(runs: Sequence[Run]) -> list[tuple[str, str, str]]:
    """Return (model, domain, term) of each panel: the common term first."""
    common = _common_term(runs)
    panels = {(run["model"], run["domain"], common): None for run in runs}
    for run in runs:
        terms = {term: None for point in run["curve"] for term in point.get("terms", {})}
        panels |= {(run["model"], run["domain"], term): None for term in terms if term != common}
    return list(panels)


def _common_term(runs: Sequence[Run]) -> str:
    """Return the loss term that all runs have: totals of different methods cannot be compared."""
    shared = set.intersection(*({*point.get("terms", {})} for run in runs for point in run["curve"]))
    return "mlm" if "mlm" in shared else min(shared) if shared else "loss"


def values(points: Sequence[dict[str, Any]], term: str) -> tuple[list[float], list[float]]:
    """Return thousands of tokens, and a term (or the total, ``"loss"``) at the points that have it."""
    having = [point for point in points if point.get("tokens") is not None and term in {**point["terms"], "loss": 0}]
    x = [point["tokens"] / 1000 for point in having]
    return x, [float(point["loss"] if term == "loss" else point["terms"][term]) for point in having]


def _draw(axes: Axes, run: Run, term: str, colour: str) -> None:
    """Draw one run: thin as logged, thick smoothed, dashed on held-out text."""
    x, y = values(run["curve"], term)
    smooth, average = [], y[0] if y else 0.0
    for value in y:
        average += 0.2 * (value - average)
        smooth.append(average)
    axes.plot(x, y, color=colour, linewidth=0.8, alpha=0.35)
    axes.plot(x, smooth, color=colour, linewidth=1.8)
    x, y = values(run.get("heldout_curve") or [], term)
    axes.plot(x, y, "o--", color=colour, linewidth=1.4, markersize=3)


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


MOST = 4
"""Panels at most: more are in the files beside the models."""
NUMBERED = 16
"""Units of a layer up to which each has its number written on it."""

Panel = dict[str, Any]


def panels(results: dict[str, Any]) -> list[Panel]:
    """Return what the adaptations of a study measured, each once, however many methods went by it.

    Returns:
        For each ``title``, ``name`` of the units, ``raw`` and ``protection`` (layers, units), and ``sorted``, whether
        the units stand in the order of their importance. The first :data:`MOST` of them.
    """
    found: list[Panel] = []
    for run in results["adaptations"]:
        for part in (run.get("importance") or {}).get("parts", {}).values():
            place = place_name(results, run)
            same = next((one for one in found if one["of"] == part and one["place"] == place), None)
            if same is None:
                found.append({**part, "of": part, "place": place, "methods": [run["method"]]})
            elif run["method"] not in same["methods"]:
                same["methods"].append(run["method"])
    several = len({one["place"] for one in found}) > 1
    for one in found:
        where = f" · {one['place']}" if several else ""
        one["title"] = f"{one['name']}, {', '.join(one['methods'])}{where}"
    return found[:MOST]


@styled
def heat_map(results: dict[str, Any]) -> str:
    """Draw layers x units: the colour says on which side of its layer's mean, the strength how much it is protected.

    Empty if no adaptation measured importance.
    """
    shown = panels(results)
    if not shown:
        return ""
    heights = [0.27 * len(one["raw"]) + 0.9 for one in shown]
    figure = new_figure(0.5 + sum(heights))
    grid = figure.subplots(len(shown), 1, squeeze=False, height_ratios=heights)
    for axes, one in zip(grid[:, 0], shown, strict=True):
        _panel(axes, one)
    legend(figure, [("s", WARM, "above its layer's mean"), ("s", COOL, "below")])
    return svg(figure, "importance", "Importance of the units of each layer")


def _panel(axes: Axes, one: Panel) -> None:
    from matplotlib.patches import Rectangle

    raw, protection = one["raw"], one["protection"]
    units = len(raw[0])
    for layer, (values, shares) in enumerate(zip(raw, protection, strict=True)):
        mean = sum(values) / units
        for unit, (value, share) in enumerate(zip(values, shares, strict=True)):
            colour, place = WARM if value >= mean else COOL, (unit - 0.5, layer - 0.5)
            alpha = min(1.0, max(0.0, share))
            axes.add_patch(Rectangle(place, 1, 1, facecolor=colour, alpha=alpha, edgecolor="none"))
            if units <= NUMBERED:
                text = f"{share:.2f}".removeprefix("0") if share < 0.995 else "1"
                axes.text(unit, layer, text, ha="center", va="center", color=INK, fontsize=9)
    if units <= NUMBERED:
        for edge in range(units + 1):
            axes.axvline(edge - 0.5, color=CARD, linewidth=1)
    for edge in range(len(raw) + 1):
        axes.axhline(edge - 0.5, color=CARD, linewidth=1)
    axes.set_xlim(-0.5, units - 0.5)
    axes.set_ylim(len(raw) - 0.5, -0.5)
    axes.set_yticks(range(len(raw)), [str(layer) for layer in range(len(raw))])
    axes.set_xticks(range(units) if units <= NUMBERED else [])
    axes.tick_params(length=0)
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.set_ylabel("layer")
    one_by_one = "head" if one["name"] == "attention heads" else "unit"
    axes.set_xlabel(f"{one['units']:,} units of each layer, the most important first" if one["sorted"] else one_by_one)
    axes.set_title(short(one["title"], 60), loc="left")


def heat_numbers(results: dict[str, Any]) -> Table | None:
    """Return the numbers of the panels whose units are shown each at its place."""
    shown = [one for one in panels(results) if not one["sorted"]]
    if not shown:
        return None
    units = max(len(one["raw"][0]) for one in shown)
    names = ["what", "layer", *(f"unit {unit}" for unit in range(units))]
    table = Table("Protection of each unit", "", names, [False] + [True] * (units + 1))
    for one in shown:
        for layer, shares in enumerate(one["protection"]):
            row = [Entry(plain(share, 2), share) for share in shares] + [Entry("–")] * (units - len(shares))
            table.rows.append([Entry(one["title"]), Entry(str(layer), layer), *row])
    return table
