"""fastText through ``gensim``: training, continued training, and vectors of subwords.

The ``fasttext`` library cannot continue training with n-grams: it reads ``.vec`` files, which hold words only, and
initializes the n-gram vectors, which most subwords need, at random. ``gensim`` reads the complete ``.bin``.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import regex

from acclimate.base.errors import UserError
from acclimate.base.files import find_file

Boundary = Literal["paper", "aware"]
WORD_PATTERN = regex.compile(r"[\p{L}\p{N}_][\p{L}\p{N}\p{M}_]*|[^\p{L}\p{N}_\s]")
FIRST_LEARNING_RATE, LAST_LEARNING_RATE = 0.05, 1e-4
"""Initial and final learning rate; the defaults of the fastText library, twice gensim's."""
NEGATIVE_SAMPLING_EXPONENT = 0.5
"""Negatives are sampled in proportion to this power of their counts, as in the fastText library (gensim: 0.75)."""
BIN_HEADER, BIN_MAGIC = struct.Struct("<2i12id3i"), 793_712_314
"""Header of a ``.bin`` file (magic number, version, arguments, dictionary sizes), and the magic number."""
MAX_SENTENCE_WORDS = 10_000
"""gensim silently drops the words of a sentence beyond this number, so longer texts are split."""


def split_words(text: str) -> list[str]:
    """Split a text into words and punctuation marks."""
    return WORD_PATTERN.findall(text)


def train_fasttext(
    texts: Iterable[str],
    *,
    start: Any = None,
    dimension: int = 300,
    min_count: int = 5,
    epochs: int = 5,
    buckets: int = 2_000_000,
    seed: int = 0,
    report: Callable[[float], None] | None = None,
) -> Any:
    """Train skip-gram vectors with subwords (Bojanowski et al., 2017), or continue the training of existing ones.

    Window 5, 5 negatives, n-grams of 3 to 6 characters and subsampling 1e-4, the defaults of the fastText library. A
    single thread makes training deterministic. Continued training is always skip-gram, even for CBOW vectors such as
    fasttext.cc's for 157 languages; it keeps their window and number of negatives.

    Args:
        texts: Texts, which are split into words here. They are iterated once to count words and once per epoch, with
            constant memory; an iterator is first read into memory.
        start: A gensim model to continue with, which is modified; its dimension and n-grams are kept.
        dimension: Dimension of new vectors.
        min_count: Minimum count of a word; rarer words have only the vectors of their n-grams.
        epochs: Epochs over the texts.
        buckets: Rows of the hashed n-gram table, whose size is ``buckets * dimension * 4`` bytes.
        seed: Random seed of the initialization and the sampling.
        report: Callback that receives the finished share of the work, from 0 to 1.

    Returns:
        A ``gensim.models.FastText``.

    Raises:
        UserError: If no word occurs often enough.
    """
    gensim = _import_gensim()
    sentences = _Sentences(list(texts) if isinstance(texts, Iterator) else texts)
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
    model.min_count, model.workers, model.sg, model.ns_exponent = min_count, 1, 1, NEGATIVE_SAMPLING_EXPONENT
    model.seed, model.random = seed, np.random.RandomState(seed)  # a loaded model has gensim's defaults
    model.min_alpha_yet_reached = FIRST_LEARNING_RATE  # gensim warns about a rising learning rate otherwise
    try:
        model.build_vocab(sentences, update=start is not None)
        if not len(model.wv):
            raise RuntimeError
        count = model.corpus_count
        model.train(
            sentences if report is None else _SentencesWithProgress(sentences, epochs * count, report),
            total_examples=count,
            epochs=epochs,
            start_alpha=FIRST_LEARNING_RATE,
            end_alpha=LAST_LEARNING_RATE,
        )
    except RuntimeError as error:
        if sentences.error is None:
            raise UserError(
                f"No word of the text occurs {min_count} times, so no word vectors can be trained; lower min_count."
            ) from error
    if sentences.error is not None:
        raise sentences.error
    return model


def _split_long_sentence(found: list[str]) -> Iterator[list[str]]:
    """Split a list of words into pieces that gensim reads completely."""
    for start in range(0, len(found), MAX_SENTENCE_WORDS):
        yield found[start : start + MAX_SENTENCE_WORDS]


