"""fastText by ``gensim``: training, going on from vectors that are there, and vectors of parts of words.

The ``fasttext`` library itself cannot go on with training: from ``.vec`` files it takes the words only, and the
vectors of n-grams, which most tokens of a language model need, start at random. ``gensim`` reads the whole ``.bin``.
"""

from __future__ import annotations

import logging
import re
import struct
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from acclimate.errors import UserError

Boundary = Literal["paper", "aware"]
WORDS = re.compile(r"\w+|[^\w\s]")
RATE, LAST_RATE = 0.05, 1e-4
"""First and last learning rate: the default of the fastText library; that of gensim is half of it."""


def words(text: str) -> list[str]:
    """Split a text into words and marks."""
    return WORDS.findall(text)


def train_fasttext(
    texts: Iterable[str],
    *,
    start: Any = None,
    dimension: int = 300,
    min_count: int = 5,
    epochs: int = 5,
    buckets: int = 2_000_000,
    seed: int = 0,
) -> Any:
    """Train skip-gram vectors with subwords (Bojanowski et al., 2017), or go on with trained ones.

    Window 5, 5 negatives, n-grams of 3 to 6 characters, sampling 1e-4: the defaults of the fastText library. One
    thread, so that the same seed gives the same vectors.

    Args:
        texts: Are split into words here.
        start: A model of gensim to go on with; its dimension and n-grams stay. It is changed.
        dimension: Of new vectors.
        min_count: Rarer words get no vector of their own, but one of their n-grams.
        epochs: Passes over the texts.
        buckets: Rows that n-grams share by their hash; their memory is this times the dimension times 4 bytes.
        seed: Of new vectors.

    Returns:
        A ``gensim.models.FastText``.

    Raises:
        UserError: If no word is frequent enough.
    """
    gensim = _gensim()
    sentences = [words(text) for text in texts]
    model = start
    if model is None:
        model = gensim.models.FastText(
            vector_size=dimension,
            sg=1,
            window=5,
            negative=5,
            sample=1e-4,
            min_n=3,
            max_n=6,
            bucket=buckets,
            seed=seed,
            workers=1,
        )
    model.min_count, model.workers = min_count, 1
    try:
        model.build_vocab(sentences, update=start is not None)
        if not len(model.wv):
            raise RuntimeError
        model.train(sentences, total_examples=len(sentences), epochs=epochs, start_alpha=RATE, end_alpha=LAST_RATE)
    except RuntimeError as error:
        raise UserError(
            f"No word of the text occurs {min_count} times, so no word vectors can be trained on it; lower min_count."
        ) from error
    return model


def load_fasttext(path: str | Path) -> Any:
    """Load a ``.bin`` of the fastText library with all that training needs.

    Raises:
        UserError: If there is none, or the file is another one, such as a ``.vec``.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"There are no fastText vectors '{path}'.")
    try:
        return _gensim().models.fasttext.load_facebook_model(str(path))
    except (ValueError, NotImplementedError, EOFError, OSError, KeyError, AssertionError, struct.error) as error:
        raise UserError(f"'{path}' is no fastText model with subwords (.bin); a .vec file will not do.") from error


def vector(model: Any, text: str, starts: bool, boundary: Boundary = "paper") -> np.ndarray:
    """Return the vector of a piece of a word: (dimension,), zero where nothing is known.

    Args:
        model: A ``gensim.models.FastText``.
        text: What the piece spells.
        starts: Whether it begins a word.
        boundary: fastText puts ``<`` and ``>`` around a word before it takes n-grams. With ``"paper"`` a piece is
            looked up as if it were a word. With ``"aware"`` a piece inside of a word has no n-gram with ``<``, and no
            piece but a whole word one with ``>``: ours, since nothing says that the piece ends the word.
    """
    known = model.wv
    zero = np.zeros(known.vector_size, dtype=np.float32)
    if not text:
        return zero
    if boundary == "paper" or (starts and text in known.key_to_index):
        try:
            return np.asarray(known.get_vector(text), dtype=np.float32)
        except KeyError:
            return zero
    grams = [gram for gram in _ngrams(text, known.min_n, known.max_n) if starts or not gram.startswith("<")]
    grams = [gram for gram in grams if not gram.endswith(">")]
    rows = [_gensim().models.fasttext_inner.ft_hash_bytes(gram.encode()) % known.bucket for gram in grams]
    return known.vectors_ngrams[rows].mean(0).astype(np.float32) if rows else zero


def _ngrams(text: str, shortest: int, longest: int) -> Sequence[str]:
    return _gensim().models.fasttext_inner.compute_ngrams(text, shortest, longest)


@cache
def _gensim() -> Any:
    try:
        import gensim.models.fasttext
        import gensim.models.fasttext_inner
    except ImportError as error:
        raise UserError("Word vectors need gensim: pip install 'acclimate[fasttext]'.") from error
    logging.getLogger("gensim").setLevel(logging.WARNING)
    return gensim
