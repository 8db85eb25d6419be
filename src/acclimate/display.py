"""Tables on a terminal, and figures in files, in one style."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table


def titled_table(title: str) -> Table:
    """Return a table of ``rich`` without columns."""
    import rich.box
    from rich.table import Table

    return Table(title=title, title_justify="left", title_style="bold", box=rich.box.SIMPLE_HEAD)


@contextmanager
def figure_style(**settings: Any) -> Iterator[None]:
    """Return a context with one style of figures; ``settings`` are further settings of matplotlib."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        style: dict[Any, Any] = {"font.size": 9, "text.parse_math": False, "svg.hashsalt": "acclimate"}
        matplotlib.rcParams.update(style | settings)
        yield


def save_figure(figure: Figure, folder: Path, name: str) -> None:
    """Write a figure as PNG and SVG into a folder; the same figure gives the same bytes."""
    figure.savefig(folder / f"{name}.png", dpi=150)
    figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
