"""Similarity jobs: how well embeddings show which sentences belong together, of given pairs or of documents."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, ClassVar

from pydantic import model_validator

from acclimate.base.errors import Problems, UserError, warn_once
from acclimate.base.records import Record
from acclimate.data.reading import default_task_name
from acclimate.evaluation.embeddings import (
    METRICS,
    SentencePairs,
    SimilarityChange,
    describe_changes,
    is_sentence_encoder,
    neighbor_pairs,
    similarity_warning,
)
from acclimate.results.scores import WITHHELD, Interval
from acclimate.results.study import ReportTable
from acclimate.study.backend import Backend
from acclimate.study.config import StudyConfig
from acclimate.study.inputs import StudyInputs, Texts
from acclimate.study.job import Job, JobResult, Model, Planner, RunContext, StudyModel, StudyView, register
from acclimate.study.jobs.capabilities import CapabilityRow, measurement
from acclimate.study.jobs.prompting import row_label
from acclimate.study.sections import SectionEntry
from acclimate.study.settings import Label, ShortForm
from acclimate.study.summary import has_single_origin

INTERVAL = "Difference: after minus before, with a 95 % interval over pairs and adaptations."
NOTE = (
    "Mean reciprocal rank (MRR) and recall@1 of the next sentence of a document among the next sentences of others, "
    f"by the similarity of sentence embeddings; higher is better. {INTERVAL} A model without pooling is pooled by the "
    "mean over tokens."
)
PAIRS_NOTE = (
    "Similarity of the sentence embeddings of given pairs: with scores, Spearman's correlation of similarity and "
    "score; without, the mean reciprocal rank (MRR) of the second text of each pair among all second texts; of "
    f"retrieval tasks, nDCG@10 of their queries. Higher is better. {INTERVAL} A model without pooling is pooled by "
    "the mean over tokens."
)
DIFFERENCE = ("difference", "from", "to", "verdict")
COLUMNS = (
    *("model", "domain", "text", "method", "pairs", "MRR before", "MRR after", "recall@1 before", "recall@1 after"),
    *DIFFERENCE,
)
PAIRS_COLUMNS = ("model", "domain", "pairs", "method", "number", "metric", "before", "after", *DIFFERENCE)
MARK = "pairs "
"""Start of the place of measurements on given pairs; their name follows."""


class PairsSpec(SectionEntry, ShortForm):
    """An entry of ``similarity``: pairs of sentences, a file or a task, or ``{path, name?}``."""

    path: str
    name: Label = ""

    @model_validator(mode="after")
    def _named(self) -> PairsSpec:
        self.name = self.name or default_task_name(self.path)
        return self

    def resolve_paths(self, resolve: Callable[[str], str]) -> None:
        """Make the path absolute."""
        self.path = resolve(self.path)


class NeighborRanks(Record):
    """What is measured of each pair, its similarity or a rank; empty if too few documents have several sentences."""

    ranks: list[float]


@register("similarity", summary="similarity that the embeddings of a sentence encoder show")
class SimilarityJob(Job):
    """Measure sentence embeddings on pairs, or on neighbouring sentences.

    Attributes:
        model: The model.
        texts: Documents, or pairs.
    """

    model: Model
    texts: Texts | SentencePairs

    cost: ClassVar[float] = 0.3
    result_type: ClassVar[type[Record]] = NeighborRanks
    section: ClassVar[tuple[str, type[SectionEntry]] | None] = ("similarity", PairsSpec)

    def run(self, context: RunContext) -> NeighborRanks:
        """Measure the pairs."""
        pairs = _pairs(self.texts)
        return NeighborRanks(ranks=context.backend.similarity(context.path(self.model), pairs) if pairs else [])

    @classmethod
    def is_used(cls, config: StudyConfig) -> bool:
        """Return that it is: sentence encoders are measured without a section, too."""
        return True

    @classmethod
    def read(cls, config: StudyConfig, backend: Backend) -> dict[str, SentencePairs]:
        """Return the given pairs by name."""
        from acclimate.adaptation.similarity import open_pairs

        found, problems = dict[str, SentencePairs](), Problems()
        for spec in config.sections.get("similarity", []):
            with problems.collect("study: similarity: "):
                if spec.name in found:
                    raise UserError(f"two sets of pairs are named '{spec.name}'; give one a different 'name'.")
                found[spec.name] = replace(open_pairs(spec.path), name=spec.name)
        problems.check()
        return found

    @classmethod
    def measure(cls, planner: Planner, subject: StudyModel) -> None:
        """Add jobs for the given pairs, or for held-out and general text if there are sentence encoders."""
        base = planner.inputs.checkpoints[str(subject.place.model)]
        given = planner.inputs.extras[cls.name]
        unchanged = subject.model == base and not subject.is_reference
        for name, pairs in () if unchanged else given.items():
            planner.add(cls(place=subject.place, model=subject.model, texts=pairs).at(text=f"{MARK}{name}"))
        embeds = is_sentence_encoder(base.path) or any(method.embeds for method in planner.inputs.methods.values())
        if given or not subject.measures_loss or not embeds:
            return
        if find_spec("sentence_transformers") is None:
            warn_once(
                f"The similarity that sentence embeddings of '{base.path}' show is not measured: "
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
    def measurements(cls, inputs: StudyInputs) -> list[str]:
        """Return the given pairs."""
        return [f"{MARK}{name}" for name in inputs.extras[cls.name]]

    @classmethod
    def rows(cls, view: StudyView) -> dict[str, list[Any]]:
        """Return tables with one row per model, domain, text or pairs, and method, compared with the base model."""
        found, config = view.group(NeighborRanks), view.inputs.config
        neighbors = ReportTable(title="Similarity of sentence embeddings", note=NOTE, columns=list(COLUMNS))
        on_pairs = ReportTable(title="Similarity on pairs", note=PAIRS_NOTE, columns=list(PAIRS_COLUMNS))
        measured, changes = [], list[SimilarityChange]()
        texts = [*(f"{MARK}{name}" for name in view.inputs.extras[cls.name]), "domain", "general"]
        for model, domain, text in itertools.product(config.models, config.domains, texts):
            base = found.get((model.name, domain.name, None, None, None, text, None), [])
            for label in config.row_labels:
                for task in (None, *(task.name for task in domain.tasks)):
                    after = found.get((model.name, domain.name, label, task, None, text, None), [])
                    if base and after and base[0].result.ranks:
                        table = on_pairs if text.startswith(MARK) else neighbors
                        for row, change in _rows(view.inputs, after, base[0].result.ranks):
                            table.rows.append(row)
                            changes.append(replace(change, name=f"{label}, {change.name}"))
                            if table is on_pairs and change.part_of is None:
                                measured.append(_measurement(after, change))
        similarity_warning(changes)
        return {"tables": [on_pairs, neighbors], "capabilities": measured}


def _pairs(texts: Texts | SentencePairs | None) -> SentencePairs | None:
    """Return pairs as they are, or neighbouring sentences of documents, if there are enough."""
    if isinstance(texts, SentencePairs):
        return texts
    return neighbor_pairs("", texts.texts if texts else ())


def _measurement(after: Sequence[JobResult[NeighborRanks]], change: SimilarityChange) -> CapabilityRow:
    entry: Interval = Interval.from_dict({name: getattr(change, name) for name in ("difference", "low", "high", "p")}
                                         | {"verdict": change.verdict})  # fmt: skip
    entry = entry.without_verdict(WITHHELD) if has_single_origin([one.job for one in after]) else entry
    return measurement(after[0].job.place, str(after[0].job.place.text), change.before, change.after, entry)


def _rows(
    inputs: StudyInputs, after: Sequence[JobResult[NeighborRanks]], before: Sequence[float]
) -> Iterator[tuple[list[Any], SimilarityChange]]:
    """Yield the row of a method, and the change that it shows, followed by those of each part of the pairs.

    Args:
        inputs: The inputs of the study.
        after: Measured values of the adapted models, one per seed of adaptation.
        before: Those of the base model.
    """
    place = after[0].job.place
    given = inputs.extras[SimilarityJob.name].get(str(place.text).removeprefix(MARK))
    texts = inputs.general if place.text == "general" else inputs.heldout[str(place.domain)]
    pairs = given if str(place.text).startswith(MARK) else _pairs(texts)
    assert pairs is not None
    single = has_single_origin([entry.job for entry in after])
    method = row_label(place.method, place.adapted_for)
    for change in describe_changes(pairs, before, *(entry.result.ranks for entry in after)):
        interval = (change.difference, change.low, change.high, WITHHELD if single else change.verdict)
        name = change.name if change.part_of is None else f"{change.part_of}: {change.name}"
        if given is not None:
            metric = METRICS[change.metric]
            numbers: tuple[Any, ...] = (name, method, change.pairs, metric, change.before, change.after)
        else:
            recall = (change.recall_before, change.recall_after)
            numbers = (place.text, method, change.pairs, change.before, change.after, *recall)
        yield [place.model, place.domain, *numbers, *interval], change
