"""Ranking by scores that rounding can change: they are compared at a stated precision, and content breaks ties.

The last bits of a similarity depend on the processor (its BLAS kernels), so that equally near texts would be ranked
differently on another machine, and the same command would select other documents there.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

DECIMALS = 5
"""Decimals of scores that are compared. Similarities and losses in fp32 have six or seven correct digits."""
TIES = -1
"""Seed of the order that breaks ties: no seed of a draw, so that a random control does not prefer the same texts."""


def settle(scores: npt.ArrayLike) -> np.ndarray:
    """Round scores to :data:`DECIMALS`, in fp64; NaN and infinities remain."""
    return np.round(np.asarray(scores, dtype=np.float64), DECIMALS) + 0.0  # no negative zero


def content_order(texts: Iterable[str], seed: int) -> np.ndarray:
    """Return the positions of texts in a random order that depends on the texts and the seed, not on their order."""
    key = f"{seed}".encode()
    digests = (blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8, key=key).digest() for text in texts)
    return np.argsort(np.fromiter((int.from_bytes(d, "big") for d in digests), np.uint64), kind="stable")


def content_ranks(texts: Iterable[str]) -> np.ndarray:
    """Return the rank of each text in :func:`content_order`, by which ties are broken: (texts,), int64."""
    order = content_order(texts, TIES)
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[order] = np.arange(len(order))
    return ranks


def best_first(scores: npt.ArrayLike, ranks: npt.ArrayLike) -> np.ndarray:
    """Return positions by settled score, the highest first; of equal scores the lowest rank first, and NaN last."""
    return np.lexsort((np.asarray(ranks), -settle(scores)))


def top_positions(scores: np.ndarray, ranks: np.ndarray, k: int) -> np.ndarray:
    """Return the positions of the ``k`` highest settled scores of each row, as :func:`best_first` orders them.

    Args:
        scores: Finite scores (rows, n); times n they are below 1e13 in absolute value.
        ranks: Distinct ranks (n,), from zero.
        k: Number of positions; at most n are returned.

    Returns:
        Positions (rows, min(k, n)), int64.
    """
    # One integer holds score and rank, so that keys are distinct and no sorting algorithm can decide.
    size = int(ranks.max()) + 1
    keys = np.rint(np.asarray(scores, dtype=np.float64) * -(10**DECIMALS)).astype(np.int64) * size + ranks
    if k < keys.shape[1]:
        best = np.argpartition(keys, k - 1, axis=1)[:, :k]
        return np.take_along_axis(best, np.take_along_axis(keys, best, axis=1).argsort(axis=1), axis=1)
    return keys.argsort(axis=1)
