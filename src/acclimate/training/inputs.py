"""The text that an adaptation reads, the kinds of tasks, the training budget, and checks of options.

The text is domain text, or that of the train split of a labelled task.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar

from transformers import PreTrainedModel

from acclimate.corpus import Corpus, TokenDataset
from acclimate.corpus.documents import as_corpus
from acclimate.corpus.sources import is_hub_name, load_hub, parse_hub_name
from acclimate.corpus.tokenizing import EVERY_ROW, Framing
from acclimate.errors import UserError, warn_once
from acclimate.model_kinds import MASKED, ModelKind, kind_of_checkpoint
from acclimate.models import LanguageModel, longest_text
from acclimate.models.checkpoints import load_config
from acclimate.models.encoding import check_packable
from acclimate.modules import add_virtual_tokens, virtual_ids
from acclimate.options.declaration import build
from acclimate.options.reading import DEFAULT_READING, ReadingOptions, default_task_name, reading_names
from acclimate.options.rows import Documents, Layout
from acclimate.options.training import BUDGETS, AdaptOptions, TrainingOptions
from acclimate.registry import Registry
from acclimate.training.method import Method

TextInput = str | Path | Iterable[Any] | Corpus
TASK_EPOCHS = 100
"""Default number of passes over the text of a task (Gururangan et al., ACL 2020, and the TAPTER paper)."""


class TaskKind(ABC):
    """A kind of end task: how its folder is read, which texts it contains, and which model learns it.

    A task names its kind in ``task_kind``. The metrics of a kind, its name on the Hugging Face Hub and what a
    collapsed model looks like belong to its :class:`acclimate.evaluation.scoring.Scoring`.
    """

    name: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    fallback: ClassVar[bool] = False
    """Whether it reads folders that no other kind claims."""

    @abstractmethod
    def matches(self, folder: Path) -> bool:
        """Return whether a folder contains a task of this kind."""

    def matches_source(self, source: Any) -> bool:
        """Return whether a file or an object contains a task of this kind."""
        return False

    @abstractmethod
    def read(self, folder: Path, name: str) -> Any:
        """Read a task; raise a UserError that names the row if one cannot be used."""

    def read_source(self, source: Any, name: str, options: ReadingOptions) -> Any:
        """Read a task that is not a folder, or of which columns are named.

        Raises:
            UserError: If that is not possible, as for kinds that have a file format of their own.
        """
        raise UserError(f"The task '{name}' is of the kind '{self.name}', whose columns cannot be named.")

    @abstractmethod
    def texts(self, example: Any) -> Iterable[str | None]:
        """Return the texts of an example that a language model can learn from."""

    @abstractmethod
    def item_text(self, example: Any) -> str:
        """Return the text that identifies an example: if it is also in another split, that is contamination."""

    @abstractmethod
    def answer(self, example: Any, task: Any) -> str:
        """Return the expected answer to an example in words."""

    @abstractmethod
    def learner(self, model: str | Path, task: Any, options: Any, device: Any) -> Any:
        """Load a checkpoint as a model for the task; return a :class:`acclimate.tasks.kinds.Learner`.

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
    text_column: str | None = None,
    pair_column: str | None = None,
    label_column: str | None = None,
    split_seed: int = 0,
    encoding: str | None = None,
) -> Any:
    """Read a task: a folder with ``train``, ``test`` and optionally ``dev``, a file, a dataset of the Hub, an object.

    A file is read as the train split, from which test and dev are drawn: 20% and 10% of the rows, every class in
    proportion, and rows with the same text or of the same document in one split. The same is done with a folder that
    has only a train split; where there is a dev split, only test is drawn. A dataset of the Hub is ``hf:NAME``,
    ``hf:NAME:CONFIG`` or ``hf:NAME:CONFIG:SPLIT``. An object is a ``Dataset``, a data frame, a list of rows, or any of
    these by split (``DatasetDict``). Of a file, ``reviews.csv:body`` names the column of the text.

    Columns that are not named are those called ``text``, ``text_pair`` and ``label``; else those with another usual
    name, such as ``review`` or ``sentiment``, which is reported.

    A classification task: each split is a ``.jsonl``, ``.json``, ``.csv``, ``.tsv`` (also compressed), ``.parquet`` or
    ``.arrow`` file with the columns ``text``, ``label`` and, for pairs, ``text_pair``; other columns are ignored. The
    same rows give the same task in every format. ``dev`` may also be called ``validation``, ``valid`` or ``val``. A
    label is a string, an integer or a boolean, or a number of which ``datasets`` has stored the name; numbers with a
    fraction are refused. In a task of pairs, every row has both texts; only the second may be empty. A folder that
    ``datasets`` has saved is a task, too.

    A multi-label task: every label is a list, which may be empty; duplicates in a list count once. In CSV, lists are
    written as JSON or as Python prints them. Lists of the same length that hold only 0 and 1 are vectors with a place
    per class; if each has exactly one 1, the task has one class per row. If every row of a
    split has a ``document``, or an ``id`` that ends in ``_s`` and the number of a sentence, that split is also scored
    per document.

    A question answering task: files in the format of SQuAD v1.1, or rows in any form with its columns; splits are
    drawn by passage. See :func:`acclimate.tasks.qa.load_qa`.

    Args:
        source: The task.
        name: Name of the task; by default the name of the folder or file.
        text_column: Column of the text.
        pair_column: Column of the second text of a pair.
        label_column: Column of the label.
        split_seed: Random seed of splits that are drawn.
        encoding: Encoding of CSV and TSV files that are not UTF-8.

    Returns:
        A :class:`acclimate.tasks.Task` or :class:`acclimate.tasks.qa.QATask`.

    Raises:
        UserError: If the folder or a file is missing, a row is invalid, or the labels cannot be learned.
    """
    options = build(
        ReadingOptions,
        text_column=text_column,
        pair_column=pair_column,
        label_column=label_column,
        split_seed=split_seed,
        encoding=encoding,
    )
    kinds = sorted((TASK_KINDS.lookup(kind)() for kind in TASK_KINDS.names()), key=lambda kind: kind.fallback)
    if is_hub_name(source):
        name, column = name or default_task_name(source), parse_hub_name(source)[3]
        options = replace(options, text_column=column) if column else options
        source = load_hub(source)
    if not isinstance(source, str | Path):
        kind = next(kind for kind in kinds if kind.matches_source(source))
        return kind.read_source(source, name or "task", options)
    path, column = find_task(source)
    if column is not None:
        options = replace(options, text_column=column)
    name = name or default_task_name(path.resolve())
    if path.is_file():
        return next(kind for kind in kinds if kind.matches_source(path)).read_source(path, name, options)
    check_task_folder(path)
    kind = next(kind for kind in kinds if kind.matches(path))
    if kind.fallback or options != DEFAULT_READING:
        return kind.read_source(path, name, options)
    return kind.read(path, name)


