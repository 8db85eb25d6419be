"""Bi-encoders for retrieval: trained with in-batch negatives by ``sentence-transformers``, and compared with BM25."""

from __future__ import annotations

import logging
import math
import random
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from transformers import PrinterCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from acclimate.device import Precision, default_device
from acclimate.errors import UserError, check_stop, first_line
from acclimate.evaluation.embeddings import (
    SentencePairs,
    describe_change,
    import_sentence_transformers,
    is_sentence_encoder,
    load_encoder,
)
from acclimate.evaluation.retrieval import DEPTH, compare_rankings, rank_with_bm25, retrieval_metrics
from acclimate.model_kinds import kind_of_checkpoint
from acclimate.models.checkpoints import load_config, trusts_remote_code
from acclimate.models.loading import load_tokenizer
from acclimate.models.lora import LowRankAdapter
from acclimate.models.saving import find_non_finite
from acclimate.options.memory import AdapterName
from acclimate.options.reading import ReadingOptions
from acclimate.progress import Progress, print_message, silence_transformers
from acclimate.tasks.kinds import TASK_KINDS, EvaluationResult, Learner, ResolvedOptions, TaskKind
from acclimate.tasks.readers import Row
from acclimate.tasks.retrieval.data import (
    Query,
    RetrievalTask,
    holds_pairs,
    is_beir_folder,
    read_beir,
    read_pairs,
    training_rows,
)
from acclimate.tasks.sources import Table
from acclimate.tasks.trainer import ADAM_EPSILON, BestWeightsCallback, Score, TrainingResult
from acclimate.training.adapters import check_adapter
from acclimate.training.callbacks import find_newest_checkpoint, mark_complete, remove_incomplete_checkpoints
from acclimate.training.distributed import ProcessGroup

LARGEST_BATCH = 64
"""Rows whose gradients fit at once; the loss of a larger batch is computed in parts, with the same gradients."""
LOGGED_LINES = 50
MINED_DEPTH, MINED_MARGIN = 50, 0.95
"""Number of the best documents that are not relevant from which hard negatives are drawn, and their maximum similarity
to the query as a share of that of a relevant document."""

log = logging.getLogger(__name__)


@dataclass
class BiEncoder:
    """A ``SentenceTransformer`` that embeds queries and documents, each with its prompt if the model has prompts."""

    model: Any

    @property
    def tokenizer(self) -> Any:
        """Its tokenizer."""
        return self.model.tokenizer

    def save(self, folder: Path, name: Path | None = None) -> None:
        """Write a folder that ``SentenceTransformer`` loads.

        Raises:
            UserError: If a weight is not finite.
        """
        if bad := find_non_finite(self.model):
            raise UserError(
                f"The weight '{bad[0]}' is not finite, so the model is not saved; lower the learning rate."
            )
        self.model.save(str(folder), create_model_card=False)

    def rank(self, documents: dict[str, str], queries: Sequence[str]) -> tuple[list[list[str]], list[list[float]]]:
        """Return the ids of the best documents for each query, and their similarities.

        Raises:
            UserError: If an embedding is NaN or infinite.
        """
        quiet = {"convert_to_tensor": True, "show_progress_bar": False}
        ids = list(documents)
        texts = self.model.encode_document(list(documents.values()), **quiet)
        asked = self.model.encode_query(list(queries), **quiet)
        if not (bool(texts.isfinite().all()) and bool(asked.isfinite().all())):
            raise UserError("The fine-tuned model returns NaN or infinite embeddings; lower the learning rate.")
        search = import_sentence_transformers().util.semantic_search
        found = search(asked, texts, top_k=DEPTH, score_function=self.model.similarity)
        ranked = [[ids[hit["corpus_id"]] for hit in hits] for hits in found]
        return ranked, [[round(float(hit["score"]), 6) for hit in hits] for hits in found]


