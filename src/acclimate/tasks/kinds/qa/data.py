"""Questions about passages, in the format of SQuAD v1.1."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, ClassVar

from acclimate.base.errors import DamagedFileError, UserError
from acclimate.data.opening import detect_format
from acclimate.data.readers import holds_rows, read_json
from acclimate.data.reading import DEFAULT_READING, ReadingOptions, check_task_folder, default_task_name
from acclimate.data.rows import LeftOut, Row, RowError, check_text, column_names, read_rows
from acclimate.evaluation.qa import QAScoring
from acclimate.evaluation.scoring import Scoring
from acclimate.tasks.drawing import Link, link_rows
from acclimate.tasks.examples import Example, Examples
from acclimate.tasks.groups import Grouping, find_grouping
from acclimate.tasks.kinds.classification.labels import plain_or_given
from acclimate.tasks.readers import SPLITS, find_split_files, report_kind, report_unused
from acclimate.tasks.sources import ENDINGS, Table, match_splits, read_tables, split_files
from acclimate.tasks.values import are_texts, cells

COLUMNS = frozenset(("context", "question", "answers"))
"""The columns of rows of questions, as ``datasets`` names those of SQuAD."""
STRUCTURE = ("title", "is_impossible", "plausible_answers")
"""Further keys of files in the format of SQuAD."""
CHECKED = 100
"""Rows that show the columns."""
BIOASQ_SNIPPET_ID = re.compile(r"([0-9a-f]{24})_\d{3}")
"""Id of a BioASQ question in SQuAD format: the id of the question and the number of the snippet."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Answer:
    """A gold answer: ``passage[start : start + len(text)] == text``, without surrounding whitespace."""

    text: str
    start: int


@dataclass(frozen=True, slots=True)
class Question(Example):
    """A question, its passage, and its gold answers; training uses the first answer.

    Its group is the passage, or what that is in.
    """

    id: str
    text: str
    passage: str
    answers: tuple[Answer, ...]

    @property
    def texts(self) -> tuple[str, ...]:
        """The question and the passage."""
        return self.text, self.passage

    @property
    def item_text(self) -> str:
        """The passage."""
        return self.passage

    @property
    def item(self) -> str:
        """The unit of scoring: the question, or all BioASQ questions that differ only in their snippet."""
        return item_of(self.id)


def item_of(name: str) -> str:
    """Return the item of a question, by its id."""
    part = BIOASQ_SNIPPET_ID.fullmatch(name)
    return part[1] if part else name


@dataclass(frozen=True, repr=False)
class QATask(Examples[Question]):
    """An extractive question answering task: three splits of questions."""

    task_kind: ClassVar[str] = "qa"
    default_length: ClassVar[int] = 384
    """Default maximum tokens per window, as for BERT on SQuAD."""
    items: ClassVar[str] = "questions"
    scored_by: ClassVar[type[Scoring]] = QAScoring

    @classmethod
    def of(
        cls, name: str, train: Mapping[str, Any], test: Mapping[str, Any], dev: Mapping[str, Any] | None = None
    ) -> QATask:
        """Create a task from objects in memory with the structure of SQuAD files.

        Raises:
            UserError: As :func:`load_qa`.
        """
        given = {"train": train, "test": test, **({"dev": dev} if dev else {})}
        read = {split: list(squad_rows(value, f"{name}/{split}")) for split, value in given.items()}
        made, what = _read_splits(read, LeftOut(name))
        return cls.divided(name, made, None, group_name=what)

    def scored_rows(self, split: str) -> list[Question]:
        """Return the first question of each item, in the order of :func:`group_by_item`."""
        questions: list[Question] = getattr(self, split)
        return [questions[places[0]] for places in group_by_item(questions).values()]


def group_by_item(questions: Iterable[Question]) -> dict[str, list[int]]:
    """Return the indices of the questions of each item, by the item's id, in the order of the file."""
    groups: dict[str, list[int]] = {}
    for place, question in enumerate(questions):
        groups.setdefault(question.item, []).append(place)
    return groups


