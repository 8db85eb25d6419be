"""`acclimate periods self-train`: labels of one period, transferred to later ones by predicted labels."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from acclimate.base.errors import UserError
from acclimate.base.options import verb
from acclimate.base.progress import print_message
from acclimate.base.records import texts_fingerprint
from acclimate.base.verbs import Next
from acclimate.data.documents import format_count
from acclimate.data.operations import TRANSFORMS, Context
from acclimate.data.pool import Documents
from acclimate.evaluation.significance import PairedPredictions, mean_paired_bootstrap, paired_bootstrap
from acclimate.labs.periods.dated_tasks import (
    DatedTask,
    Trainings,
    choose_metric,
    open_output,
    read_dated_task,
    show_periods,
    write_report,
)
from acclimate.labs.periods.dates import Period, sample_texts
from acclimate.labs.periods.decay import TemporalReport
from acclimate.labs.periods.options import PeriodsSelfTrainOptions
from acclimate.labs.periods.split import open_dated
from acclimate.tasks.readers import fold_text


@verb(PeriodsSelfTrainOptions)
def periods_self_train(options: PeriodsSelfTrainOptions) -> TemporalReport:
    """Fine-tune on the labels of the first period, and adapt to each later one by labels that the model predicts.

    The model of a period labels the texts of the next one; the next model learns those labels of which it is sure, and
    with ``learn="all"`` also the labels so far. No true label of a later period is learned; they only test. The model
    of the first period, which is never adapted, is tested on the same rows.

    This is incremental self-training as in Chuang et al. (2023), who compare it with fine-tuning once, with
    domain-adversarial training (method ``dann``) and with pre-training on the new text (method ``lm``).

    Returns:
        ``rows``, for each later period with true labels the score ``before`` of the model of the first period,
        ``after`` of the latest adapted model, and the difference with its 95 % interval over items and seeds;
        ``mean``, the mean difference; ``labelled``, for each period that was learned how many of its texts were
        labelled and, where true labels are known, which share of these is ``right``, as means over seeds. The models
        of the last period are in ``out/models``.

    Raises:
        UserError: If the task has no dates or no single texts with classes, or there is no later text.
    """
    dated = read_dated_task(options, 2 if options.corpus is None else 1)
    if dated.task.task_kind != "classification" or dated.task.is_pair:
        raise UserError(
            f"The task '{dated.task.name}' does not give classes to single texts, so a model cannot label new texts."
        )
    metric, scoring = choose_metric(options, dated.task)
    folder = open_output(options.out, "self-train")
    assert folder is not None
    unlabelled, notes = _read_unlabelled(options, dated)
    chains = _run_chains(options, dated, unlabelled, folder)
    rows, pairs = [], []
    for period in dated.periods[1:]:
        scored = dated.placed.part(dated.task.train, dated.test[period]).scoring()
        stage = sum(other <= period for other in unlabelled)  # the latest model that is not newer than the texts
        part = dated.places(period)
        gold = chains[0]["gold"][part]
        after, before = ([chain["predicted"][one][part] for chain in chains] for one in (stage, 0))
        pairs.append(PairedPredictions(gold, after, before, metric, scored, dated.unit_names(period)))
        found = paired_bootstrap(gold, after, before, metric, scoring=scored)
        score = float(np.mean([scored.score(gold, one, metric) for one in before]))
        rows.append({"period": period.name, "before": score, "after": score + found.difference, **found.as_dict()})
    labelled = [
        {"period": period.name, "texts": len(texts), **_mean_counts([chain["labelled"][place] for chain in chains])}
        for place, (period, texts) in enumerate(unlabelled.items())
    ]
    mean = mean_paired_bootstrap(pairs).as_dict() if pairs else None
    content = {"metric": metric, "is_error": metric in scoring.errors, "rows": rows, "labelled": labelled}
    content |= {"mean": mean, "seeds": options.seeds, "dates": dated.report.to_dict()}
    lines = [*dated.notes, *notes, f"The labels come from {dated.periods[0].name}.", *_describe(content, options)]
    tables = {"Scores by period": rows, "Predicted labels": labelled}
    if not rows:
        tables = {"Predicted labels": labelled}
    return write_report(folder, "self-train", "Self-training over time", content, lines, tables)


def show_self_training(report: TemporalReport, options: PeriodsSelfTrainOptions) -> Iterator[Any]:
    """Yield what ``acclimate periods self-train`` prints."""
    yield from show_periods(report, options)
    if models := sorted((Path(options.out) / "models" / "seed-0").glob("*/")):
        yield Next(["push", models[-1], "USER/NAME"], "to share the latest model")


def _mean_counts(counts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return how many texts were labelled and which share correctly, if that is known, as means over seeds."""
    right = [count["right"] for count in counts if count["right"] is not None]
    return {
        "labelled": float(np.mean([count["kept"] for count in counts])),
        "right": float(np.mean(right)) if right else None,
    }


