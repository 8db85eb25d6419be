"""Figures and terminal tables of importance: a heat map per domain, and the similarity of the domains."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from acclimate.results.display import figure_style, titled_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.table import Table

MAX_UNSORTED_UNITS = 32
"""Maximum units per layer shown at their positions. More units are sorted, since their order has no meaning."""
CHANCE_GREY = "0.55"
Scores = dict[str, dict[str, Tensor]]


def draw_importance(report: dict[str, Any], raw: Scores, normalized: Scores, folder: Path) -> None:
    """Write ``distribution-PART.png`` for each part and ``importance-PART-DOMAIN.png`` for each domain to ``folder``.

    Args:
        report: As in ``importance.json``.
        raw: Measured scores of each domain and part, (seeds, layers, units).
        normalized: The same scores after normalization.
        folder: Directory to write to.
    """
    with figure_style(**{"axes.titlesize": 10}):
        for part, found in report["parts"].items():
            for name in raw:
                figure = _heat_map(raw[name][part].mean(0), normalized[name][part].mean(0), name, found)
                figure.savefig(folder / f"importance-{part}-{name}.png", dpi=150)
            _distribution(found, report["bins"]).savefig(folder / f"distribution-{part}.png", dpi=150)


def _heat_map(raw: Tensor, normalized: Tensor, name: str, found: dict[str, Any]) -> Figure:
    """Draw two heat maps (layers, units): on the left scores standardized within their layer, on the right protection.

    Args:
        raw: (layers, units), mean over seeds.
        normalized: (layers, units), mean over seeds, after normalization (Eq. 10).
        name: Name of the domain.
        found: Entry of the part in the report.
    """
    layers, units = raw.shape
    score = torch.nan_to_num((raw - raw.mean(1, keepdim=True)) / raw.std(1, keepdim=True))
    in_place = units <= MAX_UNSORTED_UNITS
    if not in_place:
        order = score.argsort(1, descending=True)
        score, normalized = score.gather(1, order), normalized.gather(1, order)
    figure = _figure(max(8.0, 0.62 * units + 2.5) if in_place else 9.0, max(2.4, 0.3 * layers + 1.2))
    left, right = figure.subplots(1, 2)
    panels: tuple[tuple[Axes, Tensor, str, str, float, float], ...] = (
        (left, score, "importance, standard deviations from the layer mean", "RdBu_r", -3, 3),
        (right, normalized, "protection: normalized importance", "viridis", 0, 1),
    )
    for axes, values, title, colours, low, high in panels:
        image = axes.imshow(values.numpy(), aspect="auto", cmap=colours, vmin=low, vmax=high, interpolation="nearest")
        axes.set_title(title)
        axes.set_xlabel("head" if found["name"] == "attention heads" else "unit")
        if not in_place:
            axes.set_xlabel("units of each layer, most important first")
        else:
            axes.set_xticks(range(units))
        axes.set_yticks(range(layers))
        axes.set_ylabel("layer")
        figure.colorbar(image, ax=axes, fraction=0.05)
        if in_place and values is normalized:
            _write_values(axes, values)
    figure.suptitle(f"{name}: {found['name']}")
    return figure


def _write_values(axes: Axes, values: Tensor) -> None:
    for layer, row in enumerate(values.tolist()):
        for unit, value in enumerate(row):
            colour = "white" if value < 0.6 else "black"
            axes.text(unit, layer, f".{min(99, round(100 * value)):02d}", ha="center", va="center", color=colour)


def _distribution(found: dict[str, Any], edges: list[float]) -> Figure:
    """Draw the share of units per bin, and the cosines between domains and seeds, each next to chance."""
    names = list(found["shares"])
    figure = _figure(10.0, 4.2)
    left, right = figure.subplots(1, 2)
    kinds = list(found["random"])
    width = 0.84 / (len(names) + len(kinds))
    for number, name in enumerate([*names, *kinds]):
        positions = [index + (number + 0.5) * width - 0.42 for index in range(len(edges) - 1)]
        if name in names and number < len(names):
            left.bar(positions, found["shares"][name], width, label=name, color=f"C{number % 10}")
            continue
        spreads = found["random"][name]["shares"]
        means = [spread["mean"] for spread in spreads]
        errors = [[s["mean"] - s["low"] for s in spreads], [s["high"] - s["mean"] for s in spreads]]
        shade = CHANCE_GREY if name == kinds[0] else "0.78"
        left.bar(positions, means, width, yerr=errors, label=f"random, {name}", color=shade, ecolor="0.2", capsize=1.5)
    labels = [f"{low:.1f} to {high:.1f}" for low, high in pairwise(edges)]
    left.set_xticks(range(len(labels)), labels)
    left.set_xlabel("normalized importance")
    left.set_ylabel(f"share of the {found['name']}")
    left.legend(frameon=False, fontsize=8)
    _draw_cosines(right, found, names, kinds)
    return figure


def _draw_cosines(axes: Axes, found: dict[str, Any], names: list[str], kinds: list[str]) -> None:
    from matplotlib.lines import Line2D

    lines = [*names, *(f"random, {kind}" for kind in kinds)]
    for number, name in enumerate(names):
        others = list(found["cosine"]["between"][name].values())
        axes.plot(others, [number] * len(others), "o", color=f"C{number % 10}", alpha=0.7)
        if (same := found["cosine"]["between_seeds"][name]) is not None:
            axes.plot([same], [number], "D", color=f"C{number % 10}", markerfacecolor="none", markersize=8)
    for number, kind in enumerate(kinds, len(names)):
        spread = found["random"][kind]["cosine"]
        axes.plot([spread["low"], spread["high"]], [number, number], color=CHANCE_GREY, linewidth=3)
        axes.plot([spread["mean"]], [number], "|", color="0.2", markersize=12)
    axes.set_yticks(range(len(lines)), lines)
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.set_xlabel("cosine similarity of normalized importance")
    axes.grid(axis="x", alpha=0.3)
    handles = [
        Line2D([], [], marker="o", color="0.3", linestyle=""),
        Line2D([], [], marker="D", color="0.3", linestyle="", markerfacecolor="none"),
        Line2D([], [], color=CHANCE_GREY, linewidth=3),
    ]
    axes.legend(
        handles,
        ["between domains", "between seeds", "chance, 95 %"],
        frameon=False,
        fontsize=8,
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        ncols=3,
    )


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def importance_tables(report: dict[str, Any]) -> list[Table | str]:
    """Return tables for a terminal of 80 columns: the domains next to chance for each part, and how to read them.

    Args:
        report: As in ``importance.json``.
    """
    shown: list[Table | str] = []
    for letter, found in report["parts"].items():
        title = f"{letter}, {found['layers']} x {found['units']} {found['name']}"
        if table := _similarity_table(f"{title}: similarity of importance", found):
            shown.append(table)
            if len(found["shares"]) > 2:
                shown.append(_pair_table(found))
            shown.append(_reading_note(found))
        shown.append(_share_table(f"{title}: share by normalized importance", found, report["bins"]))
    shown.append(_precision_table(report["domains"]))
    exhausted = [name for name, domain in report["domains"].items() if domain["tokens"] <= min(domain["read"])]
    if exhausted and len(report["settings"]["seeds"]) > 1:
        shown.append(f"The whole text of {', '.join(exhausted)} was read: its seeds differ in dropout only.")
    return shown


def _similarity_table(title: str, found: dict[str, Any]) -> Table | None:
    """Return the table of cosines and correlations, or None for a single domain and seed."""
    columns = {
        f"{name}\n{against}": found[kind][key]
        for kind, name in (("cosine", "cosine,"), ("correlation", "r,"))
        for key, against in (("to_others", "other domains"), ("between_seeds", "other seeds"))
        if any(value is not None for value in found[kind][key].values())
    }
    if not columns:
        return None
    table = _table(title, list(columns))
    for name in found["shares"]:
        table.add_row(name, *(f"{values[name]:.2f}" for values in columns.values()))
    for kind, chance in found["random"].items():
        cosine = f"{chance['cosine']['mean']:.2f}"
        table.add_row(f"random, {kind}", *(cosine if "cosine" in name else "0" for name in columns), style="dim")
    return table


def _pair_table(found: dict[str, Any]) -> Table:
    names = list(found["shares"])
    table = _table("Cosine of each pair of domains", names)
    for name in names:
        row = found["cosine"]["between"][name]
        table.add_row(name, *(f"{row[other]:.2f}" if other in row else "" for other in names))
    return table


def _reading_note(found: dict[str, Any]) -> str:
    chances = " or ".join(
        f"{mean:.2f} ({kind}; 95 % from {low:.2f} to {high:.2f})"
        for kind, chance in found["random"].items()
        for mean, low, high in [(chance["cosine"][key] for key in ("mean", "low", "high"))]
    )
    return (
        f"After the same normalization, two independent random score matrices have a cosine of {chances}. Compare the "
        "cosine between domains with that baseline and with the cosine between seeds. r is the correlation within "
        "layers before normalization; its expectation by chance is 0."
    )


def _share_table(title: str, found: dict[str, Any], bins: list[float]) -> Table:
    table = _table(title, [f"from {low:g}" for low in bins[:-1]])
    for name, parts in found["shares"].items():
        table.add_row(name, *(f"{share:.0%}" for share in parts))
    for kind, chance in found["random"].items():
        table.add_row(f"random, {kind}", *(f"{share['mean']:.0%}" for share in chance["shares"]), style="dim")
    return table


def _precision_table(domains: dict[str, Any]) -> Table:
    """Return the table of tokens read and standard errors, each for the seed with the least text."""
    table = _table("Text read", ["tokens", "standard error"])
    for name, domain in domains.items():
        errors = domain["standard_error"]
        error = "too little text to estimate" if None in errors else f"{max(errors):.3f}"
        table.add_row(name, f"{min(domain['read']):,}", error)
    return table


def _table(title: str, columns: list[str]) -> Table:
    table = titled_table(title)
    table.add_column("", overflow="fold")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table
