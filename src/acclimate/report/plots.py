"""Figures as inline SVG that follow the colours of the page, light or dark."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any

from acclimate.report.words import METRIC_NAMES, place_name, signed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Matplotlib writes colours as numbers. These stand for colours of the page, and are replaced in the finished SVG.
INK, MUTED, GRID, CARD = "#000001", "#000002", "#000003", "#000004"
_PAGE = {INK: "currentColor", MUTED: "var(--muted)", GRID: "var(--line)", CARD: "var(--card)"}
SERIES = 8
_MARKERS = "osD^vPX*"
WIDTH = 6.0  # inches: 432 units, so that text is still readable when a phone shows the figure 360 wide


def colour_index(results: dict[str, Any]) -> dict[str, int]:
    """Give each method its colour; the baseline and methods beyond the palette share by turns."""
    labels = [method["label"] for method in results["methods"]]
    return {label: number % SERIES for number, label in enumerate(labels)}


def _styled(draw: Callable[[dict[str, Any]], str]) -> Callable[[dict[str, Any]], str]:
    """Draw with our settings, whatever the caller has set for plots of its own."""

    @wraps(draw)
    def styled(results: dict[str, Any]) -> str:
        import matplotlib

        with matplotlib.rc_context():
            matplotlib.rcdefaults()
            matplotlib.rcParams.update(_settings())
            return draw(results)

    return styled


@_styled
def forest(results: dict[str, Any]) -> str:
    """Draw the paired difference of each method to the baseline with its interval; empty if there is none."""
    rows = [row for row in results["scores"] if row.get("difference")]
    if not rows:
        return ""
    from matplotlib.transforms import blended_transform_factory

    colours = colour_index(results)
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(f"{place_name(results, row)} ({METRIC_NAMES[row['metric']]})", []).append(row)
    lines: list[tuple[str, dict[str, Any] | None]] = []
    for name, members in groups.items():
        lines += [(name, None), *((row["method"], row) for row in members)]
    figure = _figure(0.75 + 0.27 * len(lines))
    axes = figure.subplots()
    axes.axvline(0, color=INK, linewidth=1)
    for y, (_, row) in enumerate(lines):
        if row is not None:
            entry = row["difference"][row["metric"]]
            colour = _series(colours[row["method"]])
            axes.plot([100 * entry["low"], 100 * entry["high"]], [y, y], color=colour, linewidth=2)
            fill = CARD if entry["verdict"] == "tie" else colour
            axes.plot([100 * entry["difference"]], [y], "o", color=colour, markerfacecolor=fill, markersize=7, mew=1.8)
    axes.set_yticks(range(len(lines)), ["" if row is None else _short(name, 26) for name, row in lines])
    for y, (name, row) in enumerate(lines):
        if row is None:  # a heading starts at the edge of the figure and takes no room from the axes
            place = blended_transform_factory(figure.transFigure, axes.transData)
            text = axes.text(0.01, y, _short(name, 60), transform=place, va="center", fontweight="bold")
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
    axes.set_xlabel(f"points against {_short(results['baseline'], 30)} (right is better)")
    return _svg(figure, "forest", "Paired differences to the baseline with 95 % intervals")


def _numbers(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    entry = row["difference"][row["metric"]]
    low, high = (signed(100 * entry[end]) for end in ("low", "high"))
    return f"{signed(100 * entry['difference'])}  [{low}, {high}]"


@_styled
def tradeoff(results: dict[str, Any]) -> str:
    """Draw what was gained against what was forgotten; empty if either was not measured."""
    costs = {
        (row["model"], row["domain"], row["method"]): row["difference"]
        for row in results["losses"]
        if row["text"] == "general" and "difference" in row
    }
    rows = [row for row in results["scores"] if row.get("difference")]
    if rows:
        points = [(row, row["difference"][row["metric"]], 100.0) for row in rows]
        names = {METRIC_NAMES[row["metric"]] for row in rows}
        label = f"gain in {' / '.join(sorted(names))}, points"
    else:
        learnt = [row for row in results["losses"] if row["text"] == "domain" and "difference" in row]
        points = [(row, row["difference"], -1.0) for row in learnt]
        label = "fall of the loss on domain text, nats"
    points = [point for point in points if _key(point[0]) in costs]
    if not points:
        return ""
    colours = colour_index(results)
    places = list(dict.fromkeys(place_name(results, row) for row, _, _ in points))
    figure = _figure(4.1)
    axes = figure.subplots()
    axes.axhline(0, color=INK, linewidth=1)
    axes.axvline(0, color=INK, linewidth=1)
    for row, gain, scale in points:
        cost, colour = costs[_key(row)], _series(colours[row["method"]])
        x, y = cost["difference"], scale * gain["difference"]
        axes.plot([cost["low"], cost["high"]], [y, y], color=colour, linewidth=1.2, alpha=0.55)
        axes.plot([x, x], [scale * gain["low"], scale * gain["high"]], color=colour, linewidth=1.2, alpha=0.55)
        marker = _MARKERS[places.index(place_name(results, row)) % len(_MARKERS)]
        axes.plot([x], [y], marker, color=colour, markersize=8, markeredgecolor=CARD)
    methods = list(dict.fromkeys(row["method"] for row, _, _ in points))
    entries = [("s", _series(colours[method]), method) for method in methods]
    if len(places) > 1:
        entries += [(_MARKERS[i % len(_MARKERS)], MUTED, place) for i, place in enumerate(places)]
    _legend(figure, entries)
    axes.grid(color=GRID, linewidth=0.8)
    axes.margins(0.12)
    axes.locator_params(axis="x", nbins=6)
    axes.set_xlabel("general text: change of the masked-LM loss, nats (left is better)")
    axes.set_ylabel(label)
    return _svg(figure, "tradeoff", "Gain on the domain against forgetting of general text")


def _key(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["model"], row["domain"], row["method"]


@_styled
def curves(results: dict[str, Any]) -> str:
    """Draw the training loss of each adaptation over tokens read; empty if there is no log."""
    runs = [run for run in results["adaptations"] if len(run["curve"]) > 1 and not run["head"]]
    if not runs:
        return ""
    colours = colour_index(results)
    term = _common_term(runs)
    panels = list(dict.fromkeys((run["model"], run["domain"]) for run in runs))
    figure = _figure(0.5 + 2.6 * len(panels))
    grid = figure.subplots(len(panels), 1, squeeze=False)
    for axes, panel in zip(grid[:, 0], panels, strict=True):
        for run in runs:
            if (run["model"], run["domain"]) == panel:
                _curve(axes, run, term, _series(colours[run["method"]]))
        if len(panels) > 1:
            axes.set_title(_short(place_name(results, {"model": panel[0], "domain": panel[1]}), 50), loc="left")
        axes.grid(color=GRID, linewidth=0.8)
        axes.set_ylabel("masked-LM loss, nats" if term == "mlm" else f"{_short(term, 20)}, nats")
    grid[-1, 0].set_xlabel("thousands of tokens read")
    methods = list(dict.fromkeys(run["method"] for run in runs))
    _legend(figure, [("s", _series(colours[method]), method) for method in methods])
    return _svg(figure, "curves", "Training loss over tokens read")


def _common_term(runs: Sequence[dict[str, Any]]) -> str:
    """Return the loss term that all runs have: totals of different methods cannot be compared."""
    shared = set.intersection(*({*point.get("terms", {})} for run in runs for point in run["curve"]))
    return "mlm" if "mlm" in shared else min(shared) if shared else "loss"


def _curve(axes: Axes, run: dict[str, Any], term: str, colour: str) -> None:
    """Draw one run: thin as logged, thick smoothed."""
    points = [point for point in run["curve"] if point.get("tokens") is not None]
    x = [point["tokens"] / 1000 for point in points]
    y = [float(point["terms"][term] if term != "loss" else point["loss"]) for point in points]
    smooth, average = [], y[0] if y else 0.0
    for value in y:
        average += 0.2 * (value - average)
        smooth.append(average)
    axes.plot(x, y, color=colour, linewidth=0.8, alpha=0.35)
    axes.plot(x, smooth, color=colour, linewidth=1.8)


def _series(index: int) -> str:
    return f"#0000{16 + index:02x}"


def _short(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _legend(figure: Figure, entries: Sequence[tuple[str, str, str]]) -> None:
    """Put a legend of markers above the axes."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], marker=marker, color=colour, linestyle="", markersize=7, markeredgecolor=CARD)
        for marker, colour, _ in entries
    ]
    names = [_short(name, 40) for _, _, name in entries]
    columns = 1 if max(map(len, names)) > 24 else 2 if max(map(len, names)) > 14 else min(4, len(names))
    figure.legend(handles, names, loc="outside upper left", ncols=columns, frameon=False, handletextpad=0.3)


