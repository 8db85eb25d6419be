"""The text that an adaptation reads, the training budget, and checks of options.

The text is domain text, or that of the train split of a labelled task.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from acclimate.adaptation.method import Method
from acclimate.adaptation.options import BUDGETS, AdaptOptions, TrainingOptions
from acclimate.base.errors import UserError, warn_once
from acclimate.base.files import cache_folder
from acclimate.base.progress import print_message
from acclimate.data.documents import Corpus, as_corpus
from acclimate.data.reading import TextOptions
from acclimate.data.task_kinds import task_texts
from acclimate.data.token_dataset import RowSubset, TokenDataset
from acclimate.data.tokenizing import Framing, tokenize
from acclimate.engine.distributed import ProcessGroup
from acclimate.engine.row_options import Documents, Layout
from acclimate.evaluation.lm_loss import begin_of_later_rows
from acclimate.models.batching import round_up
from acclimate.models.checkpoints import load_config
from acclimate.models.encoding import check_packable
from acclimate.models.families import longest_text
from acclimate.models.kinds import MASKED, ModelKind, kind_of_checkpoint
from acclimate.models.loading import LanguageModel, load_tokenizer, read_kind, virtual_ids
from acclimate.parts.masking import MASK_RATE, Strategy, lookup, names, resolve
from acclimate.parts.masking.base import make_vocabulary
from acclimate.parts.masking.pairs import default_corruption
from acclimate.parts.modules import add_virtual_tokens

TextInput = str | Path | Iterable[Any] | Corpus
TASK_EPOCHS = 100
"""Default number of passes over the text of a task (Gururangan et al., ACL 2020, and the TAPTER paper)."""
STEP_TOKENS = {"cpu": 8_192, "cuda": 32_768}
"""Tokens per step, in all processes, with ``batch_size="auto"``, by type of device: they keep a GPU busy, and on a CPU
the update of the weights takes a twentieth of the time (MiniLM shape)."""
LEAST_STEPS, LEAST_TEXTS, LEAST_EPOCH_STEPS = 100, 64, 4
"""With ``batch_size="auto"``, a training by epochs or tokens has at least so many steps, and every pass over the
corpus at least so many, unless a step then has fewer texts than this."""
LEAST_GPU_TOKENS = 8_000
"""Tokens per step and GPU below which starting the kernels takes longer than running them."""

log = logging.getLogger(__name__)


def task_corpus(task: Any) -> Corpus:
    """Return the texts of the train split of a task, never those of dev or test."""
    return Corpus.of(task_texts(task))


def resolve_texts(method: Method, corpus: TextInput | None, task: Any, reading: TextOptions) -> dict[str, Corpus]:
    """Return the ``"domain"`` text and the ``"task"`` text that a method reads; most methods read one of them.

    Args:
        method: The method.
        corpus: Text that the user gave, or None.
        task: A loaded task, or None.
        reading: How the text is read.

    Raises:
        UserError: If a text or the task is missing, or it is not clear which text is meant.
    """
    name, stages = method.name, method.stages()
    if method.needs_task and task is None:
        raise UserError(f"Method '{name}' needs a labelled task; give its folder with --task.")
    if corpus is None and task is None:
        raise UserError("There is no text to adapt to; give --corpus, or --task to read the train split of a task.")
    if corpus is None and any(stage.reads == "domain" for stage in stages):
        raise UserError(f"Method '{name}' also reads domain text; give it with --corpus.")
    if method.reads == "task" and corpus is not None and task is not None:
        raise UserError(
            f"Method '{name}' reads one text: leave out --corpus to read that of the task, or --task to read the "
            "corpus; 'dapt+tapt' reads both, one after the other."
        )
    texts: dict[str, Corpus] = {}
    if corpus is not None:
        texts["domain"] = as_corpus(corpus, reading)
    if corpus is None or any(stage.reads == "task" for stage in stages):
        texts["task"] = task_corpus(task)
    return texts


@dataclass
class Budget:
    """How long to train: one of steps, epochs, tokens and minutes."""

    steps: int | None = None
    epochs: float | None = None
    tokens: int | None = None
    max_minutes: float | None = None

    @classmethod
    def of(cls, options: TrainingOptions, default_epochs: float) -> Budget:
        """Return the budget that the options set; ``default_epochs`` epochs if they set none."""
        given = {name: getattr(options, name) for name in BUDGETS}
        return cls(**given) if any(value is not None for value in given.values()) else cls(epochs=default_epochs)

    def resolve(self, rows: TokenDataset | RowSubset, batch_size: int, appended: int = 0) -> int:
        """Return the number of optimizer steps; with a time budget, a number that is too high to be reached.

        Args:
            rows: The training text.
            batch_size: Texts per step.
            appended: Virtual tokens per row (see :mod:`acclimate.parts.modules.virtual_tokens`).
        """
        per_step = batch_size * (rows.tokens / len(rows) - appended)
        if self.steps is not None:
            return self.steps
        if self.tokens is not None:
            return max(1, round(self.tokens / per_step))
        if self.epochs is not None:
            return max(1, math.ceil(self.epochs * len(rows) / batch_size))
        return 10_000_000


def choose_batch_size(tokens: int, budget: Budget, rows: TokenDataset, mean_length: float, share: float = 1.0) -> int:
    """Return the number of texts per step of about ``tokens`` tokens, for ``batch_size="auto"``.

    It depends on the text and the budget alone, so that a resumed run finds the same number.

    Args:
        tokens: Tokens per step that suit the device.
        budget: How long to train.
        rows: The domain text.
        mean_length: Mean tokens per text, of all that is read.
        share: Share of the tokens that is domain text.
    """
    total = math.inf if budget.tokens is None else budget.tokens / mean_length
    if budget.epochs is not None:
        total = budget.epochs * rows.tokens / share / mean_length
    most = max(LEAST_TEXTS, min(total / LEAST_STEPS, len(rows) / LEAST_EPOCH_STEPS))
    texts = round(min(tokens / mean_length, most))
    return texts // 8 * 8 if texts > 8 else max(1, texts)


def report_batch(
    batch_size: int,
    mean_length: float,
    group: ProcessGroup,
    device: torch.device,
    progress: bool,
    wanted: int | None = None,
) -> None:
    """Say what a process reads in a step if that is not what was given, and warn if it is too little for a GPU.

    Args:
        batch_size: Texts per step, in all processes together.
        mean_length: Mean tokens per text.
        group: The processes that share each step.
        device: The device of this process.
        progress: Whether to print.
        wanted: Tokens per step that ``batch_size="auto"`` is to have; None if a number was given.
    """
    each = batch_size / group.size
    tokens = each * mean_length
    if group.size > 1:
        print_message(
            f"Batch: {batch_size:,} texts per step in {group.size} processes; each reads {each:.4g} texts, or "
            f"{tokens:,.0f} tokens.",
            enabled=progress,
        )
    if wanted is not None:
        total = batch_size * mean_length
        limit = ""
        if total <= wanted / 2:
            limit = f", fewer than the {wanted:,} that suit the device: the training or its text is short"
        print_message(
            f"Batch size: {batch_size:,} texts per step, or {total:,.0f} tokens{limit}.",
            enabled=progress,
        )
    if group.first and device.type == "cuda" and tokens < LEAST_GPU_TOKENS:
        enough = round_up(math.ceil(STEP_TOKENS["cuda"] * group.size / mean_length), 64)
        remedy = f"Consider --batch-size {enough}, with fewer steps and a higher learning rate."
        if wanted is not None:
            remedy = f"Use fewer GPUs, or more text, or --batch-size {enough} with a higher learning rate."
        log.warning("Each GPU reads only %s tokens per step, so it will mostly wait. %s", f"{tokens:,.0f}", remedy)


def add_method_virtual_tokens(loaded: LanguageModel, method: Method, seed: int) -> int:
    """Add the method's virtual tokens to model and tokenizer; return how many tokens they add to each text."""
    if method.virtual_tokens and not method.has_virtual_tokens(loaded.model):
        loaded.tokenizer = add_virtual_tokens(
            loaded.model, loaded.tokenizer, method.virtual_tokens, start=method.virtual_start, seed=seed
        )
    return len(virtual_ids(loaded.tokenizer))


