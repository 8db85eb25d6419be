"""Figures of training: learning curves, stability, and importance of units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from acclimate.evaluation.dips import find_dip, monitored_points
from acclimate.models.kinds import KINDS, loss_terms
from acclimate.report.figures import (
    CARD,
    COOL,
    GRID,
    INK,
    MUTED,
    WARM,
    colour_index,
    legend,
    new_figure,
    panel_grid,
    series,
    short,
    styled,
    svg,
)
from acclimate.report.formatting import method_name, place_name, row_place
from acclimate.results.adaptations import AdaptationRow, CurvePoint, PartImportance
from acclimate.results.cells import DASH, Entry, Table, count_entry, number_entry, plain
from acclimate.results.study import StudyResults

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SMOOTHING = 0.2
"""Weight of a new value in the exponential moving average of a learning curve."""
MAX_HEAT_MAPS = 4
"""Maximum panels of importance in the report. The files in the model folders have all measurements."""
MAX_NUMBERED_UNITS = 16
"""Maximum units per layer for which the heat map shows values."""


@styled
def learning_curves(results: StudyResults) -> str:
    """Draw the loss of each adaptation over tokens read; empty without logs.

    One panel per model and domain shows the loss term that all methods share; every other term has its own panel.
    """
    runs = [run for run in results.adaptations if len(run.curve) > 1 and not run.head]
    if not runs:
        return ""
    colours = colour_index(results)
    panels = _curve_panels(runs)
    figure = new_figure(0.5 + 2.6 * len(panels))
    grid = figure.subplots(len(panels), 1, squeeze=False)
    show_place = len({panel[:2] for panel in panels}) > 1
    for axes, (model, domain, term) in zip(grid[:, 0], panels, strict=True):
        for run in runs:
            if (run.model, run.domain) == (model, domain):
                _draw_curve(axes, run, term, series(colours[run.method]))
        if show_place:
            axes.set_title(short(place_name(results, model, domain), 50), loc="left")
        axes.grid(color=GRID, linewidth=0.8)
        axes.set_ylabel(_term_label(term, common=term == panels[0][2]))
    grid[-1, 0].set_xlabel("thousands of tokens read")
    methods = list(dict.fromkeys(run.method for run in runs))
    entries = [("s", series(colours[method]), method) for method in methods]
    if any(run.heldout_curve for run in runs):
        entries.append(("o", MUTED, "held-out text, dashed"))
    legend(figure, entries)
    return svg(figure, "curves", "Training loss over tokens read")


def learning_curve_table(results: StudyResults) -> Table:
    """Return the first and last value of each loss term, in training and on held-out text."""
    names = ["model and domain", "method", "seed", "term", "first", "last", "held-out, first", "held-out, last"]
    table = Table("Learning curves", "", names)
    for run in results.adaptations:
        if len(run.curve) < 2 or run.head:
            continue
        cells = [Entry(row_place(results, run)), Entry(method_name(run)), Entry(str(run.seed), run.seed)]
        for term in _terms(run):
            ends: list[Entry] = []
            for points in (run.curve, run.heldout_curve):
                _, losses = curve_values(points, term)
                ends += [number_entry(end, 3) for end in (losses[0], losses[-1])] if losses else [DASH] * 2
            table.rows.append([*cells, Entry(term), *ends])
    return table


def curve_values(points: Sequence[CurvePoint], term: str) -> tuple[list[float], list[float]]:
    """Return x (thousands of tokens) and y (a loss term, or the total for ``"loss"``) of the points that have it."""
    found = [
        (point.tokens / 1000, float(value))
        for point in points
        if point.tokens is not None and (value := point.loss if term == "loss" else point.terms.get(term)) is not None
    ]
    return [tokens for tokens, _ in found], [value for _, value in found]


def _term_label(term: str, common: bool) -> str:
    loss = next((kind.loss_name for kind in KINDS.values() if kind.term == term), None)
    return f"{loss or short(term, 20)}, nats" if loss or common else short(term, 24)


def _terms(run: AdaptationRow) -> list[str]:
    return list({term: None for point in run.curve for term in point.terms})


def _curve_panels(runs: Sequence[AdaptationRow]) -> list[tuple[str | None, str | None, str]]:
    """Return (model, domain, term) of each panel, the common term first."""
    common = _common_term(runs)
    panels = {(run.model, run.domain, common): None for run in runs}
    for run in runs:
        panels |= {(run.model, run.domain, term): None for term in _terms(run) if term != common}
    return list(panels)


def _common_term(runs: Sequence[AdaptationRow]) -> str:
    """Return the loss term that all runs share, since totals of different methods are not comparable."""
    shared = set.intersection(*(set(_terms(run)) for run in runs))
    return next((term for term in loss_terms() if term in shared), min(shared) if shared else "loss")


def _draw_curve(axes: Axes, run: AdaptationRow, term: str, colour: str) -> None:
    """Draw one run: a thin line as logged, a thick line smoothed, and a dashed line for held-out text."""
    x, y = curve_values(run.curve, term)
    smooth, average = [], y[0] if y else 0.0
    for value in y:
        average += SMOOTHING * (value - average)
        smooth.append(average)
    axes.plot(x, y, color=colour, linewidth=0.8, alpha=0.35)
    axes.plot(x, smooth, color=colour, linewidth=1.8)
    x, y = curve_values(run.heldout_curve, term)
    axes.plot(x, y, "o--", color=colour, linewidth=1.4, markersize=3)


def _monitored(results: StudyResults) -> list[tuple[AdaptationRow, str, list[tuple[int, float]]]]:
    """Return the curves that were measured from the first step on: run, name of the text, steps and losses."""
    curves = [
        (run, text, monitored_points(curve))
        for text in ("held-out", "general")
        for run in results.adaptations
        for curve in [run.heldout_curve if text == "held-out" else run.general_curve]
    ]
    return [entry for entry in curves if entry[2]]


@styled
def stability(results: StudyResults) -> str:
    """Draw how the losses on held-out and general text move from the base model's; empty if not monitored.

    A panel per text, model and domain; a ring marks the largest rise of each run.
    """
    curves = _monitored(results)
    if not curves:
        return ""
    panels: dict[str, list[tuple[AdaptationRow, list[tuple[int, float]]]]] = {}
    several = len({(run.model, run.domain) for run, _, _ in curves}) > 1
    for run, text, points in curves:
        name = f"{text} text{f' · {row_place(results, run)}' if several else ''}"
        panels.setdefault(name, []).append((run, points))
    colours = colour_index(results)
    figure, grid = panel_grid(list(panels), (2.8, 2.2), "step", "change of the loss, nats")
    for axes, (name, runs) in zip(grid, panels.items(), strict=False):
        axes.set_title(short(name, 34), loc="left")
        for run, points in runs:
            colour = series(colours[run.method])
            steps, changes = [step for step, _ in points], [loss - points[0][1] for _, loss in points]
            axes.plot(steps, changes, "-", color=colour, linewidth=1.5)
            dip = find_dip(steps, changes)
            if dip.step is not None:
                axes.plot([dip.step], [dip.depth], "o", color=colour, markerfacecolor=CARD, markersize=5)
        axes.axhline(0, color=INK, linewidth=0.8)
        axes.set_xscale("symlog", base=2, linthresh=1)
        axes.xaxis.set_major_formatter(lambda step, _: f"{step:,.0f}")
        axes.grid(color=GRID, linewidth=0.8)
    methods = list(dict.fromkeys(run.method for run, _, _ in curves))
    legend(figure, [("s", series(colours[method]), method) for method in methods])
    return svg(figure, "stability", "Change of the loss on held-out and general text, by step")


def stability_table(results: StudyResults) -> Table:
    """Return depth, step and recovery of the dip of each monitored loss."""
    names = ["model and domain", "method", "seed", "text", "largest rise", "step", "half gone", "gone", "at the end"]
    table = Table("Stability", "", names)
    for run, text, points in _monitored(results):
        dip = find_dip(*zip(*points, strict=True))
        cells = [Entry(row_place(results, run)), Entry(method_name(run)), Entry(str(run.seed), run.seed), Entry(text)]
        steps = [DASH if step is None else count_entry(step) for step in (dip.step, dip.half, dip.recovery)]
        table.rows.append([*cells, number_entry(dip.depth, 3), *steps, number_entry(dip.remaining, 3)])
    return table


@dataclass
class ImportancePanel:
    """Importance of the units of one part of a model.

    Attributes:
        title: Title of the panel.
        part: The importance.
        place: Model, domain and task.
        methods: Methods that use this measurement.
    """

    title: str
    part: PartImportance
    place: str
    methods: list[str]


def importance_panels(results: StudyResults) -> list[ImportancePanel]:
    """Return the distinct measurements of importance for the first adaptations, at most :data:`MAX_HEAT_MAPS`."""
    panels: list[ImportancePanel] = []
    for run in (run for run in results.adaptations if run.seed in (None, *results.adapt_seeds[:1])):
        for part in run.importance.parts.values() if run.importance else ():
            place = row_place(results, run)
            same = next((panel for panel in panels if panel.part == part and panel.place == place), None)
            if same is None:
                panels.append(ImportancePanel("", part, place, [run.method]))
            elif run.method not in same.methods:
                same.methods.append(run.method)
    show_place = len({panel.place for panel in panels}) > 1
    for panel in panels:
        where = f" · {panel.place}" if show_place else ""
        panel.title = f"{panel.part.name}, {', '.join(panel.methods)}{where}"
    return panels[:MAX_HEAT_MAPS]


@styled
def importance_heat_map(results: StudyResults) -> str:
    """Draw a heat map (layers, units) per measurement; empty if no adaptation measured importance.

    The hue shows whether the importance of a unit is above or below the mean of its layer; the opacity is its
    protection.
    """
    panels = importance_panels(results)
    if not panels:
        return ""
    heights = [0.27 * len(panel.part.raw) + 0.9 for panel in panels]
    figure = new_figure(0.5 + sum(heights))
    grid = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)
    for axes, panel in zip(grid[:, 0], panels, strict=True):
        _draw_importance(axes, panel)
    legend(figure, [("s", WARM, "above the layer mean"), ("s", COOL, "below")])
    return svg(figure, "importance", "Importance of the units of each layer")


def _draw_importance(axes: Axes, panel: ImportancePanel) -> None:
    from matplotlib.patches import Rectangle

    raw, protection = panel.part.raw, panel.part.protection
    units = len(raw[0])
    numbered = units <= MAX_NUMBERED_UNITS
    for layer, (values, shares) in enumerate(zip(raw, protection, strict=True)):
        mean = sum(values) / units
        for unit, (value, share) in enumerate(zip(values, shares, strict=True)):
            colour, corner = WARM if value >= mean else COOL, (unit - 0.5, layer - 0.5)
            alpha = min(1.0, max(0.0, share))
            axes.add_patch(Rectangle(corner, 1, 1, facecolor=colour, alpha=alpha, edgecolor="none"))
            if numbered:
                text = f"{share:.2f}".removeprefix("0") if share < 0.995 else "1"
                axes.text(unit, layer, text, ha="center", va="center", color=INK, fontsize=9)
    if numbered:
        for edge in range(units + 1):
            axes.axvline(edge - 0.5, color=CARD, linewidth=1)
    for edge in range(len(raw) + 1):
        axes.axhline(edge - 0.5, color=CARD, linewidth=1)
    axes.set_xlim(-0.5, units - 0.5)
    axes.set_ylim(len(raw) - 0.5, -0.5)
    axes.set_yticks(range(len(raw)), [str(layer) for layer in range(len(raw))])
    axes.set_xticks(range(units) if numbered else [])
    axes.tick_params(length=0)
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.set_ylabel("layer")
    unit_name = "head" if panel.part.name == "attention heads" else "unit"
    order = f"{panel.part.units:,} units of each layer, most important first"
    axes.set_xlabel(order if panel.part.sorted else unit_name)
    axes.set_title(short(panel.title, 60), loc="left")


def importance_table(results: StudyResults) -> Table | None:
    """Return the protection of each unit, for panels with units in their original order; None without such panels."""
    panels = [panel for panel in importance_panels(results) if not panel.part.sorted]
    if not panels:
        return None
    units = max(len(panel.part.raw[0]) for panel in panels)
    names = ["part", "layer", *(f"unit {unit}" for unit in range(units))]
    table = Table("Protection of each unit", "", names)
    for panel in panels:
        for layer, shares in enumerate(panel.part.protection):
            row = [Entry(plain(share, 2), share) for share in shares] + [DASH] * (units - len(shares))
            table.rows.append([Entry(panel.title), count_entry(layer), *row])
    return table
