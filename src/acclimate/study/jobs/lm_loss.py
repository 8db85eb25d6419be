"""Loss jobs: language-model loss on held-out text of the domain and on general text."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from acclimate.base.records import Record, optional
from acclimate.evaluation.significance import paired_difference
from acclimate.models.kinds import MASKED, get_kind
from acclimate.results.scores import WITHHELD, Interval, LossRow
from acclimate.study.inputs import Checkpoint, StudyInputs, Texts
from acclimate.study.job import (
    Job,
    JobResult,
    Model,
    Planner,
    RunContext,
    StudyModel,
    StudyView,
    Timed,
    extrapolate,
    register,
)
from acclimate.study.jobs.capabilities import CapabilityRow
from acclimate.study.summary import has_single_origin

DOMAIN, GENERAL = "domain", "general"
"""The texts that a loss is measured on."""
PILOT_TEXTS = (2, 20)
"""Number of texts of the measurements that a loss is timed with."""


class TextLoss(Record):
    """The loss of a model on texts.

    Attributes:
        nats: Mean loss in nats per predicted token.
        per_text: Summed loss of each text in nats.
        per_text_masked: Number of predicted tokens in each text.
        per_text_bytes: Number of UTF-8 bytes in each text.
        masked: Number of predicted tokens in all texts.
        bits_per_byte: Loss in bits per byte of UTF-8.
        tokens: Number of tokens in the texts.
        bytes: Number of UTF-8 bytes in the texts.
        texts: Number of texts.
        kind: Name of the model kind: see :class:`acclimate.models.kinds.ModelKind`.
    """

    nats: float
    per_text: list[float]
    per_text_masked: list[int] | None = optional()
    per_text_bytes: list[int] | None = optional()
    masked: int | None = None
    bits_per_byte: float | None = optional()
    tokens: int | None = optional()
    bytes: int | None = optional()
    texts: int | None = optional()
    kind: str | None = optional()

    def token_counts(self) -> np.ndarray:
        """Return the number of predicted tokens of each text (texts,); 1 where that is not known."""
        return np.asarray(self.per_text_masked or [1] * len(self.per_text), dtype=float)


@register("lm_loss", summary="language-model loss on held-out text")
class LmLossJob(Job):
    """Measure the loss of a model on texts.

    Attributes:
        model: The model.
        texts: The texts.
        max_length: Maximum tokens per text, or per window of it.
    """

    model: Model
    texts: Texts
    max_length: int

    cost: ClassVar[float] = 0.5
    result_type: ClassVar[type[Record]] = TextLoss

    def run(self, context: RunContext) -> TextLoss:
        """Measure the loss."""
        path = context.path(self.model)
        return TextLoss.from_dict(context.backend.lm_loss(path, self.texts.texts, max_length=self.max_length))

    def next_pilot(self, model: Checkpoint, timed: Sequence[Timed], seconds: float) -> LmLossJob | None:
        """Return a measurement on two texts, then one on some more; their difference is the time per text."""
        count = min(PILOT_TEXTS[len(timed)], len(self.texts.texts)) if len(timed) < len(PILOT_TEXTS) else 0
        if not count or (timed and (count == len(timed[0].job.texts.texts) or timed[0].seconds > 2 * seconds)):
            return None
        return replace(self, model=model, texts=replace(self.texts, texts=self.texts.texts[:count]))

    def expected_seconds(self, timed: Sequence[Timed]) -> float:
        """Return the time of loading, and of all texts at the speed of the pilots."""
        return extrapolate(timed, lambda job: len(job.texts.texts), self)

    @classmethod
    def measure(cls, planner: Planner, subject: StudyModel) -> None:
        """Add jobs for held-out text of the domain and for general text."""
        if not subject.measures_loss:
            return
        for role, texts in (
            (DOMAIN, planner.inputs.heldout[subject.domain.name]),
            (GENERAL, planner.inputs.general),
        ):
            if texts is not None:
                length = planner.config.evaluate.max_length
                job = cls(place=subject.place, model=subject.model, texts=texts, max_length=length)
                planner.add(job.at(text=role))

    @classmethod
    def measurements(cls, inputs: StudyInputs) -> Iterable[str]:
        """Return the two texts, if there is general text."""
        return (f"{DOMAIN} text", *([] if inputs.general is None else [f"{GENERAL} text"]))

    @classmethod
    def rows(cls, view: StudyView) -> dict[str, list[Any]]:
        """Return one row per model, domain, text and method, compared with the base model."""
        made = loss_rows(view, (DOMAIN, GENERAL))
        return {"losses": made, "capabilities": list(map(loss_measurement, made))}


def loss_rows(view: StudyView, texts: Iterable[str]) -> list[LossRow]:
    """Return one row per model, domain, text, given by its place, and method, compared with the base model."""
    found = view.group(TextLoss)
    config, made = view.inputs.config, []
    for model, domain, text in itertools.product(config.models, config.domains, texts):
        base = found.get((model.name, domain.name, None, None, None, text, None), [])
        for label in config.row_labels:
            for task in (None, *(task.name for task in domain.tasks)):
                if after := found.get((model.name, domain.name, label, task, None, text, None)):
                    made.append(_loss_row(after, base))
    return made


def loss_measurement(row: LossRow) -> CapabilityRow:
    """Return the measurement of a loss, in bits per byte where nats cannot be compared."""
    place: dict[str, Any] = {"model": row.model, "domain": row.domain, "task": row.task, "method": row.method}
    found = CapabilityRow(measure=f"{row.text} text", unit="nats", after=row.nats, **place)
    if row.difference:
        return replace(found, before=row.before, difference=row.difference)
    before, after = row.bits_per_byte_before, row.bits_per_byte
    return replace(found, unit="bits per byte", before=before, after=after, difference=row.bits_per_byte_difference)


def _loss_row(after: Sequence[JobResult[TextLoss]], base: Sequence[JobResult[TextLoss]]) -> LossRow:
    """Return the loss of a method and, if it can be compared, its difference to the base model."""
    place, results = after[0].job.place, [entry.result for entry in after]
    row = LossRow(
        model=str(place.model),
        domain=str(place.domain),
        text=str(place.text),
        task=place.adapted_for,
        method=str(place.method),
        nats=float(np.mean([result.nats for result in results])),
        by_seed=[float(result.nats) for result in results],
        adapt_seeds=[entry.job.place.adapt_seed for entry in after],
        texts=len(results[0].per_text),
        masked=results[0].masked,
        kind=results[0].kind,
    )
    bits = [result.bits_per_byte for result in results if result.bits_per_byte is not None]
    if len(bits) == len(results):
        row.bits_per_byte = float(np.mean(bits))
    if not base:
        return row
    before = base[0].result
    row.bits_per_byte_before = before.bits_per_byte
    origin = has_single_origin([entry.job for entry in after])
    sizes = before.per_text_bytes
    is_code_length = not get_kind(before.kind or MASKED.name).uses_masking
    if is_code_length and all(
        sizes and (result.kind, result.per_text_bytes) == (before.kind, sizes) for result in results
    ):
        row.bits_per_byte_difference = change_of_loss(results, [before], np.asarray(sizes) * np.log(2), origin)
    # Nats per token are comparable within one tokenizer only.
    if any(result.per_text_masked != before.per_text_masked for result in results):
        return row
    row.before, row.difference = float(before.nats), change_of_loss(results, [before], before.token_counts(), origin)
    if row.difference:
        row.percent = 100 * row.difference.difference / row.before if row.before else None
    return row


def change_of_loss(
    after: Sequence[TextLoss], before: Sequence[TextLoss], counts: np.ndarray, single_origin: bool
) -> Interval | None:
    """Return the change of the loss per token or byte, with a paired interval over texts; None for a single text.

    Args:
        after: The losses of the adapted models.
        before: The losses of the models that they are compared with, in the same order, or of one for all.
        counts: What the loss of each text is divided by (texts,); texts with zero are left out.
        single_origin: Whether all models come from one adaptation, so that there is no verdict.
    """
    used = counts > 0
    if used.sum() < 2:
        return None
    new, old = (
        np.asarray([one.per_text for one in side], dtype=float)[:, used] / counts[used] for side in (after, before)
    )
    change = Interval.from_dict(replace(paired_difference(new, old, counts[used]), is_error=True).as_dict())
    return change.without_verdict(WITHHELD) if single_origin else change
