"""Similarity jobs: how well the embeddings of a sentence encoder show that neighbouring sentences belong together."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, ClassVar

from acclimate.errors import warn_once
from acclimate.evaluation.embeddings import describe_change, is_sentence_encoder, neighbor_pairs
from acclimate.records import Record
from acclimate.results import ReportTable
from acclimate.rows import VERDICTS, WITHHELD
from acclimate.study.inputs import Texts
from acclimate.study.jobs.base import Job, JobResult, Model, Planner, RunContext, StudyModel, StudyView, register
from acclimate.study.summary import has_single_origin

NOTE = (
    "Mean reciprocal rank (MRR) and recall@1 of the next sentence of a document among the next sentences of others, "
    "by the similarity of sentence embeddings; higher is better. Difference: MRR after minus before, with a 95 % "
    "interval over pairs and adaptations. Of sentence encoders only."
)
COLUMNS = (
    *("model", "domain", "text", "method", "pairs", "MRR before", "MRR after", "recall@1 before", "recall@1 after"),
    *("difference", "from", "to", "verdict"),
)


@dataclass(kw_only=True, eq=False)
class NeighborRanks(Record):
    """The rank of each sentence's neighbor; empty if too few documents have several sentences."""

    ranks: list[float]


@register("similarity", summary="similarity that the embeddings of a sentence encoder show")
@dataclass(frozen=True, kw_only=True, eq=False)
class SimilarityJob(Job):
    """Measure a sentence encoder on neighbouring sentences.

    Attributes:
        model: The model.
        texts: Documents.
    """

    model: Model
    texts: Texts

    cost: ClassVar[float] = 0.3
    result_type: ClassVar[type[Record]] = NeighborRanks

    def run(self, context: RunContext) -> NeighborRanks:
        """Rank the neighbors."""
        pairs = neighbor_pairs("", self.texts.texts)
        return NeighborRanks(ranks=context.backend.similarity(context.path(self.model), pairs) if pairs else [])

    @classmethod
    def measure(cls, planner: Planner, subject: StudyModel) -> None:
        """Add jobs for held-out text of the domain and for general text, if the base model is a sentence encoder."""
        base = planner.inputs.checkpoints[str(subject.place.model)]
        if not subject.measures_loss or not is_sentence_encoder(base.path):
            return
        if find_spec("sentence_transformers") is None:
            warn_once(
                f"'{base.path}' is a sentence encoder, and the similarity that its embeddings show is not measured: "
                "pip install 'acclimate[embeddings]'."
            )
            return
        for role, texts in (
            ("domain", planner.inputs.heldout[subject.domain.name]),
            ("general", planner.inputs.general),
        ):
            if texts is not None:
                planner.add(cls(place=subject.place, model=subject.model, texts=texts).at(text=role))

    @classmethod
    def rows(cls, view: StudyView) -> dict[str, list[Any]]:
        """Return a table with one row per model, domain, text and method, compared with the base model."""
        found, config = view.group(NeighborRanks), view.inputs.config
        table = ReportTable(title="Similarity of sentence embeddings", note=NOTE, columns=list(COLUMNS))
        for model, domain, text in itertools.product(config.models, config.domains, ("domain", "general")):
            base = found.get((model.name, domain.name, None, None, None, text, None), [])
            for label in config.row_labels:
                for task in (None, *(task.name for task in domain.tasks)):
                    after = found.get((model.name, domain.name, label, task, None, text, None), [])
                    if base and after and base[0].result.ranks:
                        table.rows.append(_row(view, after, base[0].result.ranks))
        return {"tables": [table] if table.rows else []}


def _row(view: StudyView, after: Sequence[JobResult[NeighborRanks]], before: Sequence[float]) -> list[Any]:
    """Return the row of a method.

    Args:
        view: The finished jobs.
        after: Ranks of the adapted models, one per seed of adaptation.
        before: Ranks of the base model.
    """
    place, inputs = after[0].job.place, view.inputs
    texts = inputs.general if place.text == "general" else inputs.heldout[str(place.domain)]
    pairs = neighbor_pairs("", texts.texts if texts else ())
    assert pairs is not None
    change = describe_change(pairs, before, *(entry.result.ranks for entry in after))
    single = has_single_origin([entry.job for entry in after])
    method = f"{place.method} ({place.adapted_for})" if place.adapted_for else place.method
    numbers = (change.before, change.after, change.recall_before, change.recall_after)
    interval = (change.difference, change.low, change.high)
    verdict = VERDICTS[WITHHELD if single else change.verdict]
    return [place.model, place.domain, place.text, method, change.pairs, *numbers, *interval, verdict]
