"""What makes two things the same: hashes of models, of texts and of settings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from acclimate.models.checkpoints import model_fingerprint

__all__ = ["digest", "model_fingerprint", "texts_identity"]


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


def texts_identity(texts: Iterable[str]) -> str:
    """Return a hash of texts in their order."""
    state = hashlib.sha256()
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        state.update(f"{len(data)} ".encode() + data)
    return state.hexdigest()[:16]