def gold_answers(questions: Sequence[Question]) -> list[list[str]]:
    """Return the distinct gold answers of each item, in the order of :func:`group_by_item`."""
    return [
        list(dict.fromkeys(answer.text for place in places for answer in questions[place].answers))
        for places in group_by_item(questions).values()
    ]


def load_qa(
    source: Any,
    *,
    name: str | None = None,
    split_seed: int = 0,
    encoding: str | None = None,
    group_column: str | None = None,
    strict: bool = False,
) -> QATask:
    """Read questions about passages: a folder with a file per split, one file, or an object.

    A split is a ``.json`` file (or ``.json.gz``) as in SQuAD v1.1, or a table, JSON lines, or rows in memory with the
    columns that ``datasets`` gives SQuAD: ``id``, ``context``, ``question`` and ``answers``. Without a test split,
    about 20% of the train questions are drawn for test, and without a dev split as well, 10% for dev; all questions
    about an article or a passage stay in one split, and so do the snippets of a BioASQ question.

    Whitespace around an answer is stripped. An answer that is not at its ``answer_start`` is located by its text if
    that occurs exactly once in the passage; a warning gives the number of such answers. Questions that cannot be used
    are left out and counted.

    Args:
        source: A folder or file; or a ``Dataset``, a data frame, rows, or any of these by split.
        name: Name of the task; by default the name of the folder or file.
        split_seed: Random seed of splits that are drawn.
        encoding: Encoding of files that are not UTF-8.
        group_column: Key of a question, a paragraph or an article that names what they share, such as its patient; by
            default a certain name such as ``document_id``, else the title of the article, else the passage.
        strict: Whether a question that cannot be used is an error.

    Raises:
        UserError: If a file cannot be parsed, too many questions cannot be used, or there are too few passages to draw
            a test split.
    """
    path = Path(source) if isinstance(source, str | Path) else None
    name = name or (default_task_name(path.resolve()) if path else "task")
    if path is not None and not path.is_file():
        check_task_folder(path)
        read = {split: _load(found, encoding) for split, found in split_files(path).items()}
    elif path is not None:
        read = {"train": _load([path], encoding)}
    else:
        tables = read_tables(source, name, DEFAULT_READING)
        read = {split: [*_number_rows(table.rows), *table.broken] for split, table in tables.items()}
    made, what = _read_splits(read, LeftOut(name, strict), group_column)
    return QATask.divided(name, made, split_seed, group_name=what, path=path)


def _read_splits(
    read: Mapping[str, Sequence[Row | RowError]], left: LeftOut, group_column: str | None = None
) -> tuple[dict[str, list[Question]], str]:
    """Return the questions of each split with their groups, and what a group is.

    The group is the one that the user named or that has a certain name, else the article if there are several, else
    the passage. Groups that share a BioASQ question are one, since that is scored as one item.

    Args:
        read: The rows of each split, and those that could not be parsed.
        left: Takes the rows that cannot be used.
        group_column: Key of the group, if the user named one.
    """
    parsed = {split: _read_questions(split, found, left) for split, found in read.items()}
    left.report(parsed)
    for split, found in parsed.items():
        if not found:
            raise UserError(f"'{left.name}/{split}' holds no questions.")
    rows = {split: [row for row, _ in found] for split, found in parsed.items()}
    items = [f"{split} {question.item}" for split, found in parsed.items() for _, question in found]
    groups, what, columns = group_questions(left.name, [*chain(*rows.values())], items, group_column)
    report_unused(left.name, chain(*rows.values()), (*COLUMNS, *STRUCTURE, *columns))
    names = iter(groups)
    grouped = {
        split: [replace(question, group=group) for (_, question), group in zip(found, names, strict=False)]
        for split, found in parsed.items()
    }
    return grouped, what


