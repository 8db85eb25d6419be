"""External checkpoints: existing models that the study compares with its methods without adapting them.

A checkpoint is fine-tuned on all tasks and its losses are measured like those of an adapted model, so it has a row in
all tables. Since its size and tokenizer may differ, a job describes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pydantic import model_validator

from acclimate.base.errors import Problems
from acclimate.base.records import Record
from acclimate.results.study import MethodRow, ReportTable
from acclimate.study.backend import Backend
from acclimate.study.config import DomainSpec, ModelSpec, StudyConfig
from acclimate.study.inputs import Checkpoint, StudyInputs, Texts, longest_text, read_options
from acclimate.study.job import Job, Place, Planner, RunContext, StudyModel, StudyView, register
from acclimate.study.sections import SectionEntry
from acclimate.study.settings import ShortForm


class CheckpointSpec(SectionEntry, ShortForm):
    """An entry of ``checkpoints``: a model folder or a name on the Hub, or ``{path, label?}``."""

    path: str

    @model_validator(mode="after")
    def _labelled(self) -> CheckpointSpec:
        self.label = self.label or f"checkpoint {Path(self.path).name}"
        return self

    def resolve_paths(self, resolve: Callable[[str], str]) -> None:
        """Make the path absolute."""
        self.path = resolve(self.path)


@dataclass(frozen=True)
class ExternalModel:
    """An external checkpoint, and whether it has a language-model head, so that its loss can be measured."""

    checkpoint: Checkpoint
    has_head: bool


class Description(Record):
    """Facts about a checkpoint.

    Attributes:
        architecture: ``model_type`` of the model, such as ``"bert"``.
        parameters: Number of parameters, heads excluded.
        vocabulary: Size of the vocabulary.
        tokens: Number of tokens in the texts, special tokens excluded.
        words: Number of whitespace-separated words in the texts.
    """

    architecture: str
    parameters: int
    vocabulary: int
    tokens: int
    words: int


@register("checkpoint", summary="describe an unchanged external checkpoint")
class CheckpointJob(Job):
    """Count the parameters of a checkpoint, and the tokens of held-out text under its tokenizer.

    Attributes:
        model: The checkpoint.
        texts: Held-out text of the domain.
    """

    model: Checkpoint
    texts: Texts

    cost: ClassVar[float] = 0.1
    result_type: ClassVar[type[Record]] = Description
    section: ClassVar[tuple[str, type[SectionEntry]] | None] = ("checkpoints", CheckpointSpec)

    def run(self, context: RunContext) -> Description:
        """Load model and tokenizer, and count."""
        from acclimate.models.loading import load_language_model

        loaded = load_language_model(self.model.path)
        tokenizer = loaded.tokenizer
        ids = tokenizer(self.texts.texts, add_special_tokens=False, verbose=False)["input_ids"]
        return Description(
            architecture=str(loaded.model.config.model_type),
            parameters=sum(weight.numel() for weight in loaded.model.base_model.parameters()),
            vocabulary=len(tokenizer),
            tokens=sum(map(len, ids)),
            words=sum(len(text.split()) for text in self.texts.texts),
        )

    @classmethod
    def read(cls, config: StudyConfig, backend: Backend) -> dict[str, ExternalModel]:
        """Return the checkpoints by label."""
        (length, key), found, problems = longest_text(config, read_options()["adapt"]), {}, Problems()
        for spec in config.sections.get("checkpoints", []):
            with problems.collect(f"study: the checkpoint '{spec.label}': "):
                has_head = backend.has_head(spec.path, length, (), key)
                found[spec.label] = ExternalModel(Checkpoint.read(spec.path), has_head)
        problems.check()
        return found

    @classmethod
    def models(cls, planner: Planner, model: ModelSpec, domain: DomainSpec) -> Iterator[StudyModel]:
        """Yield each checkpoint, to be compared with the methods of a base model."""
        for spec in planner.config.sections.get("checkpoints", []):
            found: ExternalModel = planner.inputs.extras[cls.name][spec.label]
            place = Place(model=model.name, domain=domain.name, method=spec.label)
            planner.add(cls(place=place, model=found.checkpoint, texts=planner.inputs.heldout[domain.name]))
            yield StudyModel(found.checkpoint, place, domain, planner.config.seeds, measures_loss=found.has_head)

    @classmethod
    def method_rows(cls, inputs: StudyInputs) -> list[MethodRow]:
        """Return one row per checkpoint."""
        found = inputs.extras[cls.name]
        return [
            MethodRow(label=label, name="checkpoint", parameters={"path": external.checkpoint.path})
            for label, external in found.items()
        ]

    @classmethod
    def rows(cls, view: StudyView) -> dict[str, list[Any]]:
        """Return a table that describes the checkpoints."""
        rows: dict[tuple[str, str], list[Any]] = {}
        for job, result in view.find(Description):
            facts = [result.architecture, result.parameters, result.vocabulary, result.tokens / max(1, result.words)]
            rows[str(job.place.domain), str(job.place.method)] = [job.place.domain, job.place.method, *facts]
        note = (
            "Models that were not adapted by the study. Losses in nats per predicted token compare only within one "
            "tokenizer; bits per byte compare across tokenizers. Tokens per word: on held-out text of the domain."
        )
        columns = ["domain", "checkpoint", "architecture", "parameters", "vocabulary", "tokens per word"]
        table = ReportTable(
            title="External checkpoints", note=note, columns=columns, rows=list(rows.values()), digits=2
        )
        return {"tables": [table]}