def load_bi_encoder(path: str | Path, max_length: int) -> BiEncoder:
    """Load any checkpoint as a bi-encoder in fp32.

    A sentence encoder keeps its modules. Other models get pooling and normalization: the mean over tokens, or for
    decoders the last token.

    Args:
        path: A model folder or a name on the Hugging Face Hub.
        max_length: Maximum tokens per text; reduced to what the model can read.

    Raises:
        UserError: If there is no model, or ``sentence-transformers`` is not installed.
    """
    config = load_config(path)
    if is_sentence_encoder(path):
        encoder = load_encoder(path)
    else:
        library, tokenizer = import_sentence_transformers(), load_tokenizer(path)
        modules = library.sentence_transformer.modules
        pooling = "mean" if kind_of_checkpoint(config.architectures, path).uses_masking else "lasttoken"
        try:
            with silence_transformers():
                code = {"trust_remote_code": trusts_remote_code()}
                transformer = modules.Transformer(str(path), model_kwargs=code, config_kwargs=code)
        except Exception as error:  # each kind of model has its own exceptions
            raise UserError(f"'{path}' cannot be loaded as a bi-encoder: {first_line(error)}") from error
        if transformer.tokenizer.pad_token_id is None:
            transformer.tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
        parts = [transformer, modules.Pooling(transformer.get_embedding_dimension(), pooling), modules.Normalize()]
        encoder = library.SentenceTransformer(modules=parts, device=str(default_device())).float().eval()
    lengths = (max_length, encoder.max_seq_length, getattr(config, "max_position_embeddings", None))
    encoder.max_seq_length = min(length for length in lengths if length)
    return BiEncoder(encoder)


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

    def matches_table(self, rows: Sequence[Row], options: ReadingOptions) -> bool:
        """Return whether rows are pairs or triplets."""
        return holds_pairs(rows, options)

    def read_tables(
        self, tables: dict[str, Table], name: str, options: ReadingOptions, path: Path | None
    ) -> RetrievalTask:
        """Read pairs or triplets."""
        return read_pairs(tables, name, options, path)

    def texts(self, example: Query) -> tuple[str, ...]:
        """Return the query and its relevant documents."""
        return example.text, *(passage.text for passage in example.relevant)

    def item_text(self, example: Query) -> str:
        """Return the query."""
        return example.text

    def answer(self, example: Query, task: RetrievalTask) -> str:
        """Return the first relevant document."""
        return example.relevant[0].text

    def shrink(self, task: RetrievalTask) -> RetrievalTask:
        """Return the task with the relevant documents only."""
        queries = [*task.train, *task.dev, *task.test]
        return replace(task, documents={passage.id: passage.text for query in queries for passage in query.relevant})

    def shared_items(self, task: RetrievalTask) -> int:
        """Return the number of documents."""
        return len(task.documents)

    def sentence_pairs(self, task: RetrievalTask) -> SentencePairs:
        """Return queries of the test split with a document each; those of all splits if the file had only one."""
        queries = [*task.train, *task.dev, *task.test] if task.drawn else task.test
        by_passage = {query.relevant[0].text: query.text for query in reversed(queries)}
        return SentencePairs(task.name, list(by_passage.values()), list(by_passage))

    def learner(
        self, model: str | Path, task: RetrievalTask, options: ResolvedOptions, device: torch.device
    ) -> RetrievalLearner:
        """Load a checkpoint as a bi-encoder."""
        return RetrievalLearner(load_bi_encoder(model, options.max_length), task)


