"""Sequences of domains in the report: the matrix of losses or scores, and what was gained, kept and forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING

from acclimate.labs.sequence.rows import MEASURES, SequenceOrder, SequenceRow
from acclimate.report.figures import CARD, COOL, INK, WARM, legend, new_figure, short, styled, svg
from acclimate.results.cells import DASH, Entry, Table, joined, minutes_entry, number_entry, plain, signed_entry
from acclimate.results.cells import signed as with_sign
from acclimate.results.scores import NO_DIFFERENCE
from acclimate.results.study import StudyResults

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_MATRICES = 12
"""Maximum number of plotted matrices; the first order of each method comes first."""
TITLES = {"loss": "Sequences: loss", "score": "Sequences: scores"}
SCALES = {"loss": (1.0, 3), "score": (100.0, 1)}
"""Factor and digits of each measure."""

VERDICTS = (
    ("average", "After the last domain", "a lower mean loss", "a higher mean loss"),
    ("forgetting", "On earlier domains", "less forgetting", "more forgetting"),
)
"""Measures of the loss that are summed up in words, where, and what a lower and a higher value is called."""


def _rows(results: StudyResults) -> list[SequenceRow]:
    return results.rows.get("sequence", [])


def sequence_tables(results: StudyResults) -> list[Table]:
    """Return a table of the measures of each method for losses and for scores, and one of intervals."""
    return [*(_measures(results, measure) for measure in TITLES), _intervals(results)]


def _measures(results: StudyResults, measure: str) -> Table:
    rows = [row for row in _rows(results) if row.measure == measure]
    unit = "nats per predicted token of held-out text" if measure == "loss" else "percent, mean over tasks"
    orders = list(dict.fromkeys(" > ".join(order.domains) for row in rows for order in row.orders))
    note = (
        f"Domains learned one after the other, in {unit}; means over seeds and orders ({joined(orders)}). "
        + "; ".join(f"{name}: {text}" for name, text in MEASURES.items())
        + ". Changes are positive where the model improves, forgetting where it declines."
    )
    if measure == "loss":
        note += " General text: change of its loss from the base model to the last one."
    more = [*(["general text"] if measure == "loss" else []), "minutes"]
    columns, minor = ["model", "method", *MEASURES, *more], ["backward", "learning", *more]
    table = Table(TITLES[measure], note, columns, minor=minor)
    scale, digits = SCALES[measure]
    for row in rows:
        cells = [Entry(row.model), Entry(row.method)]
        for name in MEASURES:
            mean = row.measures[name].mean if name in row.measures else None
            cells.append((number_entry if name == "average" else signed_entry)(mean, digits, scale))
        if measure == "loss":
            pairs = [(order.general[0], order.general[-1]) for order in row.orders if order.general]
            changes = [after - before for before, after in pairs if before is not None and after is not None]
            cells.append(signed_entry(sum(changes) / len(changes) if changes else None, digits))
        times = [order.seconds / 60 for order in row.orders if order.seconds is not None]
        table.rows.append([*cells, minutes_entry(sum(times) / len(times) if times else None)])
    return table


def _intervals(results: StudyResults) -> Table:
    """Return the measures with their intervals, and the differences to the first method."""
    names = ["model", "method", "measured", "measure", "mean", "95 % over seeds", "95 % over orders"]
    references = sorted({row.reference for row in _rows(results) if row.reference})
    note = (
        "Student's t over seeds, for these orders, and over orders, for these seeds; with two of them an interval is "
        "very wide."
    )
    if references:
        note += f" Difference: to {joined(references)}, paired by seed and order, with its interval over seeds."
    columns = [*names, "difference", "95 % of the difference"]
    table = Table("Sequences: intervals", note, columns, minor=columns[5:7])
    for row in _rows(results):
        scale, digits = SCALES[row.measure]
        for name, spread in row.measures.items():
            change = row.differences.get(name)
            if not (spread.seeds or spread.orders or change):
                continue
            cells = [Entry(row.model), Entry(row.method), Entry(row.measure), Entry(name)]
            cells.append(number_entry(spread.mean, digits, scale))
            cells += [_bounds(ends, digits, scale) for ends in (spread.seeds, spread.orders)]
            cells.append(signed_entry(change.mean if change else None, digits, scale))
            cells.append(_bounds(change.seeds if change else None, digits, scale, signed=True))
            table.rows.append(cells)
    return table


def _bounds(ends: list[float] | None, digits: int, scale: float, *, signed: bool = False) -> Entry:
    if ends is None:
        return DASH
    return Entry(" to ".join((with_sign if signed else plain)(scale * end, digits) for end in ends), ends[0])


def sequence_verdict(results: StudyResults) -> str:
    """Say which methods end with a lower loss than the first one, and which forget less; empty without sequences.

    A difference is shown if its interval over seeds excludes zero. With a single method or seed, say what was gained
    and forgotten.
    """
    rows = [row for row in _rows(results) if row.measure == "loss" and row.orders and "average" in row.measures]
    several = len({row.model for row in rows}) > 1
    names = {id(row): f"{row.method} ({row.model})" if several else row.method for row in rows}
    sentences = []
    for measure, where, lower, higher in VERDICTS:
        found: dict[str, list[str]] = {lower: [], higher: [], NO_DIFFERENCE: []}
        for row in rows:
            if (change := row.differences.get(measure)) and change.seeds:
                word = lower if change.seeds[1] < 0 else higher if change.seeds[0] > 0 else NO_DIFFERENCE
                found[word].append(names[id(row)])
        if any(found.values()):
            reference = next(row.reference for row in rows if row.reference)
            parts = [f"{joined(methods)}: {word}" for word, methods in found.items() if methods]
            sentences.append(f"{where}, compared with {reference}: {'; '.join(parts)}.")
    if sentences or not rows:
        return " ".join(sentences)
    if len(rows) == 1:
        return _describe(rows[0], names[id(rows[0])])
    means = [f"{plain(row.measures['average'].mean, 3)} with {names[id(row)]}" for row in rows]
    return f"After the last domain, the mean loss is {joined(means)}. With one seed, no difference can be shown."


def _describe(row: SequenceRow, name: str) -> str:
    means = {measure: spread.mean for measure, spread in row.measures.items()}
    text = f"After the last domain, the mean loss of {name} is {plain(means['average'], 3)}"
    if "gain" in means:
        text += f", {with_sign(-means['gain'], 3)} from the base model"
    if "forgetting" in means:
        text += f"; on earlier domains it has changed by {with_sign(means['forgetting'], 3)} since it was lowest"
    return f"{text}."


@styled
def sequence_matrices(results: StudyResults) -> str:
    """Draw the matrix of each method and order as a heat map; empty without sequences."""
    rows = [row for row in _rows(results) if row.orders]
    most = max((len(row.orders) for row in rows), default=0)
    drawn = [(row, row.orders[number]) for number in range(most) for row in rows][:MAX_MATRICES]
    if not drawn:
        return ""
    heights = [0.3 * len(order.matrix) + 0.95 for _, order in drawn]
    figure = new_figure(0.5 + sum(heights))
    grid = figure.subplots(len(drawn), 1, squeeze=False, height_ratios=heights)
    several = len({row.model for row in rows}) > 1
    for axes, (row, order) in zip(grid[:, 0], drawn, strict=True):
        _draw_matrix(axes, row, order)
        axes.set_title(short(f"{row.method}: {row.measure}{f' · {row.model}' if several else ''}", 60), loc="left")
    legend(figure, [("s", COOL, "better than the base model"), ("s", WARM, "worse")])
    return svg(figure, "sequences", "Losses and scores on each domain after each stage")


def _draw_matrix(axes: Axes, row: SequenceRow, order: SequenceOrder) -> None:
    from matplotlib.patches import Rectangle

    scale, digits = SCALES[row.measure]
    columns, values = list(order.domains), [list(line) for line in order.matrix]
    if order.general:
        columns.append("general text")
        values = [[*line, general] for line, general in zip(values, order.general, strict=True)]
    better = -1 if row.measure == "loss" else 1
    pairs = [list(zip(line, values[0], strict=True)) for line in values]
    changes = [[0.0 if one is None or base is None else better * (one - base) for one, base in line] for line in pairs]
    most = max((abs(one) for line in changes for one in line), default=0.0) or 1.0
    for stage, line in enumerate(values):
        for place, value in enumerate(line):
            change, corner = changes[stage][place], (place - 0.5, stage - 0.5)
            colour, alpha = COOL if change >= 0 else WARM, 0.75 * abs(change) / most
            axes.add_patch(Rectangle(corner, 1, 1, facecolor=colour, alpha=alpha, edgecolor=CARD))
            text = "–" if value is None else plain(scale * value, digits)
            axes.text(place, stage, text, ha="center", va="center", color=INK, fontsize=9)
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylim(len(values) - 0.5, -0.5)
    axes.set_yticks(range(len(values)), ["base model", *(f"+ {short(name, 18)}" for name in order.domains)])
    axes.set_xticks(range(len(columns)), [short(name, 14) for name in columns])
    axes.tick_params(length=0)
    axes.spines[["left", "bottom"]].set_visible(False)


def matrix_table(results: StudyResults) -> Table:
    """Return all matrices as a table."""
    columns = ["model", "method", "measured", "order", "after", "domain", "value"]
    table = Table("Losses and scores on each domain after each stage", "", columns)
    for row in _rows(results):
        scale, digits = SCALES[row.measure]
        for order in row.orders:
            place = [Entry(row.model), Entry(row.method), Entry(row.measure), Entry(" > ".join(order.domains))]
            for stage, line in enumerate(order.matrix):
                after = Entry(order.domains[stage - 1] if stage else "base model", stage)
                general = [("general text", order.general[stage])] if order.general else []
                for name, value in (*zip(order.domains, line, strict=True), *general):
                    table.rows.append([*place, after, Entry(name), number_entry(value, digits, scale)])
    return table
