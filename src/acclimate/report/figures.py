"""What all figures share: colours of the page, settings, legends, and the way into the page as inline SVG."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Matplotlib writes colours as numbers. These stand for colours of the page, and are replaced in the finished SVG.
INK, MUTED, GRID, CARD, WARM, COOL = (f"#00000{number}" for number in range(1, 7))
_PAGE = {
    **{INK: "currentColor", MUTED: "var(--muted)", GRID: "var(--line)", CARD: "var(--card)"},
    **{WARM: "var(--warm)", COOL: "var(--cool)"},
}
SERIES = 24
"""Colours of the page: eight, and two more shades of each."""
COLUMNS = 2
"""Of panels beside each other."""
MARKERS = "osD^vPX*"
"""They tell lines apart where colours cannot be told."""
LEGEND_LINE = 0.22  # inches
WIDTH = 6.0  # inches: 432 units, so that text is still readable when a phone shows the figure 360 wide


def colour_index(results: dict[str, Any]) -> dict[str, int]:
    """Give each method its colour; the baseline and methods beyond the palette share by turns."""
    labels = [method["label"] for method in results["methods"]]
    return {label: number % SERIES for number, label in enumerate(labels)}


def styled(draw: Callable[[dict[str, Any]], str]) -> Callable[[dict[str, Any]], str]:
    """Draw with our settings, whatever the caller has set for plots of its own."""

    @wraps(draw)
    def drawn(results: dict[str, Any]) -> str:
        import matplotlib

        with matplotlib.rc_context():
            matplotlib.rcdefaults()
            matplotlib.rcParams.update(_settings())
            return draw(results)

    return drawn


def series(index: int) -> str:
    """Return what stands for the colour of a method, by its number of :func:`colour_index`."""
    return f"#0000{16 + index:02x}"


def short(text: str, width: int) -> str:
    """Cut a text to a number of letters."""
    return text if len(text) <= width else text[: width - 1] + "…"


def legend(figure: Figure, entries: Sequence[tuple[str, str, str]]) -> None:
    """Put a legend of markers above the axes; the figure grows where it needs more than two lines."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], marker=marker, color=colour, linestyle="", markersize=7, markeredgecolor=CARD)
        for marker, colour, _ in entries
    ]
    names = [short(name, 40) for _, _, name in entries]
    columns = 1 if max(map(len, names)) > 24 else 2 if max(map(len, names)) > 14 else min(4, len(names))
    lines = -(-len(names) // columns)
    figure.set_figheight(figure.get_figheight() + LEGEND_LINE * max(0, lines - 2))
    figure.legend(handles, names, loc="outside upper left", ncols=columns, frameon=False, handletextpad=0.3)


def marker(index: int) -> str:
    """Return the marker of a number of line; they come again after the last."""
    return MARKERS[index % len(MARKERS)]


def method_legend(figure: Figure, methods: Sequence[str], colours: dict[str, int]) -> None:
    """Put a legend above the axes with the marker and the colour of each method."""
    legend(figure, [(marker(number), series(colours[method]), method) for number, method in enumerate(methods)])


def panel_grid(
    names: Sequence[str], heights: tuple[float, float], xlabel: str, ylabel: str, **options: Any
) -> tuple[Figure, list[Axes]]:
    """Make a figure with axes for each name, two beside each other, labels where figure and axes end.

    Args:
        names: Titles; one alone is not shown.
        heights: Of a line of one panel and of one of two, in inches.
        xlabel: Below the lowest.
        ylabel: Beside the first of a line.
        **options: For ``subplots``.
    """
    columns = min(COLUMNS, len(names))
    lines = -(-len(names) // columns)
    figure = new_figure(0.6 + heights[columns > 1] * lines)
    grid = list(figure.subplots(lines, columns, squeeze=False, **options).flat)
    for number, (axes, name) in enumerate(zip(grid, names, strict=False)):
        if len(names) > 1:
            axes.set_title(short(name, 30), loc="left")
        if number + columns >= len(names):
            axes.set_xlabel(xlabel)
        if number % columns == 0:
            axes.set_ylabel(ylabel)
    for axes in grid[len(names) :]:
        axes.set_visible(False)
    return figure, grid[: len(names)]


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


def new_figure(height: float) -> Figure:
    """Make a figure of the width of the page and a height in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(WIDTH, height), layout="constrained")


def svg(figure: Figure, name: str, title: str) -> str:
    """Return the figure as an SVG element that takes its colours and font from the page."""
    buffer = io.StringIO()
    nothing: dict[str, Any] = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<[^>]*>", lambda tag: _tag(tag.group(), name), text)  # what stands between tags is as it is
    head = re.match(r"<svg[^>]*>", text)
    assert head is not None
    box = re.search(r'viewBox="[^"]*"', head.group())
    opening = (
        f'<svg {box.group() if box else ""} role="img" aria-label="{title}" '
        'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">'
    )
    return opening + text[head.end() :]


def _tag(text: str, name: str) -> str:
    """Let a tag take colours and font from the page, and give it ids that no other figure of the page has."""
    for number, colour in {**_PAGE, **{series(i): f"var(--c{i})" for i in range(SERIES)}}.items():
        text = text.replace(number, colour)
    text = re.sub(r"font: (?:(bold|\d{3}) )?([\d.]+)px [^;\"]*", _font, text)
    text = re.sub(r'\bid="', f'id="{name}-', text)
    return text.replace('xlink:href="#', f'xlink:href="#{name}-').replace("url(#", f"url(#{name}-")


def _font(match: re.Match[str]) -> str:
    weight = f"font-weight: {match.group(1)}; " if match.group(1) else ""
    return f"{weight}font-size: {match.group(2)}px; font-family: inherit"
