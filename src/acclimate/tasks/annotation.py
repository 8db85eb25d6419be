"""Documents that a language model labels, and how well it agrees with labels that are given."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from acclimate.base.errors import UserError
from acclimate.base.files import find_file, read_lines
from acclimate.base.ranking import content_order
from acclimate.data.answer_parsing import find_json, parse_label, parse_pairs
from acclimate.data.ngrams import normalize_words
from acclimate.data.operations import TRANSFORMS, Context
from acclimate.data.pool import Document, Documents
from acclimate.data.task_kinds import open_task
from acclimate.data.transform.recipe import Asked, Piece, Pieces, Recipe, Session
from acclimate.evaluation.entities import EntityScoring
from acclimate.evaluation.scoring import Scoring, SingleLabel
from acclimate.evaluation.significance import bootstrap_intervals
from acclimate.tasks.examples import Examples
from acclimate.tasks.groups import number_known_groups

WHOLE = 10**9
"""Words of a piece: documents are labelled as a whole."""


@dataclass(frozen=True)
class Agreement(SingleLabel):
    """Accuracy and Cohen's kappa of two annotators of single labels.

    Attributes:
        classes: Number of labels; answers that cannot be read are one more.
    """

    classes: int = 2

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of the metrics."""
        return ("accuracy", "kappa")

    def item_counts(self, gold: Sequence[Any], predicted: Sequence[Any], metric: str) -> np.ndarray:
        """Return the counts of each item; for kappa its place in the confusion matrix."""
        if metric != "kappa":
            return super().item_counts(gold, predicted, metric)
        size = self.classes + 1
        return np.eye(size * size)[np.asarray(gold) * size + np.asarray(predicted)]

    def value(self, sums: np.ndarray, metric: str) -> np.ndarray:
        """Turn sums of counts into scores; kappa is 0 where both annotators always give the same label."""
        if metric != "kappa":
            return super().value(sums, metric)
        table = sums.reshape(*sums.shape[:-1], self.classes + 1, self.classes + 1)
        table = table / np.maximum(table.sum(axis=(-2, -1), keepdims=True), 1e-12)
        by_chance = (table.sum(axis=-1) * table.sum(axis=-2)).sum(axis=-1)
        observed = np.trace(table, axis1=-2, axis2=-1)
        return np.where(by_chance < 1 - 1e-12, (observed - by_chance) / np.maximum(1 - by_chance, 1e-12), 0.0)


