"""Data of the demo: the user's text and task, or package documentation for whatever is not given."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from acclimate.corpus import Corpus
from acclimate.demo.docstrings import (
    Document,
    distribution_name,
    drop_duplicates,
    library_documents,
    package_documents,
)
from acclimate.demo.task import PACKAGES, DerivedTask, count_labels, derive_task
from acclimate.errors import UserError
from acclimate.files import atomic_folder, read_json, write_json, write_text
from acclimate.progress import Progress

HELDOUT_DOCUMENTS = 150
"""Number of held-out domain documents."""

GENERAL_DOCUMENTS = 150
"""Number of standard library documents for measuring forgetting; the others warm up a missing head."""

MAX_USER_DOCUMENTS = 50_000
"""Maximum number of documents that the demo reads from the user's corpus."""

_VERSION = 3  # increment when the same packages give different files


@dataclass(frozen=True)
class DemoData:
    """Paths of the data of the demo.

    Attributes:
        corpus: Domain text to adapt to.
        heldout: Held-out domain text.
        general: General text for measuring forgetting.
        warmup: Standard library documentation, disjoint from ``general``, for warming up a missing head.
        task: Folder of the labelled task.
        derived: Whether the task was made from package documentation.
        about: Sizes and sources, for the report.
    """

    corpus: Path
    heldout: Path
    general: list[str]
    warmup: Path
    task: Path
    derived: bool
    about: dict[str, Any]


def prepare_data(
    folder: str | Path,
    *,
    corpus: str | Path | Sequence[str | Path] | None = None,
    general: str | Path | Sequence[str | Path] | None = None,
    task: str | Path | None = None,
    progress: bool = True,
) -> DemoData:
    """Write the data of the demo, or reuse the data of an earlier run with the same inputs and package versions.

    Args:
        folder: Output directory.
        corpus: The user's domain text; by default documentation of installed packages.
        general: The user's general text; by default documentation of the standard library.
        task: The user's task folder; by default a task is made from documentation.
        progress: Show a progress bar.

    Returns:
        The paths of the data.

    Raises:
        UserError: If an input is missing or invalid, or a package is not installed.
    """
    from acclimate.tasks import load_task

    folder = Path(folder)
    loaded = load_task(task) if task is not None else None
    texts = Corpus(corpus, limit=MAX_USER_DOCUMENTS) if corpus is not None else None
    if general is not None:
        Corpus(general)  # raises an error if a file is missing
    key = _data_key(None if texts is None else texts.fingerprint, None if loaded is None else loaded.fingerprint())
    about = _read_earlier(folder, key)
    if about is None:
        with atomic_folder(folder) as made:
            about = {"key": key}
            if texts is None or loaded is None:
                about |= _write_package_data(
                    made, want_corpus=texts is None, want_task=loaded is None, progress=progress
                )
            if texts is not None:
                tested = {example.text for example in (*loaded.dev, *loaded.test)} if loaded else set()
                about["corpus"] = _write_user_corpus(made, texts, tested)
            about["general"] = _write_library_data(made)
            write_json(made / "about.json", about)
    return DemoData(
        corpus=folder / "corpus.jsonl",
        heldout=folder / "heldout.jsonl",
        general=[str(folder / "general.jsonl")] if general is None else _list_sources(general),
        warmup=folder / "warmup.jsonl",
        task=folder / "task" if task is None else Path(task),
        derived=task is None,
        about=about,
    )


def _list_sources(given: str | Path | Sequence[str | Path]) -> list[str]:
    return [str(given)] if isinstance(given, str | Path) else [str(source) for source in given]


def _data_key(corpus: str | None, task: str | None) -> str:
    versions = {name: version(distribution_name(name)) for name in PACKAGES} if corpus is None or task is None else {}
    parts = [_VERSION, HELDOUT_DOCUMENTS, GENERAL_DOCUMENTS, platform.python_version(), versions, corpus, task]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _read_earlier(folder: Path, key: str) -> dict[str, Any] | None:
    try:
        about = read_json(folder / "about.json")
    except (OSError, ValueError):
        return None
    return about if isinstance(about, dict) and about.get("key") == key else None


