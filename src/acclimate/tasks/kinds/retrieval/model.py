"""Bi-encoders for retrieval, trained with in-batch negatives, and rerankers; both are compared with BM25."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from acclimate.base.device import Precision
from acclimate.base.errors import UserError, warn_once
from acclimate.data.reading import DEFAULT_READING, EDITS, ReadingOptions
from acclimate.data.rows import Row, column_names
from acclimate.data.task_kinds import TASK_KINDS, TaskKind
from acclimate.evaluation.embeddings import (
    DENSE,
    SPARSE,
    SentencePairs,
    describe_changes,
    encoder_type,
    import_sentence_transformers,
)
from acclimate.evaluation.retrieval import (
    DEPTH,
    Bm25,
    compare_rankings,
    fuse_rankings,
    rank_with_bm25,
    retrieval_metrics,
)
from acclimate.models.checkpoints import load_config
from acclimate.tasks.groups import number_known_groups
from acclimate.tasks.interfaces import Answer, EvaluationResult, Learner, Predictor, ResolvedOptions
from acclimate.tasks.kinds.retrieval.data import (
    Query,
    RetrievalTask,
    holds_pairs,
    is_beir_folder,
    pair_columns,
    read_beir,
    read_pairs,
    training_rows,
    usual_query,
)
from acclimate.tasks.kinds.retrieval.encoder import BiEncoder, EncoderTraining, MatryoshkaLoss, load_bi_encoder
from acclimate.tasks.kinds.retrieval.reranker import QueryPair, Reranker, ids_of, load_reranker
from acclimate.tasks.kinds.retrieval.sets import read_sets
from acclimate.tasks.kinds.retrieval.sparse import load_sparse
from acclimate.tasks.record import read_training
from acclimate.tasks.sources import read_texts
from acclimate.tasks.trainer import TrainingResult, train

MINED_DEPTH, MINED_MARGIN = 50, 0.95
"""Number of the best documents that are not relevant from which hard negatives are drawn, and their maximum similarity
to the query as a share of that of a relevant document."""
RERANKER_NEGATIVES = 4
"""Hard negatives of a reranker for each relevant document."""
MARGIN_SCALE = 20.0
"""Factor of cosines whose difference has to equal a margin: the logits of cross-encoders are about this large. GPL
compares dot products, which normalized vectors do not have."""

log = logging.getLogger(__name__)


@TASK_KINDS.register("retrieval", summary="documents that answer a query, in the layout of BEIR, pairs or triplets")
class Retrieval(TaskKind):
    """The kind of folders in the layout of BEIR, and of tables of queries with passages and nothing to predict."""

    own_training: ClassVar[bool] = True

    def matches(self, folder: Path) -> bool:
        """Return whether a folder has the layout of BEIR."""
        return is_beir_folder(folder)

    def read(self, folder: Path, name: str) -> RetrievalTask:
        """Read the task."""
        return read_beir(folder, name)

    def read_source(self, source: Any, name: str, options: ReadingOptions) -> RetrievalTask:
        """Read the task, with the column of its groups; other columns have fixed names."""
        used = {name: getattr(DEFAULT_READING, name) for name in ("group_column", "task_kind", "strict", *EDITS)}
        if replace(options, **used) != DEFAULT_READING:
            return super().read_source(source, name, options)  # raises
        return read_beir(Path(source), name, options)

    matches_table = staticmethod(holds_pairs)
    read_tables = staticmethod(read_pairs)

    def reads(self, path: str | Path, config: Any, kind: str) -> bool:
        """Return whether a checkpoint is a dense or sparse encoder, or a reranker that was trained here."""
        return encoder_type(path) in (DENSE, SPARSE) or kind == "retrieval"

    def predictor(self, path: str | Path, max_length: int, device: torch.device) -> RankingPredictor:
        """Load an encoder, or a reranker with the first stage of its training."""
        if (saved := encoder_type(path)) in (DENSE, SPARSE):
            return RankingPredictor((load_sparse if saved == SPARSE else load_bi_encoder)(path, max_length))
        first = read_training(path).identity.options.first_stage
        return RankingPredictor(load_reranker(path, max_length, device, first))

    def answer(self, example: Query, task: RetrievalTask) -> str:
        """Return the first relevant document."""
        return example.relevant[0].text

    def shrink(self, task: RetrievalTask) -> RetrievalTask:
        """Return the task with the relevant documents only."""
        queries = [*task.train, *task.dev, *task.test]
        return replace(task, documents={passage.id: passage.text for query in queries for passage in query.relevant})

    def read_items(self, task: RetrievalTask, given: Mapping[str, Any]) -> tuple[int, int]:
        """Return the pairs per query that a reranker reads, or the number of documents."""
        return (min(DEPTH, len(task.documents)), 0) if given.get("rerank") else (1, len(task.documents))

    def read_general(self, folder: Path, name: str) -> SentencePairs | None:
        """Return the retrieval tasks of a folder, such as NanoBEIR."""
        return read_sets(folder, name)

    def sentence_pairs(self, task: RetrievalTask) -> SentencePairs:
        """Return queries of the test split with a document each; those of all splits if the file had only one."""
        queries = [*task.train, *task.dev, *task.test] if task.drawn else task.test
        by_passage = {query.relevant[0].text: query for query in reversed(queries)}
        groups = number_known_groups(query.group for query in by_passage.values())
        return SentencePairs(task.name, [query.text for query in by_passage.values()], list(by_passage), groups=groups)

    def learner(
        self, model: str | Path, task: RetrievalTask, options: ResolvedOptions, device: torch.device
    ) -> RetrievalLearner:
        """Load a checkpoint as a bi-encoder."""
        return RetrievalLearner(load_bi_encoder(model, options.max_length), task)

    def learner_for(self, given: Any) -> Callable[..., Any]:
        """Return what loads a checkpoint as a bi-encoder, a sparse encoder or a reranker."""
        if given.rerank:
            return partial(load_reranking, first_stage=given.first_stage)
        if given.sparse:
            return lambda model, task, options, _: RetrievalLearner(load_sparse(model, options.max_length), task)
        return super().learner_for(given)


class RankingPredictor(Predictor):
    """A sentence encoder or reranker, which ranks passages for queries, or gives the similarity of pairs of texts.

    Attributes:
        passages: The passages by id; without any, rows are pairs.
        top: Number of passages per query.
        bm25: An index of the passages, with which rankings are fused, or None.
    """

    main: ClassVar[str] = "ranking"
    ranks: ClassVar[bool] = True

    def __init__(self, head: BiEncoder | Reranker) -> None:
        super().__init__(head)
        self.passages: dict[str, str] = {}
        self.top = 10
        self.bm25: Bm25 | None = None

    def read(self, rows: Sequence[Row], options: ReadingOptions) -> list[tuple[str, str | None] | None]:
        """Return the query of each row with the id of the passage that it is itself, if any, or its pair of texts.

        Raises:
            UserError: If there are neither passages nor pairs.
        """
        names = column_names(rows)
        pair = pair_columns(names, options)
        if self.passages:
            query = options.text_column or (pair or {}).get("query") or usual_query(names)
            texts = read_texts(rows, replace(options, text_column=query, pair_column=None))
            ids = [str(row.get("_id", row.get("id"))) for _, row in rows]
            asked = [found and (found[0], self._own(key, found[0])) for key, found in zip(ids, texts, strict=True)]
            if own := sum(one is not None and one[1] is not None for one in asked):
                warn_once(
                    f"{own:,} of {len(asked):,} rows are passages, by id and text, left out of their own ranking."
                )
            return asked
        if pair is None:
            raise UserError(
                "A model of retrieval ranks passages or compares texts: give the passages with --passages FILE, or "
                f"name two columns with --text-column and --pair-column. The columns are: {', '.join(names)}."
            )
        texts = read_texts(rows, replace(options, text_column=pair["query"], pair_column=pair["passage"]))
        return [found if found and (found[1] or "").strip() else None for found in texts]

    def fuse_with_bm25(self) -> None:
        """Fuse rankings of the passages with BM25's.

        Raises:
            UserError: If the model is a reranker.
        """
        if isinstance(self.head, Reranker):
            raise UserError("'hybrid' is for encoders, and a reranker reads what a first stage finds; remove it.")
        self.bm25 = Bm25(self.passages)

    def _own(self, key: str, text: str) -> str | None:
        """Return the id of a row if the passage of that id has its text, perhaps after a title."""
        return key if f". {self.passages.get(key, '')}".endswith(f". {text}") else None

    def answer(self, examples: Sequence[tuple[str, str | None]], precision: Precision) -> list[Answer]:
        """Return the best passages for each query with their scores, or the similarity of each pair."""
        if not self.passages:
            scores = self.head.similarity(*([*texts] for texts in zip(*examples, strict=True)))
            return [Answer({"score": score}, score) for score in scores]
        queries, own = [text for text, _ in examples], [own for _, own in examples]
        ids, similar = self.head.rank(self.passages, queries, own=own)
        scored = [dict(zip(keys, scores, strict=True)) for keys, scores in zip(ids, similar, strict=True)]
        if self.bm25 is not None:
            with_words = self.bm25.rank(queries, own=own)
            if not any(with_words):
                warn_once("BM25 finds no passage for these queries, so their ranking is the model's alone.")
            scored = fuse_rankings(ids, with_words)
        found = []
        for scores in scored:
            ranked = [{"id": key, "score": score} for key, score in scores.items()][: self.top]
            found.append(Answer({"ranking": ranked}, [entry["id"] for entry in ranked]))
        return found


class RetrievalLearner(Learner):
    """A bi-encoder that learns a task.

    Attributes:
        ranks: Whether it can rank documents before it is trained.
    """

    head: Any
    task: RetrievalTask
    ranks: bool = True

    def __init__(self, head: BiEncoder | Reranker, task: RetrievalTask) -> None:
        super().__init__(head, task)
        self.initial: list[list[str]] | None = None
        self._bm25: list[list[str]] | None = None
        self._before: list[float] | None = None
        self.dimensions: tuple[int, ...] = ()
        self.matryoshka = False

    def configure(self, options: Any) -> None:
        """Take the dimensions at which vectors are cut.

        Raises:
            UserError: If the vectors have no more.
        """
        self.dimensions, self.matryoshka = options.dimensions, options.matryoshka
        width = self.head.model.get_embedding_dimension() if self.dimensions else 0
        if any(size >= width for size in self.dimensions):
            raise UserError(f"The vectors of '{options.model}' have {width} dimensions; give fewer than {width}.")

    def rows(self, examples: Sequence[Query]) -> list[dict[str, str]]:
        """Return a row per query and relevant document; with a negative if every query has one."""
        return training_rows(examples, all(query.negatives for query in examples))

    def measure(self, split: str, precision: Precision) -> EvaluationResult:
        """Rank the documents for the queries of a split, in fp32, and score the rankings.

        Of the test split, ``references`` has the scores of BM25, of the ranking that fuses it with the model, of the
        model before training, and of vectors that are cut to some dimensions, with the difference.
        """
        queries: list[Query] = getattr(self.task, split)
        gold = [{passage.id: passage.grade for passage in query.relevant} for query in queries]
        predicted, scores = self._rank(queries)
        metrics: dict[str, Any] = retrieval_metrics(gold, predicted)
        if split == "test":
            if self._bm25 is None:
                own = self.task.own_documents(queries)
                self._bm25 = rank_with_bm25(dict(self.task.documents), [query.text for query in queries], own=own)
            scoring: Any = self.task.scoring(split)
            metrics["references"] = {"bm25": compare_rankings(gold, predicted, self._bm25, scoring)}
            if self.initial is not None:
                metrics["references"]["before training"] = compare_rankings(gold, predicted, self.initial, scoring)
            for name, other in self._others(queries, predicted):
                metrics["references"][name] = compare_rankings(gold, predicted, other, scoring)
            if self.general is not None:
                after = self.general.measure(self.head.model)
                changes = describe_changes(self.general, after if self._before is None else self._before, after)
                metrics["similarity"] = [change.to_dict() for change in changes]
        return EvaluationResult(metrics, gold, predicted, scores)

    def _rank(
        self, queries: Sequence[Query], dimensions: int | None = None
    ) -> tuple[list[list[str]], list[list[float]]]:
        texts, own = [query.text for query in queries], self.task.own_documents(queries)
        return self.head.rank(dict(self.task.documents), texts, own, dimensions)

    def _others(
        self, queries: Sequence[Query], predicted: Sequence[Sequence[str]]
    ) -> Iterator[tuple[str, list[list[str]]]]:
        """Yield further rankings that those of the model are compared with, each with its name."""
        yield "hybrid", [list(sums) for sums in fuse_rankings(predicted, self._bm25 or [])]
        for size in self.dimensions:
            yield f"{size} dimensions", self._rank(queries, size)[0]

    def train(
        self,
        examples: Sequence[Query],
        options: ResolvedOptions,
        precision: Precision,
        **training: Any,
    ) -> TrainingResult:
        """Train on queries, after the model was measured as it is; with no epochs, do nothing.

        Raises:
            UserError: If there are fewer than two queries.
        """
        if not options.epochs:
            return TrainingResult(0, 0, 0.0, [])
        if len(examples) < 2:
            raise UserError(
                f"'{self.task.name}' has {len(examples)} train queries; give at least two, or epochs=0 to "
                "evaluate the model as it is."
            )
        self.initial = self._rank(self.task.test)[0] if self.task.test and self.ranks else None
        self._before = None if self.general is None else self.general.measure(self.head.model)
        return self._learn(examples, options, precision, **training)

    def _learn(
        self, examples: Sequence[Query], options: ResolvedOptions, precision: Precision, **training: Any
    ) -> TrainingResult:
        """Train with the loss of ``sentence-transformers`` with in-batch negatives; see :class:`EncoderTraining`.

        The loss is ``MultipleNegativesRankingLoss`` (Henderson et al., 2017), or for triplets with margins
        ``MarginMSELoss`` (Hofstätter et al., 2020) of :data:`MARGIN_SCALE` times the cosine; with ``matryoshka``, the
        sum of it over all ``dimensions``.
        """
        encoder = self.head.model
        losses, rows = (
            import_sentence_transformers().sentence_transformer.losses,
            self.rows(self._mine(examples, options)),
        )
        if "label" in rows[0]:
            loss = losses.MarginMSELoss(encoder, similarity_fct=_scaled_cosine)
        else:
            loss = losses.MultipleNegativesRankingLoss(encoder)
        if self.matryoshka:
            loss = MatryoshkaLoss(loss, (encoder.get_embedding_dimension(), *self.dimensions))
        prompts = {"anchor": encoder.prompts.get("query"), "positive": encoder.prompts.get("document")}
        prompts["negative"] = prompts["positive"]
        columns = {name: prompt for name, prompt in prompts.items() if prompt and name in rows[0]}
        own = {"adapter": self.adapter, "prompts": columns or None, **training}
        return EncoderTraining(self.head, rows, loss, options, precision, **own).run()

    def _mine(self, examples: Sequence[Query], options: ResolvedOptions) -> Sequence[Query]:
        """Return queries with a hard negative for each relevant document, if that is wanted."""
        if self.hard_negatives is None:
            return examples
        texts, documents = [query.text for query in examples], dict(self.task.documents)
        rank = rank_with_bm25 if self.hard_negatives == "bm25" else self.head.rank
        ranked = rank(documents, texts, own=self.task.own_documents(examples))
        mined = mine_negatives(examples, documents, ranked, options.seed)
        if not all(query.negatives for query in mined):
            raise UserError(f"'{self.task.name}' has too few documents for hard negatives; leave hard_negatives out.")
        return mined


class RerankingLearner(RetrievalLearner):
    """A cross-encoder that learns to rerank what a first stage finds."""

    head: Reranker

    def __init__(self, head: Reranker, task: RetrievalTask) -> None:
        super().__init__(head, task)
        self._found: dict[tuple[str, ...], Any] = {}

    def configure(self, options: Any) -> None:
        """Do nothing: its options say how it is loaded."""

    def _find(self, queries: Sequence[Query]) -> Any:
        """Return what the first stage finds, which it does once for each split."""
        texts = tuple(query.text for query in queries)
        if texts not in self._found:
            self._found[texts] = self.head.find(dict(self.task.documents), texts, self.task.own_documents(queries))
        return self._found[texts]

    def _rank(
        self, queries: Sequence[Query], dimensions: int | None = None
    ) -> tuple[list[list[str]], list[list[float]]]:
        found = ids_of(self._find(queries))
        return self.head.rerank(dict(self.task.documents), [query.text for query in queries], found)

    def _others(
        self, queries: Sequence[Query], predicted: Sequence[Sequence[str]]
    ) -> Iterator[tuple[str, list[list[str]]]]:
        if self.head.first is not None:
            yield "first stage", ids_of(self._find(queries))

    def _learn(
        self, examples: Sequence[Query], options: ResolvedOptions, precision: Precision, **training: Any
    ) -> TrainingResult:
        """Train with binary cross-entropy on relevant documents and on negatives that the first stage finds."""
        found = self._find(examples)
        mined = mine_negatives(examples, dict(self.task.documents), found, options.seed, RERANKER_NEGATIVES)
        pairs = [
            QueryPair(query.text, text, relevant)
            for query in mined
            for texts, relevant in (([one.text for one in query.relevant], True), (query.negatives, False))
            for text in texts
        ]
        if all(pair.relevant for pair in pairs):
            raise UserError(f"'{self.task.name}' has no documents that are not relevant; add some to its corpus.")
        return train(self.head, self.head.features(pairs), options, precision, **training)


def load_reranking(
    model: str | Path, task: RetrievalTask, options: ResolvedOptions, device: torch.device, first_stage: Any
) -> RerankingLearner:
    """Load a checkpoint as a cross-encoder for a task.

    Raises:
        UserError: If it is not to be trained, and has no head that ranks.
    """
    config = load_config(model)
    ranks = config.num_labels == 1 and any("ForSequenceClass" in name for name in config.architectures or ())
    if not (ranks or options.epochs):
        raise UserError(f"'{model}' is no cross-encoder, so it has to be trained first: give epochs of at least 1.")
    learner = RerankingLearner(load_reranker(model, options.max_length, device, first_stage), task)
    learner.ranks = ranks
    return learner


def mine_negatives(
    queries: Sequence[Query],
    documents: Mapping[str, str],
    ranked: Sequence[Sequence[str]] | tuple[Sequence[Sequence[str]], Sequence[Sequence[float]]],
    seed: int,
    count: int = 1,
) -> list[Query]:
    """Return queries with further hard negatives for each relevant document, as far as there are enough.

    They are drawn from the :data:`MINED_DEPTH` best documents that are not relevant. A document that a model finds
    nearly as similar as a relevant one, by :data:`MINED_MARGIN`, is probably relevant, too, and left out
    (NV-Retriever, Moreira et al., 2024), unless it finds all of them that similar. BM25 has no such threshold. Where
    it finds no other document, since none has a word of the query, a random one is taken.

    Args:
        queries: The queries.
        documents: The documents by id.
        ranked: The ids of the best documents for each query; those of a model with their similarities.
        seed: Random seed.
        count: Number of negatives for each relevant document.
    """
    ids, scores = ranked if isinstance(ranked, tuple) else (ranked, [[0.0] * len(ranking) for ranking in ranked])
    chance, made, every, at_random = random.Random(seed), [], list(documents), 0
    for query, ranking, similar in zip(queries, ids, scores, strict=True):
        relevant = {passage.id for passage in query.relevant}
        found = list(zip(ranking, similar, strict=True))
        known = [score for key, score in found if key in relevant]
        limit = MINED_MARGIN * max(known) if isinstance(ranked, tuple) and known else math.inf
        other = [(documents[key], score) for key, score in found if key not in relevant]
        hard = [text for text, score in other if score < limit] or [text for text, _ in other]
        if not hard:
            others = {*relevant, query.id} & documents.keys()
            drawn = chance.sample(every, min(len(every), len(others) + count))
            hard = [documents[key] for key in drawn if key not in others]
            at_random += 1
        hard = hard[:MINED_DEPTH]
        chosen = chance.sample(hard, min(len(hard), count * len(query.relevant)))
        made.append(replace(query, negatives=query.negatives + tuple(chosen), margins=()))
    if at_random:
        log.warning(
            "%d of %d queries have a random negative, since no other document was found.", at_random, len(queries)
        )
    return made


def _scaled_cosine(first: Tensor, second: Tensor) -> Tensor:
    """Return the similarity of each pair of vectors, in the unit of margins: (pairs,)."""
    return MARGIN_SCALE * torch.nn.functional.cosine_similarity(first, second)
