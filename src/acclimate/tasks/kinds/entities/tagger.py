"""The model that marks entities: words as tokens, long texts as windows, its training and its evaluation."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForTokenClassification, PreTrainedTokenizerBase

from acclimate.base.device import Precision, copy_to, host_copy
from acclimate.base.errors import UserError, warn_once
from acclimate.data.reading import ReadingOptions
from acclimate.data.rows import LeftOut, Row, column_names, short_place
from acclimate.data.task_kinds import TASK_KINDS, TaskKind
from acclimate.evaluation.calibration import calibration_metrics
from acclimate.evaluation.entities import EntityScoring, entity_metrics
from acclimate.evaluation.scoring import Scoring
from acclimate.models.loading import is_encoder
from acclimate.parts.masking import IGNORE_INDEX
from acclimate.tasks.head_model import HeadModel, check_finite
from acclimate.tasks.interfaces import Answer, EvaluationResult, Learner, Predictor, ResolvedOptions
from acclimate.tasks.kinds.classification.labels import plain_value
from acclimate.tasks.kinds.entities.data import (
    Entity,
    EntityTask,
    RawSentence,
    Sentence,
    build_task,
    read_sentence,
    read_sentences,
)
from acclimate.tasks.kinds.entities.formats import (
    TOKEN_NAMES,
    find_brat_files,
    find_column_files,
    find_columns,
    holds_columns,
    read_brat,
    read_columns,
    read_table,
)
from acclimate.tasks.kinds.entities.offsets import convert_offsets
from acclimate.tasks.kinds.entities.schemes import OUTSIDE, read_entities, split_tag
from acclimate.tasks.kinds.qa.windows import RowLayout, TokenizedText, split_into_windows, tokenize_texts
from acclimate.tasks.loading import find_head, load_with_head
from acclimate.tasks.readers import report_kind
from acclimate.tasks.sources import Table, read_texts

OVERLAP = 0.25
"""Share of a window that it has in common with the next one."""


class Unit(NamedTuple):
    """A word, or words that share their only token: characters ``start`` to ``end``, and the token that decides."""

    start: int
    end: int
    token: int


class Window(NamedTuple):
    """Tokens ``first`` to ``stop`` (exclusive) of a sentence."""

    sentence: int
    first: int
    stop: int


def align_words(sentence: Sentence, tokens: TokenizedText, *, last: bool) -> list[Unit]:
    """Assign a token to each word: the first that has a part of it and belongs to no word before.

    A word that has no token of its own is joined to the one before if they share a token; otherwise it is left out,
    since the model does not see it.

    Args:
        sentence: The sentence.
        tokens: Its tokens.
        last: Use the last token of each word instead: a decoder has read the whole word only then.
    """
    size = len(sentence.text)
    first_of, last_of = np.full(size, -1), np.full(size, -1)  # token of each character
    for token, (start, end) in enumerate(zip(tokens.starts, tokens.ends, strict=True)):
        last_of[start:end] = token
    for token in range(len(tokens.ids) - 1, -1, -1):
        first_of[tokens.starts[token] : tokens.ends[token]] = token
    units: list[Unit] = []
    for start, end in sentence.words:
        covered = np.flatnonzero(last_of[start:end] >= 0) + start
        if not len(covered):
            continue
        taken = units[-1].token if units else -1
        final = int(last_of[covered].max())
        token = final if last else max(int(first_of[covered].min()), taken + 1)
        if taken < token <= final:
            units.append(Unit(start, end, token))
        elif int(first_of[covered].min()) <= taken:
            units[-1] = units[-1]._replace(end=end)
    return units


def mark_units(units: Sequence[Unit], entities: Sequence[Entity]) -> list[str]:
    """Return the tag of each unit in the scheme IOB2; a unit belongs to the first entity that has a part of it."""
    tags = [OUTSIDE] * len(units)
    for start, end, name in entities:
        inside = [place for place, unit in enumerate(units) if unit.start < end and start < unit.end]
        free = [place for place in inside if tags[place] == OUTSIDE]
        for place in free:
            tags[place] = f"{'B' if place == free[0] else 'I'}-{name}"
    return tags


def read_units(units: Sequence[Unit], tags: Sequence[str]) -> list[tuple[Entity, range]]:
    """Return the entities that tags mark, each with the indices of its units."""
    return [
        (Entity(units[first].start, units[stop - 1].end, name), range(first, stop))
        for first, stop, name in read_entities([split_tag(tag) for tag in tags])
    ]


class Windows:
    """Sentences as rows of tokens: the words of each, and the window in which each of them is decided."""

    def __init__(
        self, sentences: Sequence[Sentence], tokenizer: PreTrainedTokenizerBase, max_length: int, *, last: bool
    ) -> None:
        """Split sentences into windows.

        Args:
            sentences: The sentences.
            tokenizer: A fast tokenizer.
            max_length: Maximum tokens per window, special tokens included.
            last: Whether the model reads the left context only; see :func:`align_words`.

        Raises:
            UserError: If a window has no space for text, or the tokenizer cannot be used.
        """
        self.layout = RowLayout(tokenizer, 1, "entities need")
        room = max_length - self.layout.special
        if room < 1:
            raise UserError(f"max_length={max_length} leaves no space for text; increase it.")
        self.tokens = tokenize_texts([sentence.text for sentence in sentences], tokenizer)
        self.units: list[list[Unit]] = []
        self.windows: list[Window] = []
        self.decided: list[list[tuple[int, int]]] = []
        """For each window the units that it decides, as pairs of index and position in the row."""
        for number, (sentence, tokens) in enumerate(zip(sentences, self.tokens, strict=True)):
            self.units.append(align_words(sentence, tokens, last=last))
            if not self.units[-1]:
                continue
            spans = split_into_windows(len(tokens.ids), room, int(room * OVERLAP))
            offset = len(self.windows)
            self.windows += [Window(number, *span) for span in spans]
            self.decided += [[] for _ in spans]
            for place, unit in enumerate(self.units[-1]):
                best = choose_window(unit.token, spans, last=last)
                position = self.layout.before + unit.token - spans[best][0]
                self.decided[offset + best].append((place, position))

    def row(self, number: int, segments: bool) -> dict[str, Any]:
        """Return the model inputs of a window."""
        window = self.windows[number]
        return self.layout.row(self.tokens[window.sentence].ids[window.first : window.stop], segments=segments)


def choose_window(token: int, windows: Sequence[tuple[int, int]], *, last: bool) -> int:
    """Return the window that decides a token: the one in which its context is longest, the first of equal ones.

    Context is the distance to the nearer end of the window that is not an end of the text; for models that read the
    left context only, the distance to its start.

    Args:
        token: Index of the token.
        windows: First and stop (exclusive) of each window.
        last: Whether only the left context counts.
    """

    def context(number: int) -> float:
        first, stop = windows[number]
        if not first <= token < stop:
            return -1.0
        left = token - first if number else float("inf")
        right = stop - 1 - token if number < len(windows) - 1 and not last else float("inf")
        return min(left, right)

    return max(range(len(windows)), key=lambda number: (context(number), -number))


@dataclass
class Tagger(HeadModel):
    """A token classification model with its tokenizer; its classes are tags in the scheme IOB2."""

    targets: ClassVar[tuple[str, ...]] = ("labels",)
    token_targets: ClassVar[tuple[str, ...]] = ("labels",)
    pads_right: ClassVar[bool] = True  # tokens are counted from the start of a row

    @property
    def tags(self) -> list[str]:
        """The tag of each class."""
        names: Any = self.model.config.id2label
        return [names[number] for number in range(len(names))]

    def windows(self, sentences: Sequence[Sentence]) -> Windows:
        """Split sentences into windows."""
        return Windows(sentences, self.tokenizer, self.max_length, last=not is_encoder(self.model))

    def features(self, sentences: Sequence[Sentence]) -> list[dict[str, Any]]:
        """Return the windows to train on: the token that decides a word has its tag, others have none.

        Raises:
            UserError: If no sentence has a token.
        """
        windows = self.windows(sentences)
        numbers = {tag: number for number, tag in enumerate(self.tags)}
        marked = [mark_units(units, s.entities) for units, s in zip(windows.units, sentences, strict=True)]
        _warn_about_inexact(sentences, windows.units, marked)
        rows = []
        for place, window in enumerate(windows.windows):
            row = windows.row(place, self.reads_segments)
            row["labels"] = np.full(len(row["input_ids"]), IGNORE_INDEX)
            for unit, position in windows.decided[place]:
                row["labels"][position] = numbers[marked[window.sentence][unit]]
            if windows.decided[place]:
                rows.append(row)
        if not rows:
            raise UserError("The tokenizer finds no token in the train sentences.")
        return rows

    def answer_keys(self, examples: Sequence[Sentence]) -> list[list[Hashable]]:
        """Return the sentence, start and end of each word that a window decides."""
        windows = self.windows(examples)
        return [
            [(window.sentence, *windows.units[window.sentence][unit][:2]) for unit, _ in decided]
            for window, decided in zip(windows.windows, windows.decided, strict=True)
            if decided
        ]

    def answer_logits(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the logits of the tokens that decide a word: (words, tags)."""
        places = (host_copy(labels).flatten() != IGNORE_INDEX).nonzero()[:, 0]
        return logits.flatten(0, 1).index_select(0, copy_to(places, logits.device))

    def loss_items(self, inputs: dict[str, Tensor]) -> float:
        """Return the number of tokens that have a tag."""
        return int((inputs["labels"] != IGNORE_INDEX).sum())

    def probabilities(self, sentences: Sequence[Sentence], precision: Precision) -> tuple[Windows, list[np.ndarray]]:
        """Return the words of each sentence, and the softmax over the tags for each of them: (units, tags).

        Raises:
            UserError: If the model returns NaN or infinity.
        """
        windows = self.windows(sentences)
        rows = [windows.row(place, self.reads_segments) for place in range(len(windows.windows))]
        logits = [
            values[: len(row["input_ids"])] for values, row in zip(self.predict(rows, precision), rows, strict=True)
        ]
        check_finite(logits)
        found = [np.zeros((len(units), len(self.tags))) for units in windows.units]
        for window, decided, values in zip(windows.windows, windows.decided, logits, strict=True):
            if decided:
                units, positions = map(list, zip(*decided, strict=True))
                found[window.sentence][units] = values[positions].double().softmax(-1).numpy()
        return windows, found

    def mark(
        self, sentences: Sequence[Sentence], precision: Precision
    ) -> tuple[list[list[tuple[Entity, float]]], list[list[Unit]], list[np.ndarray]]:
        """Return the entities of each sentence with their scores, and the words and :meth:`probabilities` of each.

        Each word gets its most probable tag. The score of an entity is the mean probability of the tags of its words.
        """
        windows, tables = self.probabilities(sentences, precision)
        marked = []
        for units, table in zip(windows.units, tables, strict=True):
            tags = [self.tags[number] for number in table.argmax(-1)] if len(units) else []
            found = read_units(units, tags)
            marked.append([(entity, float(table[list(places)].max(-1).mean())) for entity, places in found])
        return marked, windows.units, tables


