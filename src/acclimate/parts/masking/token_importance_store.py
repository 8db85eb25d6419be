"""The important tokens of texts, stored on disk and looked up by the content of a text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np

_HASHES, _TEXTS, _RANKS = "hashes.npy", "texts.npy", "ranks.bin"
MAX_RANK = 2**16 - 1


def hash_text(ids: np.ndarray) -> int:
    """Return a 64-bit hash of the token ids of a text."""
    return int.from_bytes(blake2b(np.ascontiguousarray(ids, dtype="<i8").tobytes(), digest_size=8).digest(), "little")


@dataclass(frozen=True)
class TokenImportanceStore:
    """The important tokens of texts, looked up by their token ids.

    Since texts are identified by their content, the store can be used with padded and packed rows, in any order. It
    needs about 40 bytes of memory per text; the ranks stay on disk.

    Attributes:
        hashes: Hash of each text, ascending, uint64 of shape (texts,).
        texts: For each text its start and end in ``ranks``, the number of its important tokens, and the number of
            tokens that may be masked; int64 of shape (4, texts).
        ranks: For each token 0 if it is not important, else its rank among the important tokens of its text by the
            score of the token classifier, from 1; uint16 of shape (tokens,).
    """

    hashes: np.ndarray
    texts: np.ndarray
    ranks: np.ndarray

    @classmethod
    def write(cls, folder: Path, texts: Iterable[tuple[np.ndarray, np.ndarray, int]]) -> None:
        """Write a store to a folder.

        Args:
            folder: An existing folder.
            texts: Token ids, ranks, and number of tokens that may be masked, of each text.
        """
        hashes: list[int] = []
        entries: list[tuple[int, int, int, int]] = []
        total = 0
        with (folder / _RANKS).open("wb") as file:
            for ids, ranks, allowed in texts:
                file.write(np.minimum(ranks, MAX_RANK).astype("<u2").tobytes())
                hashes.append(hash_text(ids))
                entries.append((total, total + len(ids), int((ranks > 0).sum()), allowed))
                total += len(ids)
        keys = np.array(hashes, dtype=np.uint64)
        order = np.argsort(keys, kind="stable")
        np.save(folder / _HASHES, keys[order])
        np.save(folder / _TEXTS, np.array(entries, dtype=np.int64).reshape(-1, 4)[order].T)

    @classmethod
    def load(cls, folder: Path) -> TokenImportanceStore:
        """Memory-map a store that :meth:`write` wrote."""
        size = (folder / _RANKS).stat().st_size // 2
        ranks = np.memmap(folder / _RANKS, "<u2", "r", shape=(size,)) if size else np.zeros(0, np.uint16)
        return cls(np.load(folder / _HASHES), np.load(folder / _TEXTS), ranks)

    def masked_counts(self, cap: float | None) -> np.ndarray:
        """Return the number of masked tokens of each text (texts,).

        Args:
            cap: See :class:`acclimate.parts.masking.selective.SelectiveMasking`.
        """
        _, _, important, allowed = self.texts
        return important if cap is None else np.minimum(important, np.maximum(1, (cap * allowed).astype(np.int64)))

    def lookup(self, ids: np.ndarray) -> np.ndarray:
        """Return the ranks of the tokens of a text (tokens,).

        Raises:
            ValueError: If the text is not in the store.
        """
        key = np.uint64(hash_text(ids))
        index = int(np.searchsorted(self.hashes, key))
        if index == len(self.hashes) or self.hashes[index] != key:
            raise ValueError(f"a text of {len(ids)} tokens was never given to the token classifier")
        start, end = self.texts[:2, index]
        ranks = np.asarray(self.ranks[start:end])
        if len(ranks) != len(ids):
            raise ValueError("two different texts have the same hash")
        return ranks


def rank_important_tokens(important: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Return the rank of each important token by descending score, from 1; 0 for the others (tokens,)."""
    ranks = np.zeros(len(important), dtype=np.int64)
    positions = np.flatnonzero(important)
    ranks[positions[np.argsort(-scores[positions], kind="stable")]] = np.arange(1, len(positions) + 1)
    return ranks