def find_task(source: str | Path) -> tuple[Path, str | None]:
    """Return the path of a task, and the column of its text if that follows after a colon, as in ``data.csv:body``.

    Raises:
        UserError: If there is no such file or folder; a dataset of the Hub is not looked for.
    """
    path = Path(source).expanduser()
    before, _, column = str(path).rpartition(":")
    if before and column and not path.exists() and Path(before).exists():
        return Path(before), column
    if not is_hub_name(source) and not path.is_file():
        check_task_folder(path)
    return path, None


def check_task_folder(path: Path) -> None:
    """Check that a task folder exists.

    Raises:
        UserError: If it does not; the message suggests the closest name.
    """
    if path.is_dir():
        return
    expected = (
        "a task is a folder with train, test and optionally dev as .jsonl, .csv, .tsv or .parquet, one such file, or "
        "hf:NAME"
    )
    if path.exists():
        raise UserError(f"'{path}' is a file, but {expected}.")
    siblings = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    close = get_close_matches(path.name, siblings, n=1, cutoff=0.5)
    hint = f" Did you mean '{path.parent / close[0]}'?" if close else f" Note that {expected}."
    raise UserError(f"There is no task folder '{path}'.{hint}")


def open_task(task: Any, options: Any = None, **columns: str | None) -> Any:
    """Return a loaded task or None as it is; read any other.

    Args:
        task: What a user gave as a task.
        options: Options of a verb, of which the columns are read that it has, and the seed of drawn splits.
        columns: Columns that replace those of the options.

    Raises:
        UserError: If the task cannot be read, or an option says how to read a task that is not read.
    """
    named = {name: getattr(options, name) for name in reading_names() if hasattr(options, name)}
    if task is not None and not hasattr(task, "task_kind"):
        return load_task(task, **(named | columns))
    for name, value in named.items():
        if (
            name not in columns
            and (name != "encoding" or not hasattr(options, "corpus"))
            and value != getattr(DEFAULT_READING, name)
        ):
            state = "there is no task" if task is None else "the task is loaded already"
            raise UserError(f"'{name}' says how to read a task, but {state}; remove it.")
    return task


