"""Multiple-choice tasks: rows of a question, its choices and the correct one, in the forms of common datasets."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from acclimate.base.errors import UserError, unknown_name_error, warn_once
from acclimate.data.reading import ReadingOptions
from acclimate.data.rows import LONE_SURROGATE, LeftOut, Row, RowError, column_names, edit_rows, short_place
from acclimate.evaluation.choice import ChoiceScoring
from acclimate.evaluation.scoring import Scoring
from acclimate.tasks.examples import Example, Examples
from acclimate.tasks.groups import Grouping, find_grouping
from acclimate.tasks.kinds.classification.labels import plain_value
from acclimate.tasks.readers import SPLITS, fold_text, report_unused
from acclimate.tasks.sources import LABEL_NAMES, Table, start_left_out
from acclimate.tasks.values import are_texts, cells

QUESTION_NAMES = ("question", "question_stem", "query", "goal", "ctx", "sent2", "problem", "sentence", "premise")
CONTEXT_NAMES = ("context", "passage", "article", "paragraph", "support", "sent1", "premise")
CHOICES_NAMES = ("choices", "options", "endings", "candidates", "answers")
"""Columns that hold all choices of an item."""
CHOICE_COLUMN = re.compile(
    r"(?P<stem>(?:choice|option|ending|answer|sol|solution|candidate|op)?)[ _-]?(?P<mark>[a-j]|\d{1,2})"
)
"""Columns that hold one choice each: ``A``, ``choice1``, ``option_a``, ``opa``, ``ending0``."""
WRONG_COLUMN = re.compile(r"(distractor|incorrect(_answer)?|wrong(_answer)?)_?\d*")
RIGHT_COLUMN = "correct_answer"
"""Columns of the correct choice and of one wrong choice each, as in SciQ and GPQA."""
ANSWER_NAMES = (
    *("answer_idx", "answer_index", "answerkey", "answer_key", "answer_letter", "cop", "correct_option"),
    *("correct_answer_id", "correct", "answer", "label", "gold", "gold_label", "target", "correct_answer"),
)
"""Usual names of columns, in lower case, in the order in which they are preferred."""
ENDINGS = ("endings", "ending")
"""Columns of choices that continue the question, as in SWAG and HellaSwag."""
HIDDEN = ("", "-1", "nan", "none")
"""What datasets write instead of the answers of a hidden test split."""
AROUND_LETTERS = "()[]. :"
"""What can be around the letter of an answer, as in ``(B)``."""
READ_ROWS = 100
"""Number of rows that decide whether a table is a multiple-choice task."""


@dataclass(frozen=True, slots=True)
class Item(Example):
    """A question with its choices, of which one is correct; its group is its context, or what that is in."""

    question: str
    choices: tuple[str, ...]
    answer: int
    """Position of the correct choice, counted from zero."""
    context: str = ""
    """The passage that the question is about; may be empty."""
    continues: bool = False
    """Whether the choices continue the text of the question."""

    @property
    def text(self) -> str:
        """The context and the question."""
        return "\n".join(filter(None, (self.context, self.question)))

    @property
    def texts(self) -> tuple[str, ...]:
        """The passage, and the question with its choices, which do not show the correct one."""
        return self.context, "\n".join([self.question, *self.choices])

    @property
    def item_text(self) -> str:
        """Passage, question and choices, since the same question can be asked with others."""
        return "\n".join([self.text, *self.choices])

    @property
    def item(self) -> str:
        """The passage, or question and choices."""
        return fold_text(self.context or "\n".join([self.question, *sorted(self.choices)]))

    @staticmethod
    def strata(examples: Sequence[Item]) -> list[list[int]]:
        """Return the position of the correct choice."""
        return [[example.answer] for example in examples]


@dataclass(frozen=True, repr=False)
class ChoiceTask(Examples[Item]):
    """A multiple-choice task: three splits of items."""

    task_kind: ClassVar[str] = "choice"
    default_length: ClassVar[int] = 256
    """Default maximum tokens of a question with its context and one choice."""
    drawn_by: ClassVar[str] = "correct positions in proportion"
    scored_by: ClassVar[type[Scoring]] = ChoiceScoring

    def _scoring_fields(self, split: str) -> dict[str, Any]:
        return {"choices": tuple(len(item.choices) for item in getattr(self, split))}


class Columns(NamedTuple):
    """The columns of a table: the question, its context, one column of lists or one per choice, possible answers."""

    question: str
    context: str | None
    choices: tuple[str, ...]
    answers: tuple[str, ...]


class Choices(NamedTuple):
    """The choices of a row: texts by position, empty where there is none, and the name of each position if any."""

    texts: list[str]
    marks: list[str]


def find_columns(rows: Sequence[Row], options: ReadingOptions, unanswered: bool = False) -> Columns | None:
    """Return the columns of a multiple-choice task; None if some are missing.

    Args:
        rows: Rows, of which the first ones show a question without a usual name.
        options: The columns that the user named: those of the question, its context and the answer.
        unanswered: Whether the answer may be missing.
    """
    names = column_names(rows)
    lower = {re.sub("[ -]+", "_", name.lower()): name for name in reversed(list(names))}

    def usual(known: Iterable[str], given: str | None, taken: Collection[str | None] = ()) -> list[str]:
        return [given] if given else [lower[name] for name in known if name in lower and lower[name] not in taken]

    questions = usual(QUESTION_NAMES, options.text_column, (options.pair_column, options.label_column))
    choices, guessed = _choice_columns(lower), None
    if len(choices) == 1 and not any(map(_is_list, cells(rows[:READ_ROWS], choices[0]))):
        choices = ()
    if len(choices) < 2 and (guessed := _guess_lists(rows[:READ_ROWS], choices)):
        choices = guessed[:1]
    if not questions and choices:
        other = [name for name in names if name not in choices and are_texts(cells(rows[:READ_ROWS], name))]
        questions = other if len(other) == 1 else []
    if not questions or not choices:
        return None
    taken = (questions[0], *choices)
    if choices[0] == lower.get(RIGHT_COLUMN):
        answers = [choices[0]]
    else:
        answers = usual(ANSWER_NAMES, options.label_column, taken) or list(guessed or ())[1:]
    contexts = usual(CONTEXT_NAMES, options.pair_column, (*taken, *answers))
    found = Columns(questions[0], contexts[0] if contexts else None, choices, tuple(answers))
    return found if answers or unanswered else None


def _choice_columns(lower: Mapping[str, str]) -> tuple[str, ...]:
    """Return the column of lists of choices, or the columns of single ones in order; empty if there are none.

    Args:
        lower: The columns by their names in lower case.
    """
    wrong = sorted(column for name, column in lower.items() if WRONG_COLUMN.fullmatch(name))
    if wrong and RIGHT_COLUMN in lower:
        return lower[RIGHT_COLUMN], *wrong
    groups: dict[str, dict[int, str]] = {}
    for name, column in lower.items():
        if found := CHOICE_COLUMN.fullmatch(name):
            mark = found["mark"]
            groups.setdefault(found["stem"], {})[int(mark) if mark.isdigit() else ord(mark) - ord("a")] = column
    for stem, members in groups.items():
        places = sorted(members)
        complete = places[0] in (0, 1) and places == list(range(places[0], places[0] + len(places)))
        if len(places) > 1 and complete and (stem or not members[places[0]].isdigit()):
            return tuple(members[place] for place in places)
    return next(((lower[name],) for name in CHOICES_NAMES if name in lower), ())


def _guess_lists(rows: Sequence[Row], known: Sequence[str]) -> tuple[str, str] | None:
    """Return the only column of lists of texts, and a column that says which of them is correct, if there are any.

    Args:
        rows: The rows.
        known: The column of lists, if its name is usual.
    """
    names = column_names(rows)
    found = {name: [_texts_of(row.get(name), printed=name in known) for _, row in rows] for name in known or names}
    lists = [name for name, texts in found.items() if sum(len(each) > 1 for each in texts) > 0.8 * len(rows)]
    if len(lists) != 1:
        return None
    every = [(row, Choices(texts, [])) for (_, row), texts in zip(rows, found[lists[0]], strict=True)]
    for name in names:
        for read in READINGS.values() if name.lower() in ANSWER_NAMES else (_by_letter, _by_text):
            if sum(read(_value(row, name), choices) is not None for row, choices in every) > 0.8 * len(every):
                return lists[0], name
    return None


def _is_list(value: Any) -> bool:
    with suppress(ValueError):
        return isinstance(_plain(value), list | tuple | Mapping)
    return False


def _texts_of(value: Any, printed: bool = False) -> list[str]:
    if printed:
        with suppress(ValueError):
            value = _plain(value)
    return value if isinstance(value, list) and all(isinstance(text, str) for text in value) else []


def holds_choices(rows: Sequence[Row], options: ReadingOptions) -> bool:
    """Return whether rows are those of a multiple-choice task: its columns, and answers that are among the choices.

    Up to half of the answers may be something else, as then reading the rows names the first of these.
    """
    columns = find_columns(rows, options)
    if columns is None:
        return False
    answer = columns.answers[0]
    is_clear = len(columns.choices) > 1 or columns.choices[0].lower() in CHOICES_NAMES
    if not (is_clear or options.label_column or answer.lower() in set(ANSWER_NAMES) - set(LABEL_NAMES)):
        raise UserError(
            f"{rows[0][0]}: '{columns.choices[0]}' can be choices with the correct one in '{answer}', or '{answer}' "
            f"is a label. Give --task-kind choice, or --task-kind classification --label-column {answer}."
        )
    parsed = LeftOut("").read("train", rows[:READ_ROWS], partial(_parse, columns))
    if not parsed or len(columns.choices) == 1:  # a column of lists can be nothing else
        return bool(parsed)
    column, reading = _choose_answers({"train": parsed}, columns.answers)
    known = sum(READINGS[reading](_value(row, column), choices) is not None for _, row, choices in parsed)
    return 2 * known >= len(parsed)


def _read_choices(row: Mapping[str, Any], columns: Columns) -> Choices:
    """Return the choices of a row.

    Raises:
        ValueError: If they cannot be read; its message says why.
    """
    if len(columns.choices) > 1:
        texts = [_text(row.get(name)) for name in columns.choices]
        if columns.choices[0] in columns.answers:
            return Choices(sorted(texts), [])  # an order that does not show the correct one
        return Choices(texts, [_mark(name) for name in columns.choices])
    value = _plain(row.get(columns.choices[0]))
    if isinstance(value, Mapping):
        texts, marks = (_plain(value.get(name)) for name in ("text", "label"))
        if isinstance(texts, list):  # as in ARC: {"text": [...], "label": [...]}
            return Choices([*map(_text, texts)], [*map(str, marks)] if isinstance(marks, list) else [])
        return Choices([*map(_text, value.values())], [*map(str, value)])  # as in MedQA: {"A": ..., "B": ...}
    if not isinstance(value, list | tuple):
        raise ValueError(f"'{columns.choices[0]}' must be a list of choices, not {value!r:.40}")
    if value and all(isinstance(entry, Mapping) for entry in value):
        texts = [_text(next((entry[key] for key in ("text", "value") if key in entry), None)) for entry in value]
        marks = [str(next((entry[key] for key in ("label", "key", "id") if key in entry), "")) for entry in value]
        return Choices(texts, marks if all(marks) else [])
    return Choices([*map(_text, value)], [])


def _plain(value: Any) -> Any:
    try:
        return plain_value("", value)
    except UserError as error:
        raise ValueError(f"{value!r:.40} cannot be read as a list of choices") from error


def _mark(column: str) -> str:
    found = CHOICE_COLUMN.fullmatch(column.lower())
    return found["mark"] if found else column


def _text(value: Any) -> str:
    """Return a text without blanks around it; empty if it is missing.

    Raises:
        ValueError: If it is neither a text nor a number.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if not isinstance(value, str | int | float):
        raise ValueError(f"a text is {value!r:.40}, not a string")
    text = str(value).strip()
    if LONE_SURROGATE.search(text):
        raise ValueError("the text contains half of a surrogate pair, which is not a character")
    return text


