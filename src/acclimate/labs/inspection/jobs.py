"""Drift jobs: how far adaptation moved embeddings and hidden states on general text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from acclimate.base.records import Record
from acclimate.results.scores import DriftRow
from acclimate.study.inputs import Checkpoint, Texts
from acclimate.study.job import Job, Model, Planner, RunContext, StudyModel, StudyView, register


@dataclass(kw_only=True, eq=False)
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


@register("drift", summary="movement of embeddings and hidden states on general text")
@dataclass(frozen=True, kw_only=True, eq=False)
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

    def run(self, context: RunContext) -> Drift:
        """Measure the distances."""
        from acclimate.labs.inspection.drift import measure_drift  # imports torch

        models = (context.path(self.base), context.path(self.model))
        measure = context.backend.drift or measure_drift
        return Drift.from_dict(measure(*models, self.texts.texts, max_length=self.max_length))

    @classmethod
    def measure(cls, planner: Planner, subject: StudyModel) -> None:
        """Add a job for an adapted model if the study sets ``evaluate.drift``."""
        evaluate, general = planner.config.evaluate, planner.inputs.general
        if evaluate.drift and general is not None and subject.base is not None:
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
        return {"drift": made}


def _mean(tables: Sequence[dict[str, float]]) -> dict[str, float]:
    """Average the values of dictionaries with the same keys."""
    return {name: float(np.mean([table[name] for table in tables])) for name in tables[0]}
