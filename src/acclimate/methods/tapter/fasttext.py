"""fastText by ``gensim``: training, going on from vectors that are there, and vectors of parts of words.

The ``fasttext`` library itself cannot go on with training: from ``.vec`` files it takes the words only, and the
vectors of n-grams, which most tokens of a language model need, start at random. ``gensim`` reads the whole ``.bin``.
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

from acclimate.errors import UserError
from acclimate.files import find_file

Boundary = Literal["paper", "aware"]
WORD_PATTERN = regex.compile(r"[\p{L}\p{N}_][\p{L}\p{N}\p{M}_]*|[^\p{L}\p{N}_\s]")
FIRST_LEARNING_RATE, LAST_LEARNING_RATE = 0.05, 1e-4
"""First and last learning rate: the default of the fastText library; that of gensim is half of it."""
NEGATIVE_SAMPLING_EXPONENT = 0.5
"""Negatives are drawn by this power of their counts, as the fastText library does; gensim has the 0.75 of word2vec."""
BIN_HEADER, BIN_MAGIC = struct.Struct("<2i12id3i"), 793_712_314
"""How a ``.bin`` begins: a number that all have, its version, the arguments, and the counts of the dictionary."""
MAX_SENTENCE_WORDS = 10_000
"""Words of a text that gensim reads; what is beyond them it drops without a word, so longer texts are cut."""


def split_words(text: str) -> list[str]:
    """Split a text into words and marks."""
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
    tell: Callable[[float], None] | None = None,
) -> Any:
    """Train skip-gram vectors with subwords (Bojanowski et al., 2017), or go on with trained ones.

    Window 5, 5 negatives, n-grams of 3 to 6 characters, sampling 1e-4: the defaults of the fastText library. One
    thread, so that the same seed gives the same vectors. Trained vectors go on as skip-gram also where they were made
    as CBOW, as those of fasttext.cc for 157 languages were; their window and number of negatives stay.

    Args:
        texts: Are split into words here, anew at every reading: once, and once for each epoch. Memory does not grow
            with them, unless they are an iterator, which can be read only once.
        start: A model of gensim to go on with; its dimension and n-grams stay. It is changed.
        dimension: Of new vectors.
        min_count: Rarer words get no vector of their own, but one of their n-grams.
        epochs: Passes over the texts.
        buckets: Rows that n-grams share by their hash; their memory is this times the dimension times 4 bytes.
        seed: Of new vectors, and of what is drawn in training.
        tell: Is called with the share of the work that is done, 0 to 1.

    Returns:
        A ``gensim.models.FastText``.

    Raises:
        UserError: If no word is frequent enough.
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
    model.seed, model.random = seed, np.random.RandomState(seed)  # a loaded model has those of gensim
    model.min_alpha_yet_reached = FIRST_LEARNING_RATE  # it may rise again when another text is learnt
    try:
        model.build_vocab(sentences, update=start is not None)
        if not len(model.wv):
            raise RuntimeError
        count = model.corpus_count
        read = sentences if tell is None else _SentencesWithProgress(sentences, epochs * count, tell)
        model.train(
            read, total_examples=count, epochs=epochs, start_alpha=FIRST_LEARNING_RATE, end_alpha=LAST_LEARNING_RATE
        )
    except RuntimeError as error:
        if sentences.error is None:
            raise UserError(
                f"No word of the text occurs {min_count} times, so no word vectors can be trained on it; "
                "lower min_count."
            ) from error
    if sentences.error is not None:
        raise sentences.error
    return model


def _split_long_sentence(found: list[str]) -> Iterator[list[str]]:
    """Cut what is longer than gensim reads."""
    for start in range(0, len(found), MAX_SENTENCE_WORDS):
        yield found[start : start + MAX_SENTENCE_WORDS]


class _Sentences:
    """Texts in words, split anew at every reading, so that memory holds one text at a time.

    gensim reads in a thread of its own, for which it would wait for ever after an error there.

    Attributes:
        error: What went wrong; nothing is given from there on.
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
    """Sentences that tell how much of all readings is done."""

    def __init__(self, sentences: Iterable[list[str]], total: int, tell: Callable[[float], None]) -> None:
        self._sentences, self._total, self._tell, self._read = sentences, total, tell, 0

    def __iter__(self) -> Iterator[list[str]]:
        for sentence in self._sentences:
            yield sentence
            self._read += 1
            self._tell(self._read / self._total)


def load_fasttext(path: str | Path) -> Any:
    """Load a ``.bin`` of the fastText library with all that training needs.

    Raises:
        UserError: If there is none, or the file is another one, such as a ``.vec``, or damaged.
    """
    file = find_file(path)
    if file is None:
        raise UserError(
            f"There are no fastText vectors '{path}'. Public ones are at fasttext.cc (.bin, not .vec); without "
            "'vectors' they are learnt from the text, after a 'general' one if you name it."
        )
    _check_not_truncated(file)
    try:
        return _import_gensim().models.fasttext.load_facebook_model(str(file))
    except (MemoryError, OverflowError) as error:  # the sizes in the file say how much is read
        raise UserError(
            f"'{path}' is no fastText model with subwords (.bin) that fits into memory; a size in it may be damaged."
        ) from error
    except (ValueError, NotImplementedError, EOFError, OSError, KeyError, AssertionError, struct.error) as error:
        raise UserError(f"'{path}' is no fastText model with subwords (.bin); a .vec file will not do.") from error


def _check_not_truncated(file: Path) -> None:
    """Raise UserError for a model that is cut off in its dictionary: gensim would look for the rest for ever."""
    with file.open("rb") as stream:
        head = stream.read(BIN_HEADER.size)
    if len(head) < BIN_HEADER.size:
        return  # gensim says so
    magic, _, dimension, *_, words, _ = BIN_HEADER.unpack(head)
    vectors = 2 * 4 * dimension * words  # of the words alone, behind the dictionary
    if magic == BIN_MAGIC and 0 <= file.stat().st_size < vectors:
        raise UserError(f"'{file}' is cut off: its {words:,} words have more vectors than that. Download it again.")


def save_fasttext(model: Any, path: str | Path) -> None:
    """Write a model as a ``.bin`` of the fastText library, which :func:`load_fasttext` reads."""
    _import_gensim().models.fasttext.save_facebook_model(model, str(path))


def lookup_vector(model: Any, text: str, starts: bool, boundary: Boundary = "paper") -> np.ndarray:
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