def task_texts(task: Any, split: str = "train") -> list[str]:
    """Return the distinct texts of a split of a task, in the order of the file, without empty ones."""
    kind = find_task_kind(task)
    texts = (text for example in getattr(task, split, ()) for text in kind.texts(example))
    return list(dict.fromkeys(text for text in texts if text and text.strip()))


def task_corpus(task: Any) -> Corpus:
    """Return the texts of the train split of a task, never those of dev or test."""
    return Corpus.of(task_texts(task))


def resolve_texts(
    method: Method, corpus: TextInput | None, task: Any, text_column: str, encoding: str | None = None
) -> dict[str, Corpus]:
    """Return the ``"domain"`` text and the ``"task"`` text that a method reads; most methods read one of them.

    Args:
        method: The method.
        corpus: Text that the user gave, or None.
        task: A loaded task, or None.
        text_column: Column that holds the text in tables and JSON lines.
        encoding: Encoding of files that are not UTF-8.

    Raises:
        UserError: If a text or the task is missing, or it is not clear which text is meant.
    """
    name, stages = method.name, method.stages()
    if method.needs_task and task is None:
        raise UserError(f"Method '{name}' needs a labelled task; give its folder with --task.")
    if corpus is None and task is None:
        raise UserError("There is no text to adapt to; give --corpus, or --task to read the train split of a task.")
    if stages and corpus is None:
        raise UserError(f"Method '{name}' also reads domain text; give it with --corpus.")
    if method.reads == "task" and corpus is not None and task is not None:
        raise UserError(
            f"Method '{name}' reads one text: leave out --corpus to read that of the task, or --task to read the "
            "corpus; 'dapt+tapt' reads both, one after the other."
        )
    texts: dict[str, Corpus] = {}
    if corpus is not None:
        texts["domain"] = as_corpus(corpus, text_column, encoding)
    if corpus is None or any(stage.reads == "task" for stage in stages):
        texts["task"] = task_corpus(task)
    return texts


@dataclass
class Budget:
    """How long to train: one of steps, epochs, tokens and minutes."""

    steps: int | None = None
    epochs: float | None = None
    tokens: int | None = None
    max_minutes: float | None = None

    @classmethod
    def of(cls, options: TrainingOptions, default_epochs: float) -> Budget:
        """Return the budget that the options set; ``default_epochs`` epochs if they set none."""
        given = {name: getattr(options, name) for name in BUDGETS}
        return cls(**given) if any(value is not None for value in given.values()) else cls(epochs=default_epochs)

    def resolve(self, rows: TokenDataset, batch_size: int, appended: int = 0) -> int:
        """Return the number of optimizer steps; with a time budget, a number that is too high to be reached.

        Args:
            rows: The training text.
            batch_size: Texts per step.
            appended: Virtual tokens per row (see :mod:`acclimate.modules.virtual_tokens`).
        """
        per_step = batch_size * (rows.tokens / len(rows) - appended)
        if self.steps is not None:
            return self.steps
        if self.tokens is not None:
            return max(1, round(self.tokens / per_step))
        if self.epochs is not None:
            return max(1, math.ceil(self.epochs * len(rows) / batch_size))
        return 10_000_000


def add_method_virtual_tokens(loaded: LanguageModel, method: Method, seed: int) -> int:
    """Add the method's virtual tokens to model and tokenizer; return how many tokens they add to each text."""
    if method.virtual_tokens:
        loaded.tokenizer = add_virtual_tokens(
            loaded.model, loaded.tokenizer, method.virtual_tokens, start=method.virtual_start, seed=seed
        )
    return len(virtual_ids(loaded.tokenizer))


