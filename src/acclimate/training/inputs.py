"""The text that an adaptation reads, the kinds of tasks, the training budget, the adapter, and checks of options.

The text is domain text, or that of the train split of a labelled task.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar

from acclimate.corpus import Corpus, TokenDataset
from acclimate.errors import UserError
from acclimate.models import LanguageModel, longest_text
from acclimate.models.lora import PROBE_TEXTS, AdapterSettings, LowRankAdapter, check_adapter
from acclimate.modules import add_virtual_tokens, virtual_ids
from acclimate.options.training import BUDGETS, AdaptOptions, TrainingOptions
from acclimate.progress import print_message
from acclimate.registry import Registry
from acclimate.training.method import Method
from acclimate.updates import UpdateRule

TextInput = str | Path | Iterable[str | Path] | Corpus
TASK_EPOCHS = 100
"""Default number of passes over the text of a task (Gururangan et al., ACL 2020, and the TAPTER paper)."""
ADAPTER_RATE = 10
"""Default learning rate of an adapter in multiples of that of all weights (Schulman et al., "LoRA without regret",
2025: about ten, whatever the model and the rank)."""


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

    @abstractmethod
    def read(self, folder: Path, name: str) -> Any:
        """Read a task; raise a UserError that names the row if one cannot be used."""

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


def load_task(path: str | Path, *, name: str | None = None) -> Any:
    """Read a task folder with ``train``, ``test`` and optionally ``dev``.

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

    A question answering task: ``train.json``, ``test.json`` and optionally ``dev.json`` (or ``.json.gz``) in the
    format of SQuAD v1.1, or tables with its columns; see :func:`acclimate.tasks.qa.load_qa`.

    Args:
        path: The folder.
        name: Name of the task; by default the name of the folder.

    Returns:
        A :class:`acclimate.tasks.Task` or :class:`acclimate.tasks.qa.QATask`.

    Raises:
        UserError: If the folder or a file is missing, a row is invalid, or the labels cannot be learned.
    """
    path = Path(path)
    check_task_folder(path)
    kinds = sorted((TASK_KINDS.lookup(kind)() for kind in TASK_KINDS.names()), key=lambda kind: kind.fallback)
    kind = next(kind for kind in kinds if kind.matches(path))
    return kind.read(path, name or path.resolve().name)


def check_task_folder(path: Path) -> None:
    """Check that a task folder exists.

    Raises:
        UserError: If it does not; the message suggests the closest name.
    """
    if path.is_dir():
        return
    expected = "a task is a folder with train, test and optionally dev as .jsonl, .csv, .tsv or .parquet"
    if path.exists():
        raise UserError(f"'{path}' is a file, but {expected}.")
    siblings = [entry.name for entry in path.parent.iterdir() if entry.is_dir()] if path.parent.is_dir() else []
    close = get_close_matches(path.name, siblings, n=1, cutoff=0.5)
    hint = f" Did you mean '{path.parent / close[0]}'?" if close else f" Note that {expected}."
    raise UserError(f"There is no task folder '{path}'.{hint}")


def as_corpus(text: TextInput, text_column: str = "text") -> Corpus:
    """Return a corpus: the given one, or one of the given files."""
    return text if isinstance(text, Corpus) else Corpus(text, text_column=text_column)  # type: ignore[arg-type]


def open_task(task: Any) -> Any:
    """Return a task as it is, or read it from its folder."""
    return load_task(task) if isinstance(task, str | Path) else task


def task_texts(task: Any, split: str = "train") -> list[str]:
    """Return the distinct texts of a split of a task, in the order of the file, without empty ones."""
    kind = find_task_kind(task)
    texts = (text for example in getattr(task, split, ()) for text in kind.texts(example))
    return list(dict.fromkeys(text for text in texts if text and text.strip()))


def task_corpus(task: Any) -> Corpus:
    """Return the texts of the train split of a task, never those of dev or test."""
    return Corpus.of(task_texts(task))


def resolve_texts(method: Method, corpus: TextInput | None, task: Any, text_column: str) -> dict[str, Corpus]:
    """Return the ``"domain"`` text and the ``"task"`` text that a method reads; most methods read one of them.

    Args:
        method: The method.
        corpus: Text that the user gave, or None.
        task: A loaded task, or None.
        text_column: Column that holds the text in tables and JSON lines.

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
        texts["domain"] = as_corpus(corpus, text_column)
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


def resolve_adapter(options: AdaptOptions, method: Method) -> AdapterSettings | None:
    """Return the settings of the adapter, or None if the weights themselves train.

    Raises:
        UserError: If the method cannot train an adapter, a setting is wrong, or a package is missing.
    """
    if options.adapter is None:
        return None
    if method.without_adapter:
        raise UserError(
            f"Method '{method.name}' does not work with an adapter, since {method.without_adapter}. Remove 'adapter', "
            "or use another method, such as lm."
        )
    return check_adapter(options.adapter, options.adapter_settings, options.quantize)


def choose_learning_rate(options: AdaptOptions, method: Method) -> float:
    """Return the peak learning rate: the user's, or the method's, or for an adapter a multiple of the method's."""
    if options.learning_rate is not None or options.adapter is None:
        return method.learning_rate if options.learning_rate is None else options.learning_rate
    rate = ADAPTER_RATE * method.learning_rate
    print_message(
        f"Learning rate {rate:g}: {ADAPTER_RATE} times that of the method, since only an adapter trains.",
        enabled=options.progress,
    )
    return rate


def add_adapter(
    options: AdaptOptions,
    settings: AdapterSettings | None,
    loaded: LanguageModel,
    rows: TokenDataset,
    rule: UpdateRule | None,
) -> UpdateRule | None:
    """Add the adapter that the options ask for to a model, as ``loaded.adapter``.

    Args:
        options: Options of the run.
        settings: From :func:`resolve_adapter`; None for no adapter.
        loaded: The model, to which the method has added what it needs.
        rows: The training text; the exported model is compared with the trained one on the first of it.
        rule: The update rule of the method.

    Returns:
        The update rule that remains: none, if it scales the change of the weights, which the adapter then does.

    Raises:
        UserError: If the adapter does not fit the model or the method.
    """
    if settings is None or options.adapter is None:
        return rule
    probe = [rows[number] for number in range(min(PROBE_TEXTS, len(rows)))]
    source = loaded.model.name_or_path if options.quantize else None
    loaded.adapter = LowRankAdapter(
        loaded.model, options.adapter, settings, seed=options.seed, probe=probe, source=source
    )
    print_message(loaded.adapter.describe(), enabled=options.progress)
    if rule is None or not (factors := rule.delta_factors()):
        return rule
    loaded.adapter.mask(factors)
    return None