Answer = Callable[[str, Choices], int | None]
"""Returns the position that a value means, if any."""


def _by_mark(value: str, choices: Choices) -> int | None:
    marks, value = [mark.casefold() for mark in choices.marks], value.strip(AROUND_LETTERS).casefold()
    return marks.index(value) if value in marks else None


def _by_letter(value: str, choices: Choices) -> int | None:
    value = value.strip(AROUND_LETTERS)
    place = ord(value.lower()) - ord("a") if len(value) == 1 else -1
    return place if 0 <= place < len(choices.texts) else None


def _by_text(value: str, choices: Choices) -> int | None:
    found = [place for place, text in enumerate(choices.texts) if text == value]
    return found[0] if len(found) == 1 else None


def _by_position(first: int, value: str, choices: Choices) -> int | None:
    if not re.fullmatch(r"\d{1,3}(\.0+)?", value):
        return None
    place = int(float(value)) - first
    return place if 0 <= place < len(choices.texts) else None


READINGS: dict[str, Answer] = {
    "the names of the choices": _by_mark,
    "letters": _by_letter,
    "the texts of the choices": _by_text,
    "positions counted from 0": partial(_by_position, 0),
    "positions counted from 1": partial(_by_position, 1),
}
"""What values in a column of answers can be, in the order in which they are preferred."""


