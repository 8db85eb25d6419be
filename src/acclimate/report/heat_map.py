"""The heat map of importance: which heads, or other units, a method found important, and how much it protects them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from acclimate.report.cells import Entry, Table
from acclimate.report.figures import CARD, COOL, INK, WARM, legend, new_figure, short, styled, svg
from acclimate.report.words import place_name, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
