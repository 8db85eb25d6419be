"""Data of the demo: documentation of installed packages, and a labelled task derived from it."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from acclimate.base.errors import UserError
from acclimate.base.files import atomic_folder, read_json_object, write_json, write_text
from acclimate.base.progress import Progress
from acclimate.labs.demo.docstrings import (
    Document,
    distribution_name,
    drop_duplicates,
    library_documents,
    package_documents,
    package_folder,
)
from acclimate.labs.demo.task import PACKAGES, count_labels, derive_task

HELDOUT_DOCUMENTS = 150
"""Number of held-out domain documents."""

GENERAL_DOCUMENTS = 150
"""Number of standard library documents for measuring forgetting; the others warm up a missing head."""

_VERSION = 4  # increment when the same packages give different files


@dataclass(frozen=True)
class DemoData:
    """Paths of the data of the demo.

    Attributes:
        corpus: Domain text to adapt to.
        heldout: Held-out domain text.
        general: General text for measuring forgetting.
        warmup: Standard library documentation, disjoint from ``general``, for warming up a missing head.
        task: Folder of the labelled task.
        about: Sizes and sources, for the report.
    """

    corpus: Path
    heldout: Path
    general: Path
    warmup: Path
    task: Path
    about: dict[str, Any]


def prepare_data(folder: str | Path, *, progress: bool = True) -> DemoData:
    """Write the data of the demo, or reuse the data of an earlier run with the same package versions.

    Args:
        folder: Output directory.
        progress: Show a progress bar.

    Returns:
        The paths of the data.

    Raises:
        UserError: If a package is not installed or has no documentation.
    """
    folder = Path(folder)
    for name in PACKAGES:
        package_folder(name)  # raises an error if the package is not installed
    versions = {name: version(distribution_name(name)) for name in PACKAGES}
    parts = [_VERSION, HELDOUT_DOCUMENTS, GENERAL_DOCUMENTS, platform.python_version(), versions]
    key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
    about = read_json_object(folder / "about.json")
    if about is None or about.get("key") != key:
        with atomic_folder(folder) as made:
            about = {"key": key, "packages": versions}
            about |= _write_package_data(made, progress=progress)
            about["general"] = _write_library_data(made)
            write_json(made / "about.json", about)
    return DemoData(
        corpus=folder / "corpus.jsonl",
        heldout=folder / "heldout.jsonl",
        general=folder / "general.jsonl",
        warmup=folder / "warmup.jsonl",
        task=folder / "task",
        about=about,
    )


def _write_package_data(folder: Path, *, progress: bool) -> dict[str, Any]:
    """Write corpus, held-out documents and task from the documentation of the packages; return the counts."""
    documents: list[Document] = []
    with Progress("Reading documentation", len(PACKAGES), unit="packages", enabled=progress) as bar:
        for done, name in enumerate(PACKAGES):
            bar.update(done)
            documents += package_documents(name)
    made = derive_task(list(drop_duplicates(documents)))
    splits = {"train": made.train, "dev": made.dev, "test": made.test}
    for name, items in splits.items():
        write_jsonl(folder / "task" / f"{name}.jsonl", (item.row() for item in items))
    heldout, train = made.corpus[:HELDOUT_DOCUMENTS], made.corpus[HELDOUT_DOCUMENTS:]
    write_jsonl(folder / "heldout.jsonl", map(_document_row, heldout))
    write_jsonl(folder / "corpus.jsonl", map(_document_row, train))
    return {
        "task": {
            **{name: len(items) for name, items in splits.items()},
            "labels": count_labels(made.test),
            "kept_out_of_corpus": made.removed,
        },
        "corpus": {"documents": len(train), "bytes": _count_bytes(train), "heldout": len(heldout)},
    }


def _write_library_data(folder: Path) -> dict[str, Any]:
    documents = sorted(
        drop_duplicates(library_documents()), key=lambda document: hashlib.sha256(document.text.encode()).digest()
    )
    general, rest = documents[:GENERAL_DOCUMENTS], documents[GENERAL_DOCUMENTS:]
    if not rest:
        raise UserError(
            "The standard library of this Python has no documentation strings; run the demo with another Python."
        )
    write_jsonl(folder / "general.jsonl", map(_document_row, general))
    write_jsonl(folder / "warmup.jsonl", map(_document_row, rest))
    return {"documents": len(general), "bytes": _count_bytes(general), "python": platform.python_version()}


def _document_row(document: Document) -> dict[str, str]:
    return {"text": document.text, "source": document.source}


def _count_bytes(documents: Iterable[Document]) -> int:
    return sum(len(document.text.encode()) for document in documents)


def write_jsonl(path: Path, rows: Iterable[Mapping[str, str]]) -> None:
    """Write rows as JSON lines."""
    write_text(path, "".join(json.dumps(dict(row), ensure_ascii=False) + "\n" for row in rows))
