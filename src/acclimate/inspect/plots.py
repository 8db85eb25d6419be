"""Figures of importances: a heat map of each domain, and how alike the domains are."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from acclimate.inspect.importance import ImportanceResult

SHOWN_SINGLY = 32
"""Units of a layer that are shown each at its place; more of them are sorted, since their order means nothing."""
CHANCE = "0.55"


def draw(result: ImportanceResult, folder: Path) -> None:
    """Write ``importance-PART-DOMAIN.png`` for each domain and ``distribution-PART.png`` into ``folder``."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({"font.size": 9, "text.parse_math": False, "axes.titlesize": 10})
        for part, found in result.report["parts"].items():
            for name in result.raw:
                figure = heat_map(result.raw[name][part].mean(0), result.normalised[name][part].mean(0), name, found)
                figure.savefig(folder / f"importance-{part}-{name}.png", dpi=150)
            distribution(found, result.report["bins"]).savefig(folder / f"distribution-{part}.png", dpi=150)


def heat_map(raw: Tensor, normalised: Tensor, name: str, found: dict[str, Any]) -> Figure:
    """Draw layers x units: at the left the importance within its layer, at the right the protection.

    Args:
        raw: (layers, units), as measured, averaged over seeds.
        normalised: (layers, units), through Eq. 10, averaged over seeds.
        name: Of the domain.
        found: What the report says of this part.
    """
    layers, units = raw.shape
    score = torch.nan_to_num((raw - raw.mean(1, keepdim=True)) / raw.std(1, keepdim=True))
    singly = units <= SHOWN_SINGLY
    if not singly:
        order = score.argsort(1, descending=True)
        score, normalised = score.gather(1, order), normalised.gather(1, order)
    figure = _figure(max(8.0, 0.62 * units + 2.5) if singly else 9.0, max(2.4, 0.3 * layers + 1.2))
    left, right = figure.subplots(1, 2)
    panels: tuple[tuple[Axes, Tensor, str, str, float, float], ...] = (
        (left, score, "importance, standard deviations from the layer's mean", "RdBu_r", -3, 3),
        (right, normalised, "protection: normalised importance", "viridis", 0, 1),
    )
    for axes, values, title, colours, low, high in panels:
        image = axes.imshow(values.numpy(), aspect="auto", cmap=colours, vmin=low, vmax=high, interpolation="nearest")
        axes.set_title(title)
        axes.set_xlabel("head" if found["name"] == "attention heads" else "unit")
        if not singly:
            axes.set_xlabel("units of each layer, the most important first")
        else:
            axes.set_xticks(range(units))
        axes.set_yticks(range(layers))
        axes.set_ylabel("layer")
        figure.colorbar(image, ax=axes, fraction=0.05)
        if singly and values is normalised:
            _numbers(axes, values)
    figure.suptitle(f"{name}: {found['name']}")
    return figure


def _numbers(axes: Axes, values: Tensor) -> None:
    for layer, row in enumerate(values.tolist()):
        for unit, value in enumerate(row):
            colour = "white" if value < 0.6 else "black"
            axes.text(unit, layer, f".{min(99, round(100 * value)):02d}", ha="center", va="center", color=colour)


def distribution(found: dict[str, Any], edges: list[float]) -> Figure:
    """Draw the share of units in each bin, and the cosines between domains and seeds, each beside chance."""
    names = list(found["shares"])
    figure = _figure(10.0, 4.2)
    left, right = figure.subplots(1, 2)
    kinds = list(found["random"])
    width = 0.84 / (len(names) + len(kinds))
    for number, name in enumerate([*names, *kinds]):
        places = [index + (number + 0.5) * width - 0.42 for index in range(len(edges) - 1)]
        if name in names and number < len(names):
            left.bar(places, found["shares"][name], width, label=name, color=f"C{number % 10}")
            continue
        spreads = found["random"][name]["shares"]
        means = [spread["mean"] for spread in spreads]
        reach = [[s["mean"] - s["low"] for s in spreads], [s["high"] - s["mean"] for s in spreads]]
        shade = CHANCE if name == kinds[0] else "0.78"
        left.bar(places, means, width, yerr=reach, label=f"random, {name}", color=shade, ecolor="0.2", capsize=1.5)
    labels = [f"{low:.1f} to {high:.1f}" for low, high in pairwise(edges)]
    left.set_xticks(range(len(labels)), labels)
    left.set_xlabel("normalised importance")
    left.set_ylabel(f"share of the {found['name']}")
    left.legend(frameon=False, fontsize=8)
    _cosines(right, found, names, kinds)
    return figure


def _cosines(axes: Axes, found: dict[str, Any], names: list[str], kinds: list[str]) -> None:
    from matplotlib.lines import Line2D

    lines = [*names, *(f"random, {kind}" for kind in kinds)]
    for number, name in enumerate(names):
        others = list(found["cosine"]["between"][name].values())
        axes.plot(others, [number] * len(others), "o", color=f"C{number % 10}", alpha=0.7)
        if (same := found["cosine"]["between_seeds"][name]) is not None:
            axes.plot([same], [number], "D", color=f"C{number % 10}", markerfacecolor="none", markersize=8)
    for number, kind in enumerate(kinds, len(names)):
        spread = found["random"][kind]["cosine"]
        axes.plot([spread["low"], spread["high"]], [number, number], color=CHANCE, linewidth=3)
        axes.plot([spread["mean"]], [number], "|", color="0.2", markersize=12)
    axes.set_yticks(range(len(lines)), lines)
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.set_xlabel("cosine of normalised importances")
    axes.grid(axis="x", alpha=0.3)
    handles = [
        Line2D([], [], marker="o", color="0.3", linestyle=""),
        Line2D([], [], marker="D", color="0.3", linestyle="", markerfacecolor="none"),
        Line2D([], [], color=CHANCE, linewidth=3),
    ]
    axes.legend(
        handles,
        ["with another domain", "of two seeds", "chance, 95 %"],
        frameon=False,
        fontsize=8,
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        ncols=3,
    )


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")
