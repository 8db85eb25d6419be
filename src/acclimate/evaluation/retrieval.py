"""Metrics of ranked documents, and the ranking of BM25, alone or fused with a model's ranking: the lines to beat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from acclimate.base.errors import UserError
from acclimate.base.ranking import content_ranks, top_positions
from acclimate.evaluation.scoring import MeanScoring, register
from acclimate.evaluation.significance import paired_bootstrap

NAMES = ("ndcg@10", "mrr@10", "recall@100")
DEPTH = 100
"""Number of documents that are ranked."""
FUSION = 60
"""Constant of reciprocal rank fusion, as in the paper."""


def ranking_scores(relevant: Mapping[str, float], ranked: Sequence[str]) -> dict[str, float]:
    """Score the ranking of one query.

    The gain of nDCG is the grade of a document, as in trec_eval and BEIR.

    Args:
        relevant: Grade of each relevant document, above zero.
        ranked: Ids of documents, the best first.

    Returns:
        The scores for each of :data:`NAMES`, in [0, 1].
    """
    gains = [relevant.get(document, 0.0) for document in ranked[:10]]
    ideal = sorted(relevant.values(), reverse=True)[:10]
    first = next((rank for rank, gain in enumerate(gains, 1) if gain), None)
    found = sum(document in relevant for document in ranked[:DEPTH])
    return {
        "ndcg@10": _discounted(gains) / _discounted(ideal),
        "mrr@10": 1 / first if first else 0.0,
        "recall@100": found / len(relevant),
    }


def _discounted(gains: Sequence[float]) -> float:
    return float(sum(gain / np.log2(rank + 1) for rank, gain in enumerate(gains, 1)))


@register("retrieval")
@dataclass(frozen=True)
class RetrievalScoring(MeanScoring):
    """Retrieval: gold is the grade of each relevant document by id, predicted a list of ids, the best first.

    All metrics are means over queries; nDCG@10 is the primary one.
    """

    hub_task: ClassVar[tuple[str, str]] = ("sentence-similarity", "Information Retrieval")
    names: ClassVar[tuple[str, ...]] = NAMES

    def item_scores(self, gold: Sequence[Any], predicted: Sequence[Any], metric: str) -> Sequence[float]:
        """Return the score of each query."""
        return [
            ranking_scores(relevant, list(ranked))[metric] for relevant, ranked in zip(gold, predicted, strict=True)
        ]


def retrieval_metrics(gold: Sequence[Mapping[str, float]], predicted: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return the means of :func:`ranking_scores` over queries.

    Raises:
        ValueError: If there are no queries, or the lengths differ.
    """
    if not gold or len(gold) != len(predicted):
        raise ValueError(f"{len(gold)} queries do not match {len(predicted)} rankings.")
    scoring = RetrievalScoring()
    return {name: scoring.score(gold, predicted, name) for name in NAMES}


def compare_rankings(
    gold: Sequence[Mapping[str, float]],
    predicted: Sequence[Sequence[str]],
    other: Sequence[Sequence[str]],
    scoring: RetrievalScoring | None = None,
) -> dict[str, Any]:
    """Return the metrics of other rankings, and ``difference``: the interval of nDCG@10 minus theirs over queries.

    A ``scoring`` has the groups of the queries.
    """
    interval = paired_bootstrap(gold, [predicted], [other], "ndcg@10", scoring=scoring or RetrievalScoring())
    return {**retrieval_metrics(gold, other), "difference": interval.as_dict()}


class Bm25:
    """An index of documents (k1 = 1.5, b = 0.75, the variant of Lucene; English stop words are left out)."""

    def __init__(self, documents: Mapping[str, str]) -> None:
        """Index documents.

        Args:
            documents: Texts by id.

        Raises:
            UserError: If ``bm25s`` is not installed.
        """
        try:
            import bm25s
        except ImportError as error:
            raise UserError("BM25 needs bm25s: pip install 'acclimate[embeddings]'.") from error
        self.ids, self.ranks = list(documents), content_ranks(documents.values())
        self.tokenize, self.index = partial(bm25s.tokenize, show_progress=False), bm25s.BM25()
        words = self.tokenize(list(documents.values()))
        self.empty = not words.vocab
        if not self.empty:
            self.index.index(words, show_progress=False)

    def rank(self, queries: Sequence[str], depth: int = DEPTH, own: Sequence[str | None] = ()) -> list[list[str]]:
        """Rank the documents.

        Args:
            queries: The queries.
            depth: Number of documents to rank.
            own: For each query, the id of the document that it is itself, which is left out.

        Returns:
            For each query the ids of documents that share a word with it, the best first.
        """
        ids, ranked = self.ids, list[list[str]]()
        words = self.tokenize(list(queries), return_ids=False)
        for asked, itself in zip(words, own or [None] * len(queries), strict=True):
            scores = self.index.get_scores(asked) if asked and not self.empty else np.zeros(len(ids))
            (places,) = top_positions(scores[None], self.ranks, depth + (itself is not None))
            found = [ids[place] for place in places.tolist() if scores[place] > 0 and ids[place] != itself]
            ranked.append(found[:depth])
        return ranked


def rank_with_bm25(
    documents: Mapping[str, str], queries: Sequence[str], depth: int = DEPTH, own: Sequence[str | None] = ()
) -> list[list[str]]:
    """Rank documents by id with :class:`Bm25`."""
    return Bm25(documents).rank(queries, depth, own)


def fuse_rankings(*rankings: Sequence[Sequence[str]], depth: int = DEPTH) -> list[dict[str, float]]:
    """Fuse rankings by reciprocal ranks (Cormack et al., SIGIR 2009): the sum of 1 / (60 + rank) over those with it.

    Args:
        rankings: For each retriever, the ids of the documents of each query, the best first. Earlier ones win ties.
        depth: Number of documents to rank.

    Returns:
        For each query the sums by id, the best first.

    Raises:
        ValueError: If the numbers of queries differ.
    """
    fused = list[dict[str, float]]()
    for ranked in zip(*rankings, strict=True):
        sums = dict[str, float]()
        for ids in ranked:
            for rank, document in enumerate(ids, 1):
                sums[document] = sums.get(document, 0.0) + 1 / (FUSION + rank)
        fused.append(dict(sorted(sums.items(), key=lambda entry: -entry[1])[:depth]))
    return fused
