"""For every token of a vocabulary: where its embedding should be drawn to, and whether (TAPTER, R(X))."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from acclimate.errors import UserError
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
        """Mean norm of the vectors that take part: with targets as they are, a hidden weight of the regulariser."""
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
    vector of zeros (nothing is known of it).

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
    norms = np.linalg.norm(vectors, axis=1)
    shortest = model.wv.min_n
    wanted = [len(piece.text) >= shortest and piece.text.lower() not in stop_words for piece in pieces]
    regularised = np.array(wanted) & (norms > 0)
    if not regularised.any():
        raise UserError("No token of the vocabulary has a word vector; is it the language of these vectors?")
    if normalise:
        vectors = vectors * (vectors.shape[1] ** 0.5 / np.maximum(norms, 1e-12))[:, None]
    return Targets(torch.from_numpy(vectors.astype(np.float32)), torch.from_numpy(regularised))


def read_stop_words(source: str) -> frozenset[str]:
    """Return stop words in lower case: ``"english"`` (those of scikit-learn), ``"none"``, or a file with one a line.

    Raises:
        UserError: If there is no such file.
    """
    if source == "none":
        return frozenset()
    if source == "english":
        from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

        return frozenset(ENGLISH_STOP_WORDS)
    path = Path(source)
    if not path.is_file():
        raise UserError(f"stop_words is '{source}': give 'english', 'none', or a file with a word a line.")
    return frozenset(word.strip().lower() for word in path.read_text(encoding="utf-8").splitlines() if word.strip())
