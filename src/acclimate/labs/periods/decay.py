"""Scores of models of one period on texts of another: by distance in time, and how much they lose per unit of it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from acclimate.data.documents import format_count
from acclimate.evaluation.significance import Interval, resample_together, student_interval
from acclimate.labs.periods.dates import Period
from acclimate.results.study import Measurements, StudyResults, table_results

RESAMPLES = 1000

Resampler = Callable[[np.ndarray], np.ndarray]
"""Maps weights of the items (resamples, items) to scores (resamples,)."""


@dataclass(frozen=True)
class Column:
    """Scores of all models on the items of one period.

    Attributes:
        items: Number of items, or of groups of items that are not independent.
        scores: For each model, and for each of its seeds, the function from weights of the items to scores.
        names: Names of the items or groups; None: it has none in common with other periods.
    """

    items: int
    scores: Sequence[Sequence[Resampler]]
    names: Sequence[Hashable] | None = None

    def at(self, weights: np.ndarray) -> np.ndarray:
        """Return the scores (resamples, models, seeds)."""
        return np.stack([np.stack([score(weights) for score in seeds], -1) for seeds in self.scores], 1)


class ScoreMatrix:
    """The score R[i, j] of the model of period i on the items of period j, for each seed, with intervals.

    All models and seeds are scored on the same items, and entry ``s`` of all models has the same seed, so differences
    are paired. The items of two periods are resampled independently, unless they are of the same groups, such as the
    texts of one author: a group is resampled in all periods together.
    """

    def __init__(self, periods: Sequence[Period], columns: Sequence[Column], *, is_error: bool = False, seed: int = 0):
        """Score all models on all periods, and on bootstrap resamples of their items.

        Args:
            periods: The periods in order, of the models and of the items.
            columns: The scores on the items of each period.
            is_error: Whether lower scores are better.
            seed: Random seed of the resampling.
        """
        self.periods, self.is_error = list(periods), is_error
        self._items = [column.items for column in columns]
        self._observed = np.stack([column.at(np.ones((1, column.items)))[0] for column in columns], 1)
        names = [
            [(place, item) for item in range(column.items)] if column.names is None else column.names
            for place, column in enumerate(columns)
        ]
        self._resampled = resample_together(names, [column.at for column in columns], RESAMPLES, seed)

    @property
    def means(self) -> np.ndarray:
        """The scores (models, periods), means over seeds."""
        return np.asarray(self._observed.mean(-1))

    def contrast(self, weights: np.ndarray) -> Interval:
        """Return a weighted sum of the scores with its interval over items and seeds.

        Args:
            weights: Weight of each score (models, periods).
        """
        used = np.flatnonzero(np.abs(weights).sum(0))
        observed = np.einsum("ijs,ij->s", self._observed, weights)
        resampled = sum(np.einsum("nis,i->ns", self._resampled[place], weights[:, place]) for place in used)
        items = min(self._items[place] for place in used)
        return replace(student_interval(observed, resampled, float(observed.mean()), items), is_error=self.is_error)

    def by_distance(self) -> list[dict[str, Any]]:
        """Return a row per distance in time of items and model, positive where the model is older.

        ``score`` is the mean over the pairs of periods at that distance. ``difference`` compares it, on the same
        items, with the models of the items' own period, so that periods that are harder than others do not count.
        """
        pairs: dict[int, list[tuple[int, int]]] = {}
        for model, own in enumerate(self.periods):
            for place, period in enumerate(self.periods):
                pairs.setdefault(period.index - own.index, []).append((model, place))
        rows = []
        for distance, found in sorted(pairs.items()):
            score = float(np.mean([self.means[pair] for pair in found]))
            row: dict[str, Any] = {"distance": distance, "pairs": len(found), "score": score}
            weights = np.zeros(self.means.shape)
            for model, place in found:
                weights[model, place] += 1 / len(found)
                weights[place, place] -= 1 / len(found)
            if distance:
                row |= self.contrast(weights).as_dict()
            rows.append(row | {name: row.get(name) for name in ("difference", "low", "high", "p", "verdict")})
        return rows

    def loss_per_unit(self) -> Interval:
        """Return how much worse a model is per unit of distance in time: the temporal degradation of Luu et al., 2022.

        For the items of each period, D = -(R[i, j] - R[j, j]) * sign(i - j) is fitted by a line over i - j (least
        squares); the result is the mean slope. It is positive if models get worse with distance.
        """
        places = np.array([period.index for period in self.periods], dtype=float)
        weights = np.zeros(self.means.shape)
        for place in range(len(places)):
            apart = places - places[place]
            centered = apart - apart.mean()
            slope = centered / (centered**2).sum() * np.sign(apart) / len(places)
            weights[:, place] -= slope
            weights[place, place] += slope.sum()
        found = self.contrast(-weights if self.is_error else weights)
        return replace(found, is_error=True)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per model, with its score on each period."""
        names = [period.name for period in self.periods]
        return [
            {"model": name, **{column: float(value) for column, value in zip(names, scores, strict=True)}}
            for name, scores in zip(names, self.means, strict=True)
        ]

    def describe(self, measure: str, unit: str) -> list[str]:
        """Return lines on the matrix, the differences by distance, and the loss per unit of time."""
        wide = max(7, *(len(period.name) for period in self.periods))
        lines = [f"{measure} of the model of each period (rows) on the text of each (columns):"]
        lines.append(" " * wide + "".join(f" {period.name:>{wide}}" for period in self.periods))
        for period, scores in zip(self.periods, self.means, strict=True):
            lines.append(f"{period.name:<{wide}}" + "".join(f" {value:>{wide}.4f}" for value in scores))
        for row in self.by_distance():
            if row["distance"]:
                when = "older" if row["distance"] > 0 else "newer"
                apart = format_count(abs(row["distance"]), unit)
                pairs, ends = format_count(row["pairs"], "pair"), f"[{row['low']:+.4f}, {row['high']:+.4f}]"
                lines.append(
                    f"model {apart} {when} than the text: {row['score']:.4f}, difference to the model of its own "
                    f"period {row['difference']:+.4f} {ends} ({pairs})"
                )
        slope = self.loss_per_unit()
        lines.append(
            f"Loss per {unit} of distance (temporal degradation): {slope.difference:+.4f} "
            f"[{slope.low:+.4f}, {slope.high:+.4f}]"
        )
        return lines


class TemporalReport(Measurements):
    """Measurements over time, as a dictionary; in a notebook and in its report, as tables."""

    def __init__(self, values: Mapping[str, Any], lines: Sequence[str], title: str, tables: Mapping[str, Any]):
        """Make the dictionary.

        Args:
            values: Its entries.
            lines: What matters, in a few lines.
            title: Title of the page.
            tables: The rows of each table by its title; :meth:`to_pandas` returns the first.
        """
        super().__init__(values, lines, title, next(iter(tables.values())))
        self._tables = dict(tables)

    def as_results(self) -> StudyResults:
        """Return the tables."""
        return table_results(self._title, self._tables)


def write_matrix(matrix: ScoreMatrix) -> dict[str, Any]:
    """Return a matrix with what it shows, ready for JSON."""
    return {
        "matrix": matrix.rows(),
        "by_distance": matrix.by_distance(),
        "loss_per_unit": matrix.loss_per_unit().as_dict(),
    }