def group_questions(
    name: str, rows: Sequence[Row], items: Sequence[str], given: str | None, context: str = "context"
) -> tuple[list[str], str, list[str]]:
    """Return the group of each question, what a group is, and the columns that say it.

    Args:
        name: Name of the task.
        rows: The rows.
        items: The item of each question, whose questions share a group.
        given: Column of the group that the user named.
        context: Column of the passage, which is the group if there is no other.
    """
    taken = (*COLUMNS, context)
    grouping = find_grouping(name, {"": rows}, given, taken, {"title": "article"}, Grouping(context, "passage"))
    links = [Link(grouping.of(row), item) for (_, row), item in zip(rows, items, strict=True)]
    return link_rows(links), grouping.name, grouping.columns


def holds_questions(source: Any) -> bool:
    """Return whether the train split of a source is a file in SQuAD format, or has the columns of SQuAD.

    Raises:
        UserError: If a file cannot be read.
    """
    if not isinstance(source, str | Path):
        names = _columns_of(source)
    else:
        path = Path(source)
        files = find_split_files(path, "train", required=False) if path.is_dir() else [path]
        if not files and any(match_splits([one.name], "", ["train"]) for one in path.glob("*.json") if _is_squad(one)):
            return True
        files = [file for file in files if file.name.lower().endswith(ENDINGS)]
        if files and _is_squad(files[0]):
            return True
        try:
            names = set(column_names(islice(read_rows(files[0], COLUMNS, broken=[]), CHECKED))) if files else set()
        except UserError:
            if path.is_dir():
                raise
            names = set()  # a file in another encoding, which the other kinds report
    return names >= COLUMNS and "label" not in names


def _is_squad(file: Path) -> bool:
    return detect_format(file) == ".json" and holds_rows(file, "paragraphs")


def find_columns(rows: Sequence[Row], options: ReadingOptions) -> dict[str, str] | None:
    """Return the columns of questions, contexts and answers of rows by their values, whatever they are called.

    Args:
        rows: Rows, of which the first ones decide.
        options: The columns that the user named, in the same order: of the text, of its pair and of the label.

    Returns:
        The columns as ``question``, ``context`` and ``answers``; None if no column has answers with their place in
        the text of another one.

    Raises:
        UserError: If the questions can be in none or several columns.
    """
    rows = rows[:CHECKED]
    names = column_names(rows)

    def count_places(context: str, answers: str) -> int:
        def read(row: Row) -> Any:
            entry = {"question": "?", "context": row[1].get(context), "answers": row[1].get(answers)}
            return _parse_question("", entry, row[0])

        return len(LeftOut("").read("", rows, read))

    given = options.label_column
    spans = [given] if given else [one for one in names if any("answer_start" in str(row.get(one)) for _, row in rows)]
    contexts = [options.pair_column] if options.pair_column else names
    counts = {(context, one): count_places(context, one) for one in spans for context in contexts if context != one}
    context, answers = max(counts, key=lambda pair: counts[pair], default=("", ""))
    if 2 * counts.get((context, answers), 0) <= len(rows):
        return None
    rest = [name for name in names if name not in (context, answers)]
    usual = [name for name in rest if name.lower() == "question"]
    found = [options.text_column] if options.text_column else usual
    found = found or [name for name in rest if are_texts(cells(rows, name))]
    if len(found) != 1:
        raise UserError(
            f"{rows[0][0]}: '{answers}' holds answers with their places in '{context}', but the questions can be in "
            f"{' or '.join(map(repr, found or rest)) or 'no column'}. Name their column with --text-column; if the "
            "answers are to be written instead of marked, give --task-kind generation."
        )
    return {"question": found[0], "context": context, "answers": answers}


def read_questions(tables: Mapping[str, Table], name: str, options: ReadingOptions, path: Path | None) -> QATask:
    """Read questions about passages from tables in which their columns have any names.

    Raises:
        UserError: If the columns are not clear, or too many rows cannot be used.
    """
    rows = tables["train"].rows
    columns = find_columns(rows, options)
    if columns is None:
        raise UserError(
            f"{rows[0][0]}: the table cannot be read as a task of the kind 'qa', which needs a question, its context "
            "and answers with 'text' and 'answer_start', as in SQuAD. The columns are: "
            f"{', '.join(column_names(rows))}; name them with --text-column, --pair-column and --label-column."
        )
    report_kind(name, "question answering", columns)
    used = {*COLUMNS, *columns.values()}
    read: dict[str, list[Row | RowError]] = {}
    for split, table in tables.items():
        named = [
            (where, {new: row.get(old) for new, old in columns.items()} | {k: row[k] for k in row if k not in used})
            for where, row in table.rows
        ]
        read[split] = [*_number_rows(named), *table.broken]
    made, what = _read_splits(read, LeftOut(name, options.strict), options.group_column)
    return QATask.divided(name, made, options.split_seed, group_name=what, path=path)