def check_length(loaded: LanguageModel, max_length: int, name: str = "max-length") -> None:
    """Check that the model can read texts of ``max_length`` tokens, which a message calls ``name``.

    Raises:
        UserError: If it has fewer positions, or the texts would be shorter than 8 tokens.
    """
    if max_length < 8:
        raise UserError(f"{name} must be at least 8 tokens, not {max_length}.")
    positions = longest_text(loaded.model)
    if positions is not None and max_length > positions:
        raise UserError(f"{name} {max_length} is more than the {positions} positions of this model; lower it.")


def check_masking(options: AdaptOptions, kind: ModelKind, strategy: Strategy) -> None:
    """Refuse masking options for a model that is trained without masking, or strategies for another kind of model.

    Raises:
        UserError: If there are such options.
    """
    if kind.pairs:
        if not strategy.pairs:
            fitting = ", ".join(name for name in names() if lookup(name).pairs)
            raise UserError(
                f"A {kind.name} language model is trained on pairs of source and target, and the masking "
                f"'{strategy.name}' makes none; choose one of {fitting}."
            )
        return
    if not strategy.masks:
        raise UserError(
            f"The masking '{strategy.name}' is for encoder-decoders; choose another for a {kind.name} model."
        )
    if strategy.rearranges:
        return
    if not kind.uses_masking and options.masking is not None:
        raise UserError(f"A {kind.name} language model is trained without masking; remove the option 'masking'.")
    if not kind.uses_masking and options.mask_rate != MASK_RATE:
        raise UserError(f"A {kind.name} language model is trained without masking; remove the option 'mask_rate'.")


