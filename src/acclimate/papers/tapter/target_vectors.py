"""Target vectors for the embeddings of a vocabulary (TAPTER): trains fastText on the text of a run, with a cache."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from acclimate.api import (
    NEGATIVE_SAMPLING_EXPONENT,
    AdaptContext,
    Corpus,
    DecodedDocuments,
    FastTextBoundary,
    Progress,
    SurfaceForm,
    TextNormalizer,
    UserError,
    atomic_folder,
    cache_folder,
    cache_key,
    find_file,
    first_line,
    hash_file,
    load_fasttext,
    lookup_vector,
    read_stop_words,
    read_surface_forms,
    save_fasttext,
    train_fasttext,
)


@dataclass(frozen=True)
class Targets:
    """Target vectors of a vocabulary.

    Attributes:
        vectors: (vocabulary, dimension), float32.
        regularized: Whether a token has a target (vocabulary,); tokens of R(X) in the paper.
    """

    vectors: Tensor
    regularized: Tensor

    @property
    def mean_norm(self) -> float:
        """Mean norm of the target vectors of regularized tokens. It acts like a weight of the loss."""
        return float(self.vectors[self.regularized].norm(dim=1).mean())


def make_targets(
    model: Any,
    pieces: Sequence[SurfaceForm],
    *,
    stop_words: Collection[str] = (),
    boundary: FastTextBoundary = "paper",
    normalize: bool = False,
) -> Targets:
    """Look up every token of a vocabulary in fastText.

    A token has a target unless it is special, a stop word, shorter than the shortest n-gram, or unknown (a vector of
    zeros). Continuation pieces are never stop words.

    Args:
        model: A ``gensim.models.FastText``.
        pieces: Surface form of every token.
        stop_words: Stop words in lower case.
        boundary: See :func:`acclimate.data.fasttext.lookup_vector`.
        normalize: Scale every vector to the norm sqrt(dimension) of a layer-normalized vector. Without it (paper),
            short vectors have a weaker pull than long ones.

    Raises:
        UserError: If no token has a target.
    """
    vectors = np.stack([lookup_vector(model, piece.text, piece.starts, boundary) for piece in pieces])
    return _make_targets(vectors, pieces, model.wv.min_n, stop_words, normalize)


def read_targets(
    path: str | Path, pieces: Sequence[SurfaceForm], *, stop_words: Collection[str] = (), normalize: bool = False
) -> Targets:
    """Read target vectors from a ``.npy`` file with a row per vocabulary token, (tokens, dimension).

    A token has a target unless it is special, a stop word, or its row is zero.

    Raises:
        UserError: If the file is missing or has another content, or no token has a target.
    """
    try:
        vectors = np.load(path)
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"The vectors '{path}' cannot be read as .npy: {first_line(error)}.") from error
    if not isinstance(vectors, np.ndarray) or vectors.ndim != 2 or vectors.dtype.kind not in "fiu":
        raise UserError(f"'{path}' must hold a matrix of numbers of shape (tokens, dimension).")
    if len(vectors) != len(pieces):
        raise UserError(
            f"'{path}' has {len(vectors):,} rows and the vocabulary {len(pieces):,} tokens; give one row per token."
        )
    if not np.isfinite(vectors).all():
        raise UserError(f"'{path}' holds NaN or infinite values; give zeros for unknown tokens.")
    return _make_targets(vectors.astype(np.float32), pieces, 1, stop_words, normalize)


def _make_targets(
    vectors: np.ndarray, pieces: Sequence[SurfaceForm], shortest: int, stop_words: Collection[str], normalize: bool
) -> Targets:
    norms = np.linalg.norm(vectors, axis=1)
    eligible = [
        len(piece.text) >= max(1, shortest) and not (piece.starts and piece.text.lower() in stop_words)
        for piece in pieces
    ]
    regularized = np.array(eligible) & (norms > 0)
    if not regularized.any():
        raise UserError("No token of the vocabulary has a word vector; check that the vectors match its language.")
    if normalize:
        vectors = vectors * (vectors.shape[1] ** 0.5 / np.maximum(norms, 1e-12))[:, None]
    return Targets(torch.from_numpy(vectors.astype(np.float32)), torch.from_numpy(regularized))


CACHE_VERSION = 3
"""Increment when the same text gives different vectors."""
GENERAL_SEED = 0
"""Random seed of the vectors of a general text, which all runs share since they take hours and gigabytes."""


def make_fasttext_targets(run: AdaptContext, settings: Mapping[str, Any]) -> Targets:
    """Train fastText on the text of a run and look up its vocabulary, or read the result from the cache.

    If ``vectors`` is a ``.npy`` file, it is read instead. The text of the run is decoded from its rows, and a general
    text is normalized as the tokenizer does, so that words have the same case as in the vocabulary.

    Args:
        run: The adaptation.
        settings: The parameters of :class:`acclimate.papers.tapter.method.TAPTER`.

    Raises:
        UserError: If a file is missing or invalid, or no token has a target.
    """
    stop_words = read_stop_words(settings["stop_words"], run.tokenizer)
    if settings["vectors"].endswith(".npy"):
        return read_targets(
            settings["vectors"],
            read_surface_forms(run.tokenizer),
            stop_words=stop_words,
            normalize=settings["normalize"],
        )
    general = Corpus([settings["general"]]) if settings["general"] and not settings["vectors"] else None

    def make() -> dict[str, Any]:
        model = load_fasttext(settings["vectors"]) if settings["vectors"] else None
        options = {name: settings[name] for name in ("dimension", "min_count", "epochs", "buckets")}
        if general is not None:
            model = load_fasttext(
                _general_vectors_file(run, general, {**options, "epochs": settings["general_epochs"]})
            )
        model = _train_vectors(
            run, "the text of the run", DecodedDocuments(run.rows, run.tokenizer), model, options, run.seed
        )
        targets = make_targets(
            model,
            read_surface_forms(run.tokenizer),
            stop_words=stop_words,
            boundary=settings["boundary"],
            normalize=settings["normalize"],
        )
        return {"vectors": targets.vectors, "regularized": targets.regularized}

    keys = ("vectors", "dimension", "min_count", "epochs", "buckets", "boundary", "normalize")
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
    return Targets(made["vectors"], made["regularized"])


def _general_vectors_file(run: AdaptContext, text: Corpus, options: Mapping[str, Any]) -> Path:
    """Return the cached ``.bin`` file of the vectors of a general text, which are trained first if necessary.

    All seeds share it, and all models whose tokenizers normalize text in the same way.
    """
    normalizer = TextNormalizer(run.tokenizer)
    key = {**options, "text": text.fingerprint, "spelling": normalizer.rule}
    key |= {"negatives": NEGATIVE_SAMPLING_EXPONENT, "version": CACHE_VERSION}
    file = cache_folder() / "fasttext-general" / cache_key(key) / "general.bin"
    if not file.is_file():
        model = _train_vectors(
            run, "the general text", _NormalizedTexts(text, normalizer), None, options, GENERAL_SEED
        )
        with atomic_folder(file.parent) as folder:
            save_fasttext(model, folder / file.name)
    return file


def _train_vectors(
    run: AdaptContext, what: str, texts: Iterable[str], start: Any, options: Mapping[str, Any], seed: int
) -> Any:
    run.say(f"Training fastText on {what}.")
    with Progress("fastText", 100, unit="%", enabled=run.progress) as bar:
        return train_fasttext(
            texts, start=start, seed=seed, report=lambda share: bar.update(int(100 * share)), **options
        )


class _NormalizedTexts:
    """Texts that are normalized on the fly at every iteration."""

    def __init__(self, texts: Iterable[str], normalize: Callable[[str], str]) -> None:
        self._texts, self._normalize = texts, normalize

    def __iter__(self) -> Iterator[str]:
        return map(self._normalize, self._texts)
