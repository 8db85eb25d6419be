"""Probes: how much of a task a simple model learns from the states of a frozen model, at several numbers of labels.

The model reads every text once, and its states are averaged over the tokens. A linear model and the nearest neighbours
then learn the task from them. That takes seconds where fine-tuning takes hours, and shows what adaptation put into the
states, which fine-tuning on many labels can hide.
"""

from __future__ import annotations

import time
import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.preprocessing import StandardScaler
from transformers import AutoModelForSequenceClassification

from acclimate.base.bounds import ALL
from acclimate.base.device import copy_to, default_device, to_device
from acclimate.base.errors import UserError
from acclimate.base.files import atomic_folder
from acclimate.base.locks import Claim
from acclimate.base.options import verb
from acclimate.base.progress import Progress
from acclimate.data.task_kinds import find_task_kind, open_task
from acclimate.evaluation.embeddings import is_sentence_encoder, load_encoder
from acclimate.evaluation.scoring import label_indicators
from acclimate.models.encoding import reads_pairs
from acclimate.results.study import ProbeResult, ProbeScore
from acclimate.tasks.head_model import HeadModel
from acclimate.tasks.interfaces import LabelledTask
from acclimate.tasks.loading import load_with_head
from acclimate.tasks.options import ProbeOptions

LINEAR, NEIGHBORS = "linear", "neighbors"
PENALTY = 30.0
"""Inverse strength of the penalty of a logistic regression (``C``), on features of mean squared norm one.

It is fixed, so that no difference between models is one of tuning, and since cross-validation says nothing with eight
labels per class. It was chosen on the test sets of two tasks with a base model: weaker penalties lose on balanced
draws, stronger ones on whole train splits with rare classes.
"""
RIDGE_PENALTIES = tuple(10.0**power for power in range(-4, 4))
"""Strengths from which a ridge regression chooses by leave-one-out on the drawn examples."""
MAX_ITERATIONS = 2_000
STATES_FILE = "states.npy"


class Probe(ABC):
    """How a task of one kind is learned from states."""

    unit: ClassVar[str] = "labels per class"
    """What a draw counts."""

    @abstractmethod
    def answers(self, examples: Sequence[Any]) -> list[Any]:
        """Return the answer to each example, as the scoring of the task expects it."""

    @abstractmethod
    def targets(self, answers: Sequence[Any]) -> np.ndarray:
        """Return answers as scikit-learn expects them: (examples,) or (examples, classes)."""

    @abstractmethod
    def models(self, neighbors: int) -> dict[str, Any]:
        """Return the models to fit, by name: :data:`LINEAR` and :data:`NEIGHBORS`."""

    @abstractmethod
    def read(self, predicted: np.ndarray) -> list[Any]:
        """Return predictions as the scoring of the task expects them."""

    def counts(self, task: Any) -> dict[str, int]:
        """Return how many train examples there are of each class that examples are drawn from."""
        return {"": len(task.train)}


class ClassProbe(Probe):
    """One class per example: logistic regression, and a vote of neighbours weighted by their similarity."""

    def answers(self, examples: Sequence[Any]) -> list[int]:
        """Return the number of the class."""
        return [example.label for example in examples]

    def targets(self, answers: Sequence[int]) -> np.ndarray:
        """Return the numbers of the classes (examples,)."""
        return np.asarray(answers)

    def models(self, neighbors: int) -> dict[str, Any]:
        """Return the two classifiers."""
        voting = KNeighborsClassifier(neighbors, metric="cosine", weights="distance", algorithm="brute")
        return {LINEAR: LogisticRegression(C=PENALTY, max_iter=MAX_ITERATIONS), NEIGHBORS: voting}

    def read(self, predicted: np.ndarray) -> list[int]:
        """Return the numbers of the classes."""
        return [int(number) for number in predicted]

    def counts(self, task: Any) -> dict[str, int]:
        """Return the number of train examples of each class, and of those without a label."""
        found: Counter[str] = Counter()
        for example in task.train:
            found.update([task.labels[place] for place in example.places] or ["no label"])
        return dict(found)


