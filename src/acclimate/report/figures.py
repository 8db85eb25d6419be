"""Shared parts of all figures: colours, settings, legends, panels, and conversion to inline SVG."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from functools import wraps
from textwrap import fill
from typing import TYPE_CHECKING, Any

from acclimate.results.study import StudyResults

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Placeholders for colours of the page: matplotlib writes hexadecimal colours, which are replaced in the finished SVG.
INK, MUTED, GRID, CARD, WARM, COOL = (f"#00000{number}" for number in range(1, 7))
_PAGE = {
    **{INK: "currentColor", MUTED: "var(--muted)", GRID: "var(--line)", CARD: "var(--card)"},
    **{WARM: "var(--warm)", COOL: "var(--cool)"},
}
SERIES = 24
"""Number of distinct method colours: eight hues in three shades each."""
COLUMNS = 2
"""Maximum number of panels side by side."""
MARKERS = "osD^vPX*"
"""Markers, so that lines can be distinguished without colour."""
LEGEND_LINE = 0.22  # inches
MIN_LABEL = 12
"""Characters to which the label of an axis is wrapped at most."""
MARGIN = 0.6  # inches of a panel above and below its axes
WIDTH = 6.0  # inches, which is 432 units: text stays readable when a phone scales the figure to 360 pixels


def colour_index(results: StudyResults) -> dict[str, int]:
    """Return the colour index of each method; colours repeat after :data:`SERIES` methods."""
    return {method.label: number % SERIES for number, method in enumerate(results.methods)}


def styled(draw: Callable[[StudyResults], str]) -> Callable[[StudyResults], str]:
    """Decorate a drawing function to use the report's matplotlib settings and restore the caller's."""

    @wraps(draw)
    def drawn(results: StudyResults) -> str:
        import matplotlib

        with matplotlib.rc_context():
            matplotlib.rcdefaults()
            matplotlib.rcParams.update(_settings())
            return draw(StudyResults.from_dict(results))

    return drawn


def series(index: int) -> str:
    """Return the placeholder for a colour index of :func:`colour_index`."""
    return f"#0000{16 + index:02x}"


def short(text: str, width: int) -> str:
    """Truncate a text to ``width`` characters."""
    return text if len(text) <= width else text[: width - 1] + "…"


def legend(figure: Figure, entries: Sequence[tuple[str, str, str]]) -> None:
    """Add a legend of (marker, colour, name) above the axes; the figure grows for more than two lines."""
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
    """Return the marker of the line with this index; markers repeat after the last."""
    return MARKERS[index % len(MARKERS)]


def method_legend(figure: Figure, methods: Sequence[str], colours: dict[str, int]) -> None:
    """Add a legend above the axes with the marker and colour of each method."""
    legend(figure, [(marker(number), series(colours[method]), method) for number, method in enumerate(methods)])


def panel_grid(
    names: Sequence[str], heights: tuple[float, float], xlabel: str, ylabel: str, **options: Any
) -> tuple[Figure, list[Axes]]:
    """Create a figure with one panel per name, two side by side.

    Args:
        names: Panel titles; a single title is not shown.
        heights: Height of a row in inches, with one and with two panels per row.
        xlabel: Label of the x axis, below the lowest panels.
        ylabel: Label of the y axis, left of each row.
        **options: Arguments of ``subplots``.

    Returns:
        The figure and its axes, in the order of the names.
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
        "svg.fonttype": "none",  # keep text as text for screen readers and search
        "svg.hashsalt": "acclimate",
        "text.parse_math": False,  # dollar signs in names are not formulas
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
    """Create a figure of the width of the page and a height in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(WIDTH, height), layout="constrained")


def wrap_labels(figure: Figure) -> None:
    """Wrap labels of axes that are longer than their panel at spaces, without the time of a layout of the figure."""
    taken = sum(one.get_window_extent().height for one in figure.legends)
    for axes in figure.axes:
        if (place := axes.get_subplotspec()) is None:
            continue
        lines, columns = place.get_gridspec().get_geometry()
        width = 0.92 * figure.bbox.width / columns
        height = (figure.bbox.height - taken) / lines - MARGIN * figure.dpi
        for label, side, room in ((axes.xaxis.label, "width", width), (axes.yaxis.label, "height", height)):
            text, letters = label.get_text(), len(label.get_text())
            while getattr(label.get_window_extent(), side) > room and letters > MIN_LABEL:
                letters -= 2
                label.set_text(fill(text, letters, break_long_words=False))


def svg(figure: Figure, name: str, title: str) -> str:
    """Return the figure as an SVG element that inherits colours and font from the page.

    Args:
        figure: The figure.
        name: Prefix of its element ids, unique on the page.
        title: Description for screen readers.
    """
    wrap_labels(figure)
    buffer = io.StringIO()
    no_metadata: dict[str, Any] = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(buffer, format="svg", transparent=True, metadata=no_metadata)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<[^<>]*>", lambda tag: _tag(tag.group(), name), text)  # tags only: labels keep their text
    head = re.match(r"<svg[^>]*>", text)
    assert head is not None
    box = re.search(r'viewBox="[^"]*"', head.group())
    opening = (
        f'<svg {box.group() if box else ""} role="img" aria-label="{title}" '
        'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">'
    )
    return opening + text[head.end() :]


def _tag(text: str, name: str) -> str:
    """Replace the colours and font of a tag with the page's, and make its ids unique on the page."""
    for number, colour in {**_PAGE, **{series(i): f"var(--c{i})" for i in range(SERIES)}}.items():
        text = text.replace(number, colour)
    text = re.sub(r"font: (?:(bold|\d{3}) )?([\d.]+)px [^;\"]*", _font, text)
    text = re.sub(r'\bid="', f'id="{name}-', text)
    return text.replace('xlink:href="#', f'xlink:href="#{name}-').replace("url(#", f"url(#{name}-")


def _font(match: re.Match[str]) -> str:
    weight = f"font-weight: {match.group(1)}; " if match.group(1) else ""
    return f"{weight}font-size: {match.group(2)}px; font-family: inherit"