def _warn_about_inexact(
    sentences: Sequence[Sentence], units: Sequence[Sequence[Unit]], marked: Sequence[Sequence[str]]
) -> None:
    """Warn of train entities that tags of words cannot express, because they begin or end within a word."""
    lost = []
    for sentence, words, tags in zip(sentences, units, marked, strict=True):
        found = {entity for entity, _ in read_units(words, tags)}
        lost += [sentence.text[e.start : e.end] for e in sentence.entities if e not in found]
    if lost:
        total = sum(len(sentence.entities) for sentence in sentences)
        warn_once(
            f"{len(lost):,} of {total:,} train entities begin or end within a word, or have no tokens, so they are "
            f"learned as whole words and cannot be predicted exactly, such as '{lost[0]:.40}'."
        )


@TASK_KINDS.register("entities", summary="spans of words with a type, as tags per word or as positions in a text")
class Entities(TaskKind):
    """Tokens with tags, texts with spans, or files with a word and its tag per line."""

    fixed_texts: ClassVar[bool] = True

    distillation: ClassVar[tuple[str, ...]] = ("kl",)

    def matches(self, folder: Path) -> bool:
        """Return whether a folder has files of columns or of brat."""
        return bool(find_brat_files(folder) or find_column_files(folder))

    def matches_source(self, source: Any) -> bool:
        """Return whether a file has a word and its tag per line."""
        return isinstance(source, str | Path) and holds_columns(Path(source))

    def read_source(self, source: Any, name: str, options: ReadingOptions) -> EntityTask:
        """Read files of columns or of brat.

        Raises:
            UserError: If a column is named, since columns have no names here, or a file cannot be used.
        """
        if options.text_column or options.pair_column or options.label_column or options.group_column:
            return super().read_source(source, name, options)  # raises
        path = Path(source)
        left = LeftOut(name, options.strict)
        if path.is_dir() and (found := find_brat_files(path)):
            report_kind(name, "entities", {"texts": "*.txt", "entities": "*.ann"}, " These are files of brat.")
            documents = {split: left.read(split, files, read_brat) for split, files in found.items()}
            documents = convert_offsets(name, documents, left)
            return build_task(name, documents, path, options.split_seed, left=left)
        files = find_column_files(path) if path.is_dir() else {"train": [path]}
        report_kind(name, "entities", {"words": "the first column", "tags": "the last column"})
        raw = {split: read_columns(found[0], options.encoding, split, left) for split, found in files.items()}
        return build_task(name, raw, path, options.split_seed, left=left)

    def matches_table(self, rows: Sequence[Row], options: ReadingOptions) -> bool:
        """Return whether rows have tokens and tags, or a text and spans."""
        return find_columns(rows, options) is not None

    def read_tables(
        self, tables: dict[str, Table], name: str, options: ReadingOptions, path: Path | None
    ) -> EntityTask:
        """Read the task."""
        sentences, group_name, left = read_table(tables, name, options)
        return build_task(name, sentences, path, options.split_seed, group_name, left)

    def is_model_of(self, path: str | Path, task: EntityTask) -> bool:
        """Return whether a checkpoint is a model of the tags of the task, in their order."""
        return find_head(path, "ForTokenClassification", _tags(task)) is not None

    def reads(self, path: str | Path, config: Any, kind: str) -> bool:
        """Return whether a checkpoint is a model of tags."""
        return any(name.endswith("ForTokenClassification") for name in config.architectures or ())

    def unlabelled_rows(self, source: Any, options: ReadingOptions) -> list[Row] | None:
        """Return the sentences of a file with a word and its tag per line, as lists of tokens and tags."""
        if not self.matches_source(source):
            return None
        raw = read_columns(Path(source), options.encoding)
        return [(row.where, {"tokens": list(row.words), "tags": list(row.tags)}) for row in raw]

    def predictor(self, path: str | Path, max_length: int, device: torch.device) -> EntityPredictor:
        """Load a model of tags."""
        loaded = load_with_head(AutoModelForTokenClassification, path, {}, max_length, device, "token classifier")
        return EntityPredictor(Tagger(*loaded))

    def answer(self, example: Sentence, task: EntityTask) -> str:
        """Return the entities with their types."""
        found = [f"{name}: {example.text[start:end]}" for start, end, name in example.entities]
        return "; ".join(found) or "none"

    def learner(
        self, model: str | Path, task: EntityTask, options: ResolvedOptions, device: torch.device
    ) -> EntityLearner:
        """Load a checkpoint as a model of tags in the scheme IOB2."""
        tags = dict(enumerate(_tags(task)))
        settings = {"num_labels": len(tags), "id2label": tags, "label2id": {tag: place for place, tag in tags.items()}}
        head = Tagger(
            *load_with_head(
                AutoModelForTokenClassification, model, settings, options.max_length, device, "token classifier"
            )
        )
        if not is_encoder(head.model):
            warn_once(f"'{model}' is a decoder: it marks each word without having read the words after it.")
        return EntityLearner(head, task)


