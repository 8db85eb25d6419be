"""Sentence encoders: loading any checkpoint as one, ranking documents with it, and training it."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import Tensor
from transformers import PrinterCallback, TrainerCallback, TrainerState

from acclimate.base.device import Precision, default_device
from acclimate.base.errors import Stopped, UserError, check_stop, first_line
from acclimate.base.progress import Progress, print_message, silence_transformers
from acclimate.base.ranking import content_ranks, settle, top_positions
from acclimate.engine.callbacks import find_newest_checkpoint, mark_complete, remove_incomplete_checkpoints
from acclimate.engine.distributed import ProcessGroup
from acclimate.evaluation.embeddings import import_sentence_transformers, is_sentence_encoder, load_encoder
from acclimate.evaluation.retrieval import DEPTH
from acclimate.models.checkpoints import load_config, trusts_remote_code
from acclimate.models.kinds import kind_of_checkpoint
from acclimate.models.loading import load_tokenizer
from acclimate.models.lora import LowRankAdapter
from acclimate.models.saving import find_non_finite, write_portable_modules
from acclimate.tasks.interfaces import ResolvedOptions
from acclimate.tasks.trainer import ADAM_EPSILON, BestWeightsCallback, Score, TrainingResult

LOGGED_LINES = 50
BLOCK_NUMBERS = 1 << 23
"""Similarities that are held in memory at a time."""


@dataclass
class BiEncoder:
    """A ``SentenceTransformer`` that embeds queries and documents, each with its prompt if the model has prompts."""

    model: Any
    _embedded: tuple[dict[str, str], Tensor] | None = field(default=None, init=False)

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
        """Drop the embeddings of documents."""
        self._embedded = None

    def rank(
        self, documents: dict[str, str], queries: Sequence[str], own: Sequence[str | None] = ()
    ) -> tuple[list[list[str]], list[list[float]]]:
        """Return the ids of the best documents for each query, and their similarities.

        Documents are embedded once for all splits; call :meth:`forget` when the weights have changed. ``own`` has for
        each query the id of the document that it is itself, which is left out.

        Raises:
            UserError: If an embedding is NaN or infinite.
        """
        quiet = {"convert_to_tensor": True, "show_progress_bar": False}
        ids = list(documents)
        if self._embedded is None or self._embedded[0] != documents:
            self._embedded = documents, self.model.encode_document(list(documents.values()), **quiet)
        texts = self._embedded[1]
        asked = self.model.encode_query(list(queries), **quiet)
        if not (bool(texts.isfinite().all()) and bool(asked.isfinite().all())):
            raise UserError("The fine-tuned model returns NaN or infinite embeddings; lower the learning rate.")
        ranks, found = content_ranks(documents.values()), list[list[tuple[str, float]]]()
        for block in asked.split(max(1, BLOCK_NUMBERS // len(ids))):
            similarity = self.model.similarity(block, texts).cpu().numpy()
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


@dataclass
class EncoderTraining:
    """A training of a sentence encoder in place, with the trainer of ``sentence-transformers``.

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
        sampler: The sampler of ``sentence-transformers``; by default no batch has a text twice.
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
    sampler: Literal["no_duplicates", "batch_sampler"] = "no_duplicates"

    def run(self) -> TrainingResult:
        """Train the encoder; it then has the weights of the best epoch, if epochs are scored.

        Raises:
            UserError: If the loss becomes NaN or infinite.
        """
        encoder, options = self.head.model, self.options
        self.passes = self.passes or options.epochs
        self.steps = self.passes * math.ceil(len(self.rows) / options.batch_size)
        added = None
        if self.adapter is not None:
            added = self.adapter.insert(encoder[0].auto_model, seed=options.seed)
            print_message(added.describe(), enabled=options.progress)
            self.work = None
        best = BestWeightsCallback(encoder, self.score, self.passes) if self.score else None
        state = self._train(best)
        lines = [
            {"step": line["step"], "epoch": line["epoch"], "loss": line["loss"]}
            for line in state.log_history
            if "loss" in line
        ]
        if not all(math.isfinite(line["loss"]) for line in lines):
            raise UserError("The loss became NaN or infinite; lower the learning rate.")
        if best:
            encoder.load_state_dict(best.weights)
        if added is not None:
            encoder[0].model = added.merged().to(encoder.device)
        encoder.eval()
        self.head.forget()
        mean = sum(line["loss"] for line in lines) / max(1, len(lines))
        return TrainingResult(state.global_step, best.epoch if best else self.passes, mean, lines)

    def _train(self, best: BestWeightsCallback | None) -> TrainerState:
        """Train from the newest checkpoint on, if there is one; return the state at the end."""
        from datasets import Dataset

        library, encoder, checkpoint = import_sentence_transformers(), self.head.model, None
        if self.work and self.work.is_dir():
            remove_incomplete_checkpoints(self.work)
            if (checkpoint := find_newest_checkpoint(self.work)) and best:
                best.load(checkpoint)
        encoder.model_card_data.widget = [{}]  # without examples, the trainer computes some for a card
        with ExitStack() as stack:
            folder = self.work or Path(stack.enter_context(tempfile.TemporaryDirectory()))
            progress = stack.enter_context(Progress(self.title, self.steps, enabled=self.options.progress))
            stack.enter_context(silence_transformers())
            trainer = library.SentenceTransformerTrainer(
                model=encoder,
                args=self._arguments(library, folder),
                train_dataset=Dataset.from_list(list(self.rows)),
                loss=self.loss,
                callbacks=[_EpochCallback(self.head, best, progress)],
            )
            trainer.remove_callback(PrinterCallback)
            try:
                trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
            except Stopped as stopped:  # checkpoints are written after epochs only
                stopped.saved = self.work is not None and find_newest_checkpoint(self.work) is not None
                raise
        state: TrainerState = trainer.state
        return state

    def _arguments(self, library: Any, folder: Path) -> Any:
        """Return the arguments of the trainer, which writes its checkpoints to a folder."""
        options = self.options
        return library.SentenceTransformerTrainingArguments(
            str(folder),
            num_train_epochs=self.passes,
            per_device_train_batch_size=options.batch_size,
            learning_rate=options.learning_rate,
            warmup_steps=math.ceil(options.warmup * self.steps),
            weight_decay=options.weight_decay,
            max_grad_norm=options.max_gradient_norm,
            adam_epsilon=ADAM_EPSILON,
            seed=options.seed,
            bf16=self.precision == "bf16",
            fp16=self.precision == "fp16",
            use_cpu=default_device().type == "cpu",
            batch_sampler=self.sampler,
            prompts=self.prompts,
            save_strategy="epoch" if self.work else "no",
            logging_steps=max(1, self.steps // LOGGED_LINES),
            report_to=list(self.report_to) or "none",
            run_name=self.run_name,
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )


class _EpochCallback(TrainerCallback):
    """Drops outdated embeddings, shows the progress, selects the best epoch, and marks checkpoints as complete."""

    def __init__(self, head: BiEncoder, best: BestWeightsCallback | None, progress: Progress) -> None:
        self._head, self._best, self._progress = head, best, progress

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        check_stop()
        self._head.forget()
        self._progress.update(state.global_step)

    def on_epoch_end(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        if self._best:
            self._best.on_epoch_end(args, state)

    def on_save(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        checkpoint = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
        if self._best:
            self._best.save(checkpoint)
        mark_complete(checkpoint)
