"""What an inspection of embeddings shows: a scatter of each model in one plane, and tables for the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

    from acclimate.inspect.embeddings import EmbeddingsResult

NAMES = {"all": "all tokens", "seen": "tokens of the text", "read": "by occurrence"}


def draw(result: EmbeddingsResult, folder: Path) -> None:
    """Write ``embeddings.png`` and ``embeddings.svg`` into a folder."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({"font.size": 9, "text.parse_math": False, "svg.hashsalt": "acclimate"})
        figure = scatter(result)
        figure.savefig(folder / "embeddings.png", dpi=150)
        figure.savefig(folder / "embeddings.svg", metadata={"Date": None})


def scatter(result: EmbeddingsResult) -> Figure:
    """Draw each model in the plane of all of them, with the labelled words and, after, where they came from."""
    from matplotlib.figure import Figure

    count = len(result.planes)
    figure = Figure(figsize=(4.2 * count, 4.4), layout="constrained")
    panels = figure.subplots(1, count, sharex=True, sharey=True, squeeze=False)[0]
    place = {int(index): row for row, index in enumerate(result.shown)}
    start = result.planes["before"]
    for axes, (name, plane) in zip(panels, result.planes.items(), strict=True):
        axes.scatter(plane[:, 0], plane[:, 1], s=3, color="0.7", linewidths=0, rasterized=True)
        for word, index in result.labels.items():
            was, now = start[place[index]], plane[place[index]]
            if name != "before":
                axes.plot([was[0], now[0]], [was[1], now[1]], color="C3", linewidth=0.8, alpha=0.6)
            axes.plot([now[0]], [now[1]], "o", color="C0", markersize=4)
            axes.annotate(word, (now[0], now[1]), xytext=(3, 3), textcoords="offset points", fontsize=8)
        moved = result.report["movement"].get(name)
        axes.set_title(f"{name}: moved {moved['all']['distance']:.3f}" if moved else name)
        axes.grid(alpha=0.25)
        axes.margins(x=0.16)
        axes.locator_params(axis="x", nbins=5)
    first, second = result.report["scatter"]["variance"]
    panels[0].set_xlabel(f"first principal component ({first:.0%} of the variance)")
    panels[0].set_ylabel(f"second ({second:.0%})")
    return figure


def embedding_tables(report: dict[str, Any]) -> list[Table | str]:
    """Return tables for a terminal of 80 columns: how far each model moved, and how far each labelled word did.

    Args:
        report: As in ``embeddings.json``.
    """
    table = _table(
        "How far static embeddings moved", ["model", "over", "distance", "of length", "cosine", "per number"]
    )
    for name, found in report["movement"].items():
        for kind, values in found.items():
            cells = [f"{values['distance']:.4f}", f"{values['share']:.1%}", f"{values['cosine']:.4f}"]
            table.add_row(name if kind == "all" else "", NAMES[kind], *cells, f"{values['coordinate']:.5f}")
    models = list(report["after"])
    words = _table("Their distance", ["labelled word", *models])
    for word, found in report["words"].items():
        words.add_row(word, *(f"{found['distance'][name]:.4f}" for name in models))
    note = (
        "Distance: Euclidean, a mean over rows of the embedding matrix without special tokens; per number: divided by "
        f"the square root of the width ({report['width']}). The TAPTER paper, without naming its norm, has 0.0576 "
        f"for TAPT and 0.172 for TAPTER. Labelled words: {report['rule']}."
    )
    return [table, *([words] if report["words"] else []), note]


def _table(title: str, columns: list[str]) -> Table:
    import rich.box
    from rich.table import Table as Made

    made = Made(title=title, title_justify="left", title_style="bold", box=rich.box.SIMPLE_HEAD)
    for number, column in enumerate(columns):
        text = number == 0 or column == "over"
        made.add_column(column, justify="left" if text else "right", no_wrap=not text, overflow="fold")
    return made