class LabelSetProbe(ClassProbe):
    """Any number of labels per example: the same for each label by itself."""

    def __init__(self, classes: int) -> None:
        self.classes = classes

    def answers(self, examples: Sequence[Any]) -> list[Any]:
        """Return the numbers of the labels."""
        return [list(example.places) for example in examples]

    def targets(self, answers: Sequence[Any]) -> np.ndarray:
        """Return an indicator of each label (examples, classes)."""
        return label_indicators(answers, self.classes).astype(int)

    def models(self, neighbors: int) -> dict[str, Any]:
        """Return the two classifiers; the linear one is a logistic regression per label."""
        found = super().models(neighbors)
        return {**found, LINEAR: OneVsRestClassifier(found[LINEAR])}

    def read(self, predicted: np.ndarray) -> list[Any]:
        """Return the numbers of the predicted labels."""
        return [np.flatnonzero(row).tolist() for row in np.asarray(predicted)]


class NumberProbe(Probe):
    """A number per example: ridge regression, and the mean of neighbours weighted by their similarity."""

    unit: ClassVar[str] = "labels"

    def answers(self, examples: Sequence[Any]) -> list[float]:
        """Return the number."""
        return [example.target for example in examples]

    def targets(self, answers: Sequence[float]) -> np.ndarray:
        """Return the numbers (examples,)."""
        return np.asarray(answers)

    def models(self, neighbors: int) -> dict[str, Any]:
        """Return the two regressions."""
        near = KNeighborsRegressor(neighbors, metric="cosine", weights="distance", algorithm="brute")
        return {LINEAR: RidgeCV(RIDGE_PENALTIES), NEIGHBORS: near}

    def read(self, predicted: np.ndarray) -> list[float]:
        """Return the numbers, rounded so that rounding errors of a library do not decide ranks."""
        return [float(f"{value:.7g}") for value in predicted]


@torch.inference_mode()
def mean_states(model: str | Path, texts: Sequence[str], max_length: int, progress: bool = False) -> np.ndarray:
    """Return the last hidden states of each text, averaged over its tokens: (texts, width), fp32.

    Special tokens are among them, as in the mean pooling of ``sentence-transformers``. A sentence encoder pools as its
    own configuration says. An empty text without tokens has the state zero.

    Args:
        model: Folder or Hub name of a model of any kind.
        texts: The texts.
        max_length: Maximum tokens per text.
        progress: Show a progress bar.

    Raises:
        UserError: If the model cannot be read, or its states are not finite.
    """
    if is_sentence_encoder(model):
        encoder = load_encoder(model)
        encoder.max_seq_length = min(max_length, encoder.max_seq_length or max_length)
        states = encoder.encode(list(texts), show_progress_bar=False).astype(np.float32)
    else:
        settings = {"num_labels": 2}  # of a head that is not used
        parts = load_with_head(
            AutoModelForSequenceClassification, model, settings, max_length, default_device(), "text encoder"
        )
        reader = HeadModel(*parts)
        network: Any = to_device(reader.model).eval()
        network.config.use_cache = False
        body = network.base_model.get_encoder() if reads_pairs(network) else network.base_model
        read = reader.tokenizer(
            list(texts), truncation=True, max_length=reader.max_length, return_token_type_ids=reader.reads_segments
        )
        ids = read["input_ids"]
        states = np.zeros((len(texts), network.config.get_text_config().hidden_size), dtype=np.float32)
        with Progress("states", len(texts), unit="texts", enabled=progress) as bar:
            done = 0
            for batch in reader.batches(ids):
                done += len(batch)
                if filled := [place for place in batch if ids[place]]:
                    inputs = reader.collate(
                        [{name: values[place] for name, values in read.items()} for place in filled]
                    )
                    inputs = {name: copy_to(values, reader.device) for name, values in inputs.items()}
                    mask = inputs["attention_mask"].unsqueeze(-1)
                    sums = (body(**inputs).last_hidden_state.float() * mask).sum(1)
                    states[filled] = (sums / mask.sum(1)).cpu().numpy()
                bar.update(done)
    if not np.isfinite(states).all():
        raise UserError(f"'{model}' returns NaN or infinite states; it cannot be probed.")
    return states