def _tags(task: EntityTask) -> list[str]:
    """Return the tags that a model of the task has."""
    return [OUTSIDE, *(f"{prefix}-{label}" for label in task.labels for prefix in "BI")]


class EntityPredictor(Predictor):
    """A model of tags, which marks spans of texts or of lists of tokens."""

    main: ClassVar[str] = "spans"

    def __init__(self, head: Tagger) -> None:
        super().__init__(head)
        self.labels = sorted({split_tag(tag)[1] for tag in head.tags} - {""})

    def read(self, rows: Sequence[Row], options: ReadingOptions) -> list[Sentence | None]:
        """Return the sentence of each row: of its tokens, or else of its text."""
        names = column_names(rows)
        column = next((name for name in names if name.lower() in TOKEN_NAMES and _are_words(rows, name)), None)
        if column is None or options.text_column is not None:
            texts = [None if found is None else found[0] for found in read_texts(rows, options)]
            return [None if text is None else read_sentence(RawSentence("", text=text)) for text in texts]
        words = [[str(word) for word in plain_value(where, row.get(column)) or ()] for where, row in rows]
        return [
            read_sentence(RawSentence("", found, [OUTSIDE] * len(found))) if any(found) else None for found in words
        ]

    def answer(self, examples: Sequence[Sentence], precision: Precision) -> list[Answer]:
        """Return the entities of each sentence, with the mean probability of the tags of their words."""
        found = []
        for sentence, marked in zip(examples, self.head.mark(examples, precision)[0], strict=True):
            spans = [
                {
                    "start": e.start,
                    "end": e.end,
                    "label": e.type,
                    "text": sentence.text[e.start : e.end],
                    "score": score,
                }
                for e, score in marked
            ]
            found.append(Answer({"spans": spans}, [list(entity) for entity, _ in marked]))
        return found

    def gold(self, rows: Sequence[Row], options: ReadingOptions) -> list[Any] | None:
        """Return the entities of each row."""
        columns = find_columns(rows, options)
        if columns is None or columns.sentence:  # with a word per row, a row is no sentence
            return None
        raw, _, left = read_table({"train": Table(list(rows))}, "data", options)
        left.most = 1.0
        sentences = read_sentences("data", raw, left)[0]["train"] if raw["train"] else []
        left.report({"train": sentences})
        found = {sentence.row: [list(entity) for entity in sentence.entities] for sentence in sentences}
        return [found.get(short_place(where)) for where, _ in rows] if found else None

    def named(self, value: Any) -> list[str]:
        """Return the types of the entities."""
        return [name for _, _, name in value]

    def scoring(self, values: Sequence[list[Any]], groups: Mapping[str, Any]) -> tuple[Scoring, list[list[Any]]]:
        """Return the scoring of entities; which of them occurred in training is not known."""
        types = sorted({name for part in values for found in part for _, _, name in found})
        numbered = [
            [[[start, end, types.index(name), 1] for start, end, name in found] for found in part] for part in values
        ]
        return EntityScoring(classes=len(types), has_unseen=False, **groups), numbered