def read_choices(tables: Mapping[str, Table], name: str, options: ReadingOptions, path: Path | None) -> ChoiceTask:
    """Read a multiple-choice task from tables; missing splits are drawn from train.

    Answers are letters or other names of choices, texts, or positions that are counted from 0 or 1: whichever fits
    most rows of all splits, which is reported. Empty choices are left out, so that items can have different numbers of
    choices. A dev or test split in which no row has an answer is not used.

    Raises:
        UserError: If the columns are not clear, or too many rows cannot be used.
    """
    rows = {split: list(tables[split].rows) if split in tables else [] for split in SPLITS}
    names = column_names(rows["train"])
    for column in (options.text_column, options.pair_column, options.label_column):
        if column is not None and column not in names:
            raise unknown_name_error(f"column of the task '{name}'", column, names)
    columns = find_columns(rows["train"], options)
    if columns is None:
        raise UserError(
            f"{rows['train'][0][0]}: multiple choice needs a column 'question', 'choices' with a list (or 'A', 'B', "
            f"'C' ... with one each) and 'answer'. The columns are: {', '.join(names)}; name those of question, "
            "context and answer with --text-column, --pair-column and --label-column."
        )
    texts = (columns.question, columns.context, *columns.choices, *columns.answers)
    rows = {split: edit_rows(found, texts, options) for split, found in rows.items()}
    left = start_left_out(tables, name, options)
    parsed = {split: left.read(split, found, partial(_parse, columns)) for split, found in rows.items()}
    if not parsed["train"]:
        left.report(parsed)  # raises
    answer, reading = _choose_answers(parsed, columns.answers)
    taken = (columns.question, columns.context, answer, *columns.choices)
    grouping = find_choice_groups(name, rows, options, columns, answer)
    report_unused(name, chain(*rows.values()), (*taken, *grouping.columns))
    for split in ("dev", "test"):
        if parsed[split] and all(_value(row, answer).casefold() in HIDDEN for _, row, _ in parsed[split]):
            warn_once(f"The {split} split of '{name}' is not used: its answers are hidden.")
            parsed[split] = []
    continues = any(column.lower().startswith(ENDINGS) for column in columns.choices)
    splits = {
        split: left.read(split, found, partial(_make_item, columns, answer, READINGS[reading], continues, grouping))
        for split, found in parsed.items()
    }
    left.report(splits)
    if not splits["train"]:
        raise UserError(f"The task '{name}' has no train rows.")
    _report(name, columns, answer, reading, parsed)
    return ChoiceTask.divided(name, splits, options.split_seed, group_name=grouping.name, path=path)