class _Sentences:
    """Texts as lists of words, which are split on the fly at every iteration.

    gensim iterates in a worker thread and would wait forever if that thread raised an error, so errors are stored.

    Attributes:
        error: The error that ended the iteration, or None.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = texts
        self.error: Exception | None = None

    def __iter__(self) -> Iterator[list[str]]:
        if self.error is not None:
            return
        try:
            for text in self._texts:
                yield from _split_long_sentence(split_words(text))
        except Exception as error:
            self.error = error


class _SentencesWithProgress:
    """Sentences that report the finished share of all iterations."""

    def __init__(self, sentences: Iterable[list[str]], total: int, report: Callable[[float], None]) -> None:
        self._sentences, self._total, self._report, self._done = sentences, total, report, 0

    def __iter__(self) -> Iterator[list[str]]:
        for sentence in self._sentences:
            yield sentence
            self._done += 1
            self._report(self._done / self._total)


def load_fasttext(path: str | Path) -> Any:
    """Load a ``.bin`` file of the fastText library, ready for continued training.

    Raises:
        UserError: If the file is missing, damaged or of another type, such as ``.vec``.
    """
    file = find_file(path)
    if file is None:
        raise UserError(
            f"The fastText file '{path}' does not exist. Download a .bin (not .vec) from fasttext.cc, or omit "
            "'vectors' to train on the text, after a 'general' text if you give one."
        )
    _check_not_truncated(file)
    try:
        return _import_gensim().models.fasttext.load_facebook_model(str(file))
    except (MemoryError, OverflowError) as error:  # sizes in the header determine how much is allocated
        raise UserError(
            f"'{path}' is not a fastText model with subwords (.bin) that fits into memory; it may be damaged."
        ) from error
    except (ValueError, NotImplementedError, EOFError, OSError, KeyError, AssertionError, struct.error) as error:
        raise UserError(
            f"'{path}' is not a fastText model with subwords; give a .bin file (a .vec file lacks the n-grams)."
        ) from error


def _check_not_truncated(file: Path) -> None:
    """Raise UserError for a file that is too short for its word vectors: gensim would wait forever for the rest."""
    with file.open("rb") as stream:
        header = stream.read(BIN_HEADER.size)
    if len(header) < BIN_HEADER.size:
        return  # gensim raises an error
    magic, _, dimension, *_, words, _ = BIN_HEADER.unpack(header)
    min_bytes = 2 * 4 * dimension * words  # two float32 matrices, not counting the n-grams
    if magic == BIN_MAGIC and 0 <= file.stat().st_size < min_bytes:
        raise UserError(f"'{file}' is truncated: it is too short for its {words:,} words. Download it again.")


def save_fasttext(model: Any, path: str | Path) -> None:
    """Save a model as a ``.bin`` file of the fastText library, which :func:`load_fasttext` reads."""
    _import_gensim().models.fasttext.save_facebook_model(model, str(path))


def lookup_vector(model: Any, text: str, starts: bool, boundary: Boundary = "paper") -> np.ndarray:
    """Return the vector of a subword: (dimension,), zeros if it is unknown.

    Args:
        model: A ``gensim.models.FastText``.
        text: The characters of the subword.
        starts: Whether the subword begins a word.
        boundary: fastText adds ``<`` and ``>`` around a word before it extracts n-grams. ``"paper"`` looks a subword
            up as if it were a word. ``"aware"`` (not in the paper) drops the n-grams with ``<`` if the subword does
            not begin a word, and those with ``>`` unless it is a known word, since the subword need not end the word.
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
    rows = [_import_gensim().models.fasttext_inner.ft_hash_bytes(gram.encode()) % known.bucket for gram in grams]
    return known.vectors_ngrams[rows].mean(0).astype(np.float32) if rows else zero


def _ngrams(text: str, shortest: int, longest: int) -> Sequence[str]:
    return _import_gensim().models.fasttext_inner.compute_ngrams(text, shortest, longest)


@cache
def _import_gensim() -> Any:
    try:
        import gensim.models.fasttext
        import gensim.models.fasttext_inner
    except ImportError as error:
        raise UserError("Word vectors need gensim: pip install 'acclimate[fasttext]'.") from error
    logging.getLogger("gensim").setLevel(logging.WARNING)
    return gensim