class RetrievalLearner(Learner):
    """A bi-encoder that learns a task."""

    head: BiEncoder
    task: RetrievalTask

    def __init__(self, head: BiEncoder, task: RetrievalTask) -> None:
        """Set a model and its task."""
        super().__init__(head, task)
        self.initial: list[list[str]] | None = None
        self._bm25: list[list[str]] | None = None
        self._before: list[float] | None = None

    def rows(self, examples: Sequence[Query]) -> list[dict[str, str]]:
        """Return a row per query and relevant document; with a negative if every query has one."""
        return training_rows(examples, all(query.negatives for query in examples))

    def measure(self, split: str, precision: Precision) -> EvaluationResult:
        """Rank the documents for the queries of a split, in fp32, and score the rankings.

        Of the test split, ``references`` has the scores of BM25 and of the model before training, with the difference.
        """
        queries: list[Query] = getattr(self.task, split)
        gold = [{passage.id: passage.grade for passage in query.relevant} for query in queries]
        predicted, scores = self._rank(queries)
        metrics: dict[str, Any] = retrieval_metrics(gold, predicted)
        if split == "test":
            if self._bm25 is None:
                self._bm25 = rank_with_bm25(dict(self.task.documents), [query.text for query in queries])
            metrics["references"] = {"bm25": compare_rankings(gold, predicted, self._bm25)}
            if self.initial is not None:
                metrics["references"]["before training"] = compare_rankings(gold, predicted, self.initial)
            if self.general is not None:
                after = self.general.measure(self.head.model)
                change = describe_change(self.general, after if self._before is None else self._before, after)
                metrics["similarity"] = change.to_dict()
        return EvaluationResult(metrics, gold, predicted, scores)

    def _rank(self, queries: Sequence[Query]) -> tuple[list[list[str]], list[list[float]]]:
        return self.head.rank(dict(self.task.documents), [query.text for query in queries])

    def train(
        self,
        examples: Sequence[Query],
        options: ResolvedOptions,
        precision: Precision,
        **training: Any,
    ) -> TrainingResult:
        """Train with the loss of ``sentence-transformers`` with in-batch negatives; see :func:`train_encoder`.

        The loss is ``MultipleNegativesRankingLoss`` (Henderson et al., 2017). With no epochs, the model is evaluated
        as it is.
        """
        if not options.epochs:
            return TrainingResult(0, 0, 0.0, [])
        if len(examples) < 2:
            raise UserError(
                f"'{self.task.name}' has {len(examples)} train queries; give at least two, or epochs=0 to "
                "evaluate the model as it is."
            )
        self.initial, _ = self._rank(self.task.test)
        self._before = None if self.general is None else self.general.measure(self.head.model)
        encoder = self.head.model
        losses, rows = (
            import_sentence_transformers().sentence_transformer.losses,
            self.rows(self._mine(examples, options)),
        )
        if options.batch_size > LARGEST_BATCH:
            loss = losses.CachedMultipleNegativesRankingLoss(encoder, mini_batch_size=LARGEST_BATCH)
        else:
            loss = losses.MultipleNegativesRankingLoss(encoder)
        prompts = {"anchor": encoder.prompts.get("query"), "positive": encoder.prompts.get("document")}
        prompts["negative"] = prompts["positive"]
        columns = {name: prompt for name, prompt in prompts.items() if prompt and name in rows[0]}
        return train_encoder(
            self.head, rows, loss, options, precision, adapter=self.adapter, prompts=columns or None, **training
        )

    def _mine(self, examples: Sequence[Query], options: ResolvedOptions) -> Sequence[Query]:
        """Return queries with a hard negative for each relevant document, if that is wanted.

        They are drawn from the :data:`MINED_DEPTH` best documents that are not relevant. A document that the model
        finds nearly as similar as a relevant one, by :data:`MINED_MARGIN`, is probably relevant, too, and left out
        (NV-Retriever, Moreira et al., 2024), unless it finds all of them that similar. BM25 has no such threshold.
        """
        if self.hard_negatives is None:
            return examples
        documents, texts = dict(self.task.documents), [query.text for query in examples]
        if self.hard_negatives == "bm25":
            ranked, scores = rank_with_bm25(documents, texts), None
        else:
            ranked, scores = self._rank(examples)
        chance, made = random.Random(options.seed), []
        for place, query in enumerate(examples):
            relevant = {passage.id for passage in query.relevant}
            found = list(zip(ranked[place], scores[place] if scores else [0.0] * len(ranked[place]), strict=True))
            known = [score for key, score in found if key in relevant]
            limit = MINED_MARGIN * max(known) if scores and known else math.inf
            other = [(documents[key], score) for key, score in found if key not in relevant]
            hard = [text for text, score in other if score < limit] or [text for text, _ in other]
            hard = hard[:MINED_DEPTH]
            chosen = chance.sample(hard, min(len(hard), len(query.relevant)))
            made.append(replace(query, negatives=query.negatives + tuple(chosen)))
        if without := sum(not query.negatives for query in made):
            made = [query for query in made if query.negatives]
            log.warning(
                "'%s': no hard negative was found for %d of %d train queries, which are left out.",
                self.task.name,
                without,
                len(examples),
            )
        if len(made) < 2:
            raise UserError(f"'{self.task.name}' has too few documents for hard negatives; leave hard_negatives out.")
        return made