Parsed = tuple[str, Mapping[str, Any], Choices]
"""The location of a row, the row, and its choices."""


def _parse(columns: Columns, row: Row) -> Parsed:
    """Return a row with its choices.

    Raises:
        RowError: If it cannot be used.
    """
    where, cells = row
    try:
        choices, question = _read_choices(cells, columns), _text(cells.get(columns.question))
        _text(cells.get(columns.context or ""))
    except ValueError as error:
        raise RowError(where, "whose texts cannot be read", str(error)) from error
    if (given := len(list(filter(None, choices.texts)))) < 2:
        raise RowError(where, "with fewer than two choices", f"{given} choices, but at least two are needed")
    if not question:
        raise RowError(where, "without a question", f"'{columns.question}' is empty")
    return where, cells, choices


def _value(row: Mapping[str, Any], column: str) -> str:
    value = row.get(column)
    return "" if value is None else str(value).strip()


def _choose_answers(parsed: Mapping[str, Sequence[Parsed]], candidates: Sequence[str]) -> tuple[str, str]:
    """Return the column of answers, and the name of the reading that fits most rows, the first of equal ones.

    Numbers are positions rather than the texts of choices, unless only the texts fit.
    """
    every = [(row, choices) for found in parsed.values() for _, row, choices in found]

    def fit(candidate: tuple[str, str]) -> tuple[int, bool]:
        column, reading = candidate
        known = [(row[column], choices) for row, choices in every if _value(row, column).casefold() not in HIDDEN]
        fitting = sum(READINGS[reading](_value({"": value}, ""), choices) is not None for value, choices in known)
        numbers = bool(known) and all(not isinstance(value, str) for value, _ in known)
        return fitting, not (numbers and READINGS[reading] is _by_text)

    return max(((column, reading) for column in candidates for reading in READINGS), key=fit)


