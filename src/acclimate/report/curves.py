"""Learning curves: the loss terms of each adaptation over the tokens read, in training and on held-out text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from acclimate.report.cells import Entry, Table
from acclimate.report.figures import GRID, MUTED, colour_index, legend, new_figure, series, short, styled, svg
from acclimate.report.words import method_name, place_name, plain

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