def train_encoder(
    head: BiEncoder,
    rows: Sequence[dict[str, Any]],
    loss: Any,
    options: ResolvedOptions,
    precision: Precision,
    *,
    work: Path | None,
    title: str,
    score: Callable[[], Score] | None,
    report_to: Sequence[str],
    run_name: str | None,
    group: ProcessGroup,
    adapter: AdapterName | None = None,
    prompts: dict[str, str] | None = None,
    passes: int | None = None,
    sampler: Literal["no_duplicates", "batch_sampler"] = "no_duplicates",
) -> TrainingResult:
    """Train a sentence encoder in place with the trainer of ``sentence-transformers``.

    Args:
        head: The sentence encoder.
        rows: Texts by column, and perhaps a ``label``.
        loss: A loss of ``sentence-transformers`` for the encoder.
        options: Options of fine-tuning.
        precision: The resolved precision.
        work: As for :func:`acclimate.tasks.trainer.train`, like the following arguments. A training with an adapter
            starts anew after an interruption.
        title: Title of the progress bar.
        score: Function that scores the model after each epoch.
        report_to: Experiment trackers.
        run_name: Name of the run.
        group: The processes, of which there must be one.
        adapter: Name of a low-rank adapter that is trained in place of the weights, and merged into them.
        prompts: Prompts by column.
        passes: Passes over the rows, if not the epochs of the options.
        sampler: The sampler of ``sentence-transformers``; by default no batch has a text twice.

    Raises:
        UserError: If there are several processes, or the loss becomes NaN or infinite.
    """
    if group.size > 1:
        raise UserError("Embeddings are trained in one process; start it without torchrun or accelerate launch.")
    from datasets import Dataset

    library, encoder, passes = import_sentence_transformers(), head.model, passes or options.epochs
    added = None
    if adapter is not None:
        settings = check_adapter(adapter, None)
        added = LowRankAdapter(encoder[0].auto_model, adapter, settings, seed=options.seed)
        print_message(added.describe(), enabled=options.progress)
        work = None
    best = BestWeightsCallback(encoder, score) if score else None
    steps = passes * math.ceil(len(rows) / options.batch_size)
    with ExitStack() as stack:
        folder = work or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        arguments = library.SentenceTransformerTrainingArguments(
            str(folder),
            num_train_epochs=passes,
            per_device_train_batch_size=options.batch_size,
            learning_rate=options.learning_rate,
            warmup_steps=math.ceil(options.warmup * steps),
            weight_decay=options.weight_decay,
            max_grad_norm=options.max_gradient_norm,
            adam_epsilon=ADAM_EPSILON,
            seed=options.seed,
            bf16=precision == "bf16",
            fp16=precision == "fp16",
            use_cpu=default_device().type == "cpu",
            batch_sampler=sampler,
            prompts=prompts,
            save_strategy="epoch" if work else "no",
            logging_steps=max(1, steps // LOGGED_LINES),
            report_to=list(report_to) or "none",
            run_name=run_name,
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        checkpoint = None
        if work and work.is_dir():
            remove_incomplete_checkpoints(work)
            if (checkpoint := find_newest_checkpoint(work)) and best:
                best.load(checkpoint)
        encoder.model_card_data.widget = [{}]  # without examples, the trainer computes some for a card
        progress = stack.enter_context(Progress(title, steps, enabled=options.progress))
        with silence_transformers():
            trainer = library.SentenceTransformerTrainer(
                model=encoder,
                args=arguments,
                train_dataset=Dataset.from_list(list(rows)),
                loss=loss,
                callbacks=[_EpochCallback(best, progress)],
            )
            trainer.remove_callback(PrinterCallback)
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    lines = [
        {"step": line["step"], "epoch": line["epoch"], "loss": line["loss"]}
        for line in trainer.state.log_history
        if "loss" in line
    ]
    if not all(math.isfinite(line["loss"]) for line in lines):
        raise UserError("The loss became NaN or infinite; lower the learning rate.")
    if best:
        encoder.load_state_dict(best.weights)
    if added is not None:
        encoder[0].model = added.merged().to(encoder.device)
    encoder.eval()
    mean = sum(line["loss"] for line in lines) / max(1, len(lines))
    return TrainingResult(trainer.state.global_step, best.epoch if best else passes, mean, lines)


class _EpochCallback(TrainerCallback):
    """Shows the progress, selects the best epoch, and marks checkpoints as complete."""

    def __init__(self, best: BestWeightsCallback | None, progress: Progress) -> None:
        self._best, self._progress = best, progress

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        check_stop()
        self._progress.update(state.global_step)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._best:
            self._best.on_epoch_end(args, state)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        checkpoint = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
        if self._best:
            self._best.save(checkpoint)
        mark_complete(checkpoint)
