"""The nearest neighbors of the texts of a task (kNN-TAPT, Gururangan et al., ACL 2020), and document embeddings."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from acclimate.base.errors import UserError
from acclimate.base.progress import Progress
from acclimate.base.ranking import content_order, content_ranks, settle, top_positions
from acclimate.data.ngrams import normalize_words
from acclimate.data.operations import Context, Operation, register
from acclimate.data.pool import Documents
from acclimate.data.select.control import Budget

MAX_FEATURES, DIMENSIONS = 30_000, 128
"""Words of the TF-IDF vectors, as in the released code, and the maximum dimensions that they are reduced to."""
LOST = 0.01
"""Length of a reduced vector, of 1 before, below which only noise is left of a text, so that it has no neighbors."""
FITTED_DOCUMENTS = 10_000
"""Maximum number of documents from which the weights of words and the dimensions are learned."""
CHUNK_NUMBERS = 1 << 23
"""Similarities that are held in memory at a time."""
Embed = Callable[[Sequence[str]], np.ndarray]


def normalize_rows(vectors: np.ndarray) -> np.ndarray:
    """Return vectors (n, dimensions) of length one in fp64; zeros remain zeros."""
    vectors = np.asarray(vectors, dtype=np.float64)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def load_embedding(model: str | None, documents: Documents, target: Sequence[str], context: Context) -> Embed:
    """Return the function that embeds texts as vectors of length one (texts, dimensions).

    Args:
        model: Name of an encoder; None for TF-IDF vectors that are reduced by a truncated SVD, both learned from a
            sample of the documents and from the target.
        documents: The documents.
        target: The texts that they are compared with.
        context: It loads encoders.

    Raises:
        UserError: If the encoder cannot be loaded, or the texts have no words.
    """
    if model is not None:
        if context.load_encoder is None:
            raise ValueError("the context loads no encoders")
        encode = context.load_encoder(model)
        return lambda texts: normalize_rows(encode(texts))
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.preprocessing import normalize

    sample = [documents[int(place)] for place in np.sort(content_order(documents, 0)[:FITTED_DOCUMENTS])]
    words = TfidfVectorizer(analyzer=normalize_words, sublinear_tf=True, max_features=MAX_FEATURES)
    try:
        fitted = words.fit_transform([*sample, *target])
    except ValueError as error:
        raise UserError("The documents and the target contain no words, so they cannot be compared.") from error
    if min(fitted.shape) <= 2 * DIMENSIONS:  # an SVD gains little, and where it cuts between equal singular values
        # rounding decides which directions are left.
        return lambda texts: normalize(words.transform(texts)).toarray()
    svd = TruncatedSVD(DIMENSIONS, n_iter=3, random_state=0).fit(fitted)

    def project(texts: Sequence[str]) -> np.ndarray:
        vectors = svd.transform(words.transform(texts))
        vectors[np.linalg.norm(vectors, axis=1) < LOST] = 0
        return normalize_rows(vectors)

    return project


class Neighbors:
    """The nearest of many vectors to each of a few, found in one pass.

    Attributes:
        positions: Positions of the nearest, the nearest first; -1 for none (targets, k). int64, since fp32 cannot
            hold the numbers of more than 16.7 million documents.
        similarity: Their cosine similarity, settled (:func:`acclimate.base.ranking.settle`); -inf for none (targets,
        k). ranks: Their ranks among equally near documents (targets, k).
    """

    def __init__(self, targets: np.ndarray, k: int) -> None:
        """Start with none.

        Args:
            targets: Vectors of length one (targets, dimensions).
            k: Number of neighbors of each.
        """
        self._targets = targets
        self.ranks = np.zeros((len(targets), k), dtype=np.int64)
        self.positions = np.full((len(targets), k), -1, dtype=np.int64)
        self.similarity = np.full((len(targets), k), -np.inf)

    def add(self, vectors: np.ndarray, first: int, ranks: np.ndarray) -> None:
        """Take further vectors into account.

        Args:
            vectors: Vectors of length one (n, dimensions).
            first: Position of the first of them.
            ranks: Rank of each among equally near ones, such as :func:`acclimate.base.ranking.content_ranks` (n,).
        """
        found = self._targets @ vectors.T
        k = self.similarity.shape[1]
        best = top_positions(found, ranks, k)
        similarity = np.concatenate([self.similarity, settle(np.take_along_axis(found, best, axis=1))], axis=1)
        positions = np.concatenate([self.positions, best + first], axis=1)
        known = np.concatenate([self.ranks, ranks[best]], axis=1)
        order = np.lexsort((known, -similarity))[:, :k]
        self.ranks = np.take_along_axis(known, order, axis=1)
        self.similarity = np.take_along_axis(similarity, order, axis=1)
        self.positions = np.take_along_axis(positions, order, axis=1)


def embed_chunks(documents: Documents, embed: Embed, size: int, title: str, progress: bool) -> Iterator[np.ndarray]:
    """Yield the vectors of the documents, ``size`` at a time (n, dimensions)."""
    with Progress(title, len(documents), unit="documents", enabled=progress) as bar:
        for first in range(0, len(documents), size):
            yield embed(documents[first : first + size])
            bar.update(min(first + size, len(documents)))


def search_neighbors(
    documents: Documents,
    target: Sequence[str],
    k: int,
    embed: Embed,
    progress: bool,
    left_out: np.ndarray | None = None,
) -> Neighbors:
    """Search the documents that are nearest to each of some texts, in pieces that fit into memory.

    Args:
        documents: The documents.
        target: The texts.
        k: Number of neighbors of each.
        embed: It embeds texts.
        progress: Whether to show a progress bar.
        left_out: Whether a document is similar to no text (documents,); None leaves out none.
    """
    found, ranks = Neighbors(embed(target), min(k, len(documents))), content_ranks(documents)
    first, size = 0, max(1, min(4096, CHUNK_NUMBERS // max(1, len(target))))
    for chunk in embed_chunks(documents, embed, size, "Searching neighbors", progress):
        usable = chunk if left_out is None else np.where(left_out[first : first + len(chunk), None], 0.0, chunk)
        found.add(usable, first, ranks[first : first + len(chunk)])
        first += len(chunk)
    return found


@register(
    "nearest",
    paper="kNN-TAPT, Gururangan et al., ACL 2020",
    summary="the nearest neighbors of the texts of the task",
)
@dataclass(frozen=True)
class Nearest(Budget):
    """Keeps the union of the ``k`` documents that are most similar to each text of the task.

    The search is exact, by cosine similarity. Documents that equal a text of the task are left out, since ``task``
    adds the texts themselves. With a budget, first neighbors come before second ones and so on, the more similar
    first.

    Attributes:
        k: Neighbors of each text of the task: 50, 150 or 500 in the paper, 5 in the released code.
        encoder: Model that embeds the texts, a folder or a name on the Hugging Face Hub; None for TF-IDF vectors that
            are reduced by an SVD. The paper trains VAMPIRE, a variational autoencoder on bags of words, whose code can
            no longer be installed.
        similarity: Minimum cosine similarity of a neighbor; 0 or less never counts. After an SVD, texts that share no
            word may have a little.
        order: ``pool`` keeps the order of the corpus; ``rank`` puts first neighbors first, as the released code does,
            which writes a file for each rank. Training draws documents at random, whatever their order.
    """

    main: ClassVar[str] = "k"
    models: ClassVar[tuple[str, ...]] = ("encoder",)
    k: int = 50
    encoder: str | None = None
    similarity: float = 0.0
    order: Literal["pool", "rank"] = "pool"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.k < 1:
            raise UserError(f"Selection 'nearest': k must be at least 1, not {self.k}.")
        if self.similarity > 1:
            raise UserError(f"Selection 'nearest': similarity must be at most 1, not {self.similarity:g}.")

    @property
    def reads(self) -> tuple[str, ...]:
        """The text of the task."""
        return ("target",)

    def apply(self, documents: Documents, context: Context) -> Documents:
        """Search the neighbors."""
        target = list(context.target or ())
        embed = load_embedding(self.encoder, documents, target, context)
        own = np.fromiter(map(set(target).__contains__, documents), bool, len(documents))
        found = search_neighbors(documents, target, self.k, embed, context.progress, own)
        positions, ranks, similarity = self._union(found, own)
        kept = self.fill(positions, documents.tokens)
        context.notes.update(
            task_texts=len(target),
            without_neighbor=int((~self._accepted(found, own)).all(axis=1).sum()),
            equal_to_task_texts=int(own.sum()),
            similarity={"mean": float(similarity[: len(kept)].mean()) if len(kept) else None},
            first_neighbors=int((ranks[: len(kept)] == 0).sum()),
        )
        return documents.take(kept if self.order == "rank" else np.sort(kept))

    def _accepted(self, found: Neighbors, own: np.ndarray) -> np.ndarray:
        """Return which neighbors count (targets, k)."""
        is_new = ~own[found.positions] & (found.positions >= 0)
        return is_new & (found.similarity >= max(self.similarity, 1e-6))

    def _union(self, found: Neighbors, own: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the positions of all neighbors, each once, with the best rank and similarity of each (n,).

        They are sorted by rank, then by similarity.
        """
        accepted = self._accepted(found, own)
        ranks = np.broadcast_to(np.arange(accepted.shape[1]), accepted.shape)[accepted]
        positions, similarity = found.positions[accepted], found.similarity[accepted]
        order = np.lexsort((found.ranks[accepted], -similarity, ranks))
        positions, ranks, similarity = positions[order], ranks[order], similarity[order]
        _, once = np.unique(positions, return_index=True)
        once = np.sort(once)  # the first place of each position, in the order by rank
        return positions[once], ranks[once], similarity[once]


@register("task", paper="curated TAPT, Gururangan et al., ACL 2020", summary="adds the texts of the task itself")
@dataclass(frozen=True)
class Task(Operation):
    """Adds the train texts of the task to the documents, as kNN-TAPT and curated TAPT do.

    Attributes:
        times: Copies of each text that are added: more than one where the documents would outnumber them.
    """

    main: ClassVar[str] = "times"
    stays_in_control: ClassVar[bool] = True
    times: int = 1

    @property
    def reads(self) -> tuple[str, ...]:
        """The text of the task."""
        return ("target",)

    def apply(self, documents: Documents, context: Context) -> Iterable[str]:
        """Return the documents and then the texts."""
        if self.times < 1:
            raise UserError(f"Selection 'task': times must be at least 1, not {self.times}.")
        context.notes["task_texts"] = len(context.target or ())
        return itertools.chain(documents, *[context.target or ()] * self.times)