def check_length(loaded: LanguageModel, max_length: int) -> None:
    """Check that the model can read texts of ``max_length`` tokens.

    Raises:
        UserError: If it has fewer positions, or the texts would be shorter than 8 tokens.
    """
    if max_length < 8:
        raise UserError(f"max-length must be at least 8 tokens, not {max_length}.")
    positions = longest_text(loaded.model)
    if positions is not None and max_length > positions:
        raise UserError(f"max-length {max_length} is more than the {positions} positions of this model.")


def with_kind_defaults(options: AdaptOptions, method: Method) -> AdaptOptions:
    """Return options with the defaults for the kind of the model, which is read from its configuration.

    A model that cannot be read gets the defaults of masked models; loading it later reports what is wrong.
    """
    kind, positions = MASKED, None
    if callable(options.model):  # pretrain, which knows the kind, sets all of them
        layout, length = options.layout or kind.layout, options.max_length or kind.max_length
        return replace(options, layout=layout, max_length=length)
    with suppress(UserError):
        config = load_config(options.model)
        kind = kind_of_checkpoint(config.architectures, options.model)
        positions = getattr(config, "max_position_embeddings", None)
    found = default_rows(options, kind, positions, kind.max_length, method.virtual_tokens)
    return replace(options, **found)


def default_rows(
    options: TrainingOptions, kind: ModelKind, positions: int | None, max_length: int, virtual: int = 0
) -> dict[str, Any]:
    """Return ``layout``, ``max_length`` and ``documents`` as given, or the defaults of a kind of model.

    Args:
        options: The options as given.
        kind: The kind of the model.
        positions: Maximum tokens per text of the model, if known. It limits the default for causal models only;
            for others a longer default is an error.
        max_length: The default maximum tokens per text.
        virtual: Number of virtual tokens that the method adds to each text.

    Raises:
        UserError: If documents cannot be joined for this kind of model.
    """
    if options.documents == "joined" and not kind.frames_documents:
        raise UserError(
            f"Documents cannot be joined for a {kind.name} language model, which reads each text by itself; remove "
            "documents=joined."
        )
    if kind.frames_documents and positions is not None:
        max_length = min(max_length, positions - virtual)
    return {
        "layout": options.layout or kind.layout,
        "max_length": options.max_length or max_length,
        "documents": (options.documents or "apart") if kind.frames_documents else None,
    }


def usable_layout(model: PreTrainedModel, layout: Layout, given: Layout | None) -> Layout:
    """Return the layout, or ``"padded"`` if packing is only the default and the model cannot separate texts.

    Raises:
        UserError: If the user asked for packing, and the model cannot separate texts.
    """
    if layout == "packed":
        try:
            check_packable(model)
        except UserError as error:
            if given is not None:
                raise
            warn_once(f"{str(error).removesuffix(': use layout=padded.')}; each text has a row by itself.")
            return "padded"
    return layout


def document_framing(loaded: LanguageModel, documents: Documents | None) -> Framing:
    """Return where special tokens are added to the documents that a model reads.

    The end token is that of the tokenizer; a tokenizer without one gets that of the generation configuration or of the
    model, or the first if these name several.

    Raises:
        UserError: If documents are joined, and nothing would separate them.
    """
    if not loaded.kind.frames_documents:
        return EVERY_ROW
    settings = (getattr(loaded.model, "generation_config", None), loaded.model.config)
    named = [getattr(one, "eos_token_id", None) for one in settings]
    stops = next(([found] if isinstance(found, int) else list(found) for found in named if found is not None), [])
    own = loaded.tokenizer.eos_token_id
    end = own if isinstance(own, int) else next(iter(stops), None)
    remedy = "set eos_token in tokenizer_config.json to the token that ends a text"
    if end is None and documents == "joined":
        raise UserError(f"The tokenizer has no end token, so joined documents could not be separated; {remedy}.")
    if end is None:
        warn_once(f"The tokenizer has no end token, so the model will not learn where a document ends; {remedy}.")
    elif stops and end not in stops:
        warn_once(
            f"Each document ends with the token {end} of the tokenizer, but the model stops generating at "
            f"{', '.join(map(str, stops))}: correct eos_token_id in generation_config.json."
        )
    return Framing(documents or "apart", end)
