"""`acclimate periods surprisal`: a language model per period, and how surprised each is by the text of every other."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, cast

import numpy as np
from scipy import stats

from acclimate.adaptation.adapt import adapt
from acclimate.base.errors import UserError
from acclimate.base.files import write_text
from acclimate.base.options import verb
from acclimate.base.progress import Progress, print_message
from acclimate.base.verbs import Next
from acclimate.data.documents import Corpus, format_count
from acclimate.evaluation.lm_loss import language_model_loss
from acclimate.evaluation.significance import paired_difference
from acclimate.labs.periods.dated_tasks import open_output, show_periods, write_report
from acclimate.labs.periods.dates import DatedCorpus, DatedDocument, Period, parse_date, sample_texts
from acclimate.labs.periods.decay import Column, Resampler, ScoreMatrix, TemporalReport, write_matrix
from acclimate.labs.periods.options import PeriodsSurprisalOptions
from acclimate.labs.periods.split import open_dated

MIN_DAYS = 10
"""With at least so many days in every period, whole days are held out, so that no part of a speech or an issue of a
newspaper is on both sides."""
QUOTED = 200
"""Characters of each text in ``texts.jsonl``."""


@verb(PeriodsSurprisalOptions)
def periods_surprisal(options: PeriodsSurprisalOptions) -> TemporalReport:
    """Adapt a model to the text of each period, and measure held-out text of all periods under each of them.

    All models read the same number of documents. Text that is more surprising to the model of one
    period than to the model of another shows a change of language (Fittschen et al., 2025, who pre-train a model per
    period), and the period whose model finds a text least surprising is a guess of its date. With ``out``, a command
    that was interrupted resumes.

    With several models, each named by its period, nothing is adapted, and all of the text is measured: give text that
    they have not read.

    Returns:
        ``matrix``, a row per model with its bits per byte on each period, which for masked models are a pseudo-measure
        (:func:`acclimate.evaluation.lm_loss.language_model_loss`); ``by_distance`` and ``loss_per_unit`` as by
        :func:`acclimate.periods_gap`; ``base``, the losses of the base model; ``dating``, how often the model of the
        own period is the least surprised, and the mean absolute error in periods, with intervals over texts.
        ``out/texts.jsonl`` has every text that was measured with its losses.

    Raises:
        UserError: If a source or model cannot be read, or too few periods have enough text.
    """
    models = dict(cast(Mapping[str, Any], options.models))
    dated = open_dated(options.corpus, options)
    folder = open_output(options.out, "surprisal")
    assert folder is not None
    if len(models) == 1:
        base = str(next(iter(models.values())))
        split = _Split.of(dated, options)
        places = _adapt(options, dated, split, base, folder / "models")
        measured = ((one.period, one.text) for one in dated if one.period in places and split.holds_out(one))
        notes = [split.note]
    else:
        base, places, notes = "", _match(models, dated), []
        measured = ((one.period, one.text) for one in dated)
    texts = sample_texts(measured, dict.fromkeys(sorted(places), options.measured))
    if empty := [period.name for period, found in texts.items() if not found]:
        raise UserError(f"There is no text of {', '.join(empty)} to measure the models on; give more text.")
    losses = _measure(options, places, base, texts)
    if unread := sum(map(len, texts.values())) - len(losses.texts):
        notes.append(f"Not measured: {format_count(unread, 'text')} without a token that all models predict.")
    return _report(folder, dated, losses, [*dated.describe(), *notes])


def show_surprisal(report: TemporalReport, options: PeriodsSurprisalOptions) -> Iterator[Any]:
    """Yield what ``acclimate periods surprisal`` prints."""
    yield from show_periods(report, options)
    yield f"Losses of each text: {Path(options.out) / 'texts.jsonl'}"
    if report["base"] is not None:
        latest = Path(options.out) / "models" / report["matrix"][-1]["model"]
        yield Next(["finetune", "--model", latest, "--task", "TASK", "--out", "finetuned"])


@dataclass(frozen=True)
class _Split:
    """Split of the documents: some are measured, the others are adapted to.

    Attributes:
        periods: The periods, in order.
        days: The days that are held out; None if single documents are.
        share: The share that is held out.
        seed: Random seed.
    """

    periods: Sequence[Period]
    days: frozenset[date] | None
    share: float
    seed: int

    @classmethod
    def of(cls, dated: DatedCorpus, options: PeriodsSurprisalOptions) -> _Split:
        """Choose whole days, if there are enough in each period, or else single documents.

        Raises:
            UserError: If there are fewer than two periods with enough documents.
        """
        days: dict[Period, set[date | None]] = {}
        for document in dated:
            days.setdefault(document.period, set()).add(document.day)
        periods = dated.report.keep(options.least, 2)
        split = cls(periods, None, options.heldout, options.seed)
        if any(None in days[period] or len(days[period]) < MIN_DAYS for period in periods):
            return split
        held: set[date] = set()
        for period in periods:
            ranked = sorted((day for day in days[period] if day), key=lambda day: split._rank(day.isoformat()))
            held.update(ranked[: max(1, round(options.heldout * len(ranked)))])
        return cls(periods, frozenset(held), options.heldout, options.seed)

    def _rank(self, text: str) -> int:
        data = text.encode("utf-8", "surrogatepass")
        return int.from_bytes(blake2b(data, digest_size=8, key=f"{self.seed}".encode()).digest(), "big")

    def holds_out(self, document: DatedDocument) -> bool:
        """Return whether a document is held out, which depends on its day or its text alone."""
        if self.days is not None:
            return document.day in self.days
        return self._rank(document.text) < self.share * 2**64

    @property
    def note(self) -> str:
        """A sentence on the held-out documents."""
        what = "single documents" if self.days is None else "whole days, so that texts of one day stay together"
        return f"Held out: {100 * self.share:g} % of each period, {what}."


def _adapt(
    options: PeriodsSurprisalOptions, dated: DatedCorpus, split: _Split, base: str, folder: Path
) -> dict[Period, Path]:
    """Adapt a model to the same number of documents of each period; return the folders of the models."""

    def read() -> Iterator[tuple[Period, str]]:
        return ((one.period, one.text) for one in dated if one.period in split.periods and not split.holds_out(one))

    counts = Counter(period for period, _ in read())
    smallest = min(split.periods, key=lambda period: counts[period])
    size = counts[smallest] if options.documents is None else options.documents
    if not 0 < size <= counts[smallest]:
        raise UserError(
            f"The period {smallest.name} has {format_count(counts[smallest], 'document')} to adapt to besides those "
            f"held out, fewer than {max(size, 1):,}; lower --documents or --heldout, or choose longer periods."
        )
    texts = sample_texts(read(), dict.fromkeys(split.periods, size))
    for period, found in texts.items():
        print_message(f"Adapting to {period.name}, {format_count(len(found), 'document')}", options.progress)
        adapt(
            base,
            Corpus.of(found),
            options.method,
            folder / period.name,
            epochs=options.epochs,
            max_length=options.max_length,
            seed=options.seed,
            similarity="none",
            progress=options.progress,
        )
    return {period: folder / period.name for period in split.periods}


def _match(models: Mapping[str, Any], dated: DatedCorpus) -> dict[Period, Path]:
    """Return the models by the periods that their names say."""
    places: dict[Period, Path] = {}
    for name, folder in models.items():
        named = {
            period.name: period for period in map(dated.report.periods.at, range(len(dated.report.periods.names)))
        }
        span = parse_date(name)
        period = named.get(name) or (None if span is None else dated.report.periods.find(span))
        if period is None:
            raise UserError(f"The model '{name}' does not name its period; give it as 2019=FOLDER, one per period.")
        if period in places:
            raise UserError(
                f"'{places[period]}' and '{folder}' are both models of {period.name}; give one per period."
            )
        places[period] = Path(folder)
    return places


@dataclass(frozen=True)
class _Losses:
    """The losses of all models on all texts.

    Attributes:
        periods: The periods, in order: of the models, and of the texts.
        own: Index of the period of each text (texts,).
        bits: Bits of each text under the model of each period (periods, texts).
        base: The same under the base model (texts,); None if it cannot predict tokens.
        bytes: Bytes of each text that were read (texts,).
        texts: The texts.
    """

    periods: Sequence[Period]
    own: np.ndarray
    bits: np.ndarray
    base: np.ndarray | None
    bytes: np.ndarray
    texts: Sequence[str]


def _measure(
    options: PeriodsSurprisalOptions, places: Mapping[Period, Path], base: str, texts: Mapping[Period, Sequence[str]]
) -> _Losses:
    """Measure the texts of all periods under all models."""
    periods = sorted(places)
    every = [text for period in periods for text in texts[period]]
    own = np.repeat(np.arange(len(periods)), [len(texts[period]) for period in periods])
    rows, sizes = list[np.ndarray](), np.zeros(len(every))
    with Progress("Measuring models", len(periods) + 1, unit="models", enabled=options.progress) as bar:
        for place in [*(str(places[period]) for period in periods), *([base] if base else [])]:
            try:
                found = language_model_loss(place, every, max_length=options.max_length)
            except UserError:
                if place != base:  # a base model may lack its head, which the adaptations have trained
                    raise
                break
            counts, tokens = (np.array(found[name], float) for name in ("per_text_masked", "per_text_tokens"))
            sizes = np.array(found["per_text_bytes"], float)
            with np.errstate(invalid="ignore"):
                rows.append(np.array(found["per_text"]) / counts * tokens / math.log(2))
            bar.update(len(rows))
    read = (sizes > 0) & np.isfinite(rows).all(0)
    if empty := [period.name for place, period in enumerate(periods) if not read[own == place].any()]:
        raise UserError(f"No text of {', '.join(empty)} has a token that all models predict; give longer texts.")
    bits = np.array(rows)[:, read]
    kept = [text for text, use in zip(every, read, strict=True) if use]
    last = bits[-1] if len(bits) > len(periods) else None
    return _Losses(periods, own[read], bits[: len(periods)], last, sizes[read], kept)


def _per_byte(bits: np.ndarray, sizes: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return bits per byte of all texts together, for weights of the texts (resamples, texts)."""
    return np.asarray((weights @ bits) / (weights @ sizes))


