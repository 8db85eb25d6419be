"""Meter jobs: how far an adapted model is from its base model, and how much of what it forgot comes back at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import numpy as np
from scipy.stats import rankdata

from acclimate.adaptation.options import NO_SIMILARITY
from acclimate.base.records import Record, optional
from acclimate.data.documents import Corpus
from acclimate.report.formatting import method_name
from acclimate.results.cells import DASH, Entry, Table, count_entry, number_entry, signed
from acclimate.results.study import StudyResults
from acclimate.study.config import StudyConfig
from acclimate.study.inputs import Texts
from acclimate.study.job import Job, Model, Planner, RunContext, StudyModel, StudyView, register
from acclimate.study.jobs.lm_loss import DOMAIN, GENERAL, TextLoss

PROBE_OPTIONS = ("batch_size", "max_length", "precision", "learning_rate", "mask_rate")
"""Options of the study's adaptations with which the recovery probe is trained, too."""
METERS = {
    "kl_domain": "KL, domain text",
    "kl_general": "KL, general text",
    "distance": "distance of weights",
    "recovered": "share recovered",
}
LEAST_FORGOTTEN = 0.01
"""Nats per token: if less was forgotten, the share of it that came back is not defined."""
RESAMPLES, FEWEST_GROUPS = 1_000, 5
"""Bootstrap resamples of the rows, and the fewest rows with an interval."""


class Meters(Record):
    """What is measured of a model.

    Attributes:
        probed: Loss on general text after the steps of the recovery probe, in nats per predicted token; None without
            it.
        kl: KL(base || adapted) by text, and ``distance`` of the weights: see
            :func:`acclimate.labs.meters.meters.measure_meters`. None for the base model.
    """

    probed: float | None = optional()
    kl: dict[str, float | None] | None = optional()
    distance: float | None = optional()


class MeterRow(Record):
    """The meters of one adaptation.

    Attributes:
        kl_domain: KL(base || adapted) on held-out domain text, in nats per predicted token.
        kl_general: The same on general text.
        distance: Distance of the weights, relative to the norm of the base model's.
        recovered: Share of ``forgotten`` that is gone after the recovery probe, compared with a base model after the
            same steps; None if less than :data:`LEAST_FORGOTTEN` was forgotten.
        forgotten: Increase of the loss on general text, in nats per predicted token.
    """

    model: str
    domain: str
    task: str | None = optional()
    method: str
    adapt_seed: int | None = None
    kl_domain: float | None = optional()
    kl_general: float | None = optional()
    distance: float | None = optional()
    recovered: float | None = optional()
    forgotten: float


