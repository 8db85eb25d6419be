"""`acclimate periods self-train`: labels of one period, transferred to later ones by predicted labels."""

from __future__ import annotations

import itertools
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

ONCE = "once"
"""Model that learns the texts of all later periods in one training, with labels of the model of the first period."""


@verb(PeriodsSelfTrainOptions)
def periods_self_train(options: PeriodsSelfTrainOptions) -> TemporalReport:
    """Fine-tune on the labels of the first period, and adapt to each later one by labels that the model predicts.

    The model of a period labels the texts of the next one; the next model learns those labels of which it is sure, and
    with ``learn="all"`` also the labels so far. No true label of a later period is learned; they only test. The model
    of the first period, which is never adapted, is tested on the same rows, and so is the cheapest rival of the loop:
    one training on the texts of all later periods, as the model of the first period labels them.

    This is incremental self-training as in Chuang et al. (2023), who compare it with fine-tuning once, with
    domain-adversarial training (method ``dann``) and with pre-training on the new text (method ``lm``).

    Returns:
        ``rows``, for each later period with true labels the score ``before`` of the model of the first period,
        ``after`` of the latest adapted model, and the difference with its 95 % interval over items and seeds, also
        ``once`` of the rival and ``over_once``, the difference to it; ``mean`` and ``mean_over_once``, the mean
        differences; ``labelled``, for each period that was learned how many of its texts were
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
    rows: list[dict[str, Any]] = []
    pairs: dict[str, list[PairedPredictions]] = {"mean": [], "mean_over_once": []}
    for period in dated.periods[1:]:
        scored = dated.placed.part(dated.task.train, dated.test[period]).scoring()
        stage = sum(other <= period for other in unlabelled)  # the latest model that is not newer than the texts
        part = dated.places(period)
        gold = chains[0]["gold"][part]
        after, before = ([chain["predicted"][one][part] for chain in chains] for one in (stage, 0))
        once = [chain[ONCE][part] for chain in chains]
        for name, other in zip(pairs, (before, once), strict=True):
            pairs[name].append(PairedPredictions(gold, after, other, metric, scored, dated.unit_names(period)))
        found, rival = (paired_bootstrap(gold, after, other, metric, scoring=scored) for other in (before, once))
        named = (("before", before), (ONCE, once), ("after", after))
        scores = {name: float(np.mean([scored.score(gold, one, metric) for one in some])) for name, some in named}
        over = {"over_once": rival.difference, "over_once_low": rival.low, "over_once_high": rival.high}
        rows.append({"period": period.name, **scores, **found.as_dict(), **over})
    labelled = [
        {"period": period.name, "texts": len(texts), **_mean_counts([chain["labelled"][place] for chain in chains])}
        for place, (period, texts) in enumerate(unlabelled.items())
    ]
    means = {name: mean_paired_bootstrap(some).as_dict() if some else None for name, some in pairs.items()}
    content = {"metric": metric, "is_error": metric in scoring.errors, "rows": rows, "labelled": labelled}
    content |= {**means, "seeds": options.seeds, "dates": dated.report.to_dict()}
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


def _show_interval(difference: float, low: float, high: float) -> str:
    return f"{difference:+.4f} [{low:+.4f}, {high:+.4f}]"


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
            f"{row['period']}: {content['metric']} {row['before']:.4f} without, {row['once']:.4f} after one training "
            f"on all later texts, and {row['after']:.4f} with self-training by period: difference to without "
            f"{_show_interval(row['difference'], row['low'], row['high'])}, to one training "
            f"{_show_interval(row['over_once'], row['over_once_low'], row['over_once_high'])}"
        )
    if mean := content["mean"]:
        ends = ("difference", "low", "high")
        shown, over = (_show_interval(*map(one.get, ends)) for one in (mean, content["mean_over_once"]))
        return [*lines, f"Mean difference: {shown}; to one training: {over}; {format_count(options.seeds, 'seed')}."]
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
    given = [own, ONCE, {period.name: texts_fingerprint(texts) for period, texts in unlabelled.items()}]
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
        """Return ``gold``, what each model ``predicted`` for all test rows, ``once`` of the rival, and ``labelled``.

        A training that is finished is not repeated when the command is started again.
        """
        first = self.dated.periods[0]
        own = list(self.dated.train[first])
        start, found = self._train(self.options.model, own, first.name)
        place, learned, predicted, labelled = start, own, [found["predicted"]], []
        for period, texts in self.unlabelled.items():
            new = self._label(place, texts)
            labelled.append({"kept": len(new), "right": self._share_right(new, period)})
            learned = [*learned, *new] if self.options.learn == "all" else new
            if new:  # else this period has the model of the previous one
                place, found = self._train(place, learned, period.name)
            predicted.append(found["predicted"])
        last, once = place, found["predicted"]
        if len(self.unlabelled) > 1:
            new = self._label(start, list(dict.fromkeys(itertools.chain.from_iterable(self.unlabelled.values()))))
            learned = [*own, *new] if self.options.learn == "all" else new
            once = self._train(start, learned, ONCE)[1]["predicted"] if new else predicted[0]
        for other in self.folder.iterdir():
            if other != last:
                shutil.rmtree(other)
        return {"gold": found["gold"], "predicted": predicted, ONCE: once, "labelled": labelled}

    def _train(self, model: str | Path, learned: Sequence[Any], name: str) -> tuple[Path, dict[str, Any]]:
        """Train a model, or with ``start="base"`` the base model, on examples; return its folder and predictions."""
        print_message(f"{name}: learning {len(learned):,} labels, seed {self.seed}", self.options.progress)
        start = model if self.options.start == "previous" else self.options.model
        task = self.dated.placed.part(learned, self.dated.tested)
        return self.folder / name, self.trainings.train(start, task, self.seed, self.folder / name)

    def _label(self, model: Path, texts: Sequence[str]) -> list[Any]:
        """Return examples with the labels that a model predicts and is sure of."""
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
        return new

    def _share_right(self, new: Sequence[Any], period: Period) -> float | None:
        """Return the share of predicted labels that are right; None if no true one is known."""
        true = {example.text: example.label for example in self.dated.train.get(period, ())}
        known = [example.label == true[example.text] for example in new if example.text in true]
        return float(np.mean(known)) if known else None