def resolve_masking(options: AdaptOptions) -> Strategy:
    """Return the masking strategy of the options; by default of an encoder-decoder the one that suits its tokenizer.

    Raises:
        UserError: If the name or a parameter is unknown, or no strategy suits the tokenizer.
    """
    if options.masking is None and not callable(options.model):
        kind = MASKED
        with suppress(UserError):  # loading the model later reports what is wrong
            kind = read_kind(options.model)
        if kind.pairs:
            return default_corruption(make_vocabulary(load_tokenizer(options.model)), options.mask_rate)
    return resolve(options.masking, options.mask_rate)


def kind_defaults(options: AdaptOptions, method: Method) -> dict[str, Any]:
    """Return :func:`default_rows` for the kind of the model, which is read from its configuration.

    A model that cannot be read gets the defaults of masked models; loading it later reports what is wrong.
    """
    kind, positions = MASKED, None
    if callable(options.model):  # pretrain, which knows the kind, sets all of them
        layout, length = options.layout or kind.layout, options.max_length or kind.max_length
        return {"layout": layout, "max_length": length, "documents": options.documents}
    with suppress(UserError):
        config = load_config(options.model)
        kind = kind_of_checkpoint(config.architectures, options.model)
        positions = getattr(config, "max_position_embeddings", None)
    return default_rows(options, kind, positions, kind.max_length, method.virtual_tokens)


def default_rows(
    options: TrainingOptions, kind: ModelKind, positions: int | None, max_length: int, virtual: int = 0
) -> dict[str, Any]:
    """Return ``layout``, ``max_length`` and ``documents`` as given, or the defaults of a kind of model.

    Args:
        options: The options as given.
        kind: The kind of the model.
        positions: Maximum tokens per text of the model, if known. It limits the default for causal models and
            encoder-decoders only; for others a longer default is an error.
        max_length: The default maximum tokens per text.
        virtual: Number of virtual tokens that the method adds to each text.

    Raises:
        UserError: If documents cannot be joined for this kind of model.
    """
    if options.documents == "joined" and not kind.frames_documents:
        raise UserError(
            f"Documents cannot be joined for a {kind.name} language model, which reads each text by itself; remove "
            "documents=joined."
        )
    if (kind.frames_documents or kind.pairs) and positions is not None:
        max_length = min(max_length, positions - virtual)
    return {
        "layout": options.layout or kind.layout,
        "max_length": options.max_length or max_length,
        "documents": (options.documents or "apart") if kind.frames_documents else None,
    }


def packed_if_possible(model: PreTrainedModel, given: Layout | None, length: int) -> Layout:
    """Return ``"packed"``, or ``"padded"`` if that is only the default and texts of this length cannot share a row.

    Raises:
        UserError: If the user asked for packing, and the model cannot separate texts.
    """
    try:
        check_packable(model, length)
    except UserError as error:
        if given is not None:
            raise
        warn_once(f"{str(error).removesuffix(': use layout=padded.')}; each text has a row by itself.")
        return "padded"
    return "packed"


def tokenize_documents(
    text: Corpus, loaded: LanguageModel, length: int, framing: Framing, progress: bool
) -> tuple[Framing, TokenDataset]:
    """Return the rows of the domain text, and their framing: with a begin token in each if the model needs it."""
    cut = partial(tokenize, text, loaded.tokenizer, length, cache=cache_folder() / "rows", progress=progress)
    rows = cut(framing=framing)
    if framing.documents != "apart":
        return framing, rows
    later = (np.flatnonzero(np.diff(rows.document) == 0) + 1).tolist()
    if begin_of_later_rows(loaded.model, loaded.tokenizer, (np.asarray(rows[place]) for place in later)) is None:
        return framing, rows
    print_message(
        "The model predicts the middle of documents better after its begin token: each row gets it.", progress
    )
    framing = replace(framing, begins_rows=True)
    return framing, cut(framing=framing)


def document_framing(loaded: LanguageModel, documents: Documents | None) -> Framing:
    """Return where special tokens are added to the documents that a causal model reads.

    The end token is that of the tokenizer; a tokenizer without one gets that of the generation configuration or of the
    model, or the first if these name several.

    Raises:
        UserError: If documents are joined, and nothing would separate them.
    """
    settings = (getattr(loaded.model, "generation_config", None), loaded.model.config)
    named = [getattr(one, "eos_token_id", None) for one in settings]
    stops = next(([found] if isinstance(found, int) else list(found) for found in named if found is not None), [])
    own = loaded.tokenizer.eos_token_id
    end = own if isinstance(own, int) else next(iter(stops), None)
    remedy = "set eos_token in tokenizer_config.json to the token that ends a text"
    if end is None and documents == "joined":
        raise UserError(f"The tokenizer has no end token, so joined documents could not be separated; {remedy}.")
    if end is None:
        warn_once(f"The tokenizer has no end token, so the model will not learn where a document ends; {remedy}.")
    elif stops and end not in stops:
        warn_once(
            f"Each document ends with the token {end} of the tokenizer, but the model stops generating at "
            f"{', '.join(map(str, stops))}: correct eos_token_id in generation_config.json."
        )
    return Framing(documents or "apart", end)
