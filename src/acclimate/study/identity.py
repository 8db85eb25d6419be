"""What makes two things the same: hashes of models, of texts and of settings."""

from __future__ import annotations

import hashlib
import heapq
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from acclimate.errors import UserError

# Files of a model folder that decide what it computes. Its card, its logs and our own notes do not.
_SUFFIXES = {".json", ".txt", ".model", ".safetensors", ".bin", ".jinja"}
_IGNORED = {"acclimate.json", "trainer_state.json", "training_args.bin", "README.txt"}


def digest(value: Any) -> str:
    """Return 16 hex digits of the SHA-256 of ``value`` as canonical JSON."""
    text = json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _plain(value: Any) -> Any:
    """Turn sets, tuples, paths and enums into what JSON knows, in an order that does not change."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted((_plain(item) for item in value), key=str)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bool | str) or value is None:
        return value
    if isinstance(value, int | float):
        return int(value) if float(value).is_integer() else value  # 1 and 1.0 are the same setting
    return str(value)


def model_identity(path: str) -> str:
    """Return a hash of the files of a model folder, or the name itself when it is a name of the hub.

    The weights are read whole: a model that was trained again in the same place is another model, and a folder
    that was moved is the same one.

    Raises:
        UserError: If the path is a folder without a ``config.json``, or looks like a path and is not there.
    """
    folder = Path(path)
    if not folder.exists():
        if path.startswith((".", "/", "~")) or path.count("/") > 1:
            raise UserError(f"No model at '{path}'. Give a Hugging Face model folder or the name of a model.")
        return path
    if not (folder / "config.json").is_file():
        raise UserError(f"'{path}' is no model folder: it has no config.json.")
    state = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        if file.is_file() and file.suffix in _SUFFIXES and file.name not in _IGNORED:
            with file.open("rb") as handle:
                state.update(f"{file.name} {hashlib.file_digest(handle, 'sha256').hexdigest()}\n".encode())
    return state.hexdigest()[:16]


def texts_identity(texts: Iterable[str]) -> str:
    """Return a hash of texts in their order."""
    state = hashlib.sha256()
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        state.update(f"{len(data)} ".encode() + data)
    return state.hexdigest()[:16]


def choose_texts(corpus: Iterable[str], count: int) -> list[str]:
    """Choose ``count`` documents as if by chance, whatever their order; memory holds no more than these.

    The choice depends on the texts alone: documents with the smallest hashes are taken, so the first file of
    several has no advantage and the same text is always judged.
    """
    ranked = (
        (hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), text) for text in corpus
    )
    return [text for _, text in heapq.nsmallest(count, ranked)]
