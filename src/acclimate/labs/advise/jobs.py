"""Advice jobs: how far a domain is from general text for a base model, before anything is trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any, ClassVar

from acclimate.base.errors import UserError
from acclimate.base.progress import print_message
from acclimate.base.records import Record
from acclimate.data.documents import Corpus
from acclimate.labs.advise.advice_text import interval, verdict
from acclimate.results.study import ReportTable
from acclimate.study.inputs import Checkpoint, Texts
from acclimate.study.job import Job, Planner, RunContext, StudyModel, StudyView, register

TITLE = "Before training"
"""Title of the table."""
COLUMNS = (
    *("model", "domain", "documents", "tokens", "shared words", "tokens per word", "in general text"),
    *("loss", "loss on general text", "difference", "95 % interval"),
)


class Advice(Record):
    """The measurements.

    Attributes:
        found: What :func:`acclimate.labs.advise.advice.measure_distance` returns; empty if it could not be measured.
        problem: Why not.
    """

    found: dict[str, Any] = field(default_factory=dict)
    problem: str = ""

    @property
    def says(self) -> str:
        """The verdict, in sentences."""
        return verdict(self.found) if self.found else f"Not measured: {self.problem}"


@register("advice", summary="how far the domain is from general text, before any training")
class AdviceJob(Job):
    """Measure vocabulary, fragmentation and loss of a base model on domain text and general text.

    Attributes:
        model: The base model.
        corpus: Text to adapt to.
        heldout: Held-out domain text.
        general: General text; None if the study has none.
        max_length: Maximum tokens per text, or per window of it.
    """

    model: Checkpoint
    corpus: Corpus
    heldout: Texts
    general: Texts | None
    max_length: int

    cost: ClassVar[float] = 0.3
    result_type: ClassVar[type[Record]] = Advice
    shows_progress: ClassVar[bool] = True
    setting: ClassVar[str] = "evaluate.advice"

    def run(self, context: RunContext) -> Advice:
        """Measure, and print the verdict; a text that cannot be measured does not stop the study."""
        from acclimate.labs.advise.advice import measure_distance  # imports torch

        measure = context.backend.others.get(self.name, measure_distance)
        try:
            general = None if self.general is None else self.general.texts
            found = measure(self.model.path, self.corpus, self.heldout.texts, general, max_length=self.max_length)
            words = {part: {**one, "examples": []} for part, one in found["fragmentation"].items()}
            made = Advice(found={**found, "fragmentation": words})  # results hold no words of the user's texts
        except UserError as error:
            made = Advice(problem=str(error))
        print_message(f"{self.place.model}, {self.place.domain}, before training: {made.says}", context.progress)
        return made

    @classmethod
    def measure(cls, planner: Planner, subject: StudyModel) -> None:
        """Add a job for each base model and domain."""
        inputs, name = planner.inputs, subject.domain.name
        if subject.is_reference:
            planner.add(
                cls(
                    place=subject.place,
                    model=inputs.checkpoints[str(subject.place.model)],
                    corpus=inputs.corpora[name],
                    heldout=inputs.heldout[name],
                    general=inputs.general,
                    max_length=planner.config.evaluate.max_length,
                )
            )

    @classmethod
    def rows(cls, view: StudyView) -> dict[str, list[Any]]:
        """Return one table with a row per model and domain, and the verdicts as its note."""
        found = list(view.find(Advice))
        if not found:
            return {}
        several = len(found) > 1
        notes = [
            f"{job.place.model}, {job.place.domain}: {result.says}" if several else result.says
            for job, result in found
        ]
        rows = [[job.place.model, job.place.domain, *_cells(result.found)] for job, result in found if result.found]
        return {
            "tables": [ReportTable(title=TITLE, note=" ".join(notes), columns=list(COLUMNS), rows=rows, first=True)]
        }


def _cells(found: dict[str, Any]) -> Sequence[Any]:
    """Return the cells after model and domain; None for what was not measured."""
    pair, split, loss = found["vocabulary"].get("domain, general"), found["fragmentation"], found.get("loss", {})
    above = loss.get("domain", {}).get("above_general")
    return (
        found["documents"],
        round(found["tokens"]),
        f"{pair['top']:.1%}" if pair else None,
        *(split[name]["pieces"] if name in split else None for name in ("domain", "general")),
        *(loss[name]["nats"] if name in loss else None for name in ("domain", "general")),
        above and above["difference"],
        above and interval(above),
    )
