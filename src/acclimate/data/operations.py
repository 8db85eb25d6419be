"""Operations on a corpus: documents to documents, with a report of their input and output.

A selection keeps some of the documents, a transform makes new ones of them. A new operation needs one file with
``@SELECTIONS.register`` or ``@TRANSFORMS.register``: every module of ``acclimate.data.select`` and
``acclimate.data.transform`` is imported when its registry is first read, and so is every entry point of the groups
``acclimate.selections`` and ``acclimate.transforms`` of other packages.

Documents are copied to a temporary file once and then read by position, so that memory does not grow with the text.
The result of a chain of operations is a file of the cache that is named by the text and the operations.
"""

from __future__ import annotations

import json
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from acclimate.base.errors import UserError
from acclimate.base.files import atomic_file, cache_folder, check_output_name, write_json
from acclimate.base.records import Record, fingerprint, read_record, texts_fingerprint
from acclimate.base.registry import Part, Registry, build_dataclass, plain_value
from acclimate.data.documents import Corpus, format_count
from acclimate.data.pool import Document, Documents, count_words
from acclimate.data.sources import FileSource
from acclimate.data.writers import WriterOptions, identify_writer
from acclimate.models.checkpoints import model_fingerprint
from acclimate.results.adaptations import OperationAccount

VERSION = 1  # increment when the same operations give different documents
EXAMPLES, EXAMPLE_CHARACTERS = 3, 200
"""Number of documents that an account quotes, kept and dropped, and their maximum length."""


@dataclass(frozen=True)
class Context:
    """Texts that operations compare documents with, and functions that load models.

    Attributes:
        target: Texts of the end task, never of its dev and test splits; None if there is no task.
        general: General text; None if there is none.
        count: Returns the number of tokens of each of several texts.
        counted_by: Unit that ``count`` counts, part of the identity of results.
        load_encoder: Returns the function that embeds texts (texts, dimensions), from the name of a model.
        load_model: Returns the function that gives the loss of each of several texts, in nats per token.
        progress: Whether to show progress bars.
        evaluated: Dev and test texts of the end task, which a text that is written must not match.
        notes: Values that the operation adds to its report, by name.
    """

    target: Sequence[str] | None = None
    general: Corpus | None = None
    count: Callable[[Sequence[str]], Sequence[int]] = count_words
    counted_by: str = "words"
    load_encoder: Callable[[str], Callable[[Sequence[str]], np.ndarray]] | None = None
    load_model: Callable[[str], Callable[[Sequence[str]], Sequence[float]]] | None = None
    progress: bool = False
    evaluated: Sequence[str] = ()
    notes: dict[str, Any] = field(default_factory=dict)

    def identity(self, reads: Iterable[str]) -> dict[str, Any]:
        """Return everything that determines the result of an operation, given what the operation reads."""
        content: dict[str, Any] = {"tokens": self.counted_by}
        if "target" in reads and self.target is not None:
            content["target"] = texts_fingerprint(self.target)
        if "general" in reads and self.general is not None:
            content["general"] = self.general.fingerprint
        if "evaluated" in reads and self.evaluated:
            content["evaluated"] = texts_fingerprint(self.evaluated)
        return content


@dataclass(frozen=True)
class Operation(Part, ABC):
    """A registered operation; subclasses are frozen dataclasses whose fields are the parameters."""

    kind: ClassVar[str] = "selection"
    functions: ClassVar[tuple[str, ...]] = ()
    """Parameters that are writers, see :mod:`acclimate.data.writers`. The identity depends on the model or on the code
    of a function; if there is a parameter ``key`` and it is given, on that."""
    models: ClassVar[tuple[str, ...]] = ()
    """Parameters that name models: folders, or names on the Hugging Face Hub."""
    stays_in_control: ClassVar[bool] = False
    """Whether a control has the operation as well, as the removal of duplicates; the others are replaced by chance."""

    @property
    def reads(self) -> tuple[str, ...]:
        """Texts that the operation reads, too: ``"target"`` and ``"general"`` it needs, ``"evaluated"`` if given."""
        return ()

    @abstractmethod
    def apply(self, documents: Documents, context: Context) -> Documents | Iterable[str | Document]:
        """Return the documents of the result.

        Args:
            documents: The documents, which may be read several times.
            context: Texts to compare with; ``context.notes`` takes values for the report, and of new
                documents examples of what was ``dropped``.

        Returns:
            Some of the documents (:meth:`Documents.take`), or new ones, which may have further fields.
        """

    def identity(self) -> dict[str, Any]:
        """Return everything that determines the operation; models and functions of the user by their content, too."""
        found = super().identity()
        found |= {name: model_fingerprint(found[name]) for name in self.models if found[name] is not None}
        used = {name: found[name] for name in self.functions if found[name] is not None}
        found |= {name: identify_writer(one, name, found.get("key")) for name, one in used.items()}
        if isinstance(self, WriterOptions):
            found = {name: value for name, value in found.items() if name not in self.unidentified}
        return found if self.kind == Operation.kind else {**found, "kind": self.kind}


