"""For every token of a vocabulary: where its embedding should be drawn to, and whether (TAPTER, R(X)).

The fastText stage of an adaptation: from the token rows of a run to targets for its vocabulary, cached.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from acclimate.corpus import Corpus
from acclimate.corpus.stop_words import read_stop_words
from acclimate.corpus.surface_forms import SurfaceForm, TextNormalizer, read_surface_forms
from acclimate.errors import UserError, first_line
from acclimate.files import atomic_folder, find_file, hash_file
from acclimate.methods.tapter.fasttext import (
    NEGATIVE_SAMPLING_EXPONENT,
    Boundary,
    load_fasttext,
    lookup_vector,
    save_fasttext,
    train_fasttext,
)
from acclimate.progress import Progress
from acclimate.training.method import AdaptContext, cache_folder, cache_key


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
    pieces: Sequence[SurfaceForm],
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
        boundary: See :func:`acclimate.methods.tapter.fasttext.lookup_vector`.
        normalise: Scale every vector to the norm sqrt(dimension), which is that of a layer-normalised vector. As they
            are (the paper), short vectors pull less than long ones.

    Raises:
        UserError: If no token takes part.
    """
    vectors = np.stack([lookup_vector(model, piece.text, piece.starts, boundary) for piece in pieces])
    return _make_targets(vectors, pieces, model.wv.min_n, stop_words, normalise)


def read_targets(
    path: str | Path, pieces: Sequence[SurfaceForm], *, stop_words: Collection[str] = (), normalise: bool = False
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
    return _make_targets(vectors.astype(np.float32), pieces, 1, stop_words, normalise)


def _make_targets(
    vectors: np.ndarray, pieces: Sequence[SurfaceForm], shortest: int, stop_words: Collection[str], normalise: bool
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


CACHE_VERSION = 3
"""Raise when the same text comes to give other vectors."""
GENERAL_SEED = 0
"""Of what is learnt of a general text: gigabytes and hours that all runs share."""


def make_fasttext_targets(run: AdaptContext, settings: Mapping[str, Any]) -> Targets:
    """Train fastText on the text of a run and look its vocabulary up; both come from the cache if they are there.

    Where ``vectors`` is a ``.npy`` it is F itself, and nothing is trained. Otherwise the text is what the model reads,
    decoded from its rows, and a general text is read as the tokenizer writes it: words then have the case that the
    vocabulary has.

    Args:
        run: The adaptation.
        settings: ``vectors``, ``general``, ``general_epochs``, ``dimension``, ``min_count``, ``epochs``,
            ``buckets``, ``stop_words``, ``boundary`` and ``normalise``, as
            :class:`acclimate.methods.tapter.method.TAPTER`
            has them.
    """
    stop_words = read_stop_words(settings["stop_words"], run.tokenizer)
    if settings["vectors"].endswith(".npy"):
        return read_targets(
            settings["vectors"],
            read_surface_forms(run.tokenizer),
            stop_words=stop_words,
            normalise=settings["normalise"],
        )
    general = Corpus([settings["general"]]) if settings["general"] and not settings["vectors"] else None

    def make() -> dict[str, Any]:
        model = load_fasttext(settings["vectors"]) if settings["vectors"] else None
        options = {name: settings[name] for name in ("dimension", "min_count", "epochs", "buckets")}
        if general is not None:
            model = load_fasttext(
                _general_vectors_file(run, general, {**options, "epochs": settings["general_epochs"]})
            )
        model = _train_vectors(run, "the text of the run", _DecodedDocuments(run), model, options, run.seed)
        targets = make_targets(
            model,
            read_surface_forms(run.tokenizer),
            stop_words=stop_words,
            boundary=settings["boundary"],
            normalise=settings["normalise"],
        )
        return {"vectors": targets.vectors, "regularised": targets.regularised}

    keys = ("vectors", "dimension", "min_count", "epochs", "buckets", "boundary", "normalise")
    identity = {
        **{name: settings[name] for name in keys},
        "negatives": NEGATIVE_SAMPLING_EXPONENT,
        "version": CACHE_VERSION,
    }
    if settings["vectors"] and (file := find_file(settings["vectors"])) is not None:
        identity["vectors"] = hash_file(file)
    if general is not None:
        identity |= {"general": general.fingerprint, "general_epochs": settings["general_epochs"]}
    identity["stop_words"] = sorted(stop_words)
    made = run.cached("fasttext", identity, make)
    return Targets(made["vectors"], made["regularised"])


def _general_vectors_file(run: AdaptContext, text: Corpus, options: Mapping[str, Any]) -> Path:
    """Return a ``.bin`` of the cache: what was learnt of a general text serves every run, whatever its seed.

    Models whose tokenizers write text in the same way share it: cased ones, or uncased ones.
    """
    spelling = TextNormalizer(run.tokenizer)
    decides = {**options, "text": text.fingerprint, "spelling": spelling.rule}
    decides |= {"negatives": NEGATIVE_SAMPLING_EXPONENT, "version": CACHE_VERSION}
    file = cache_folder() / "fasttext-general" / cache_key(decides) / "general.bin"
    if not file.is_file():
        made = _train_vectors(run, "general text", _SpelledTexts(text, spelling), None, options, GENERAL_SEED)
        with atomic_folder(file.parent) as folder:
            save_fasttext(made, folder / file.name)
    return file


def _train_vectors(
    run: AdaptContext, what: str, texts: Iterable[str], start: Any, options: Mapping[str, Any], seed: int
) -> Any:
    run.say(f"Training fastText on {what}.")
    with Progress("fastText", 100, unit="%", enabled=run.progress) as bar:
        return train_fasttext(
            texts, start=start, seed=seed, tell=lambda share: bar.update(int(100 * share)), **options
        )


class _SpelledTexts:
    """Texts as a tokenizer writes them, anew at every reading."""

    def __init__(self, texts: Iterable[str], spelling: Callable[[str], str]) -> None:
        self._texts, self._spelling = texts, spelling

    def __iter__(self) -> Iterator[str]:
        return map(self._spelling, self._texts)


class _DecodedDocuments:
    """The documents of a run as texts, decoded at every reading.

    Their rows are put together first: a long document is cut anywhere, also within words.
    """

    def __init__(self, run: AdaptContext) -> None:
        self._run = run

    def __iter__(self) -> Iterator[str]:
        rows = self._run.rows
        documents = getattr(rows, "document", range(len(rows)))
        for _, of_one in groupby(range(len(rows)), key=documents.__getitem__):
            ids = np.concatenate([rows[index] for index in of_one]).tolist()
            yield self._run.tokenizer.decode(ids, skip_special_tokens=True)  # type: ignore[misc]
