"""Quality of the similarity that sentence encoders show, before and after adaptation.

``sentence-transformers`` computes the embeddings, with the pooling, prompts and similarity function of the model.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from acclimate.base.device import default_device
from acclimate.base.errors import UserError, first_line
from acclimate.base.files import read_json_object
from acclimate.base.progress import Progress, silence_transformers
from acclimate.base.records import Record, fingerprint, optional
from acclimate.data.sentences import split_sentences
from acclimate.evaluation.regression import RegressionScoring
from acclimate.evaluation.significance import Interval, number_groups, paired_bootstrap, paired_difference
from acclimate.models.checkpoints import trusts_remote_code
from acclimate.models.saving import find_file
from acclimate.parts.objectives.base import PoolingHead
from acclimate.results.scores import HURT

MAX_PAIRS = 500
"""Maximum number of neighbor pairs."""
PAIRS_PER_DOCUMENT = 5
MIN_WORDS = 4
"""Shorter sentences are not used as neighbors: many of them (headings, "Thank you!") have no meaning of their own."""
METRICS = {"mrr": "MRR", "spearman": "Spearman", "ndcg@10": "nDCG@10"}
"""Names of the metrics of similarity."""
MIN_PAIRS = 20
"""Minimum number of neighbor pairs: with fewer, their ranks say little."""

log = logging.getLogger(__name__)


DENSE, SPARSE, CROSS = "SentenceTransformer", "SparseEncoder", "CrossEncoder"
"""Classes of ``sentence-transformers``."""


def encoder_type(model: str | Path) -> str:
    """Return the class of ``sentence-transformers`` that a model folder or a model on the Hub was saved by, if any."""
    if find_file(str(model), "modules.json") is None:
        return ""
    file = find_file(str(model), "config_sentence_transformers.json")
    return str(((file and read_json_object(file)) or {}).get("model_type", DENSE))


def is_sentence_encoder(model: str | Path) -> bool:
    """Return whether a model folder or a model on the Hub is a sentence encoder of ``sentence-transformers``."""
    return encoder_type(model) == DENSE


def import_sentence_transformers() -> Any:
    """Return the library.

    Raises:
        UserError: If it is not installed.
    """
    try:
        import sentence_transformers
    except ImportError as error:
        raise UserError(
            "Sentence embeddings need sentence-transformers: pip install 'acclimate[embeddings]'."
        ) from error
    return sentence_transformers


def load_encoder(model: str | Path) -> Any:
    """Load a model as a ``SentenceTransformer`` in fp32; one without pooling gets the mean over tokens.

    Raises:
        UserError: If it cannot be loaded, or ``sentence-transformers`` is not installed.
    """
    library = import_sentence_transformers()
    try:
        with silence_transformers():
            encoder = library.SentenceTransformer(
                str(model), device=str(default_device()), trust_remote_code=trusts_remote_code()
            )
    except Exception as error:  # each kind of module has its own exceptions
        raise UserError(f"'{model}' cannot be loaded as a sentence encoder: {first_line(error)}") from error
    return encoder.float().eval()


def load_pooling_head(model: str | Path, device: torch.device) -> PoolingHead | None:
    """Return how a sentence encoder makes the vector of a text out of hidden states; None for another model.

    Its modules after the encoder (pooling, dense layers, normalization) are run as they are, and not trained.

    Raises:
        UserError: If it cannot be loaded, or ``sentence-transformers`` is not installed.
    """
    if not str(model) or not is_sentence_encoder(model):
        return None
    modules = [module.to(device).eval().requires_grad_(False) for module in list(load_encoder(model))[1:]]

    def pool(states: Tensor, real: Tensor) -> Tensor:
        features = {"token_embeddings": states, "attention_mask": real.long()}
        for module in modules:
            features = module(features)
        return features["sentence_embedding"]

    return pool


def pool_first_token(states: Tensor, real: Tensor) -> Tensor:
    """Return the state of the first token of each text: (texts, width)."""
    return states[:, 0]


@dataclass(frozen=True)
class SentencePairs:
    """Pairs of texts with the same meaning, or pairs with scores of similarity.

    Attributes:
        name: Name of the pairs, for tables.
        first: The first texts.
        second: The second texts.
        scores: Similarity of each pair, in any unit; None if the texts of each pair belong together.
        groups: Number of the document of each pair; None: pairs are independent.
    """

    name: str
    first: Sequence[str]
    second: Sequence[str]
    scores: Sequence[float] | None = None
    groups: tuple[int, ...] | None = None

    def fingerprint(self) -> str:
        """Return a hash of texts, scores and groups."""
        groups = [] if self.groups is None else [self.groups]
        return fingerprint([list(self.first), list(self.second), self.scores and list(self.scores), *groups])

    @property
    def texts(self) -> int:
        """Number of texts that an encoder reads."""
        return len(self.first) + len(self.second)

    @property
    def metric(self) -> str:
        """``"spearman"`` with scores, else ``"mrr"``."""
        return "mrr" if self.scores is None else "spearman"

    def parts(self) -> Iterator[tuple[SentencePairs, slice]]:
        """Yield the sets that they are made of, if there are several, and where the pairs of each are."""
        yield from ()

    def measure(self, encoder: Any) -> list[float]:
        """Return the similarity of each pair, or the rank of each second text among all second texts.

        Ties count as worse ranks, so that an encoder that returns one vector for all texts has the worst.

        Args:
            encoder: A ``SentenceTransformer``.
        """
        first, second = (
            encoder.encode(list(texts), convert_to_tensor=True, show_progress_bar=False)
            for texts in (self.first, self.second)
        )
        if self.scores is not None:
            return encoder.similarity_pairwise(first, second).float().cpu().tolist()
        similarity = encoder.similarity(first, second)
        return (similarity >= similarity.diagonal()[:, None]).sum(1).cpu().tolist()

    def score(self, values: Sequence[float]) -> dict[str, float]:
        """Return the scores of measured values: ``spearman``, or ``mrr`` and ``recall@1``; all in [-1, 1]."""
        if self.scores is not None:
            return {"spearman": RegressionScoring().score(self.scores, values, "spearman")}
        ranks = np.asarray(values)
        return {"mrr": float((1 / ranks).mean()), "recall@1": float((ranks == 1).mean())}

    def compare(self, before: Sequence[float], after: Sequence[Sequence[float]]) -> Interval:
        """Return the difference in the metric, with an interval over pairs and over adaptations.

        Args:
            before: Measured values of the base model.
            after: Measured values of each adapted model.
        """
        if self.scores is None:
            ours, theirs = (1 / np.asarray(ranks, dtype=float) for ranks in (after, before))
            return paired_difference(ours, theirs, groups=self.groups)
        scoring = RegressionScoring(groups=self.groups)
        return paired_bootstrap(self.scores, after, [before] * len(after), "spearman", scoring=scoring)


def neighbor_pairs(name: str, texts: Iterable[str], limit: int = MAX_PAIRS, seed: int = 0) -> SentencePairs | None:
    """Return pairs of neighbouring sentences of documents, which belong together more than others do.

    A sentence is in at most one pair, and equal sentences are used once.

    Args:
        name: Name of the text.
        texts: Documents.
        limit: Maximum number of pairs, a few per document.
        seed: Random seed of the choice.

    Returns:
        The pairs; None if there are fewer than :data:`MIN_PAIRS`.
    """
    rng, pairs, seen, sources = random.Random(f"{seed}/neighbors"), [], set[str](), list[int]()
    documents = [[s for s in split_sentences(text) if len(s.split()) >= MIN_WORDS] for text in texts]
    documents = [sentences for sentences in documents if len(sentences) > 1]
    rng.shuffle(documents)
    for source, sentences in enumerate(documents):
        starts = list(range(0, len(sentences) - 1, 2))
        for start in rng.sample(starts, min(PAIRS_PER_DOCUMENT, len(starts))):
            pair = sentences[start : start + 2]
            if len({*pair} - seen) == 2:
                seen.update(pair)
                pairs.append(pair)
                sources.append(source)
        if len(pairs) >= limit:
            break
    if len(pairs) < MIN_PAIRS:
        return None
    first, second = ([pair[side] for pair in pairs[:limit]] for side in (0, 1))
    return SentencePairs(name, first, second, groups=tuple(number_groups(sources[:limit])))


class SimilarityChange(Record):
    """Change by adaptation in the similarity that an encoder shows.

    Attributes:
        pairs: Number of pairs.
        part_of: Name of the sets that these pairs are one of; None for whole sets, whose drop is a warning.
        metric: ``"spearman"`` (of similarity and score), ``"mrr"`` (of the partner among all second texts), or
            ``"ndcg@10"`` (of the test queries of retrieval tasks).
        recall_before: Share of partners at rank 1 before adaptation; only with ``mrr``.
        recall_after: The same after adaptation.
        low: Lower end of the 95 % interval of after minus before, over pairs.
        verdict: What the interval shows.
    """

    name: str
    part_of: str | None = optional()
    pairs: int
    metric: str
    before: float
    after: float
    recall_before: float | None = optional()
    recall_after: float | None = optional()
    difference: float
    low: float
    high: float
    p: float
    verdict: str

    def describe(self) -> str:
        """Return the change in one line."""
        return (
            f"{self.name}: {METRICS[self.metric]} {self.before:.3f} before, {self.after:.3f} "
            f"after (difference {self.difference:+.3f}, 95 % interval {self.low:+.3f} to {self.high:+.3f}; "
            f"{self.pairs:,} {'queries' if self.metric == 'ndcg@10' else 'pairs'})"
        )


def compare_encoders(
    before: str | Path, after: str | Path, sets: Sequence[SentencePairs], progress: bool = False
) -> list[SimilarityChange]:
    """Measure the similarity that two encoders show.

    Args:
        before: The base model.
        after: The adapted model.
        sets: The pairs to measure on.
        progress: Whether to show how many texts are read.

    Raises:
        UserError: If a model cannot be loaded as a sentence encoder.
    """
    measured, read = [], 0
    with Progress("similarity", 2 * sum(pairs.texts for pairs in sets), unit="texts", enabled=progress) as bar:

        def count(module: Any, inputs: Any, features: Any) -> None:
            nonlocal read
            read += len(features.get("token_embeddings", ()))
            bar.update(read)

        for model in (before, after):
            encoder = load_encoder(model)
            encoder[0].register_forward_hook(count)
            measured.append([pairs.measure(encoder) for pairs in sets])
    changes = [describe_changes(pairs, *values) for pairs, *values in zip(sets, *measured, strict=True)]
    return [change for of_set in changes for change in of_set]


def describe_change(pairs: SentencePairs, before: Sequence[float], *after: Sequence[float]) -> SimilarityChange:
    """Return the change from values of the base model and of one or several adapted models."""
    scores = [pairs.score(values) for values in after]
    means = {name: float(np.mean([score[name] for score in scores])) for name in scores[0]}
    old = pairs.score(before)
    return SimilarityChange(
        name=pairs.name,
        pairs=len(pairs.first),
        metric=pairs.metric,
        before=old[pairs.metric],
        after=means[pairs.metric],
        recall_before=old.get("recall@1"),
        recall_after=means.get("recall@1"),
        **pairs.compare(before, after).as_dict(),
    )


def describe_changes(pairs: SentencePairs, before: Sequence[float], *after: Sequence[float]) -> list[SimilarityChange]:
    """Return the change as :func:`describe_change` does, followed by that of each part."""
    found = [describe_change(pairs, before, *after)]
    for part, place in pairs.parts():
        change = describe_change(part, before[place], *(values[place] for values in after))
        found.append(replace(change, part_of=pairs.name))
    return found


def similarity_warning(changes: Iterable[SimilarityChange]) -> str:
    """Return a warning about the sets on which similarity dropped; empty if there are none."""
    words = [change.describe() for change in changes if change.verdict == HURT and change.part_of is None]
    if not words:
        return ""
    warning = (
        f"The embeddings show similarity worse than the base model's ({'; '.join(words)}). Train fewer steps, "
        "with a lower learning rate or an adapter; or fine-tune the embeddings on pairs afterwards."
    )
    log.warning("%s", warning)
    return warning
