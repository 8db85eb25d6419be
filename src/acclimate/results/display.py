"""Display of results: in Python and notebooks, as tables on a terminal, and as figures in files."""

from __future__ import annotations

import html
import tempfile
import webbrowser
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acclimate.base.files import write_text
from acclimate.base.registry import Registry

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure
    from rich.table import Table

PAGE_HEIGHT = 720
"""Height of a page in the output of a notebook, in pixels."""


class Renderer(ABC):
    """Turns results into HTML. Results are below the package that does so, so they find it through a registry."""

    @abstractmethod
    def fragment(self, lines: Sequence[str], results: Any) -> str:
        """Return HTML for the output of a notebook: lines of text, the first figure and the first tables.

        Args:
            lines: Result of :meth:`Displayed.describe`.
            results: Result of :meth:`Displayed.as_results`.
        """

    @abstractmethod
    def page(self, lines: Sequence[str], results: Any) -> str:
        """Return a whole page: the report of a study, or lines of text with all figures and tables."""


RENDERERS: Registry[Renderer] = Registry("acclimate.renderers", "renderer", "renderers")


class Displayed(ABC):
    """A result with a short ``repr``, and with a table and a figure in notebooks."""

    @abstractmethod
    def describe(self) -> list[str]:
        """Return what matters, in a few lines."""

    @abstractmethod
    def as_results(self) -> Any:
        """Return the rows and tables to show, as :class:`acclimate.results.study.StudyResults`."""

    def __repr__(self) -> str:
        return "\n".join(self.describe())

    def _repr_html_(self) -> str:
        return RENDERERS.lookup("html")().fragment(self.describe(), self.as_results())


class Reported(Displayed):
    """A result that also has a report."""

    def report(self, path: str | Path | None = None) -> Page:
        """Return the report as a page, which a notebook shows.

        Args:
            path: File to write it to; None writes nothing.
        """
        page = Page(RENDERERS.lookup("html")().page(self.describe(), self.as_results()))
        return page if path is None else page.save(path)


class Page:
    """An HTML page. A notebook shows it; :meth:`open` opens it in a browser.

    Attributes:
        html: The page.
        path: The file that it was written to, or None.
    """

    def __init__(self, html: str, path: Path | None = None) -> None:
        """Make a page that is in a file, or in memory only."""
        self.html, self.path = html, path

    def save(self, path: str | Path) -> Page:
        """Write the page to a file, and return it."""
        self.path = write_text(path, self.html)
        return self

    def open(self) -> None:
        """Open the page in a browser. A page that is in no file is written to a temporary one."""
        if self.path is None:
            self.save(Path(tempfile.mkdtemp(prefix="acclimate-")) / "report.html")
        assert self.path is not None
        webbrowser.open(self.path.resolve().as_uri())

    def __repr__(self) -> str:
        return f"Page: {'in memory; open() shows it in a browser' if self.path is None else self.path}"

    def _repr_html_(self) -> str:
        style = f"width: 100%; height: {PAGE_HEIGHT}px; border: 0"
        return f'<iframe srcdoc="{html.escape(self.html)}" style="{style}" title="Report"></iframe>'


def data_frame(rows: Sequence[Mapping[str, Any]]) -> pandas.DataFrame:
    """Return rows as a data frame, with the columns in the order in which they occur."""
    import pandas  # comes with datasets

    return pandas.DataFrame([dict(row) for row in rows], columns=list({key: None for row in rows for key in row}))


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