@dataclass(frozen=True)
class Annotation(Recipe):
    """A recipe for labels of the documents.

    Attributes:
        labels: The labels, separated by commas; or a file with one per line, each with a description after a colon if
            it needs one. By default those of ``task``.
        task: A labelled task. The writer also labels its train examples, and the account has the agreement.
        checked: Maximum number of these, drawn at random.
    """

    files: ClassVar[tuple[str, ...]] = ("prompts", "labels", "task")
    task_kind: ClassVar[str] = ""
    expected: ClassVar[str] = ""
    """What the examples of ``task`` have, for messages."""
    words: int = WHOLE
    labels: str | None = None
    task: str | None = None
    checked: int = 200

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.checked < 1:
            raise UserError(f"Transform '{self.name}': checked is at least 1, not {self.checked}.")
        if self.labels is None and self.task is None:
            raise UserError(f"Transform '{self.name}' needs the labels: give labels=ONE,TWO or task=TASK.")

    @cached_property
    def given(self) -> Examples[Any] | None:
        """The task with labels."""
        found: Any = None if self.task is None else open_task(self.task)
        if found is not None and (
            found.task_kind != self.task_kind
            or getattr(found, "multi_label", False)
            or getattr(found, "is_pair", False)
        ):
            raise UserError(
                f"Transform '{self.name}': '{self.task}' is no task of {self.expected}; give one, or labels."
            )
        return found

    @cached_property
    def names(self) -> dict[str, str]:
        """The labels, each with its description."""
        if self.labels is None:
            assert self.given is not None
            return dict.fromkeys(map(str, self.given.labels), "")
        file = find_file(self.labels)
        lines = self.labels.split(",") if file is None else read_lines(file)
        pairs = [line.partition(":") if file is not None else (line, "", "") for line in lines]
        found = {name.strip(): text.strip() for name, _, text in pairs if name.strip()}
        if len(found) < (2 if self.task_kind == "classification" else 1):
            raise UserError(f"Transform '{self.name}': '{self.labels}' has no labels to choose from.")
        return found

    def identity(self) -> dict[str, Any]:
        """Return everything that determines the labels; the task by its content."""
        is_file = self.task is None or find_file(self.task) is not None  # which has its hash already
        return super().identity() | ({} if is_file or self.given is None else {"task": self.given.fingerprint()})

    def label(self, session: Session, pieces: Iterable[Piece]) -> Iterator[tuple[Asked, Any]]:
        """Yield what the writer says of each text."""
        listed = "\n".join(f"- {name}" + f": {text}" * bool(text) for name, text in self.names.items())
        (prompt,) = self.placeholders
        for one, answer, _ in session.answers(Asked(piece, prompt, {"labels": listed}) for piece in pieces):
            yield one, self.read(session, one.piece.text, answer)

    @abstractmethod
    def read(self, session: Session, text: str, answer: str) -> Any:
        """Return the labels in an answer; None if it cannot be read, which is counted."""

    @abstractmethod
    def agree(self, examples: Sequence[Any], found: Sequence[Any]) -> dict[str, Any]:
        """Return the agreement of labels with those of examples."""

    def apply(self, documents: Documents, context: Context) -> Iterator[Document]:
        """Label the documents, and the examples of the task."""
        session = Session(self, context)
        yield from self.write(session, Pieces(documents, range(len(documents)), self.words))
        context.notes.update(session.account())
        if (task := self.given) is None:
            return
        texts = [example.texts[0] for example in task.train]
        drawn = sorted(content_order(texts, self.seed)[: self.checked].tolist())
        check = Session(self, context, session.writer)  # whose budget is that of both
        pieces = {texts[place]: Piece(texts[place], "") for place in drawn}
        found = {one.piece.text: value for one, value in self.label(check, pieces.values())}
        agreement = self.agree([task.train[place] for place in drawn], [found.get(texts[place]) for place in drawn])
        agreement = {"checked": len(drawn), "unreadable": check.unused["unreadable"], **agreement}
        context.notes.update(session.writer.account(), agreement=agreement)


def measure(scoring: Scoring, gold: Sequence[Any], found: Sequence[Any], metrics: Sequence[str]) -> dict[str, Any]:
    """Return each metric with its 95 % interval."""
    intervals = bootstrap_intervals(scoring, gold, found, metrics)
    scores = {name: scoring.score(gold, found, name) for name in metrics}
    return {
        name: {"value": value, "low": intervals[name][0], "high": intervals[name][1]} for name, value in scores.items()
    }


@TRANSFORMS.register("annotate-labels", summary="the documents with the label that a language model gives each")
@dataclass(frozen=True)
class AnnotateLabels(Annotation):
    """Gives each document one of several labels: rows of ``text`` and ``label``, a task for ``acclimate finetune``.

    With ``task`` the account has accuracy and Cohen's kappa, with intervals; an answer that names no label is wrong.
    """

    placeholders: ClassVar[Mapping[str, tuple[str, ...]]] = {"labels": ("labels", "text")}
    task_kind: ClassVar[str] = "classification"
    expected: ClassVar[str] = "single texts with one label each"

    def write(self, session: Session, pieces: Pieces) -> Generator[Document]:
        """Yield the documents with their labels."""
        for one, label in self.label(session, pieces):
            if label is not None:
                yield session.document(one.piece.text, one, label=label)

    def read(self, session: Session, text: str, answer: str) -> str | None:
        """Return the label that an answer names."""
        label = parse_label(answer, self.names)
        if label is None:
            session.drop("unreadable", answer)
        return label

    def agree(self, examples: Sequence[Any], found: Sequence[Any]) -> dict[str, Any]:
        """Return accuracy and kappa."""
        assert self.given is not None
        own = list(map(str, self.given.labels))
        names = list(dict.fromkeys([*self.names, *own]))
        gold = [names.index(own[example.label]) for example in examples]
        given = [len(names) if label is None else names.index(label) for label in found]
        scoring = Agreement(classes=len(names), groups=number_known_groups([one.group for one in examples]))
        return measure(scoring, gold, given, scoring.metrics)