def _report(folder: Path, dated: DatedCorpus, losses: _Losses, notes: Sequence[str]) -> TemporalReport:
    """Return what the losses show, and write it with the losses of each text."""
    columns = []
    for place in range(len(losses.periods)):
        mine = losses.own == place
        scores: list[list[Resampler]] = [[partial(_per_byte, row[mine], losses.bytes[mine])] for row in losses.bits]
        columns.append(Column(int(mine.sum()), scores))
    matrix = ScoreMatrix(losses.periods, columns, is_error=True)
    dating = date_texts(losses.bits, losses.own, [period.index for period in losses.periods])
    names, unit = [period.name for period in losses.periods], dated.report.periods.unit
    base = None
    if losses.base is not None:
        masks = [losses.own == place for place in range(len(names))]
        base = {
            name: float(losses.base[mask].sum() / losses.bytes[mask].sum())
            for name, mask in zip(names, masks, strict=True)
        }
    measured = write_matrix(matrix)
    per_text = losses.bits / losses.bytes
    lines = [
        {
            "period": names[own],
            "guess": names[int(per_text[:, place].argmin())],
            "bits_per_byte": dict(zip(names, per_text[:, place].round(5).tolist(), strict=True)),
            "text": text[:QUOTED],
        }
        for place, (own, text) in enumerate(zip(losses.own, losses.texts, strict=True))
    ]
    write_text(folder / "texts.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    said = [*notes, *matrix.describe("bits per byte", unit)]
    if base is not None:
        said.append("Base model: " + ", ".join(f"{name} {value:.4f}" for name, value in base.items()))
    right, low, high, chance = (f"{100 * dating[name]:.1f}" for name in ("accuracy", "low", "high", "chance"))
    said.append(
        f"Dating by the least surprised model: {right} % of {len(losses.own):,} texts correct [{low}, {high}], "
        f"{chance} % by chance; mean error {dating['error']:.2f} {unit}s, {dating['error_of_median']:.2f} by always "
        "guessing the middle"
    )
    tables = {"Bits per byte by period": measured["matrix"], "By distance in time": measured["by_distance"]}
    content = {**measured, "base": base, "dating": dating, "measure": "bits per byte", "dates": dated.report.to_dict()}
    return write_report(folder, "surprisal", "Surprisal over time", content, said, tables)


def date_texts(losses: np.ndarray, own: np.ndarray, indices: Sequence[int]) -> dict[str, Any]:
    """Return how well the model with the lowest loss on a text tells its period.

    Args:
        losses: Loss of each text under the model of each period (periods, texts).
        own: The true period of each text (texts,), counted from zero.
        indices: The place in time of each period.

    Returns:
        ``accuracy`` with the ends of its 95 % interval (Wilson), ``low`` and ``high``; ``chance``, the accuracy of
        always guessing the most frequent period; ``error``, the mean absolute error in periods, ``error_of_median``,
        the error of always guessing the median, and ``difference``, ``error`` minus ``error_of_median`` with its
        interval over texts;
        ``confusion``, the number of texts by true and guessed period.
    """
    places, guess = np.asarray(indices), losses.argmin(0)
    hits = int((guess == own).sum())
    interval = stats.binomtest(hits, len(own)).proportion_ci(method="wilson")
    middle = np.sort(places[own])[(len(own) - 1) // 2]
    errors, others = np.abs(places[guess] - places[own]), np.abs(middle - places[own])
    confusion = np.zeros((len(places), len(places)), int)
    np.add.at(confusion, (own, guess), 1)
    return {
        "accuracy": hits / len(own),
        "low": float(interval.low),
        "high": float(interval.high),
        "chance": float(np.bincount(own).max() / len(own)),
        "error": float(errors.mean()),
        "error_of_median": float(others.mean()),
        "difference": replace(paired_difference(errors, others), is_error=True).as_dict(),
        "confusion": confusion.tolist(),
    }
