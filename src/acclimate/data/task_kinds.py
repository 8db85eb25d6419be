"""The kinds of labelled tasks, and reading a task of any kind.

The kinds themselves are in :mod:`acclimate.tasks`; methods of adaptation read the texts of their train splits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

from acclimate.base.errors import UserError, warn_once
from acclimate.base.options import build
from acclimate.base.registry import Registry
from acclimate.data.editing import count_placeholders, describe_masked
from acclimate.data.reading import (
    DEFAULT_READING,
    EDITS,
    ReadingOptions,
    check_task_folder,
    default_task_name,
    find_task,
    join_names,
    reading_names,
)
from acclimate.data.rows import join_columns
from acclimate.data.sources import is_hub_name, load_hub, parse_hub_name


class TaskKind(ABC):
    """A kind of end task: how its folder is read, which texts it contains, and which model learns it.

    A task names its kind in ``task_kind``. The metrics of a kind, its name on the Hugging Face Hub and what a
    collapsed model looks like belong to its :class:`acclimate.evaluation.scoring.Scoring`.
    """

    name: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    fallback: ClassVar[bool] = False
    """Whether it reads tables that no other kind claims."""
    own_training: ClassVar[bool] = False
    """Whether its learner trains the model itself; such a model can also be evaluated as it is, with no epochs."""
    zero_shot: ClassVar[bool] = False
    """Whether zero-shot evaluation is supported, with no epochs."""
    low_rank: ClassVar[bool] = False
    """Whether its learner can train a low-rank adapter instead of the weights."""
    fixed_texts: ClassVar[bool] = False
    """Whether answers are positions in texts, which therefore stay as they are."""
    distillation: ClassVar[tuple[str, ...]] = ()
    """Distillation losses for a student, the default first: ``"boundary"``, ``"kl"``, both or nothing.

    Boundaries belong to a representation of the whole text, which the head must read.
    """

    def matches(self, folder: Path) -> bool:
        """Return whether a folder has the file format of this kind."""
        return False

    def matches_source(self, source: Any) -> bool:
        """Return whether a file or an object has the format of this kind."""
        return False

    def read(self, folder: Path, name: str) -> Any:
        """Read a folder that :meth:`matches`; raise a UserError that names the row if one cannot be used."""
        return self.read_source(folder, name, DEFAULT_READING)

    def read_source(self, source: Any, name: str, options: ReadingOptions) -> Any:
        """Read a source that has the format of this kind, with options of how to read it.

        Raises:
            UserError: If that is not possible, as for kinds whose columns have fixed names.
        """
        raise UserError(f"The task '{name}' is of the kind '{self.name}', whose columns cannot be named.")

    def matches_table(self, rows: Sequence[tuple[str, dict[str, Any]]], options: ReadingOptions) -> bool:
        """Return whether the train rows of a table are of this kind; they are read by :meth:`read_tables`.

        Args:
            rows: The location of each row and its values by column, with the names of the file.
            options: The columns that the user named.
        """
        return False

    def open_tables(self, source: Any, name: str, options: ReadingOptions) -> Any:
        """Return the tables of a source by split, as they are; only the kind with ``fallback`` does."""
        raise NotImplementedError

    def read_tables(self, tables: Any, name: str, options: ReadingOptions, path: Path | None) -> Any:
        """Read a task from tables, whatever their form was.

        Args:
            tables: Tables by split (:class:`acclimate.tasks.sources.Table`).
            name: Name of the task.
            options: The columns that the user named, and the seed of drawn splits.
            path: Path of the task, if it is a file or folder.

        Raises:
            UserError: If a row cannot be used, or the kind is not read from tables.
        """
        raise UserError(f"'{name}' is a table, which cannot be read as a task of the kind '{self.name}'.")

    def configured(self, task: Any, given: Mapping[str, Any]) -> Any:
        """Return a task with what options of ``finetune`` add to it, such as a metric; usually the task itself."""
        return task

    def shrink(self, task: Any) -> Any:
        """Return a task without what its splits do not need, for timing; usually the task itself."""
        return task

    def read_items(self, task: Any, given: Mapping[str, Any]) -> tuple[int, int]:
        """Return how many texts are read per evaluated item, and per evaluation in addition, such as documents.

        Args:
            task: The task.
            given: Options of ``finetune``.
        """
        return 1, 0

    def sentence_pairs(self, task: Any) -> Any:
        """Return the pairs of a task that measure sentence embeddings, none of which was trained on.

        Returns:
            :class:`acclimate.evaluation.embeddings.SentencePairs`, or None for kinds that have none.
        """
        return None

    def read_general(self, folder: Path, name: str) -> Any:
        """Return pairs as :meth:`sentence_pairs` does, of a folder of several tasks of this kind; None for another."""
        return None

    def is_model_of(self, path: str | Path, task: Any) -> bool:
        """Return whether a checkpoint already is a model of a task, which a distillation uses unchanged."""
        return False

    def probe(self, task: Any) -> Any:
        """Return how a task is learned from the states of whole texts (:class:`acclimate.tasks.probing.Probe`).

        Raises:
            UserError: If tasks of this kind are not.
        """
        raise UserError(
            f"The task '{task.name}' is of the kind '{self.name}', which cannot be learned from one state per text; "
            "there is no probe, so fine-tune on it."
        )

    def texts(self, example: Any) -> Iterable[str | None]:
        """Return the texts of an example that a language model can learn from."""
        return example.texts

    def searched(self, example: Any) -> Iterable[str | None]:
        """Return the texts of an example that are searched for in a corpus: if it has them, that is contamination."""
        return self.texts(example)

    def item_text(self, example: Any) -> str:
        """Return the text that identifies an example: if it is also in another split, that is contamination."""
        return example.item_text

    @abstractmethod
    def answer(self, example: Any, task: Any) -> str:
        """Return the expected answer to an example in words."""

    def strata(self, examples: Sequence[Any]) -> Sequence[Sequence[Any]]:
        """Return the classes of each example, which keep their shares when a split is cut; empty for none."""
        return examples[0].strata(examples) if examples else []

    def contrastive_learner(self, model: str | Path, task: Any, options: Any, device: Any) -> Any:
        """Load a checkpoint as a sentence encoder that learns pairs of examples; raise a UserError if it cannot."""
        raise UserError(f"'contrastive' is for classification, and '{task.name}' is {self.name}; remove it.")

    def reads(self, path: str | Path, config: Any, kind: str) -> bool:
        """Return whether a checkpoint is a trained model of this kind.

        Args:
            path: A model folder or a name on the Hugging Face Hub.
            config: Its configuration.
            kind: Name of the scoring of the task that it was fine-tuned on here; empty if that is not known.
        """
        return False

    def unlabelled_rows(self, source: Any, options: ReadingOptions) -> list[tuple[str, dict[str, Any]]] | None:
        """Return the rows of a source in a format that only this kind has; None for every other source."""
        return None

    def predictor(self, path: str | Path, max_length: int, device: Any) -> Any:
        """Load a checkpoint that it :meth:`reads`; return a :class:`acclimate.tasks.interfaces.Predictor`."""
        raise NotImplementedError

    def learner_for(self, given: Any) -> Callable[..., Any]:
        """Return what loads the model of a task as options of ``finetune`` want it; with the arguments of learner."""
        return self.contrastive_learner if given.contrastive else self.learner

    @abstractmethod
    def learner(self, model: str | Path, task: Any, options: Any, device: Any) -> Any:
        """Load a checkpoint as a model for the task; return a :class:`acclimate.tasks.interfaces.Learner`.

        New weights are initialized from torch's global generator.
        """


TASK_KINDS: Registry[TaskKind] = Registry("acclimate.tasks", "kind of task", "kinds of tasks")
"""All kinds of end tasks, registered by name in ``acclimate.tasks`` and in entry points of other packages."""


def find_task_kind(task: Any) -> TaskKind:
    """Return the kind of a loaded task.

    Raises:
        UserError: If there is no such kind.
    """
    return TASK_KINDS.lookup(task.task_kind)()


def load_task(
    source: Any,
    *,
    name: str | None = None,
    text_column: str | Sequence[str] | None = None,
    pair_column: str | None = None,
    label_column: str | None = None,
    group_column: str | Sequence[str] | None = None,
    split_seed: int = 0,
    encoding: str | None = None,
    task_kind: str | None = None,
    passages: str | Path | None = None,
    strict: bool = False,
    merge_labels: bool = False,
    clean: str | Sequence[str] = (),
    mask_personal: bool = False,
) -> Any:
    """Read a task: a folder with ``train``, ``test`` and optionally ``dev``, a file, a dataset of the Hub, an object.

    A file is read as the train split, from which test and dev are drawn: 20% and 10% of the rows, every class in
    proportion, and rows with the same text or of the same document in one split. The same is done with a folder that
    has only a train split; where there is a dev split, only test is drawn. A dataset of the Hub is ``hf:NAME``,
    ``hf:NAME:CONFIG`` or ``hf:NAME:CONFIG:SPLIT``. An object is a ``Dataset``, a data frame, a list of rows, or any of
    these by split (``DatasetDict``). Of a file, ``reviews.csv:body`` names the column of the text.

    Columns that are not named are those called ``text``, ``text_pair`` and ``label``; else those with another usual
    name, such as ``review`` or ``sentiment``, which is reported.

    Rows of one group, such as a document, a patient or an author, are not independent: they stay in one split that is
    drawn, and are resampled together. The group is in ``group_column``; else in a column with a name that is certain,
    such as ``document`` or ``patient_id``, or in ids of sentences. Else the group of a question is its article or
    passage, of multiple choice the context, of a query the relevant passage. See :mod:`acclimate.tasks.groups`.

    A classification task: each split is a ``.jsonl``, ``.json``, ``.csv``, ``.tsv`` (also compressed), ``.parquet`` or
    ``.arrow`` file with the columns ``text``, ``label`` and, for pairs, ``text_pair``; other columns are ignored. The
    same rows give the same task in every format. ``dev`` may also be called ``validation``, ``valid`` or ``val``. A
    label is a string, an integer or a boolean, or a number of which ``datasets`` has stored the name. In a task of
    pairs, every row has both texts; only the second may be empty. A folder that ``datasets`` has saved is a task, too.

    A multi-label task: every label is a list, which may be empty; duplicates in a list count once. In CSV, lists are
    written as JSON or as Python prints them. Lists of the same length that hold only 0 and 1 are vectors with a place
    per class; if each has exactly one 1, the task has one class per row. If every row of a split has a ``document``,
    or an ``id`` that ends in ``_s`` and the number of a sentence, that split is also scored per document.

    A regression task: the same, with numbers as labels, of which at least one has a fraction (``3.5``). Whole numbers
    are classes unless ``task_kind`` is ``"regression"``.

    A question answering task: files in the format of SQuAD v1.1, or rows in any form with its columns; splits are
    drawn by passage. See :func:`acclimate.tasks.kinds.qa.data.load_qa`.

    The other kinds, of entities, multiple choice and retrieval: see :mod:`acclimate.tasks.kinds.entities.formats`,
    :mod:`acclimate.tasks.kinds.choice.data` and :mod:`acclimate.tasks.kinds.retrieval.data`.

    Args:
        source: The task.
        name: Name of the task; by default the name of the folder or file.
        text_column: Column of the text; several, as in ``"subject,body"``, are joined.
        pair_column: Column of the second text of a pair.
        label_column: Column of the label.
        group_column: Column of the group, or several names of which the first is used that exists.
        split_seed: Random seed of splits that are drawn.
        encoding: Encoding of CSV and TSV files that are not UTF-8.
        task_kind: Name of the kind; by default the files and columns show it.
        passages: Table of passages with id and text, for rows that name the passage of a query by its id.
        strict: Whether a row that cannot be used is an error. By default such rows are left out and counted, up to
            a fifth of a split.
        merge_labels: Whether labels that differ only in case, blanks or Unicode form, or by a typo, are one class.
        clean: What is removed from each text, see :class:`acclimate.data.editing.TextEdits`.
        mask_personal: Whether personal data are replaced by placeholders.

    Returns:
        A task of its kind, such as :class:`acclimate.tasks.kinds.classification.data.Task` or
        :class:`acclimate.tasks.kinds.qa.data.QATask`.

    Raises:
        UserError: If the folder or a file is missing, too many rows cannot be used, or the labels cannot be learned.
    """
    options = build(
        ReadingOptions,
        text_column=join_names(text_column),
        pair_column=pair_column,
        label_column=label_column,
        group_column=join_names(group_column),
        split_seed=split_seed,
        encoding=encoding,
        task_kind=task_kind,
        passages=passages,
        strict=strict,
        merge_labels=merge_labels,
        clean=clean,
        mask_personal=mask_personal,
    )
    task = _read_task(source, name, options)
    if is_hub_name(source):
        task = replace(task, reading={**task.reading, "source": source})
    if merge_labels and not hasattr(task, "multi_label"):
        raise UserError(f"The task '{task.name}' is {task.task_kind}, so 'merge_labels' does not apply; remove it.")
    for line in task.describe_groups(find_task_kind(task).texts):
        warn_once(line)
    return task


READ_ALIKE = ("text_column", "pair_column", *EDITS)
"""Options that a prediction takes from the task that its model has learned."""


def _with_reading(task: Any, options: ReadingOptions) -> Any:
    """Return a task with the options that later texts are read with; report the personal data that are masked."""
    given = {name: getattr(options, name) for name in READ_ALIKE}
    reading: dict[str, Any] = {name: value for name, value in given.items() if value not in (None, (), False)}
    if options.mask_personal:
        counts: dict[str, int] = {}
        for text in chain.from_iterable(task_texts(task, split) for split in ("train", "dev", "test")):
            count_placeholders(text, counts)
        reading["masked"] = counts
        warn_once(f"Personal data masked in the task '{task.name}': {describe_masked(counts)}.")
    return replace(task, reading=reading) if reading else task


def open_source(source: Any) -> tuple[Any, str | None]:
    """Return where rows are read from, and the column of the text if it follows after a colon.

    Args:
        source: A file or folder, a dataset of the Hub, which is loaded, or an object, which is returned as it is.

    Raises:
        UserError: If there is no such file, folder or dataset.
    """
    if is_hub_name(source):
        return load_hub(source), parse_hub_name(source)[3]
    if not isinstance(source, str | Path):
        return source, None
    path, column = find_task(source)
    if not path.is_file():
        check_task_folder(path)
    return path, column


def _read_task(source: Any, name: str | None, options: ReadingOptions) -> Any:
    every = [TASK_KINDS.lookup(kind)() for kind in TASK_KINDS.names()]
    fallback = next(kind for kind in every if kind.fallback)
    if options.passages is not None and options.task_kind not in (None, "retrieval"):
        raise UserError(f"'passages' is for retrieval, not for {options.task_kind}; remove it.")
    only = options.task_kind or ("retrieval" if options.passages is not None else None)
    kinds = [TASK_KINDS.lookup(only)()] if only else [kind for kind in every if not kind.fallback]
    kinds.sort(key=lambda kind: not kind.fixed_texts)  # positions in a text can be nothing else, whatever the names
    given, (source, column) = source, open_source(source)
    options = replace(options, text_column=column) if column else options
    path = source if isinstance(source, Path) else None
    if path is not None or is_hub_name(given):
        name = name or default_task_name(given if path is None else path.resolve())
    name = name or "task"
    is_folder = path is not None and path.is_dir()
    if own := next((kind for kind in kinds if (kind.matches if is_folder else kind.matches_source)(source)), None):
        check_fixed_texts(own, name, options.edits)
        has_options = replace(options, task_kind=None) != DEFAULT_READING
        task = own.read_source(source, name, options) if has_options or not is_folder else own.read(source, name)
        return _with_reading(task, options)
    tables = fallback.open_tables(source, name, options)
    joined = {split: replace(table, rows=join_columns(table.rows, options)) for split, table in tables.items()}
    found = next((kind for kind in kinds if only or kind.matches_table(joined["train"].rows, options)), fallback)
    check_fixed_texts(found, name, options.edits or joined["train"].rows is not tables["train"].rows)
    return _with_reading(found.read_tables(joined, name, options, path), options)


def check_fixed_texts(kind: TaskKind, name: str, edited: Any) -> None:
    """Check that texts in which answers are positions are not edited or joined.

    Raises:
        UserError: If they are.
    """
    if kind.fixed_texts and edited:
        raise UserError(
            f"The answers of '{name}' are positions in its texts, so these stay as they are: remove 'clean' and "
            "'mask_personal', and name one text column. Edit texts before they are annotated."
        )


def open_task(task: Any, options: Any = None, **columns: Any) -> Any:
    """Return a loaded task or None as it is; read any other.

    Args:
        task: The task as the user gave it.
        options: Options of a verb, of which the columns are read that it has, and the seed of drawn splits.
        columns: Columns that replace the columns of the options.

    Raises:
        UserError: If the task cannot be read, or an option says how to read a task that is not read.
    """
    named = {name: getattr(options, name) for name in reading_names() if hasattr(options, name)}
    if task is not None and not hasattr(task, "task_kind"):
        return load_task(task, **(named | columns))
    for name, value in named.items():
        if (
            name not in columns
            and (name not in ("encoding", *EDITS) or not hasattr(options, "corpus"))
            and value != getattr(DEFAULT_READING, name)
        ):
            state = "there is no task" if task is None else "the task is loaded already"
            raise UserError(f"'{name}' says how to read a task, but {state}; remove it.")
    return task


def task_texts(task: Any, split: str = "train") -> list[str]:
    """Return the distinct texts of a split of a task, in the order of the file, without empty ones.

    The two texts of a pair are separate documents, and so are a question and its passage: only the end task joins
    them. The default is train alone, so that a model that has read the texts can still be evaluated on the others.
    """
    return _distinct(find_task_kind(task).texts, task, split)


def searched_texts(task: Any, split: str) -> list[str]:
    """Return the distinct texts of a split that show, where a corpus has one, that the split is contaminated."""
    return _distinct(find_task_kind(task).searched, task, split)


def _distinct(read: Callable[[Any], Iterable[str | None]], task: Any, split: str) -> list[str]:
    texts = (text for example in getattr(task, split, ()) for text in read(example))
    return list(dict.fromkeys(text for text in texts if text and text.strip()))