@dataclass(frozen=True)
class Transform(Operation):
    """A registered operation that makes new documents of those it reads."""

    kind: ClassVar[str] = "transform"


SELECTIONS: Registry[Operation] = Registry("acclimate.selections", Operation.kind, "selections")
TRANSFORMS: Registry[Operation] = Registry("acclimate.transforms", Transform.kind, "transforms")
register = SELECTIONS.register


def list_operations(given: Any, registry: Registry[Operation] = SELECTIONS) -> list[tuple[str, dict[str, Any]]]:
    """Return the names and parameters of operations that a user gave, in their order.

    Args:
        given: ``"NAME"``, ``"NAME parameter=value ..."``, ``{name: parameters}`` or ``{name: value}`` with the value
            of the main parameter, several of these in one mapping or in a list, operations themselves, or None.
        registry: The operations of the kind.

    Raises:
        UserError: If it is something else, or a name is unknown.
    """
    if given is None:
        return []
    if isinstance(given, Iterable) and not isinstance(given, str | Mapping | Operation):
        return [operation for one in given for operation in list_operations(one, registry)]
    several = [{name: settings} for name, settings in given.items()] if isinstance(given, Mapping) else [given]
    return [(cls.name, settings) for cls, settings in map(registry.parse, several)]


def read_operations(given: Any, registry: Registry[Operation] = SELECTIONS) -> list[Operation]:
    """Return the operations that a user gave (:func:`list_operations`).

    Raises:
        UserError: If a name or a parameter is unknown, or a value does not fit.
    """
    found = list_operations(given, registry)
    return [build_dataclass(registry.lookup(name), registry.kind, name, settings) for name, settings in found]


def operate(
    corpus: Corpus, operations: Sequence[Operation], context: Context, out: str | Path | None = None
) -> Corpus:
    """Apply operations to a corpus, one after the other, or read the result from the cache.

    Args:
        corpus: The documents.
        operations: The operations.
        context: Texts that the documents are compared with.
        out: JSON lines file for the result; None for one in the cache.

    Returns:
        The result. The reports of the operations are in a file next to it, see :func:`read_accounts`.

    Raises:
        UserError: If a text that an operation needs is missing, or no document is left.
    """
    reads = {name for operation in operations for name in operation.reads}
    for name, remedy in (
        ("target", "give the task or the text with --task or --target"),
        ("general", "give it with --general"),
    ):
        if name in reads and getattr(context, name) is None:
            needing = next(operation for operation in operations if name in operation.reads)
            what = "the text of a task" if name == "target" else "general text"
            raise UserError(f"{needing.kind.capitalize()} '{needing.name}' needs {what}; {remedy}.")
    identity = [operation.identity() for operation in operations]
    key = fingerprint([VERSION, corpus.fingerprint, identity, context.identity(reads)])
    cached = cache_folder() / "corpora" / f"{key}.jsonl"
    if not read_accounts(cached):
        documents, summary = _read(corpus, context)
        accounts = find_accounts(corpus)
        for operation in operations:
            documents, account = _apply(operation, documents, context)
            if operation is operations[0]:
                account.notes["read"] = summary
            accounts.append(account)
        with atomic_file(cached) as file:
            for text, fields in documents.with_fields():
                file.write(json.dumps({"text": text, **fields}).encode() + b"\n")
        _write_accounts(cached, accounts)
    if out is None:
        return Corpus(cached)
    check_output(out)
    accounts = read_accounts(cached)
    with atomic_file(out) as file, cached.open("rb") as source:
        shutil.copyfileobj(source, file)
    _write_accounts(Path(out), accounts)
    return Corpus(Path(out))


