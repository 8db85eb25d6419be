"""Cross-encoders, which read a query and a document together and rerank what a first stage finds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForSequenceClassification

from acclimate.base.ranking import best_first, content_ranks, settle
from acclimate.evaluation.retrieval import rank_with_bm25
from acclimate.tasks.head_model import check_finite
from acclimate.tasks.kinds.classification.classifier import Classifier
from acclimate.tasks.kinds.retrieval.encoder import BiEncoder, load_bi_encoder
from acclimate.tasks.loading import load_with_head

QUERIES = 64
"""Queries whose pairs are tokenized at a time."""


class QueryPair(NamedTuple):
    """A query with a document, and whether the document is relevant."""

    text: str
    text_pair: str
    relevant: bool = False


class Reranker(Classifier):
    """A sequence classification model whose only output is the logit that a document is relevant to a query.

    ``CrossEncoder`` of ``sentence-transformers`` loads its folder. The training loss is its
    ``BinaryCrossEntropyLoss``, which the model itself computes (``problem_type``).

    Attributes:
        first: The bi-encoder that finds the documents to rerank; None for BM25.
    """

    first: BiEncoder | None = None

    def _target(self, example: QueryPair) -> list[float]:
        return [float(example.relevant)]

    def logits(self, pairs: Sequence[QueryPair]) -> list[float]:
        """Return the logit of each pair, computed in fp32.

        Raises:
            UserError: If one is NaN or infinite.
        """
        outputs = self.predict(self.features(pairs), "fp32") if pairs else []
        check_finite(outputs)
        return [float(output) for output in outputs]

    def similarity(self, first: Sequence[str], second: Sequence[str]) -> list[float]:
        """Return the probability that each second text is relevant to the first one, as ``CrossEncoder.predict``."""
        pairs = [QueryPair(*texts) for texts in zip(first, second, strict=True)]
        return torch.tensor(self.logits(pairs)).sigmoid().tolist()

    def find(self, documents: dict[str, str], queries: Sequence[str], own: Sequence[str | None] = ()) -> Any:
        """Return the documents that the first stage finds for each query, with their similarities if it has some."""
        rank = rank_with_bm25 if self.first is None else self.first.rank
        return rank(documents, queries, own=own)

    def rank(
        self, documents: dict[str, str], queries: Sequence[str], own: Sequence[str | None] = ()
    ) -> tuple[list[list[str]], list[list[float]]]:
        """Return the ids of what the first stage finds for each query, the best first, and their logits."""
        return self.rerank(documents, queries, ids_of(self.find(documents, queries, own)))

    def rerank(
        self, documents: dict[str, str], queries: Sequence[str], found: Sequence[Sequence[str]]
    ) -> tuple[list[list[str]], list[list[float]]]:
        """Return the documents that were found for each query, the best first, and their logits."""
        ranks = dict(zip(documents, content_ranks(documents.values()).tolist(), strict=True))
        ids, scores = list[list[str]](), list[list[float]]()
        for start in range(0, len(queries), QUERIES):
            part = list(zip(queries[start : start + QUERIES], found[start : start + QUERIES], strict=True))
            logits = iter(self.logits([QueryPair(query, documents[key]) for query, keys in part for key in keys]))
            for _, keys in part:
                own = [next(logits) for _ in keys]
                order = best_first(own, [ranks[key] for key in keys]).tolist()
                ids.append([keys[place] for place in order])
                scores.append(settle([own[place] for place in order]).tolist())
        return ids, scores


def ids_of(found: Any) -> list[list[str]]:
    """Return the ids of rankings with or without similarities."""
    ids: list[list[str]] = found[0] if isinstance(found, tuple) else found
    return ids


def load_reranker(
    path: str | Path, max_length: int, device: torch.device, first_stage: str | Path | None = None
) -> Reranker:
    """Load any checkpoint as a cross-encoder in fp32, on the default device; its head is new if it has none.

    Args:
        path: A model folder or a name on the Hugging Face Hub.
        max_length: Maximum tokens of query and document together; reduced to what the model can read.
        device: Where the model will run.
        first_stage: The bi-encoder of the first stage; None for BM25.

    Raises:
        UserError: If a model cannot be loaded.
    """
    settings = {"num_labels": 1, "problem_type": "multi_label_classification"}
    auto = AutoModelForSequenceClassification
    head = Reranker(*load_with_head(auto, path, settings, max_length, device, "reranker"))
    head.first = None if first_stage is None else load_bi_encoder(first_stage, max_length)
    head.prepare()
    return head