@TRANSFORMS.register(
    "annotate-entities", summary="the documents with the entities that a language model finds in each"
)
@dataclass(frozen=True)
class AnnotateEntities(Annotation):
    """Marks the entities of each document: rows of ``text`` and ``spans``, a task for ``acclimate finetune``.

    Mentions that are not in the text, and types that are not among the labels, are left out and counted. With ``task``
    the account has the strict F1, with its interval.
    """

    placeholders: ClassVar[Mapping[str, tuple[str, ...]]] = {"mentions": ("labels", "text")}
    task_kind: ClassVar[str] = "entities"
    expected: ClassVar[str] = "texts with entities"
    max_tokens: int = 1024

    def write(self, session: Session, pieces: Pieces) -> Generator[Document]:
        """Yield the documents with their entities."""
        for one, spans in self.label(session, pieces):
            if spans is not None:
                yield session.document(one.piece.text, one, spans=spans)

    def read(self, session: Session, text: str, answer: str) -> list[dict[str, Any]] | None:
        """Return the spans of the mentions in an answer."""
        pairs = parse_pairs(
            answer, ("text", "mention", "entity", "span", "name"), ("type", "label", "category"), once=False
        )
        if not pairs and [] not in find_json(answer):
            session.drop("unreadable", answer)
            return None
        folded = {tuple(normalize_words(name)): name for name in self.names}
        known = [(mention, label) for mention, name in pairs if (label := folded.get(tuple(normalize_words(name))))]
        spans = place_mentions(text, known)
        session.unused["unknown types"] += len(pairs) - len(known)
        session.unused["mentions not in the text"] += len(known) - len(spans)
        return spans

    def agree(self, examples: Sequence[Any], found: Sequence[Any]) -> dict[str, Any]:
        """Return the strict F1 of the types that are listed."""
        names = list(self.names)
        gold = [
            [[start, end, names.index(name), 1] for start, end, name in example.entities if name in self.names]
            for example in examples
        ]
        given = [
            [[span["start"], span["end"], names.index(span["label"]), 1] for span in spans or ()] for spans in found
        ]
        scoring = EntityScoring(
            len(names), has_unseen=False, groups=number_known_groups([one.group for one in examples])
        )
        return measure(scoring, gold, given, ["micro_f1"])


def place_mentions(text: str, mentions: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
    """Return the spans of mentions with their labels, in the order of the text and without overlaps.

    A mention is the first one after the mention before it, or else the first that is free; whole words come first.
    """
    spans, last = list[tuple[int, int, str]](), 0
    for mention, label in mentions:
        pattern = r"\s+".join(map(re.escape, mention.split()))
        for form in (rf"(?<!\w){pattern}(?!\w)", pattern):
            places = [found.span() for found in re.finditer(form, text)]
            free = [(a, b) for a, b in places if a < b and all(b <= start or end <= a for start, end, _ in spans)]
            if free:
                start, last = min(free, key=lambda place: (place[0] < last, place))
                spans.append((start, last, label))
                break
    return [{"start": start, "end": end, "label": label} for start, end, label in sorted(spans)]
