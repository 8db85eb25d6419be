"""For every token of a vocabulary: where its embedding should be drawn to, and whether (TAPTER, R(X))."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from acclimate.errors import UserError, first_line
from acclimate.vectors.fasttext import Boundary, vector
from acclimate.vectors.surface import Surface


@dataclass(frozen=True)
class Targets:
    """Vectors by token.

    Attributes:
        vectors: (vocabulary, dimension), float32.
        regularised: Whether a token takes part (vocabulary,).
    """

    vectors: Tensor
    regularised: Tensor

    @property
    def mean_norm(self) -> float:
        """Mean norm of the vectors that take part, each token once: with targets as they are, a hidden weight."""
        return float(self.vectors[self.regularised].norm(dim=1).mean())


def make_targets(
    model: Any,
    pieces: Sequence[Surface],
    *,
    stop_words: Collection[str] = (),
    boundary: Boundary = "paper",
    normalise: bool = False,
) -> Targets:
    """Look up every token in fastText.

    A token takes part unless it is special, a stop word, shorter than the shortest n-gram of the vectors, or has a
    vector of zeros (nothing is known of it). A piece that goes on with a word is none, whatever it spells.

    Args:
        model: A ``gensim.models.FastText``.
        pieces: What the tokens spell.
        stop_words: In lower case.
        boundary: See :func:`acclimate.vectors.fasttext.vector`.
        normalise: Scale every vector to the norm sqrt(dimension), which is that of a layer-normalised vector. As they
            are (the paper), short vectors pull less than long ones.

    Raises:
        UserError: If no token takes part.
    """
    vectors = np.stack([vector(model, piece.text, piece.starts, boundary) for piece in pieces])
    return _targets(vectors, pieces, model.wv.min_n, stop_words, normalise)


def read_targets(
    path: str | Path, pieces: Sequence[Surface], *, stop_words: Collection[str] = (), normalise: bool = False
) -> Targets:
    """Read F as it is given: a ``.npy`` with a row for each token of the vocabulary, (tokens, dimension).

    A token takes part unless it is special, a stop word, or has a row of zeros.

    Raises:
        UserError: If the file is missing or holds something else, or no token takes part.
    """
    try:
        vectors = np.load(path)
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"The vectors '{path}' cannot be read as .npy: {first_line(error)}.") from error
    if not isinstance(vectors, np.ndarray) or vectors.ndim != 2 or vectors.dtype.kind not in "fiu":
        raise UserError(f"'{path}' must hold a matrix of numbers, (tokens, dimension).")
    if len(vectors) != len(pieces):
        raise UserError(
            f"'{path}' has {len(vectors):,} rows and the vocabulary {len(pieces):,} tokens; give each one."
        )
    if not np.isfinite(vectors).all():
        raise UserError(f"'{path}' holds values that are no numbers (NaN or infinite); give zeros for unknown tokens.")
    return _targets(vectors.astype(np.float32), pieces, 1, stop_words, normalise)


def _targets(
    vectors: np.ndarray, pieces: Sequence[Surface], shortest: int, stop_words: Collection[str], normalise: bool
) -> Targets:
    norms = np.linalg.norm(vectors, axis=1)
    wanted = [
        len(piece.text) >= max(1, shortest) and not (piece.starts and piece.text.lower() in stop_words)
        for piece in pieces
    ]
    regularised = np.array(wanted) & (norms > 0)
    if not regularised.any():
        raise UserError("No token of the vocabulary has a word vector; is it the language of these vectors?")
    if normalise:
        vectors = vectors * (vectors.shape[1] ** 0.5 / np.maximum(norms, 1e-12))[:, None]
    return Targets(torch.from_numpy(vectors.astype(np.float32)), torch.from_numpy(regularised))
