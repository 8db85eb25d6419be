"""Drift jobs: how far adaptation moved embeddings and hidden states on general text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any, ClassVar

import numpy as np

from acclimate.base.records import Record, optional
from acclimate.report.figures import (
    GRID,
    INK,
    colour_index,
    marker,
    method_legend,
    new_figure,
    series,
    short,
    styled,
    svg,
)
from acclimate.report.formatting import method_name, place_name
from acclimate.results.cells import Entry, Table, count_entry, number_entry
from acclimate.results.study import Figure, StudyResults
from acclimate.study.inputs import Checkpoint, Texts
from acclimate.study.job import Job, Model, Planner, RunContext, StudyModel, StudyView, register


class Drift(Record):
    """Distances between a base model and an adapted one.

    Attributes:
        texts: Number of texts.
        tokens: Number of tokens compared.
        embeddings: Drift of the input embeddings, over the whole vocabulary (``"all"``) and weighted by the frequency
            of the tokens in the texts (``"read"``): see :class:`acclimate.labs.inspection.drift.EmbeddingDrift`.
        layers: CKA and distances for the input of the first layer and the output of each layer.
    """

    texts: int
    tokens: int
    embeddings: dict[str, dict[str, float]]
    layers: list[dict[str, float]]


MIN_CKA_RANGE = 0.05
"""Minimum range of the CKA axis, so that small changes do not look large."""


class DriftRow(Record):
    """Drift of embeddings and hidden states on general text; means over seeds of adaptation.

    Attributes:
        embeddings: ``distance`` (mean Euclidean distance), ``share`` (mean distance over the mean norm before) and
            ``cosine`` of the rows of the input embeddings.
        embeddings_read: The same, weighted by how often each token occurs in the text.
        layers: ``cka``, ``distance``, ``share`` and ``cosine`` of the input of the first layer, and of each layer's
            output.
    """

    model: str
    domain: str
    task: str | None = optional()
    method: str
    adapt_seeds: list[int | None] = field(default_factory=list)
    texts: int = 0
    tokens: int = 0
    embeddings: dict[str, float] = field(default_factory=dict)
    embeddings_read: dict[str, float] = field(default_factory=dict)
    layers: list[dict[str, float]] = field(default_factory=list)


@register("drift", summary="movement of embeddings and hidden states on general text")
class DriftJob(Job):
    """Measure how far an adapted model is from its base model.

    Attributes:
        base: The base model. Training a missing head leaves its encoder unchanged.
        model: The adapted model.
        texts: General text.
        max_length: Maximum tokens per text.
    """

    base: Checkpoint
    model: Model
    texts: Texts
    max_length: int

    cost: ClassVar[float] = 0.5
    result_type: ClassVar[type[Record]] = Drift
    row_type: ClassVar[type[Record] | None] = DriftRow
    setting: ClassVar[str] = "evaluate.drift"

    def run(self, context: RunContext) -> Drift:
        """Measure the distances."""
        from acclimate.labs.inspection.drift import measure_drift  # imports torch

        models = (context.path(self.base), context.path(self.model))
        measure = context.backend.others.get(self.name, measure_drift)
        return Drift.from_dict(measure(*models, self.texts.texts, max_length=self.max_length))

    @classmethod
    def measure(cls, planner: Planner, subject: StudyModel) -> None:
        """Add a job for an adapted model."""
        evaluate, general = planner.config.evaluate, planner.inputs.general
        if general is not None and subject.base is not None:
            base = planner.inputs.checkpoints[str(subject.place.model)]
            job = cls(
                place=subject.place, base=base, model=subject.model, texts=general, max_length=evaluate.max_length
            )
            planner.add(job.at(text="general"))

    @classmethod
    def rows(cls, view: StudyView) -> dict[str, list[Any]]:
        """Return one row per model, domain and method, with means over seeds of adaptation."""
        made = []
        for entries in view.group(Drift).values():
            place, results = entries[0].job.place, [entry.result for entry in entries]
            made.append(
                DriftRow(
                    model=str(place.model),
                    domain=str(place.domain),
                    task=place.adapted_for,
                    method=str(place.method),
                    adapt_seeds=[entry.job.place.adapt_seed for entry in entries],
                    texts=results[0].texts,
                    tokens=results[0].tokens,
                    embeddings=_mean([result.embeddings["all"] for result in results]),
                    embeddings_read=_mean([result.embeddings["read"] for result in results]),
                    layers=[_mean(layers) for layers in zip(*(result.layers for result in results), strict=True)],
                )
            )
        return {cls.name: made}

    @classmethod
    def figures(cls) -> Sequence[Figure]:
        """Return the figures of the rows."""
        return (
            Figure(
                "drift",
                "Drift by layer",
                "Linear CKA between the hidden states of the base model and of the adapted model on the same "
                "general text. It is 1 if they differ only by a rotation, lower for larger changes. Layer 0 is the "
                "input of the first layer.",
                layer_drift,
                layer_drift_table,
            ),
        )

    @classmethod
    def tables(cls, results: StudyResults) -> list[Table]:
        """Return how far each adaptation moved static embeddings and hidden states."""
        names = ["model", "domain", "method", "embeddings: distance", "% of norm", "cosine"]
        names += ["CKA: minimum", "in layer", "last layer", "mean", "states: % of norm, last layer"]
        note = (
            "Base model and adapted model on the same general text. Embeddings: mean Euclidean distance between rows "
            "of the input matrix, the same relative to the mean norm of the rows, and mean cosine similarity. CKA: "
            "linear CKA of the hidden states of all tokens (Kornblith et al., 2019), which is 1 for a rotation; "
            "layer 0 is the input of the first layer. Drift does not imply forgetting; compare it with the losses."
        )
        table = Table("Representation drift", note, names)
        table.minor = [name for name in names[3:] if name != "CKA: minimum"]
        for row in results.rows[cls.name]:
            ckas = [layer["cka"] for layer in row.layers]
            lowest = min(range(len(ckas)), key=ckas.__getitem__)
            table.rows.append(
                [
                    *(Entry(row.model), Entry(row.domain), Entry(method_name(row))),
                    number_entry(row.embeddings["distance"], 4),
                    number_entry(row.embeddings["share"], 2, 100),
                    number_entry(row.embeddings["cosine"], 4),
                    number_entry(ckas[lowest], 3),
                    count_entry(lowest),
                    number_entry(ckas[-1], 3),
                    number_entry(sum(ckas) / len(ckas), 3),
                    number_entry(row.layers[-1]["share"], scale=100),
                ]
            )
        return [table]


def _mean(tables: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([table[name] for table in tables])) for name in tables[0]}


@styled
def layer_drift(results: StudyResults) -> str:
    """Draw linear CKA by layer, with a panel per model and domain and a line per method; empty if not measured."""
    rows = results.rows.get("drift", [])
    if not rows:
        return ""
    colours = colour_index(results)
    panels = list(dict.fromkeys((row.model, row.domain) for row in rows))
    methods = list(dict.fromkeys(row.method for row in rows))
    figure = new_figure(0.5 + 2.4 * len(panels))
    grid = figure.subplots(len(panels), 1, squeeze=False)
    for axes, (model, domain) in zip(grid[:, 0], panels, strict=True):
        own = [row for row in rows if (row.model, row.domain) == (model, domain)]
        lowest = 1 - MIN_CKA_RANGE
        for row in own:
            ckas = [layer["cka"] for layer in row.layers]
            lowest = min(lowest, *ckas)
            line = f"{marker(methods.index(row.method))}-"
            axes.plot(range(len(ckas)), ckas, line, color=series(colours[row.method]), markersize=4.5)
        axes.axhline(1, color=INK, linewidth=0.8)
        axes.set_ylim(1 - 1.08 * (1 - lowest), 1 + 0.05 * (1 - lowest))
        most = max(len(row.layers) for row in own)
        axes.set_xticks(range(0, most, 1 + most // 16))
        axes.grid(color=GRID, linewidth=0.8)
        axes.set_ylabel("CKA with base model")
        if len(panels) > 1:
            axes.set_title(short(place_name(results, model, domain), 50), loc="left")
    grid[-1, 0].set_xlabel("layer")
    method_legend(figure, methods, colours)
    return svg(figure, "drift", "Linear CKA of each layer before and after adaptation")


def layer_drift_table(results: StudyResults) -> Table:
    """Return CKA, distance and cosine similarity of each layer."""
    names = ["model and domain", "method", "layer", "CKA", "distance", "% of norm", "cosine"]
    table = Table("Drift by layer", "", names)
    for row in results.rows.get("drift", []):
        place = place_name(results, row.model, row.domain)
        for number, layer in enumerate(row.layers):
            shown = [(layer["cka"], 3), (layer["distance"], 3), (100 * layer["share"], 2), (layer["cosine"], 4)]
            cells = [number_entry(value, digits) for value, digits in shown]
            table.rows.append([Entry(place), Entry(method_name(row)), count_entry(number), *cells])
    return table