def _columns_of(value: Any) -> set[str]:
    """Return the columns of an object; of objects by split those of train, or of the first."""
    if isinstance(value, Mapping):
        known = {str(name).lower(): part for name, part in value.items()}
        parts = [known[name] for name in SPLITS["train"] if name in known] or list(value.values())
        value = parts[0] if parts else []
    columns = getattr(value, "column_names", None) or getattr(value, "columns", None)
    if columns is None and isinstance(value, list | tuple):
        columns = column_names(("", dict(row)) for row in value[:CHECKED] if isinstance(row, Mapping))
    return set() if columns is None else set(map(str, columns))


def _load(files: Sequence[Path], encoding: str | None = None) -> list[Row | RowError]:
    """Return the rows of a file in SQuAD format, or with the columns of SQuAD, and those that cannot be parsed."""
    if detect_format(files[0]) == ".json" and len(files) == 1:
        with suppress(DamagedFileError):  # JSON lines; read_rows() reports other damage
            value = read_json(files[0], encoding=encoding)
            if not isinstance(value, list) or not value:
                return list(squad_rows(value, str(files[0])))
    broken: list[RowError] = []
    rows = _number_rows(row for file in files for row in read_rows(file, COLUMNS, encoding, broken))
    return [*rows, *broken]


def _number_rows(rows: Iterable[Row]) -> list[Row]:
    """Return rows with their number as the id, if they have none."""
    return [(where, {"id": number, **row}) for number, (where, row) in enumerate(rows, 1)]


def read_squad_rows(file: Path, encoding: str | None = None) -> list[Row]:
    """Return the questions of a file in the format of SQuAD as rows with the columns that ``datasets`` gives it.

    Raises:
        UserError: If a part of the file is not in that format.
    """
    rows: list[Row] = []
    for row in squad_rows(read_json(file, encoding=encoding), str(file)):
        if isinstance(row, RowError):
            raise row
        rows.append(row)
    return rows


def answer_texts(value: Any) -> list[str] | None:
    """Return the texts of the answers of a row, in the form of SQuAD, as a list or as one text; None without any."""
    value = _parse_cell(value)
    if isinstance(value, Mapping):
        value = value.get("text")
    entries = value if isinstance(value, list | tuple) else [value]
    texts = [entry.get("text") if isinstance(entry, Mapping) else entry for entry in entries]
    return [text for text in texts if isinstance(text, str) and text.strip()] or None


def _parse_cell(value: Any) -> Any:
    """Return an answer as plain values: parsed from JSON, without the arrays that pandas makes of lists."""
    if isinstance(value, str):
        with suppress(ValueError, RecursionError):
            return json.loads(value)
        return plain_or_given(value)  # as Python writes it
    if isinstance(value, Mapping):
        return {name: cell.tolist() if hasattr(cell, "tolist") else cell for name, cell in value.items()}
    return value


def squad_rows(value: Any, where: str) -> Iterator[Row | RowError]:
    """Yield the questions of an object in the format of SQuAD v1.1, with the keys of their paragraph and article.

    Args:
        value: ``{"data": [{"paragraphs": [{"context", "qas": [{"id", "question", "answers": [...]}]}]}]}``.
        where: The name of the object in messages.

    Raises:
        UserError: If it is something else; parts that are something else are yielded as errors.
    """
    if not isinstance(value, Mapping):
        raise UserError(f"'{where}' is not in SQuAD format: it must be a JSON object with a list 'data'.")
    number = 0
    for article in _get_list(value, "data", where):
        try:
            paragraphs = _get_list(article, "paragraphs", where)
        except RowError as error:
            yield error
            continue
        for paragraph in paragraphs:
            number += 1
            try:
                entries = _get_list(paragraph, "qas", f"{where}: paragraph {number}")
            except RowError as error:
                yield error
                continue
            around = {**article, **paragraph}
            around = {str(key): around[key] for key in around if key not in ("paragraphs", "qas", "id")}
            for entry in entries:
                yield f"{where}: paragraph {number}, question '{entry.get('id')}'", {**around, **entry}


