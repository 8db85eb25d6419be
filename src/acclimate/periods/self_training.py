"""`acclimate periods self-train`: labels of one period, carried to later ones by predicted labels."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from acclimate.corpus.dates import Period, sample_texts
from acclimate.corpus.operations import TRANSFORMS, Context
from acclimate.corpus.pool import Documents
from acclimate.errors import UserError
from acclimate.evaluation.statistics import PairedPredictions, mean_paired_bootstrap, paired_bootstrap
from acclimate.options import verb
from acclimate.options.periods import PeriodsSelfTrainOptions
from acclimate.periods.decay import TemporalReport
from acclimate.periods.split import open_dated
from acclimate.periods.tasks import DatedTask, Trainings, choose_metric, open_output, read_dated_task, write_report
from acclimate.progress import print_message
from acclimate.records import texts_fingerprint
from acclimate.tasks.readers import fold_text


def _temporal_self_training(options: PeriodsSelfTrainOptions) -> TemporalReport:
    """Fine-tune on the labels of the first period, and adapt to each later one by labels that the model predicts.

    The model of a period labels the texts of the next one; the next model learns those labels of which it is sure, and
    with ``learn="all"`` also the labels so far. No true label of a later period is learned; they only test. The model
    of the first period, which is never adapted, is tested on the same rows.

    This is incremental self-training as in Chuang et al. (2023), who compare it with fine-tuning once, with
    domain-adversarial training (method ``dann``) and with pre-training on the new text (method ``lm``).

    Returns:
        ``rows``, for each later period the score ``before`` of the model of the first period, ``after`` of the adapted
        model, the difference with its 95 % interval over items and seeds, the share of the texts that were labelled,
        and, where true labels are known, the share that was labelled correctly; ``mean``, the mean difference. The
        models of the last period are in ``out/models``.

    Raises:
        UserError: If the task has no dates or no single texts with classes, or too few periods have enough rows.
    """
    dated = read_dated_task(options)
    if dated.task.task_kind != "classification" or dated.task.is_pair:
        raise UserError(
            f"The task '{dated.task.name}' does not give classes to single texts, so a model cannot label new texts."
        )
    metric, scoring = choose_metric(options, dated.task)
    folder = open_output(options.out, "self-train")
    assert folder is not None
    unlabelled, notes = _read_unlabelled(options, dated)
    trainings = Trainings(options, folder)
    own = {name: getattr(options, name) for name in ("confidence", "start", "learn")}
    key = [own, {period.name: texts_fingerprint(texts) for period, texts in unlabelled.items()}]
    chains = [
        trainings.kept(
            [
                *trainings.identity(
                    options.model, dated.placed.part(dated.train[dated.periods[0]], dated.tested), seed
                ),
                *key,
            ],
            _Chain(options, dated, unlabelled, trainings, folder / "models" / f"seed-{seed}", seed).run,
        )
        for seed in range(options.seeds)
    ]
    rows, pairs = [], []
    for place, period in enumerate(dated.periods[1:], start=1):
        scored = dated.placed.part(dated.task.train, dated.test[period]).scoring()
        part = dated.places(period)
        after, before = (
            [chain["predicted"][stage][part] for chain in chains] for stage in (place, 0)
        )  # (seeds, items) each
        pairs.append(PairedPredictions(chains[0]["gold"][part], after, before, metric, scored))
        found = paired_bootstrap(pairs[-1].gold, after, before, metric, scoring=scored)
        score = float(np.mean([scored.score(pairs[-1].gold, one, metric) for one in before]))
        counts = [chain["labelled"][place - 1] for chain in chains]
        right = [count["right"] for count in counts]
        rows.append(
            {"period": period.name, "before": score, "after": score + found.difference, **found.as_dict()}
            | {"texts": counts[0]["texts"], "labelled": float(np.mean([count["kept"] for count in counts]))}
            | {"right": None if None in right else float(np.mean(right))}
        )
    mean = mean_paired_bootstrap(pairs)
    lines = [*dated.notes, *notes, f"The first period, {dated.periods[0].name}, has the labels. {metric}:"]
    for row in rows:
        correct = "" if row["right"] is None else f", {100 * row['right']:.0f} % of them correctly"
        lines.append(
            f"{row['period']}: {row['before']:.4f} without and {row['after']:.4f} with self-training, difference "
            f"{row['difference']:+.4f} [{row['low']:+.4f}, {row['high']:+.4f}]; {row['labelled']:.0f} of "
            f"{row['texts']:,} texts labelled{correct}"
        )
    if not any(row["labelled"] for row in rows):
        lines.append(
            f"No label has a probability of at least {options.confidence:g}, so nothing was learned; lower it."
        )
    lines.append(f"Mean difference: {mean.difference:+.4f} [{mean.low:+.4f}, {mean.high:+.4f}], {options.seeds} seeds")
    content: dict[str, Any] = {
        "metric": metric,
        "is_error": metric in scoring.errors,
        "rows": rows,
        "mean": mean.as_dict(),
    }
    content |= {"seeds": options.seeds, "dates": dated.report.to_dict()}
    tables = {"Scores by period": rows}
    return write_report(folder, "self-train", "Self-training over time", content, lines, tables)


temporal_self_training = verb(PeriodsSelfTrainOptions, _temporal_self_training)


def _read_unlabelled(options: PeriodsSelfTrainOptions, dated: DatedTask) -> tuple[dict[Period, list[str]], list[str]]:
    """Return the texts of each later period, and lines on what was not used.

    Raises:
        UserError: If a period has no text.
    """
    later = dated.periods[1:]
    tested = {fold_text(example.text) for example in dated.tested}
    left, notes = Counter[str](), list[str]()

    def read() -> Iterator[tuple[Period, str]]:
        if options.corpus is None:
            for period in later:
                yield from ((period, text) for text in dict.fromkeys(one.text for one in dated.train[period]))
            return
        corpus = open_dated(options.corpus, options)
        for document in corpus:
            if document.period not in later:
                left["from other periods than the later ones of the task"] += 1
            elif fold_text(document.text) in tested:
                left["that are test rows"] += 1
            else:
                yield document.period, document.text
        notes.extend(corpus.describe())

    texts = sample_texts(read(), dict.fromkeys(later, options.documents))
    if empty := [period.name for period, found in texts.items() if not found]:
        raise UserError(f"The corpus has no text of {', '.join(empty)}; give more text, or other periods with --by.")
    return texts, [*notes, *(f"Not used: {count:,} texts of the corpus {what}." for what, count in left.items())]


@dataclass(frozen=True)
class _Chain:
    """The trainings of one seed, one after the other.

    Attributes:
        options: Those of the command.
        dated: The task.
        unlabelled: The texts of each later period.
        trainings: Runs the trainings.
        folder: Folder for the models, of which the last remains.
        seed: Random seed.
    """

    options: PeriodsSelfTrainOptions
    dated: DatedTask
    unlabelled: Mapping[Period, Sequence[str]]
    trainings: Trainings
    folder: Path
    seed: int

    def run(self) -> dict[str, Any]:
        """Return ``gold``, what each model ``predicted`` for all test rows, and how many texts were ``labelled``."""
        first = self.dated.periods[0]
        learned = list(self.dated.train[first])
        print_message(f"Fine-tuning on {first.name}, seed {self.seed}", self.options.progress)
        place = self.folder / first.name
        found = self.trainings.train(
            self.options.model, self.dated.placed.part(learned, self.dated.tested), self.seed, place
        )
        predicted, labelled = [found["predicted"]], []
        for period, texts in self.unlabelled.items():
            new, counts = self._label(place, period, texts)
            labelled.append(counts)
            learned = [*learned, *new] if self.options.learn == "all" else new
            print_message(f"Learning {len(new):,} labels of {period.name}, seed {self.seed}", self.options.progress)
            if new:  # else the model of the previous period is also that of this one
                start = place if self.options.start == "previous" else self.options.model
                place = self.folder / period.name
                task = self.dated.placed.part(learned, self.dated.tested)
                found = self.trainings.train(start, task, self.seed, place)
            predicted.append(found["predicted"])
        for other in self.folder.iterdir():
            if other != place:
                shutil.rmtree(other)
        return {"gold": found["gold"], "predicted": predicted, "labelled": labelled}

    def _label(self, model: Path, period: Period, texts: Sequence[str]) -> tuple[list[Any], dict[str, Any]]:
        """Return examples with the labels that a model predicts, and how many there are and how many are right."""
        transform: Any = TRANSFORMS.lookup("pseudo_labels")
        length = self.options.max_length or self.dated.task.default_length
        made = transform(model=str(model), confidence=self.options.confidence, max_length=length)
        documents = Documents.of(((text, 0) for text in texts), ("memory",))
        labels, template = self.dated.task.labels, self.dated.train[period][0]
        new = []
        for document in made.apply(documents, Context(progress=self.options.progress)):
            names = document.fields["label"]
            label = tuple(map(labels.index, names)) if isinstance(names, list) else labels.index(names)
            new.append(replace(template, text=document.text, label=label, document=None))
        true = {example.text: example.label for example in self.dated.train[period]}
        known = [example.label == true[example.text] for example in new if example.text in true]
        right = float(np.mean(known)) if known else None
        return new, {"texts": len(texts), "kept": len(new), "right": right}