def _settings() -> Any:
    return {
        "svg.fonttype": "none",  # text stays text: it can be read aloud, searched and scaled
        "svg.hashsalt": "acclimate",
        "text.parse_math": False,  # a dollar in a name is a dollar
        "font.size": 10.5,
        "axes.labelsize": 10.5,
        "axes.titlesize": 11,
        "axes.edgecolor": MUTED,
        "axes.labelcolor": INK,
        "axes.titlecolor": INK,
        "axes.linewidth": 0.8,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "text.color": INK,
        "xtick.color": MUTED,
        "ytick.color": MUTED,
        "xtick.labelcolor": INK,
        "ytick.labelcolor": INK,
        "legend.fontsize": 10,
        "lines.solid_capstyle": "round",
    }


def _figure(height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(WIDTH, height), layout="constrained")


def _svg(figure: Figure, name: str, title: str) -> str:
    """Return the figure as an SVG element that takes its colours and font from the page."""
    buffer = io.StringIO()
    nothing: dict[str, Any] = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    for number, colour in {**_PAGE, **{_series(i): f"var(--c{i})" for i in range(SERIES)}}.items():
        text = text.replace(number, colour)
    text = re.sub(r"font: (?:(bold|\d{3}) )?([\d.]+)px [^;\"]*", _font, text)
    # Several figures share a page: their ids must not meet.
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = text.replace('xlink:href="#', f'xlink:href="#{name}-').replace("url(#", f"url(#{name}-")
    head = re.match(r"<svg[^>]*>", text)
    assert head is not None
    box = re.search(r'viewBox="[^"]*"', head.group())
    opening = (
        f'<svg {box.group() if box else ""} role="img" aria-label="{title}" '
        'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">'
    )
    return opening + text[head.end() :]


def _font(match: re.Match[str]) -> str:
    weight = f"font-weight: {match.group(1)}; " if match.group(1) else ""
    return f"{weight}font-size: {match.group(2)}px; font-family: inherit"