def _describe(content: Mapping[str, Any], options: PeriodsSelfTrainOptions) -> list[str]:
    """Return lines on predicted labels and scores."""
    lines = []
    for row in content["labelled"]:
        correct = "" if row["right"] is None else f", {100 * row['right']:.0f} % of those with a true label correctly"
        lines.append(f"{row['period']}: {row['labelled']:.0f} of {row['texts']:,} texts labelled{correct}")
    if not any(row["labelled"] for row in content["labelled"]):
        lines.append(f"No label is as probable as --confidence {options.confidence:g}: nothing was learned; lower it.")
    for row in content["rows"]:
        lines.append(
            f"{row['period']}: {content['metric']} {row['before']:.4f} without and {row['after']:.4f} with "
            f"self-training, difference {row['difference']:+.4f} [{row['low']:+.4f}, {row['high']:+.4f}]"
        )
    if mean := content["mean"]:
        ends = f"[{mean['low']:+.4f}, {mean['high']:+.4f}]"
        return [*lines, f"Mean difference: {mean['difference']:+.4f} {ends}, {format_count(options.seeds, 'seed')}."]
    return [*lines, "No later period has labelled rows, so the models are not tested on later text."]


def _read_unlabelled(options: PeriodsSelfTrainOptions, dated: DatedTask) -> tuple[dict[Period, list[str]], list[str]]:
    """Return the texts of each later period, in order, and lines on what was not used."""
    first, *later = dated.periods
    if options.corpus is None:
        pairs = ((period, one.text) for period in later for one in dated.train[period])
        return sample_texts(dict.fromkeys(pairs), dict.fromkeys(later, options.documents)), []
    corpus = open_dated(options.corpus, options)
    for _ in corpus:
        pass
    used = [period for period in corpus.report.keep(options.least, 1) if period > first]
    if not used:
        raise UserError(f"The corpus has no period after {first.name}, whose labels are learned; give later text.")
    tested = {fold_text(example.text) for example in dated.tested}
    leaked = 0

    def read() -> Iterator[tuple[Period, str]]:
        nonlocal leaked
        for document in corpus:
            if document.period in used and fold_text(document.text) in tested:
                leaked += 1
            else:
                yield document.period, document.text

    texts = sample_texts(read(), dict.fromkeys(used, options.documents))
    notes = [f"Corpus: {line}" for line in corpus.describe()]
    if leaked:
        notes.append(f"Corpus: {format_count(leaked, 'text')} not used, being test rows.")
    return {period: found for period, found in texts.items() if found}, notes


def _run_chains(
    options: PeriodsSelfTrainOptions, dated: DatedTask, unlabelled: Mapping[Period, Sequence[str]], folder: Path
) -> list[dict[str, Any]]:
    """Return the trainings of each seed (:meth:`_Chain.run`), from the output directory where they are finished."""
    trainings = Trainings(options, folder)
    own = {name: getattr(options, name) for name in ("confidence", "start", "learn")}
    given = [own, {period.name: texts_fingerprint(texts) for period, texts in unlabelled.items()}]
    first = dated.placed.part(dated.train[dated.periods[0]], dated.tested)
    return [
        trainings.kept(
            [*trainings.identity(options.model, first, seed), *given],
            _Chain(options, dated, unlabelled, trainings, folder / "models" / f"seed-{seed}", seed).run,
        )
        for seed in range(options.seeds)
    ]


@dataclass(frozen=True)
class _Chain:
    """The trainings of one seed, one after the other.

    Attributes:
        options: The command's options.
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
            if new:  # else this period has the model of the previous one
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
        labels, template = self.dated.task.labels, self.dated.task.train[0]
        new = []
        for document in made.apply(documents, Context(progress=self.options.progress)):
            names = document.fields["label"]
            label = tuple(map(labels.index, names)) if isinstance(names, list) else labels.index(names)
            new.append(replace(template, text=document.text, label=label, document=None, group=None))
        true = {example.text: example.label for example in self.dated.train.get(period, ())}
        known = [example.label == true[example.text] for example in new if example.text in true]
        right = float(np.mean(known)) if known else None
        return new, {"kept": len(new), "right": right}