_last_read: dict[tuple[str, str], tuple[Documents, Any]] = {}


def _read(corpus: Corpus, context: Context) -> tuple[Documents, Any]:
    """Return the documents of a corpus and the summary of reading it; the rows of a study read one after the other."""
    key = (corpus.fingerprint, context.counted_by)
    if key not in _last_read:
        _last_read.clear()
        pairs, sources = corpus.with_sources(), corpus.report.sources
        documents = Documents.of(pairs, sources, context.count, progress=context.progress)
        _last_read[key] = documents, corpus.report.summary()
    return _last_read[key]


def _apply(operation: Operation, documents: Documents, context: Context) -> tuple[Documents, OperationAccount]:
    """Return the result of one operation, with its account."""
    context = replace(context, notes={})
    result = operation.apply(documents, context)
    if isinstance(result, Documents):
        dropped: Sequence[str] = documents.take(np.flatnonzero(~documents.are_in(result)))
    else:
        result = Documents.of(((one, 0) for one in result), (operation.name,), context.count)
        dropped = context.notes.pop("dropped", [])
    if not len(result):
        does = "keeps none" if operation.kind == Operation.kind else "makes no document"
        raise UserError(
            f"{operation.kind.capitalize()} '{operation.describe()}' {does} of "
            f"{format_count(len(documents), 'document')}: change its parameters."
        )
    account = OperationAccount(
        operation=operation.describe(),
        name=operation.name,
        kind=operation.kind,
        settings={name: plain_value(value) for name, value in operation.settings().items()},
        counted_by=context.counted_by,
        documents_in=len(documents),
        documents_out=len(result),
        tokens_in=int(documents.tokens.sum()),
        tokens_out=int(result.tokens.sum()),
        kept=_quote(result),
        dropped=_quote(dropped),
        sources=list(documents.sources),
        notes=context.notes,
    )
    return result, account


def _quote(documents: Sequence[str]) -> list[str]:
    """Return the beginnings of a few documents, spread over all."""
    if not documents:
        return []
    places = np.unique(np.linspace(0, len(documents) - 1, EXAMPLES).astype(int)).tolist()
    return [" ".join(documents[place].split())[:EXAMPLE_CHARACTERS] for place in places]


def _write_accounts(path: Path, accounts: Sequence[OperationAccount]) -> None:
    content = FileSource(path).fingerprint()
    write_json(FileSource(path).account, {"text": content, "accounts": [account.to_dict() for account in accounts]})


class _Accounts(Record):
    text: str
    accounts: list[OperationAccount]


def read_accounts(path: Path) -> list[OperationAccount]:
    """Return the reports of the operations that made a file; none if there are none, or the file has changed.

    Raises:
        UserError: If the file of the reports is damaged.
    """
    source = FileSource(path)
    if not path.is_file() or not source.account.is_file():
        return []
    found = read_record(source.account, _Accounts, "delete it to read the text without what it says")
    return found.accounts if found.text == source.fingerprint() else []


def find_accounts(corpus: Corpus) -> list[OperationAccount]:
    """Return the reports of the operations that made the files of a corpus."""
    return [
        account
        for source in corpus.sources
        if isinstance(source, FileSource)
        for account in read_accounts(source.path)
    ]


def check_output(path: str | Path) -> None:
    """Check that a file may be written: it does not exist, or operations wrote it.

    Raises:
        UserError: If it may not, or its name does not end like JSON lines.
    """
    path = Path(path)
    check_output_name(path)
    if path.suffix != ".jsonl":
        raise UserError(f"'{path}' is written as JSON lines; give it a name that ends in .jsonl.")
    if path.exists() and not FileSource(path).account.is_file():
        raise UserError(f"'{path}' exists, and no selection or transform wrote it; give another name, or delete it.")