def _make_item(
    columns: Columns, answer: str, read: Answer, continues: bool, grouping: Grouping, parsed: Parsed
) -> Item:
    """Return the item of a row.

    Raises:
        RowError: If it has no usable answer.
    """
    where, row, choices = parsed
    value = _value(row, answer)
    place = read(value, choices)
    if value.casefold() in HIDDEN and place is None:
        raise RowError(where, "without an answer", f"'{answer}' is empty" if not value else "")
    if place is None or not choices.texts[place]:
        listed = ", ".join(f"'{text:.20}'" for text in choices.texts if text)
        what = f"'{answer}' is {value!r:.40}, which is none of the choices {listed:.100}"
        raise RowError(where, "whose answer is none of the choices", what)
    kept = [number for number, text in enumerate(choices.texts) if text]
    texts = tuple(choices.texts[number] for number in kept)
    context = _text(row.get(columns.context)) if columns.context else ""
    item = Item(_text(row[columns.question]), texts, kept.index(place), context, continues)
    return replace(item, group=grouping.of(row), row=short_place(where))


def find_choice_groups(
    name: str, rows: Mapping[str, Sequence[Row]], options: ReadingOptions, columns: Columns, answer: str | None = None
) -> Grouping:
    """Return where rows have their group; their context is one, if there is no other."""
    last = Grouping(columns.context, "context") if columns.context else None
    taken = (columns.question, columns.context, answer, *columns.choices)
    return find_grouping(name, rows, options.group_column, taken, last=last)


def read_unanswered(rows: Sequence[Row], options: ReadingOptions) -> list[Item | None]:
    """Return the question of each row with its choices, for a prediction; None for a row that lacks one of them.

    Raises:
        UserError: If the columns are not clear.
    """
    columns = find_columns(rows, options, True)
    if columns is None:
        raise UserError(
            "Multiple choice needs a column 'question', and 'choices' with a list (or 'A', 'B', 'C' ... with one "
            f"each); the columns are: {', '.join(column_names(rows))}."
        )
    rows = edit_rows(list(rows), (columns.question, columns.context, *columns.choices), options)
    found: list[Item | None] = []
    continues = any(column.lower().startswith(ENDINGS) for column in columns.choices)
    for row in rows:
        parsed = LeftOut("").read("", [row], partial(_parse, columns))
        texts = tuple(filter(None, parsed[0][2].texts)) if parsed else ()
        context = _text(row[1].get(columns.context)) if parsed and columns.context else ""
        found.append(Item(_text(row[1][columns.question]), texts, 0, context, continues) if parsed else None)
    return found


def read_answers(rows: Sequence[Row], options: ReadingOptions) -> list[int | None] | None:
    """Return the position of the correct choice of each row, or None; None if there is no column of answers."""
    columns = find_columns(rows, options)
    if columns is not None:
        used = (columns.question, columns.context, *columns.choices, *columns.answers)
        rows = edit_rows(list(rows), used, options)
    parsed = (
        {}
        if columns is None
        else {number: LeftOut("").read("", [row], partial(_parse, columns)) for number, row in enumerate(rows)}
    )
    usable = [found[0] for found in parsed.values() if found]
    if columns is None or not usable:
        return None
    column, reading = _choose_answers({"train": usable}, columns.answers)
    answers: list[int | None] = []
    for found in parsed.values():
        texts = found[0][2].texts if found else []
        place = READINGS[reading](_value(found[0][1], column), found[0][2]) if found else None
        kept = [number for number, text in enumerate(texts) if text]
        answers.append(kept.index(place) if place in kept else None)
    return answers


def _report(
    name: str,
    columns: Columns,
    answer: str,
    reading: str,
    parsed: Mapping[str, Sequence[Parsed]],
) -> None:
    """Say which columns are used, how the answers are read, and whether they could be read in another way."""
    context = f"its context in '{columns.context}', " if columns.context else ""
    listed = f"'{columns.choices[0]}'" + (f" to '{columns.choices[-1]}'" if len(columns.choices) > 1 else "")
    other = ""
    every = [(_value(row, answer), choices) for found in parsed.values() for _, row, choices in found]
    for also, read in READINGS.items():
        if also == reading or all(read(*row) == READINGS[reading](*row) for row in every):
            continue
        if all(read(*row) is not None for row in every):
            other = f" They could also be {also}; if they are, replace them with letters."
    warn_once(
        f"The task '{name}' is multiple choice: the question in '{columns.question}', {context}the choices in "
        f"{listed}, the answers in '{answer}', which are {reading}.{other}"
    )
    doubled = sum(len(set(texts)) < len(texts) for texts in (tuple(filter(None, c.texts)) for _, c in every))
    if doubled:
        warn_once(f"{doubled:,} items of '{name}' have the same choice more than once; no model can decide these.")
