"""Tasks of generation: rows of a question or prompt, perhaps a context, and one or several reference answers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from acclimate.base.errors import UserError, unknown_name_error, warn_once
from acclimate.data.opening import EXCEL, detect_format
from acclimate.data.reading import ReadingOptions
from acclimate.data.rows import (
    MAX_LEFT_OUT,
    LeftOut,
    Row,
    RowError,
    check_characters,
    check_text,
    column_names,
    edit_rows,
    is_missing,
    short_place,
)
from acclimate.evaluation.answers import SCORE, AnswerScoring, measurable
from acclimate.evaluation.scoring import Scoring
from acclimate.tasks.examples import Example, Examples
from acclimate.tasks.groups import Grouping, find_grouping
from acclimate.tasks.kinds.classification.labels import plain_or_given, plain_value
from acclimate.tasks.readers import SPLITS, fold_text, report_kind, report_unused
from acclimate.tasks.sources import Table, start_left_out
from acclimate.tasks.values import are_classes, are_scores, are_tags, cells, label_like

PROMPT_NAMES = ("prompt", "question", "instruction", "problem")
REFERENCE_NAMES = ("answers", "references", "reference", "reference_answers", "reference_answer", "gold_answers")
"""Usual names of columns that are read whatever else a row has, in lower case, in the order of preference."""
MORE_PROMPTS = (*PROMPT_NAMES, "query", "input", "source", "document", "article", "text", "dialogue")
MORE_REFERENCES = (
    *(*REFERENCE_NAMES, "answer", "target", "output", "response", "completion", "summary", "highlights", "solution"),
    *("ground_truth", "expected", "label"),
)
"""Further usual names, if the kind is given."""
CONTEXT_NAMES = ("context", "passage", "input", "paragraph")
ASKING = ("prompt", "instruction", "problem")
"""Columns of prompts that nobody searches passages for, next to which one answer is a reference."""
OTHER_KINDS = ("choices", "options", "endings", "candidates", "chosen", "rejected", "tokens", "spans", "entities")
"""Columns that show that rows are of another kind."""
FLAT = (".csv", ".tsv", EXCEL)
"""Formats of which the cells cannot hold lists."""
ALIASES = ("text", "value", "normalized_value", "aliases")
"""Keys of answers, as in SQuAD and TriviaQA."""


@dataclass(frozen=True, slots=True)
class Prompted(Example):
    """A question with its reference answers, any of which is right; its group is its context, or what that is in."""

    question: str
    references: tuple[str, ...]
    context: str = ""
    """What the question is about; may be empty."""

    @property
    def text(self) -> str:
        """The context and the question."""
        return "\n\n".join(filter(None, (self.context, self.question)))

    @property
    def texts(self) -> tuple[str, ...]:
        """The context and the question."""
        return self.context, self.question

    @property
    def item_text(self) -> str:
        """The context, the question and its answers."""
        return "\n".join([*filter(None, (self.context, self.question)), *self.references])

    @property
    def item(self) -> str:
        """The context and the question."""
        return fold_text(self.text)


@dataclass(frozen=True, repr=False)
class GenerationTask(Examples[Prompted]):
    """A task of generation: three splits of questions with reference answers."""

    task_kind: ClassVar[str] = "generation"
    default_length: ClassVar[int] = 1024
    """Default maximum tokens of a prompt, or of a prompt with its answer in training."""
    items: ClassVar[str] = "questions"
    scored_by: ClassVar[type[Scoring]] = AnswerScoring

    scorer: str = field(default="", kw_only=True)
    """Identity of the function of the user that scores answers; empty if there is none."""

    def _scoring_fields(self, split: str) -> dict[str, Any]:
        return {"measured": (*[SCORE] * bool(self.scorer), *measurable())}


class Columns(NamedTuple):
    """The columns of a table."""

    question: str
    references: str | None
    context: str | None
    listed: bool
    """Whether the references are lists, which CSV has as text."""


def find_columns(rows: Sequence[Row], options: ReadingOptions, unanswered: bool = False) -> Columns | None:
    """Return the columns of a task of generation by their names; None if they are not clear.

    Args:
        rows: The rows.
        options: The columns that the user named: those of the question, its context and the references.
        unanswered: Whether the references may be missing.
    """
    lower = {name.lower(): name for name in reversed(column_names(rows))}

    def usual(known: Iterable[str], given: str | None, taken: Collection[str | None]) -> str | None:
        return given or next((lower[name] for name in known if name in lower and lower[name] not in taken), None)

    question = usual(MORE_PROMPTS, options.text_column, (options.pair_column, options.label_column))
    references = usual(MORE_REFERENCES, options.label_column, (question, options.pair_column))
    if question is None or (references is None and not unanswered):
        return None
    context = usual(CONTEXT_NAMES, options.pair_column, (question, references))
    return Columns(question, references, context, references is not None and _hold_lists(rows, references))


def _hold_lists(rows: Sequence[Row], column: str) -> bool:
    """Return whether a column holds lists of answers.

    Lists that are written as text count only in a format without lists, or in a column with a name in the plural:
    elsewhere, an answer in JSON is one answer.
    """
    filled = cells(rows, column)
    is_flat = any(detect_format(Path(str(where).rpartition(":")[0])) in FLAT for where, _ in rows[:1])
    is_parsed = is_flat or column.lower().endswith("s")
    values = [value for value in filled if is_parsed or not isinstance(value, str)]
    return 2 * len(values) > len(filled) and are_lists(values)


def are_lists(values: Sequence[Any]) -> bool:
    """Return whether values are lists or dictionaries, which may be written as text; a fifth may be something else."""
    return bool(values) and _are_mostly([plain_or_given(value) for value in values], list | tuple | Mapping)


def holds_prompts(rows: Sequence[Row], options: ReadingOptions) -> bool:
    """Return whether rows can be nothing but prompts with reference answers.

    That is a column of questions with a usual name, one of references, and nothing else to predict. The references
    are lists of answers; or one answer per row that is neither a class nor a score, in a column that is called a
    reference, or next to a prompt. Other tables with one answer can be passages to find or labels: they need
    ``task_kind``.
    """
    lower = {name.lower(): name for name in column_names(rows)}
    if options.label_column or any(name in lower for name in OTHER_KINDS):
        return False
    question = options.text_column or next((lower[name] for name in PROMPT_NAMES if name in lower), None)
    references = next((lower[name] for name in (*REFERENCE_NAMES, "answer") if name in lower), None)
    if question is None or references is None or references == question:
        return False
    asked, values = cells(rows, question), [plain_or_given(value) for value in cells(rows, references)]
    every = [answer for value in values for answer in _texts(value, strict=False)]
    rest = [name for name in column_names(rows) if name not in (question, references, options.pair_column)]
    if not every or are_classes(every) or are_tags(every) or label_like(rows, rest) or not _are_mostly(asked, str):
        return False
    if _are_mostly(values, list):
        return True
    is_text = _are_mostly(values, str | int) and not are_scores(values)
    return is_text and (question.lower() in ASKING or references.lower() != "answer")


def _are_mostly(values: Sequence[Any], types: Any) -> bool:
    return sum(isinstance(value, types) for value in values) >= (1 - MAX_LEFT_OUT) * len(values)


def _texts(value: Any, strict: bool = True) -> Iterator[str]:
    """Yield the answers in a cell, without blanks around them.

    Raises:
        ValueError: If one is neither a text nor a number, and ``strict`` is set.
    """
    if isinstance(value, Mapping):
        known = [value[key] for key in ALIASES if key in value]
        if strict and value and not known:
            raise ValueError(f"an answer is {value!r:.40}, without one of {', '.join(ALIASES)}")
        yield from chain.from_iterable(_texts(part, strict) for part in known)
    elif isinstance(value, list | tuple):
        yield from chain.from_iterable(_texts(part, strict) for part in value)
    elif isinstance(value, bool):
        yield str(value).lower()
    elif isinstance(value, str | int | float) and not is_missing(value):
        yield str(int(value) if isinstance(value, float) and value.is_integer() else value).strip()
    elif strict and not is_missing(value):
        raise ValueError(f"an answer is {value!r:.40}, not a text")


def read_prompts(tables: Mapping[str, Table], name: str, options: ReadingOptions, path: Path | None) -> GenerationTask:
    """Read a task of generation from tables; missing splits are drawn from train.

    References are a text or a list of texts; numbers are texts. Rows without a question or a reference are left out
    and counted. A dev or test split in which no row has a reference is not used.

    Raises:
        UserError: If the columns are not clear, or too many rows cannot be used.
    """
    rows = {split: list(tables[split].rows) if split in tables else [] for split in SPLITS}
    names = column_names(rows["train"])
    for column in (options.text_column, options.pair_column, options.label_column):
        if column is not None and column not in names:
            raise unknown_name_error(f"column of the task '{name}'", column, names)
    columns = find_columns(rows["train"], options)
    if columns is None or columns.references is None:
        raise UserError(
            f"{rows['train'][0][0]}: generation needs a column of questions ({', '.join(MORE_PROMPTS[:3])} ...) and "
            f"one of answers ({', '.join(MORE_REFERENCES[:3])} ...). The columns are: {', '.join(names)}; name those "
            "of question, context and answers with --text-column, --pair-column and --label-column."
        )
    used = (columns.question, columns.context, columns.references)
    parts = {"question": columns.question, "context": columns.context, "references": columns.references}
    report_kind(name, "generation", {part: column for part, column in parts.items() if column})
    rows = {split: edit_rows(found, used, options) for split, found in rows.items()}
    for split in ("dev", "test"):
        if rows[split] and not cells(rows[split], columns.references):
            warn_once(f"The {split} split of '{name}' is not used: its answers are hidden.")
            rows[split] = []
    grouping = find_prompt_groups(name, rows, options, columns)
    report_unused(name, chain(*rows.values()), (*used, *grouping.columns))
    left = start_left_out(tables, name, options)
    splits = {split: left.read(split, found, partial(_read_row, columns, grouping)) for split, found in rows.items()}
    left.report(splits)
    if not splits["train"]:
        raise UserError(f"The task '{name}' has no train rows.")
    return GenerationTask.divided(name, splits, options.split_seed, group_name=grouping.name, path=path)


def find_prompt_groups(
    name: str, rows: Mapping[str, Sequence[Row]], options: ReadingOptions, columns: Columns
) -> Grouping:
    """Return where rows have their group; their context is one, if there is no other."""
    last = Grouping(columns.context, "context") if columns.context else None
    taken = (columns.question, columns.context, columns.references)
    return find_grouping(name, rows, options.group_column, taken, last=last)


def _read_row(columns: Columns, grouping: Grouping | None, row: Row) -> Prompted:
    """Return the question of a row; without a grouping its references may be missing.

    Raises:
        RowError: If it cannot be used.
    """
    where, values = row
    question = check_text(where, values.get(columns.question), "question").strip()
    context = values.get(columns.context or "")
    context = "" if is_missing(context) else check_text(where, context, "context").strip()
    references = _read_references(where, values.get(columns.references or ""), columns.listed)
    if grouping is None:
        return Prompted(question, references, context)
    if not references:
        raise RowError(where, "without an answer", f"'{columns.references}' is empty")
    return Prompted(question, references, context, group=grouping.of(values), row=short_place(where))


def _read_references(where: str, value: Any, listed: bool) -> tuple[str, ...]:
    """Return the distinct references in a cell.

    Raises:
        RowError: If they cannot be read.
    """
    try:
        found = [*_texts(plain_value(where, value) if listed or not isinstance(value, str) else value)]
    except ValueError as error:
        raise RowError(where, "whose answers cannot be read", str(error)) from error
    check_characters(where, *found)
    return tuple(dict.fromkeys(filter(None, found)))


def read_unanswered(rows: Sequence[Row], options: ReadingOptions) -> tuple[list[Prompted | None], Columns]:
    """Return the question of each row with its references, if any, for a prediction; None for a row without one.

    Raises:
        UserError: If the columns are not clear.
    """
    columns = find_columns(rows, options, True)
    if columns is None:
        raise UserError(
            f"No column of questions; name it with --text-column. The columns are: {', '.join(column_names(rows))}."
        )
    rows = edit_rows(list(rows), (columns.question, columns.context, columns.references), options)
    found: list[Prompted | None] = []
    for row in rows:
        made = LeftOut("").read("", [row], partial(_read_row, columns, None))
        found.append(made[0] if made else None)
    return found, columns