def _write_package_data(folder: Path, *, want_corpus: bool, want_task: bool, progress: bool) -> dict[str, Any]:
    """Write corpus, held-out documents and task from the documentation of the packages; return the counts."""
    documents: list[Document] = []
    with Progress("Reading documentation", len(PACKAGES), unit="packages", enabled=progress) as bar:
        for done, name in enumerate(PACKAGES):
            bar.update(done)
            documents += package_documents(name)
    documents = list(drop_duplicates(documents))
    made = derive_task(documents) if want_task else DerivedTask([], [], [], documents, 0)
    about: dict[str, Any] = {"packages": {name: version(distribution_name(name)) for name in PACKAGES}}
    if want_task:
        for part in ("train", "dev", "test"):
            write_jsonl(folder / "task" / f"{part}.jsonl", (item.row() for item in getattr(made, part)))
        about["task"] = {
            **{part: len(getattr(made, part)) for part in ("train", "dev", "test")},
            "labels": count_labels(made.test),
            "kept_out_of_corpus": made.removed,
        }
    if want_corpus:
        heldout, train = made.corpus[:HELDOUT_DOCUMENTS], made.corpus[HELDOUT_DOCUMENTS:]
        write_jsonl(folder / "heldout.jsonl", map(_document_row, heldout))
        write_jsonl(folder / "corpus.jsonl", map(_document_row, train))
        about["corpus"] = {"documents": len(train), "bytes": _count_bytes(train), "heldout": len(heldout)}
    return about


def _write_library_data(folder: Path) -> dict[str, Any]:
    documents = sorted(
        drop_duplicates(library_documents()), key=lambda document: hashlib.sha256(document.text.encode()).digest()
    )
    general, rest = documents[:GENERAL_DOCUMENTS], documents[GENERAL_DOCUMENTS:]
    if not rest:
        raise UserError("The standard library of this Python has no documentation strings: give text with --general.")
    write_jsonl(folder / "general.jsonl", map(_document_row, general))
    write_jsonl(folder / "warmup.jsonl", map(_document_row, rest))
    return {"documents": len(general), "bytes": _count_bytes(general), "python": platform.python_version()}


def _write_user_corpus(folder: Path, corpus: Corpus, tested: set[str]) -> dict[str, Any]:
    """Copy the user's corpus without the texts of dev and test, split into training and held-out documents."""
    texts = [text for text in corpus if text not in tested]
    # Ordered by a hash of the text, so that the split of a document hardly depends on the others.
    ordered = sorted(texts, key=lambda text: hashlib.sha256(text.encode()).digest())
    count = min(HELDOUT_DOCUMENTS, max(1, len(ordered) // 10))
    heldout, train = ordered[:count], ordered[count:]
    if not train:
        raise UserError(f"The corpus has {len(ordered)} usable documents; the demo needs at least two.")
    write_jsonl(folder / "heldout.jsonl", ({"text": text} for text in heldout))
    write_jsonl(folder / "corpus.jsonl", ({"text": text} for text in train))
    size = sum(len(text.encode()) for text in train)
    return {"documents": len(train), "bytes": size, "heldout": len(heldout), "read": corpus.report.summary()}


def _document_row(document: Document) -> dict[str, str]:
    return {"text": document.text, "source": document.source}


def _count_bytes(documents: Iterable[Document]) -> int:
    return sum(len(document.text.encode()) for document in documents)


def write_jsonl(path: Path, rows: Iterable[Mapping[str, str]]) -> None:
    """Write rows as JSON lines."""
    write_text(path, "".join(json.dumps(dict(row), ensure_ascii=False) + "\n" for row in rows))