def _get_list(holder: Mapping[str, Any], key: str, where: str) -> list[Mapping[str, Any]]:
    entries = holder.get(key)
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        what = f"'{key}' must be a list of JSON objects, as in SQuAD v1.1"
        if key == "answers" and "answer_start" not in str(entries):
            what += "; for answers without a place in the passage, give --task-kind generation"
        raise RowError(where, "that cannot be parsed", what)
    return entries


def _read_questions(split: str, rows: Sequence[Row | RowError], left: LeftOut) -> list[tuple[Row, Question]]:
    """Return the rows of a split that can be used with their questions; the others are left out."""
    seen: set[str] = set()
    moved: list[str] = []

    def read(row: Row | RowError) -> tuple[Row, Question]:
        if isinstance(row, RowError):
            raise row
        where, cells = row
        name = cells.get("id")
        if not isinstance(name, str | int) or isinstance(name, bool) or name == "":
            raise RowError(where, "without an id")
        question, count = _parse_question(str(name), cells, where)
        if str(name) in seen:
            raise RowError(where, "with the id of another question", f"the id is '{name}'")
        seen.add(str(name))
        moved.extend([where] * count)
        return row, question

    found = left.read(split, rows, read)
    if moved:
        log.warning(
            "%s: %d answer%s not at 'answer_start' and located again by text.",
            f"{left.name}/{split}",
            len(moved),
            " was" if len(moved) == 1 else "s were",
        )
    return found


def _parse_question(name: str, entry: Mapping[str, Any], where: str) -> tuple[Question, int]:
    """Return a question, and the number of its answers that were located by their text."""
    passage, text = (check_text(where, entry.get(column), column) for column in ("context", "question"))
    answers = _parse_cell(entry.get("answers"))
    if isinstance(answers, Mapping) and answers.keys() >= {"text", "answer_start"}:  # as in ``datasets``
        columns = [answers["text"], answers["answer_start"]]
        if not all(isinstance(column, list) for column in columns) or len(columns[0]) != len(columns[1]):
            raise _unusable(where, "'text' and 'answer_start' must be lists of the same length")
        answers = [{"text": text, "answer_start": start} for text, start in zip(*columns, strict=True)]
    if not answers or entry.get("is_impossible"):
        what = "unanswerable questions, as in SQuAD 2, are not supported"
        raise RowError(where, "without an answer", what)
    found = [_parse_answer(answer, passage, where) for answer in _get_list({"answers": answers}, "answers", where)]
    return Question(name, text, passage, tuple(answer for answer, _ in found)), sum(moved for _, moved in found)


def _unusable(where: str, what: str) -> RowError:
    return RowError(where, "with an answer that cannot be used", what)


def _parse_answer(entry: Mapping[str, Any], passage: str, where: str) -> tuple[Answer, bool]:
    """Return an answer, and whether it was located by its text because ``answer_start`` was wrong."""
    text, start = entry.get("text"), entry.get("answer_start")
    if not isinstance(text, str) or not text.strip():
        raise _unusable(where, "the 'text' of an answer must not be empty")
    if not isinstance(start, int) or isinstance(start, bool):
        raise _unusable(where, "'answer_start' must be an integer: the index of the answer's first character")
    start += len(text) - len(text.lstrip())
    text = text.strip()
    if start >= 0 and passage.startswith(text, start):
        return Answer(text, start), False
    first = passage.find(text)
    if first < 0 or passage.find(text, first + 1) >= 0:
        state = "is not in the passage" if first < 0 else f"is not at {start} and occurs several times"
        raise _unusable(where, f"the answer '{text:.60}' {state}")
    return Answer(text, first), True
