"""Which tokens of which texts are important, kept on disk and found by the content of a text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np

_HASHES, _TEXTS, _RANKS = "hashes.npy", "texts.npy", "ranks.bin"
MAX_RANK = 2**16 - 1


def hash_text(ids: np.ndarray) -> int:
    """Return a number of 64 bits that stands for the content of a text."""
    return int.from_bytes(blake2b(np.ascontiguousarray(ids, dtype="<i8").tobytes(), digest_size=8).digest(), "little")


@dataclass(frozen=True)
class TokenImportanceStore:
    """Which tokens of which texts are important; texts are found by their token ids.

    So the same marks serve padded and packed rows, any order, and several epochs, and the texts themselves need no
    number. In memory there are some forty bytes a text; the rest stays on disk.

    Attributes:
        hashes: Of the texts, ascending (texts,).
        texts: For each where it begins and ends in ``ranks``, how many of its tokens are important, and how many may
            be masked at all (4, texts).
        ranks: For each token 0 if it is not important, else its place among the important ones of its text by the
            score of the token classifier, the best 1 (tokens,), uint16.
    """

    hashes: np.ndarray
    texts: np.ndarray
    ranks: np.ndarray

    @classmethod
    def write(cls, folder: Path, texts: Iterable[tuple[np.ndarray, np.ndarray, int]]) -> None:
        """Write the marks of texts to a folder, one text after the other.

        Args:
            folder: An existing folder.
            texts: Token ids, ranks, and the number of tokens that may be masked, of each text.
        """
        hashes: list[int] = []
        found: list[tuple[int, int, int, int]] = []
        total = 0
        with (folder / _RANKS).open("wb") as file:
            for ids, ranks, allowed in texts:
                file.write(np.minimum(ranks, MAX_RANK).astype("<u2").tobytes())
                hashes.append(hash_text(ids))
                found.append((total, total + len(ids), int((ranks > 0).sum()), allowed))
                total += len(ids)
        keys = np.array(hashes, dtype=np.uint64)
        order = np.argsort(keys, kind="stable")
        np.save(folder / _HASHES, keys[order])
        np.save(folder / _TEXTS, np.array(found, dtype=np.int64).reshape(-1, 4)[order].T)

    @classmethod
    def load(cls, folder: Path) -> TokenImportanceStore:
        """Map the marks that :meth:`write` wrote."""
        size = (folder / _RANKS).stat().st_size // 2
        ranks = np.memmap(folder / _RANKS, "<u2", "r", shape=(size,)) if size else np.zeros(0, np.uint16)
        return cls(np.load(folder / _HASHES), np.load(folder / _TEXTS), ranks)

    def masked(self, cap: float | None) -> np.ndarray:
        """Return how many tokens of each text are masked (texts,)."""
        _, _, important, allowed = self.texts
        return important if cap is None else np.minimum(important, np.maximum(1, (cap * allowed).astype(np.int64)))

    def of(self, ids: np.ndarray) -> np.ndarray:
        """Return the ranks of the tokens of a text (tokens,).

        Raises:
            ValueError: If the text was not marked.
        """
        key = np.uint64(hash_text(ids))
        place = int(np.searchsorted(self.hashes, key))
        if place == len(self.hashes) or self.hashes[place] != key:
            raise ValueError(f"a text of {len(ids)} tokens was never given to the token classifier")
        start, end = self.texts[:2, place]
        found = np.asarray(self.ranks[start:end])
        if len(found) != len(ids):
            raise ValueError("two different texts have the same hash")
        return found


def rank_important_tokens(important: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Return for each token 0, or its rank among the important ones by falling score, from 1 (tokens,)."""
    ranks = np.zeros(len(important), dtype=np.int64)
    places = np.flatnonzero(important)
    ranks[places[np.argsort(-scores[places], kind="stable")]] = np.arange(1, len(places) + 1)
    return ranks