@register("meters", summary="distance of adapted models from their base model, and what they recover at once")
class MeterJob(Job):
    """Measure a model, and its loss on general text after a short training on such text.

    Attributes:
        model: The model.
        base: The model that it was adapted from; None for a base model.
        texts: The held-out text of the domain, by its name.
        general: General text.
        max_length: Maximum tokens per text.
        probe: General text that the recovery probe is trained on, none of which is measured; None for no probe.
        options: Options of its training.
    """

    model: Model
    base: Model | None = None
    texts: Mapping[str, Texts]
    general: Texts
    max_length: int
    probe: Corpus | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    cost: ClassVar[float] = 2.0
    result_type: ClassVar[type[Record]] = Meters
    row_type: ClassVar[type[Record] | None] = MeterRow

    def run(self, context: RunContext) -> Meters:
        """Measure the model."""
        from acclimate.labs.meters.meters import measure_meters  # imports torch

        path, found = context.path(self.model), Meters()
        if self.base is not None:
            measure = context.backend.others.get(self.name, measure_meters)
            texts = {name: texts.texts for name, texts in self.texts.items()}
            measured = measure(context.path(self.base), path, texts, max_length=self.max_length)
            found.kl, found.distance = measured["kl"], measured["distance"]
        if self.probe is not None:
            with TemporaryDirectory() as folder:
                out = Path(folder) / "probe"
                given = {**self.options, "method": "lm", "similarity": NO_SIMILARITY}
                context.backend.adapt(path, self.probe, out=out, progress=False, **given)
                measured = context.backend.lm_loss(str(out), self.general.texts, max_length=self.max_length)
                found.probed = float(measured["nats"])
        return found

    @classmethod
    def is_used(cls, config: StudyConfig) -> bool:
        """Return whether the study asks for the meters or the probe."""
        return config.evaluate.meters or config.evaluate.recovery > 0

    @classmethod
    def measure(cls, planner: Planner, subject: StudyModel) -> None:
        """Add a job for an adapted model, or for the base model."""
        evaluate, inputs = planner.config.evaluate, planner.inputs
        is_measured = evaluate.recovery > 0 if subject.is_reference else subject.base is not None
        if inputs.general is None or not (is_measured and subject.measures_loss):
            return
        own = {DOMAIN: inputs.heldout[subject.domain.name], GENERAL: inputs.general}
        given = {name: value for name, value in planner.config.adapt.given().items() if name in PROBE_OPTIONS}
        probe = inputs.general_text("evaluate.recovery") if evaluate.recovery else None
        job = cls(
            place=subject.place,
            model=subject.model,
            base=subject.base if evaluate.meters else None,
            texts={name: texts for name, texts in own.items() if texts is not None and subject.base is not None},
            general=inputs.general,
            max_length=evaluate.max_length,
            probe=probe,
            options={**given, "steps": evaluate.recovery, "seed": 0} if probe else {},
        )
        planner.add(job.at(text=GENERAL))

    @classmethod
    def rows(cls, view: StudyView) -> dict[str, list[Any]]:
        """Return one row per adaptation whose loss on general text is measured, as that of its base model is."""
        found, losses, made = view.group(Meters), view.group(TextLoss), []
        for key, entries in found.items():
            model, domain, method, *_ = key
            start = model, domain, None, None, None, GENERAL, None
            if method is None or start not in losses:
                continue
            before = losses[start][0].result.nats
            probed = found[start][0].result.probed if start in found else None
            after = {entry.job.place.adapt_seed: entry.result.nats for entry in losses.get(key, ())}
            for place, own in ((entry.job.place, entry.result) for entry in entries):
                if place.adapt_seed not in after:
                    continue
                row = MeterRow(
                    model=str(model),
                    domain=str(domain),
                    task=place.adapted_for,
                    method=method,
                    adapt_seed=place.adapt_seed,
                    distance=own.distance,
                    forgotten=after[place.adapt_seed] - before,
                )
                row.kl_domain, row.kl_general = ((own.kl or {}).get(name) for name in (DOMAIN, GENERAL))
                if own.probed is not None and probed is not None and row.forgotten >= LEAST_FORGOTTEN:
                    row.recovered = 1 - (own.probed - probed) / row.forgotten
                made.append(row)
        return {cls.name: made}

    @classmethod
    def tables(cls, results: StudyResults) -> list[Table]:
        """Return the meters of each method, and their rank correlation with forgetting."""
        rows = results.rows[cls.name]
        note = (
            "Means over adaptations. KL(base || adapted): forward divergence of the predictions, in nats per token. "
            "Distance of weights: relative to their norm. Forgotten: increase of the loss on general text. Share "
            "recovered: of that increase, after a short training on other general text and compared with the base "
            "model after the same training; what comes back at once was not forgotten. It divides by the increase, so "
            "its mean is weighted by that, and it is unstable where little was forgotten"
        )
        without = sum(row.forgotten < LEAST_FORGOTTEN for row in rows)
        note += f"; {without} of {len(rows)} adaptations forgot less than {LEAST_FORGOTTEN} nats and have none."
        own = Table("Forgetting meters", note, ["model", "domain", "method", *METERS.values(), "forgotten"])
        groups: dict[tuple[str, ...], list[MeterRow]] = {}
        for row in rows:
            groups.setdefault((row.model, row.domain, method_name(row)), []).append(row)
        for place, found in groups.items():
            cells = [_mean([getattr(row, name) for row in found]) for name in (*METERS, "forgotten")]
            if shared := [row for row in found if row.recovered is not None]:
                weights = [row.forgotten for row in shared]
                cells[-2] = float(np.average([row.recovered for row in shared], weights=weights))
            own.rows.append([*map(Entry, place), *(number_entry(value, 3) for value in cells)])
        note = (
            "Spearman's rank correlation of each meter with the increase of the loss on general text, over "
            "adaptations. Intervals: 95 %, bootstrap over rows, whose adaptations are resampled together. Last "
            "column: absolute value of the correlation minus that of the distance of weights, on the same "
            "adaptations; a meter whose interval is not above zero predicts no better than that distance."
        )
        titles = ["meter", "adaptations", "rows", "correlation", "against the distance"]
        ranked = Table("Rank correlation of meters with forgetting", note, titles)
        ranked.rows = list(_correlations(rows))
        return [own, ranked] if rows else []


def _mean(values: Sequence[float | None]) -> float | None:
    kept = [value for value in values if value is not None]
    return float(np.mean(kept)) if kept else None


def _correlations(rows: Sequence[MeterRow]) -> Iterator[list[Entry]]:
    """Yield the row of each meter that was measured."""
    for name, title in METERS.items():
        used = [row for row in rows if getattr(row, name) is not None]
        groups: dict[tuple[Any, ...], list[int]] = {}
        for number, row in enumerate(used):
            groups.setdefault((row.model, row.domain, row.task, row.method), []).append(number)
        if len(used) < 3:
            continue
        nan = float("nan")
        values = np.array(
            [[getattr(row, name), nan if row.distance is None else row.distance, row.forgotten] for row in used]
        )
        members, rng = list(groups.values()), np.random.default_rng(0)
        drawn = [
            np.concatenate([members[group] for group in rng.integers(len(members), size=len(members))])
            for _ in range(RESAMPLES if len(members) >= FEWEST_GROUPS else 0)
        ]
        found = _estimate(values, [np.arange(len(used)), *drawn])
        against = DASH if name == "distance" else _shown(found[:, 1])
        yield [Entry(title), count_entry(len(used)), count_entry(len(members)), _shown(found[:, 0]), against]


def _estimate(values: np.ndarray, samples: Sequence[np.ndarray]) -> np.ndarray:
    """Return the correlation of each sample, and how much larger it is than the distance's (samples, 2)."""
    found = []
    for sample in samples:
        meter, distance, forgotten = (rankdata(column) for column in values[sample].T)
        with np.errstate(invalid="ignore", divide="ignore"):
            own, other = (float(np.corrcoef(ranks, forgotten)[0, 1]) for ranks in (meter, distance))
        found.append((own, abs(own) - abs(other)))
    return np.array(found)


def _shown(found: np.ndarray) -> Entry:
    """Return an estimate, the first value, with its bootstrap interval from the others."""
    if np.isnan(found[0]):
        return DASH
    text = signed(found[0], 2)
    if len(rest := found[1:][~np.isnan(found[1:])]):
        low, high = np.percentile(rest, [2.5, 97.5])
        text += f" [{signed(low, 2)}, {signed(high, 2)}]"
    return Entry(text, float(found[0]))