def _are_words(rows: Sequence[Row], column: str) -> bool:
    """Return whether a column holds lists of words."""
    where, row = rows[0]
    return isinstance(plain_value(where, row.get(column)), list)


class EntityLearner(Learner):
    """A model of tags that learns a task."""

    head: Tagger
    task: EntityTask

    def measure(self, split: str, precision: Precision) -> EvaluationResult:
        """Mark the entities of a split; return their metrics, and the calibration of the tags of all words.

        See :meth:`Tagger.mark`.
        """
        sentences: list[Sentence] = getattr(self.task, split)
        marked, every, tables = self.head.mark(sentences, precision)
        numbers = {tag: number for number, tag in enumerate(self.head.tags)}
        predicted, scores, rows, truth = [], [], list[list[float]](), list[int]()
        for sentence, found, units, table in zip(sentences, marked, every, tables, strict=True):
            predicted.append(self.task.numbered(sentence, [entity for entity, _ in found]))
            scores.append([score for _, score in found])
            rows += table.tolist()
            truth += [numbers[tag] for tag in mark_units(units, sentence.entities)]
        gold = self.task.gold(split)
        metrics = entity_metrics(gold, predicted, self.task.labels)
        calibration = calibration_metrics(rows, truth) if rows else {}
        return EvaluationResult({**metrics, **calibration, "scheme": self.task.scheme}, gold, predicted, scores)

    def readable(self, value: Any) -> Any:
        """Return entities as dictionaries of start, end and type."""
        return [{"start": start, "end": end, "type": self.task.labels[number]} for start, end, number, *_ in value]
