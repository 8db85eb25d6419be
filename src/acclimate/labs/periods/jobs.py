"""Periods in studies: the loss of every model on text of each period."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from acclimate.base.bounds import Count
from acclimate.base.errors import UserError, warn_once
from acclimate.base.records import texts_fingerprint
from acclimate.data.reading import text_options
from acclimate.labs.periods.dates import DatedCorpus, Periods, sample_texts
from acclimate.results.study import ReportTable
from acclimate.study.backend import Backend
from acclimate.study.config import StudyConfig
from acclimate.study.inputs import StudyInputs, Texts
from acclimate.study.job import Job, Planner, StudyModel, StudyView, register
from acclimate.study.jobs.lm_loss import LmLossJob, loss_measurement, loss_rows
from acclimate.study.jobs.prompting import row_label
from acclimate.study.sections import SectionEntry
from acclimate.study.settings import Sources, as_sources

MARK = "period "
"""Start of the place of a loss; the name of the period follows."""
COLUMNS = (
    *("model", "domain", "method", "period", "texts", "unit", "before", "after"),
    *("difference", "from", "to", "verdict"),
)
NOTE = (
    "Loss on text of each period that no model was adapted to; lower is better. Before: the base model. Difference: "
    "after minus before, with a 95 % interval over texts and adaptations."
)


class PeriodsSpec(SectionEntry):
    """The section ``periods``: text with dates; see :class:`acclimate.labs.periods.options.PeriodOptions`."""

    corpus: Annotated[Sources, BeforeValidator(as_sources), Field(min_length=1)]
    by: str = "year"
    least: Count = 50
    date_column: str | None = None
    date_format: str | None = None

    def resolve_sources(self, resolve: Callable[[Any], Any]) -> None:
        """Make the paths of the text absolute."""
        self.corpus = [resolve(one) for one in self.corpus]


@register("periods", summary="language-model loss on text of each period")
class PeriodJobs(Job):
    """Plans losses on the text of each period; there are no jobs of this kind."""

    section: ClassVar[tuple[str, type[SectionEntry]] | None] = ("periods", PeriodsSpec)

    @classmethod
    def read(cls, config: StudyConfig, backend: Backend) -> dict[str, Texts]:
        """Return a sample of the documents of each period, by its place."""
        if len(config.sections["periods"]) != 1:
            raise UserError("study: periods: give one section, whose 'corpus' may list several texts.")
        (spec,) = config.sections["periods"]
        dated = DatedCorpus(
            tuple(spec.corpus),
            Periods.parse(spec.by),
            date_column=spec.date_column,
            date_format=spec.date_format,
            reading=text_options(config.adapt.given()),
        )
        for _ in dated:
            pass
        most = dict.fromkeys(dated.report.keep(spec.least, 1), config.evaluate.documents)
        found = sample_texts(((one.period, one.text) for one in dated), most)
        for line in dated.describe():
            warn_once(f"study: periods: {line}")
        return {f"{MARK}{period.name}": Texts(texts, texts_fingerprint(texts)) for period, texts in found.items()}

    @classmethod
    def measured(cls, inputs: StudyInputs) -> Iterable[Texts]:
        """Return the text of the periods."""
        return inputs.extras[cls.name].values()

    @classmethod
    def measure(cls, planner: Planner, subject: StudyModel) -> None:
        """Add a loss for each period."""
        for place, texts in planner.inputs.extras[cls.name].items() if subject.measures_loss else ():
            length = planner.config.evaluate.max_length
            planner.add(
                LmLossJob(place=subject.place, model=subject.model, texts=texts, max_length=length).at(text=place)
            )

    @classmethod
    def measurements(cls, inputs: StudyInputs) -> Iterable[str]:
        """Return the texts."""
        return [f"{place} text" for place in inputs.extras[cls.name]]

    @classmethod
    def rows(cls, view: StudyView) -> dict[str, list[Any]]:
        """Return a table with one row per model, domain, period and method."""
        table = ReportTable(title="Loss by period", note=NOTE, columns=list(COLUMNS))
        losses = loss_rows(view, view.inputs.extras[cls.name])
        measured = list(map(loss_measurement, losses))
        for row, found in zip(losses, measured, strict=True):
            change, period = found.difference, row.text.removeprefix(MARK)
            ends = (None, None, None) if change is None else (change.difference, change.low, change.high)
            values = (period, row.texts, found.unit, found.before, found.after, *ends, found.verdict)
            table.rows.append([row.model, row.domain, row_label(row.method, row.task), *values])
        return {"tables": [table], "capabilities": measured}
