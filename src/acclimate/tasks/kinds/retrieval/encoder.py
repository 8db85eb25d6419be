"""Sentence encoders: loading any checkpoint as one, ranking documents with it, and training it."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize
from transformers import PreTrainedModel

from acclimate.base.device import Precision, RandomState, autocast, copy_to, default_device, host_copy
from acclimate.base.errors import UserError, first_line
from acclimate.base.progress import print_message, silence_transformers
from acclimate.base.ranking import content_ranks, settle, top_positions
from acclimate.engine.cutting import split_micro_batches
from acclimate.engine.distributed import ProcessGroup
from acclimate.engine.steps import TaskEngine, Terms
from acclimate.evaluation.embeddings import CROSS, SPARSE, encoder_type, import_sentence_transformers, load_encoder
from acclimate.evaluation.retrieval import DEPTH
from acclimate.models.attention import prepare_for_device
from acclimate.models.batching import max_graph_tokens, padding_policy, training_tokens
from acclimate.models.checkpoints import load_config, trusts_remote_code
from acclimate.models.kinds import kind_of_checkpoint
from acclimate.models.loading import load_tokenizer
from acclimate.models.lora import LowRankAdapter
from acclimate.models.saving import find_non_finite, write_portable_modules
from acclimate.tasks.interfaces import ResolvedOptions
from acclimate.tasks.record import read_training
from acclimate.tasks.trainer import LengthGroupedBatches, Score, TaskSteps, TrainingResult, train_steps

BLOCK_NUMBERS = 1 << 23
"""Similarities that are held in memory at a time."""
ADVICE = {
    SPARSE: "gives words weights instead of a vector of the text: add sparse and epochs=0 for a task of retrieval",
    CROSS: "reads two texts together: add rerank for a task of retrieval, with another first stage or none",
}
"""What to do with other models of ``sentence-transformers``."""


@dataclass
class BiEncoder:
    """A ``SentenceTransformer`` that embeds queries and documents, each with its prompt if the model has prompts."""

    model: Any
    _embedded: tuple[dict[str, str], Any] | None = field(default=None, init=False)
    _asked: tuple[list[str], Any] | None = field(default=None, init=False)

    @property
    def body(self) -> PreTrainedModel | None:
        """Its transformer, if it has one."""
        found = getattr(self.model[0], "auto_model", None)
        return found if isinstance(found, PreTrainedModel) else None

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
        write_portable_modules(folder)

    def forget(self) -> None:
        """Drop the embeddings of documents and queries."""
        self._embedded = self._asked = None

    def embed(self, texts: Sequence[str], encode: Callable[..., Any]) -> Any:
        """Return the vectors of texts by a function of the model: (texts, dimensions).

        Raises:
            UserError: If one is NaN or infinite.
        """
        found = encode(list(texts), convert_to_tensor=True, show_progress_bar=False)
        if not bool(found.isfinite().all()):
            raise UserError("The fine-tuned model returns NaN or infinite embeddings; lower the learning rate.")
        return found

    def compare(self, asked: Any, texts: Any) -> np.ndarray:
        """Return the similarities of queries and documents: (queries, documents)."""
        found: np.ndarray = self.model.similarity(asked, texts).cpu().numpy()
        return found

    def similarity(self, first: Sequence[str], second: Sequence[str]) -> list[float]:
        """Return the similarity of each pair of texts."""
        vectors = (self.model.encode(list(texts), show_progress_bar=False) for texts in (first, second))
        found: list[float] = self.model.similarity_pairwise(*vectors).tolist()
        return found

    def rank(
        self,
        documents: dict[str, str],
        queries: Sequence[str],
        own: Sequence[str | None] = (),
        dimensions: int | None = None,
    ) -> tuple[list[list[str]], list[list[float]]]:
        """Return the ids of the best documents for each query, and their similarities.

        Documents are embedded once for all splits; call :meth:`forget` when the weights have changed. ``own`` has for
        each query the id of the document that it is itself, which is left out. Of each vector only the first
        ``dimensions`` are compared.

        Raises:
            UserError: If an embedding is NaN or infinite.
        """
        ids = list(documents)
        if self._embedded is None or self._embedded[0] != documents:
            self._embedded = documents, self.embed(list(documents.values()), self.model.encode_document)
        if self._asked is None or self._asked[0] != list(queries):
            self._asked = list(queries), self.embed(queries, self.model.encode_query)
        texts, asked = (vectors[:, :dimensions] for _, vectors in (self._embedded, self._asked))
        ranks, found = content_ranks(documents.values()), list[list[tuple[str, float]]]()
        size = max(1, BLOCK_NUMBERS // len(ids))
        for start in range(0, len(queries), size):
            similarity = self.compare(asked[start : start + size], texts)
            places = top_positions(similarity, ranks, DEPTH + any(own))
            settled = settle(np.take_along_axis(similarity, places, axis=1))
            found += [
                [(ids[place], score) for place, score in zip(row, scores, strict=True)]
                for row, scores in zip(places.tolist(), settled.tolist(), strict=True)
            ]
        hits = [
            [hit for hit in row if hit[0] != itself][:DEPTH]
            for row, itself in zip(found, own or [None] * len(found), strict=True)
        ]
        return [[key for key, _ in row] for row in hits], [[score for _, score in row] for row in hits]


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
    if (saved := encoder_type(path) or (CROSS if _is_reranker(path, config) else "")) in ADVICE:
        raise UserError(f"'{path}' is a {saved}, which {ADVICE[saved]}.")
    if saved:
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
    limit_length(encoder, config, max_length)
    return BiEncoder(encoder)


def _is_reranker(path: str | Path, config: Any) -> bool:
    """Return whether a checkpoint is a cross-encoder: it was trained here, or by ``sentence-transformers``."""
    scores = any("ForSequenceClass" in name for name in config.architectures or ())
    return scores and (hasattr(config, "sentence_transformers") or read_training(path).result.kind == "retrieval")


def limit_length(encoder: Any, config: Any, max_length: int) -> None:
    """Set the maximum tokens per text of an encoder, at most what it can read."""
    lengths = (max_length, encoder.max_seq_length, getattr(config, "max_position_embeddings", None))
    encoder.max_seq_length = min(length for length in lengths if length)


@dataclass(frozen=True)
class MatryoshkaLoss:
    """The sum of a loss over vectors cut to several numbers of dimensions, each normalized (Kusupati et al., 2022).

    It is ``MatryoshkaLoss`` of ``sentence-transformers``, over embeddings.

    Attributes:
        loss: Has ``compute_loss_from_embeddings``.
        dimensions: The numbers of dimensions.
    """

    loss: Any
    dimensions: Sequence[int]

    def compute_loss_from_embeddings(self, embeddings: Sequence[Tensor], labels: Tensor | None) -> Tensor:
        """Return the loss of the vectors of each column, (rows, width) each."""
        cut = [[normalize(column[:, :size], dim=-1) for column in embeddings] for size in self.dimensions]
        return torch.stack([self.loss.compute_loss_from_embeddings(columns, labels) for columns in cut]).sum()


@dataclass(frozen=True)
class TextBatch:
    """Some texts of a step, from all columns.

    Attributes:
        features: What the sentence encoder reads, (texts, tokens) each.
        places: Where the texts are among all of the step, one column after the other.
        rows: Number of rows of the step.
        labels: Their labels, if there are any (rows,).
    """

    features: dict[str, Any]
    places: list[int]
    rows: int
    labels: Tensor | None

    def to(self, device: torch.device) -> TextBatch:
        """Return the batch on ``device``."""
        items = self.features.items()
        moved = {name: copy_to(value, device) if isinstance(value, Tensor) else value for name, value in items}
        labels = None if self.labels is None else copy_to(self.labels, device)
        return replace(self, features=moved, labels=labels)

    @property
    def texts(self) -> int:
        """Number of texts."""
        return len(self.places)

    @property
    def tokens(self) -> int:
        """Number of real tokens."""
        mask = self.features.get("attention_mask")
        return 0 if mask is None else int(host_copy(mask).sum())


class DistinctBatches(LengthGroupedBatches):
    """Random batches in which a text occurs once at most; rows that would make an epoch longer are left out."""

    def __init__(self, texts: Sequence[set[str]], size: int, seed: int) -> None:
        """Plan batches of ``size`` rows, given the texts of each row."""
        self.texts = texts
        super().__init__([0] * len(texts), size, seed)

    def _epoch(self, number: int) -> list[list[int]]:
        waiting = deque(range(len(self.texts)))
        random.Random(f"{self.seed}/{number}").shuffle(waiting)
        batches: list[list[int]] = []
        while waiting and len(batches) < len(self):
            rows, seen, later = list[int](), set[str](), list[int]()
            while waiting and len(rows) < self.size:
                row = waiting.popleft()
                clash = seen & self.texts[row]
                (later if clash else rows).append(row)
                seen |= set() if clash else self.texts[row]
            waiting.extendleft(reversed(later))
            batches.append(rows)
        return batches


class PairSteps(TaskSteps):
    """The batches of every step of a training on rows of texts (a ``StepData``)."""

    def __init__(self, training: EncoderTraining, passes: int) -> None:
        """Plan ``passes`` over the rows."""
        rows, options = training.rows, training.options
        self.columns = [name for name in rows[0] if name != "label"]
        self.rows, self.encoder, self.group = rows, training.head, training.group
        self.prompts = training.prompts or {}
        texts = [{row[name] for name in self.columns} if training.distinct else set() for row in rows]
        self._batches = DistinctBatches(texts, options.batch_size, options.seed)
        self.epoch_steps, self._steps = len(self._batches), passes * len(self._batches)

    def describe(self, index: int) -> str:
        """Return the number of a row, counted from 1, and the start of its first text."""
        return f"row {index + 1:,} ({self.rows[index][self.columns[0]]:.60})"

    def _batch(self, step: int, indices: Sequence[int]) -> list[TextBatch]:  # type: ignore[override]
        """Return all texts of some rows, cut into batches of similar length that fit into memory."""
        rows = [self.rows[index] for index in indices]
        labels = torch.tensor([float(row["label"]) for row in rows]) if "label" in rows[0] else None
        by_prompt: dict[str | None, list[int]] = {}
        for number, name in enumerate(self.columns):
            by_prompt.setdefault(self.prompts.get(name), []).append(number)
        batches = []
        for prompt, numbers in by_prompt.items():
            texts = [row[self.columns[number]] for number in numbers for row in rows]
            places = [number * len(rows) + place for number in numbers for place in range(len(rows))]
            features = dict(self.encoder.model.preprocess(texts, prompt=prompt))
            for chosen in self._cut(features.get("attention_mask")):
                part = features if chosen is None else _take(features, chosen)
                own = places if chosen is None else [places[place] for place in chosen]
                batches.append(TextBatch(part, own, len(rows), labels))
        return batches

    def _cut(self, mask: Tensor | None) -> Iterator[list[int] | None]:
        """Yield the texts of each batch; None for all, where the encoder is no transformer."""
        body = self.encoder.body
        if mask is None or body is None:
            yield None
            return
        lengths = mask.sum(1).tolist()
        order = sorted(range(len(lengths)), key=lengths.__getitem__)
        limit = training_tokens(body, length=max(lengths))
        for part in split_micro_batches([lengths[place] for place in order], limit, padding_policy(body)):
            yield order[part]


def _take(features: dict[str, Any], texts: list[int]) -> dict[str, Any]:
    """Return the features of some texts, as wide as the longest of them."""
    mask = features["attention_mask"]
    used = mask[texts].any(0).nonzero()[:, 0]
    columns = slice(int(used[0]), int(used[-1]) + 1)
    return {
        name: value[texts, columns] if isinstance(value, Tensor) and value.shape == mask.shape else value
        for name, value in features.items()
    }


class PairEngine(TaskEngine):
    """Computes a loss of ``sentence-transformers`` over the embeddings of all texts of a step, and its gradients.

    Batches whose graphs do not fit into memory together are read twice, with the same dropout masks (GradCache, Gao et
    al., 2021): loss and gradients are those of the whole step.
    """

    def __init__(self, head: BiEncoder, loss: Any, precision: Precision) -> None:
        """Set up the engine; ``loss`` has ``compute_loss_from_embeddings``."""
        super().__init__(head.model, loss, precision)
        self.body, self.objective = head.body, loss

    def step(self, batches: Sequence[TextBatch]) -> Terms:  # type: ignore[override]
        """Add the gradients of a step; return its loss, as the term ``"task"`` and as the sum ``"loss"``."""
        device = self.model.device
        self.tokens, self.texts = sum(batch.tokens for batch in batches), sum(batch.texts for batch in batches)
        kept = self._kept(batches)
        with self.step_context():
            embedded, states = [], []
            for number, batch in enumerate(batches):
                states.append(None if number < kept else RandomState(device))
                with torch.set_grad_enabled(number < kept):
                    embedded.append(self._embed(batch))
            after = RandomState(device) if kept < len(batches) else None
            loss, gradients = self._loss(embedded, batches)
            for batch, state, gradient in zip(batches, states, gradients, strict=True):
                first = embedded.pop(0)
                if state is not None:
                    state.restore()
                    first = self._embed(batch)
                first.backward(gradient if self.loss_scale == 1 else gradient * self.loss_scale)
            if after is not None:
                after.restore()
        return {"task": loss, "loss": loss}

    def _losses(self, batches: Sequence[TextBatch]) -> Iterator[Tensor]:  # type: ignore[override]
        with torch.enable_grad():
            yield self._loss([self._embed(batch) for batch in batches], batches)[0]

    def _kept(self, batches: Sequence[TextBatch]) -> int:
        """Return how many batches keep their graphs while the loss is computed."""
        if len(batches) == 1 or self.body is None:
            return len(batches)
        limit = max_graph_tokens(self.body, max(batch.features["attention_mask"].shape[1] for batch in batches))
        read = accumulate(batch.features["attention_mask"].numel() for batch in batches)
        return sum(tokens <= limit for tokens in read)

    def _embed(self, batch: TextBatch) -> Tensor:
        with autocast(self.precision, self.model.device):
            embedded: Tensor = self.model(dict(batch.features))["sentence_embedding"]
        return embedded

    def _loss(self, embedded: Sequence[Tensor], batches: Sequence[TextBatch]) -> tuple[Tensor, Sequence[Tensor]]:
        """Return the loss of embeddings, in fp32, and its gradient for those of each batch."""
        places = torch.tensor([place for batch in batches for place in batch.places])
        device = embedded[0].device
        joined = torch.cat([part.detach() for part in embedded]).float()
        table = joined.index_select(0, copy_to(places.argsort(), device)).requires_grad_()
        value = self.objective.compute_loss_from_embeddings(list(table.split(batches[0].rows)), batches[0].labels)
        (gradient,) = torch.autograd.grad(value, table)
        own = gradient.index_select(0, copy_to(places, device)).to(embedded[0].dtype)
        return value.detach(), own.split([len(part) for part in embedded])


@dataclass
class EncoderTraining:
    """A training of a sentence encoder in place.

    Attributes:
        head: The sentence encoder.
        rows: Texts by column, and perhaps a ``label``.
        loss: A loss of ``sentence-transformers`` for the encoder.
        options: Options of fine-tuning.
        precision: The resolved precision.
        work: As for :func:`acclimate.tasks.trainer.train`, like the following attributes. A training with an adapter
            starts anew after an interruption.
        title: Title of the progress bar.
        score: Function that scores the model after each epoch.
        report_to: Experiment trackers.
        run_name: Name of the run.
        group: The processes, of which there must be one.
        adapter: A low-rank adapter that is trained instead of the weights, and merged into them.
        prompts: Prompts by column.
        passes: Passes over the rows; 0 for the epochs of the options.
        distinct: Whether no step has a text twice, where in-batch negatives would contradict it.
    """

    head: BiEncoder
    rows: Sequence[dict[str, Any]]
    loss: Any
    options: ResolvedOptions
    precision: Precision
    _: KW_ONLY
    work: Path | None
    title: str
    score: Callable[[], Score] | None
    report_to: Sequence[str]
    run_name: str | None
    group: ProcessGroup
    adapter: LowRankAdapter | None = None
    prompts: dict[str, str] | None = None
    passes: int = 0
    distinct: bool = True

    def run(self) -> TrainingResult:
        """Train the encoder; it then has the weights of the best epoch, if epochs are scored.

        Raises:
            UserError: If the loss becomes NaN or infinite.
        """
        head, options, added = self.head, self.options, None
        if self.adapter is not None:
            added = self.adapter.insert(head.model[0].auto_model, seed=options.seed)
            print_message(added.describe(), enabled=options.progress)
        if (body := head.body) is not None:
            prepare_for_device(body, default_device())
        data = PairSteps(self, self.passes or options.epochs)
        engine = PairEngine(head, self.loss, self.precision)
        longest, work = head.model.max_seq_length or options.max_length, None if added else self.work
        run: Any = {"title": self.title, "report_to": self.report_to, "run_name": self.run_name}
        trained = train_steps(engine, data, body, longest, options, work, self.score and self._measure, **run)
        if added is not None:
            head.model[0].model = added.merged().to(head.model.device)
        head.model.eval()
        head.forget()
        return trained

    def _measure(self) -> Score:
        self.head.forget()  # embeddings of other weights
        return self.score() if self.score else 0.0