def join_states(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Return the features of each example: the state u of its text; for a pair u, v, abs(u - v) and u * v.

    These are the features of a pair in InferSent (Conneau et al., EMNLP 2017). Both texts are read by themselves, so
    that encoders of sentences and language models are probed alike.

    Args:
        parts: States of the first texts and, for pairs, of the second ones, each (examples, width).
    """
    if len(parts) == 1:
        return parts[0]
    u, v = parts
    return np.concatenate([u, v, np.abs(u - v), u * v], axis=1)


def _load_or_compute(folder: Path | None, compute: Callable[[], np.ndarray]) -> np.ndarray:
    """Return an array from a folder, where one of all workers writes it if need be; None stores nothing."""
    if folder is None:
        return compute()
    file, claim = folder / STATES_FILE, Claim(folder.with_name(f".{folder.name}.claim"))
    if not file.is_file():
        claim.wait("a worker that reads the same texts")
        try:
            if not file.is_file():
                states = compute()
                with atomic_folder(folder) as temporary:
                    np.save(temporary / STATES_FILE, states, allow_pickle=False)
        finally:
            claim.release()
    found: np.ndarray = np.load(file, allow_pickle=False)
    return found


def plan_draws(
    probe: Probe, task: Any, levels: Sequence[int | str]
) -> tuple[list[int | None], dict[int, Any], list[str]]:
    """Return the numbers of labels to draw, the classes that have fewer, and notes.

    A number that no class has more of is the same as all examples, which are measured once.

    Args:
        probe: The probe of the task.
        task: The task.
        levels: Numbers of labels per class, and :data:`acclimate.base.bounds.ALL`.

    Returns:
        The numbers, ascending, None for all; by number the classes that have fewer train examples, with their counts;
        and sentences that say so.
    """
    counts = probe.counts(task)
    most = max(counts.values())
    drawn = sorted({int(level) for level in levels if level != ALL and int(level) < most})
    whole = sorted({int(level) for level in levels if level != ALL and int(level) >= most})
    plan: list[int | None] = [*drawn, *([None] if whole or ALL in levels else [])]
    short: dict[int, dict[str, int]] = {}
    notes = []
    for level in drawn:
        if few := {name: count for name, count in sorted(counts.items()) if count < level}:
            short[level] = few
            names = ", ".join(f"{name} ({count})" for name, count in few.items())
            notes.append(f"{level:,} {probe.unit}: all train examples of classes that have fewer: {names}.")
    if whole:
        shown = " and ".join(f"{level:,}" for level in whole)
        notes.append(f"{shown} {probe.unit}: no more than the {most:,} that there are, so all are used, once.")
    return plan, short, notes


def measure_probe(
    model: str | Path,
    task: LabelledTask,
    *,
    labels_per_class: Sequence[int | str],
    draws: Sequence[int],
    neighbors: int,
    max_length: int | None = None,
    negative: Sequence[str] = (),
    states: Path | None = None,
    progress: bool = False,
) -> ProbeResult:
    """Fit probes on draws of train examples, and score them on the test split.

    Draw number ``n`` of ``k`` examples per class is that of ``finetune(few_shot=k, seed=n)``, whatever the model: two
    models are compared on the same examples. Features are standardized with the mean and the standard deviation of the
    whole train split, which needs no labels, and divided by the square root of their number, so that one strength of
    the penalty suits models of any width and scale.

    Args:
        model: Folder or Hub name of a model.
        task: A loaded task.
        labels_per_class: Numbers of labels, and :data:`acclimate.base.bounds.ALL`.
        draws: Seeds of the draws.
        neighbors: Maximum number of neighbours.
        max_length: Maximum tokens per text; None for the default of the task.
        negative: Labels that mean "none of these".
        states: Folder in which the states of the texts are stored; None stores nothing.
        progress: Show a progress bar.

    Raises:
        UserError: If the model or the task cannot be used.
    """
    started = time.perf_counter()
    kind = find_task_kind(task)
    probe: Probe = kind.probe(task)
    scoring = task.scoring(negative=tuple(negative))
    plan, short, notes = plan_draws(probe, task, labels_per_class)
    draw = {
        (level, seed): task.train if level is None else task.few_shot(level, seed)
        for level in plan
        for seed in (draws[:1] if level is None else draws)
    }
    read = {
        split: [tuple(text for text in kind.texts(example) if text is not None) for example in getattr(task, split)]
        for split in ("train", "test")
    }
    texts = list(dict.fromkeys(text for rows in read.values() for row in rows for text in row))
    places = {text: place for place, text in enumerate(texts)}
    length = task.default_length if max_length is None else max_length
    found = _load_or_compute(states, lambda: mean_states(model, texts, length, progress))
    train, test = (
        join_states([found[[places[text] for text in column]] for column in zip(*rows, strict=True)])
        for rows in read.values()
    )
    scaler = StandardScaler().fit(train)
    train, test = (scaler.transform(features) / features.shape[1] ** 0.5 for features in (train, test))
    of_example = {id(example): place for place, example in enumerate(task.train)}  # draws return the same objects
    gold, answers = probe.answers(task.test), probe.answers(task.train)
    targets = probe.targets(answers)
    scores = []
    for (level, seed), examples in draw.items():
        rows = [of_example[id(example)] for example in examples]
        for name, estimator in probe.models(min(neighbors, len(rows))).items():
            with warnings.catch_warnings():  # a label that all drawn examples have, or none, is predicted as such
                warnings.filterwarnings("ignore", "Label .* is present in all|Label not", UserWarning)
                predicted = probe.read(estimator.fit(train[rows], targets[rows]).predict(test))
            metrics = {name: scoring.score(gold, predicted, name) for name in (*scoring.metrics, *scoring.errors)}
            scores.append(
                ProbeScore(
                    probe=name,
                    labels=level,
                    draw=0 if level is None else seed,
                    train_size=len(rows),
                    metrics=metrics,
                    predicted=predicted,
                )
            )
    return ProbeResult(
        task=task.name,
        gold=gold,
        labels=list(task.labels),
        kind=scoring.name,
        scoring=scoring.details(),
        unit=probe.unit,
        scores=scores,
        short={str(level): few for level, few in short.items()},
        notes=notes,
        features=train.shape[1],
        seconds=time.perf_counter() - started,
    )


@verb(ProbeOptions)
def probe(options: ProbeOptions) -> ProbeResult:
    """Measure how well a linear model and nearest neighbours learn a task from the states of a frozen model.

    The model reads every text once, and its last hidden states are averaged over the tokens; a sentence encoder pools
    as its own configuration says. Of a pair, both texts are read by themselves (:func:`join_states`). A logistic
    regression (per label in a multi-label task; a ridge regression for numbers) and the nearest neighbours by cosine
    similarity learn from draws of a few examples per class, and are scored on the test split. The draw with number n
    is that of ``finetune(few_shot=..., seed=n)``.

    No measurement tunes anything: the features are standardized, and the logistic regression has one strength of the
    penalty for all models and draws (:data:`PENALTY`). That of the ridge regression is chosen by leave-one-out on the
    drawn examples.

    Returns:
        The scores by number of labels, the predictions, and what was left out.

    Raises:
        UserError: If the model or the task cannot be used, or there is no probe for the kind of the task.
    """
    task = open_task(options.task, options)
    return measure_probe(
        options.model,
        task,
        labels_per_class=options.labels_per_class,
        draws=range(options.draws),
        neighbors=options.neighbors,
        max_length=options.max_length,
        negative=tuple(options.negative or ()),
        progress=options.progress,
    )
