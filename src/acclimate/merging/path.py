"""The result of a merge, and losses along an interpolation between two models, with figure and tables."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from acclimate.base.device import to_device
from acclimate.base.errors import UserError
from acclimate.base.progress import Progress
from acclimate.data.documents import Corpus, subsample_documents
from acclimate.evaluation.lm_loss import language_model_loss
from acclimate.evaluation.significance import paired_difference
from acclimate.models.kinds import get_kind
from acclimate.models.loading import load_language_model
from acclimate.results.display import Reported, data_frame, figure_style, save_figure, titled_table
from acclimate.results.study import StudyResults, table_results

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure
    from rich.table import Table

PATH_FILE, FIGURE = "path.json", "path"
COLUMNS = ("alpha", "nats", "bits per byte", "change in nats", "95 % interval")


@dataclass(repr=False)
class MergeResult(Reported):
    """The result of a merge.

    Attributes:
        out: The output directory.
        method: Name of the method.
        notes: What was not merged, and what else to know about the result.
        path: Losses along an interpolation, see :func:`measure_path`; empty without ``alphas``.
        has_model: Whether ``out`` is a model folder. Otherwise it contains the path only.
    """

    out: Path
    method: str
    notes: list[str] = field(default_factory=list)
    path: list[dict[str, Any]] = field(default_factory=list)
    has_model: bool = True

    def describe(self) -> list[str]:
        """Return the method, the notes and the folder, in a few lines."""
        return [f"Merged: {self.method}", *self.notes, f"{'model' if self.has_model else 'numbers'}: {self.out}"]

    def as_results(self) -> StudyResults:
        """Return the losses along the path, as the results of a study."""
        return table_results(f"Merged: {self.method}", {"Losses along the path": self._rows()})

    def to_pandas(self) -> pandas.DataFrame:
        """Return the loss of each model along the path on each text; without rows if no path was measured."""
        return data_frame(self._rows())

    def _rows(self) -> list[dict[str, Any]]:
        return [
            {
                "alpha": point["alpha"],
                "text": text,
                **{name: found[name] for name in ("nats", "bits_per_byte")},
                **{name: (found["change"] or {}).get(name) for name in ("difference", "low", "high")},
            }
            for point in self.path
            for text, found in point.items()
            if text != "alpha"
        ]


Loss = Callable[[Sequence[str]], dict[str, Any]]
"""Function of documents that returns the result of :func:`acclimate.evaluation.lm_loss.language_model_loss`."""


def measure_path(
    measure: Callable[[float], AbstractContextManager[Loss]],
    alphas: Iterable[float],
    corpora: Mapping[str, Corpus],
    documents: int,
    progress: bool,
) -> list[dict[str, Any]]:
    """Measure the losses of interpolated models.

    Args:
        measure: Function that returns a context with the function that measures the model of a share.
        alphas: The shares; 0, the first model, and 1 are added.
        corpora: Held-out text by name.
        documents: Number of documents of each text.
        progress: Show progress bars.

    Returns:
        For each share, in ascending order: ``alpha``, and for each text ``nats``, ``bits_per_byte``, ``texts``,
        ``kind`` and ``change``: the difference to the base model in nats per token, with its 95 % interval; None if
        there are fewer than two texts.

    Raises:
        UserError: If the models have no language-model head, or there is no text to measure on.
    """
    texts = {name: subsample_documents(corpus, documents) for name, corpus in corpora.items()}
    shares = sorted({0.0, 1.0, *map(float, alphas)})
    path: list[dict[str, Any]] = []
    before: dict[str, dict[str, Any]] = {}
    with Progress("measure", len(shares), unit="models", enabled=progress) as bar:
        for number, alpha in enumerate(shares):
            bar.update(number, note=f"alpha {alpha:g}")
            row: dict[str, Any] = {"alpha": alpha}
            with measure(alpha) as loss:
                for name, some in texts.items():
                    found = loss(some)
                    before.setdefault(name, found)
                    row[name] = {key: found[key] for key in ("nats", "bits_per_byte", "texts", "kind")}
                    row[name]["change"] = _change(found, before[name])
            path.append(row)
        bar.update(len(shares))
    return path


@contextmanager
def merged_model(write: Callable[[Path], None], work: Path, max_length: int) -> Iterator[Loss]:
    """Write a model, and yield the function that measures its loss; the model is deleted at the end.

    Args:
        write: Function that writes the model into an existing folder.
        work: That folder; it does not exist yet.
        max_length: Maximum tokens per text.

    Raises:
        UserError: If the model has no language-model head.
    """
    work.mkdir()
    write(work)
    loaded = load_language_model(work)
    if loaded.absent_head:
        raise UserError("The models have no language-model head, so they have no loss to measure.")
    yield partial(language_model_loss, to_device(loaded.model), tokenizer=loaded.tokenizer, max_length=max_length)
    shutil.rmtree(work)


def _change(after: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, float] | None:
    """Return the difference of the mean losses with its interval; None if there are fewer than two texts."""
    counts = np.asarray(before["per_text_masked"], dtype=float)
    used = counts > 0
    if used.sum() < 2:
        return None
    new, old = (np.asarray(one["per_text"], dtype=float)[used] / counts[used] for one in (after, before))
    found = paired_difference(new, old, counts[used])
    return {"difference": found.difference, "low": found.low, "high": found.high}


def draw_path(path: Sequence[Mapping[str, Any]], folder: Path, ends: tuple[str, str]) -> None:
    """Write ``path.png`` and ``path.svg`` into a folder: a panel per text, the loss over the share.

    Args:
        path: The result of :func:`measure_path`.
        folder: The folder.
        ends: What the shares 0 and 1 are.
    """
    with figure_style():
        save_figure(_plot(path, ends), folder, FIGURE)


def _plot(path: Sequence[Mapping[str, Any]], ends: tuple[str, str]) -> Figure:
    from matplotlib.figure import Figure

    names = _texts(path)
    figure = Figure(figsize=(4.2 * len(names), 3.2), layout="constrained")
    shares = [row["alpha"] for row in path]
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        losses = [row[name]["nats"] for row in path]
        axes.plot(shares, losses, "o-", color="C0", markersize=4)
        if all(row[name]["change"] for row in path):
            base = losses[0]
            low, high = ([base + row[name]["change"][end] for row in path] for end in ("low", "high"))
            axes.fill_between(shares, low, high, color="C0", alpha=0.2, linewidth=0)
        axes.axhline(losses[0], color="0.5", linewidth=0.8, linestyle="--")
        kind = get_kind(path[0][name]["kind"])
        axes.set_title(f"{name} text")
        axes.set_xlabel(f"alpha (0: {ends[0]}, 1: {ends[1]})")
        axes.set_ylabel(f"{kind.loss_name}, {kind.loss_unit}")
        axes.grid(alpha=0.25)
    return figure


def _texts(path: Sequence[Mapping[str, Any]]) -> list[str]:
    return [name for name in path[0] if name != "alpha"]


def path_rows(path: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[str, ...]]]:
    """Return the cells of a table with :data:`COLUMNS` for each text."""
    tables: dict[str, list[tuple[str, ...]]] = {}
    for name in _texts(path) if path else ():
        tables[f"{name.capitalize()} text"] = [_cells(row["alpha"], row[name]) for row in path]
    return tables


def _cells(alpha: float, found: Mapping[str, Any]) -> tuple[str, ...]:
    cells = (f"{alpha:g}", f"{found['nats']:.4f}", f"{found['bits_per_byte']:.4f}")
    if alpha == 0 or not (change := found["change"]):
        return (*cells, "", "")
    return (*cells, f"{change['difference']:+.4f}", f"{change['low']:+.4f} to {change['high']:+.4f}")


def path_tables(path: Sequence[Mapping[str, Any]]) -> list[Table]:
    """Return a table of ``rich`` for each text."""
    tables = []
    for title, rows in path_rows(path).items():
        table = titled_table(title)
        for column in COLUMNS:
            table.add_column(column, justify="right")
        for row in rows:
            table.add_row(*row)
        tables.append(table)
    return tables
