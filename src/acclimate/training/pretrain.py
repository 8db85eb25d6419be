"""General pre-training: a masked language model from fresh weights, and a tokenizer if there is none."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from transformers import PreTrainedTokenizerBase

from acclimate.backbone import load_tokenizer, longest_text
from acclimate.corpus import Corpus
from acclimate.corpus.tokenizing import fingerprint_tokenizer
from acclimate.errors import UserError, check_positive
from acclimate.files import new_folder, write_json
from acclimate.locks import only_writer
from acclimate.training.adapt import adapt
from acclimate.training.architecture import configure, description, fit_vocabulary, fresh_model
from acclimate.training.budget import Budget
from acclimate.training.keep import check_steps
from acclimate.training.method import Method
from acclimate.training.outcome import CARD, AdaptResult, plain, read_card
from acclimate.training.processes import processes
from acclimate.training.progress import TrainingBar
from acclimate.training.texts import Text, as_corpus
from acclimate.training.tokenizer import CHARACTERS, KINDS, sample, train_tokenizer

WORDPIECE = ("albert", "bert", "distilbert", "electra")
"""Architectures that get a WordPiece tokenizer unless told otherwise; the others get byte-level BPE."""


@dataclass
class FromScratch(Method):
    """Masked language modelling from fresh weights: as a method, so that its settings go with the model.

    It is not in the list of methods, since it says nothing about how to adapt a model.
    """

    name: ClassVar[str] = "pretrain"
    starts_from: ClassVar[str | None] = "fresh weights"  # not the folder that holds them for a while
    summary: ClassVar[str] = "masked language modelling from fresh weights"
    configuration: dict[str, Any] = field(default_factory=dict)
    """Of the model, without what the vocabulary decides."""
    tokenizer: str = "wordpiece"
    """A kind to train, or a folder or model."""
    vocab_size: int | None = None
    lowercase: bool | None = None
    tokenizer_characters: int = CHARACTERS

    def file_contents(self) -> dict[str, str]:
        """Return a hash of the tokenizer, if it is not trained here: it may change under its name."""
        return {} if self.tokenizer in KINDS else {"tokenizer": fingerprint_tokenizer(load_tokenizer(self.tokenizer))}


def pretrain(
    corpus: Text,
    out: str | Path = "pretrained",
    *,
    architecture: str | Path = "bert",
    size: str | None = None,
    changes: dict[str, Any] | None = None,
    tokenizer: str | Path | None = None,
    vocab_size: int | None = None,
    lowercase: bool | None = None,
    tokenizer_characters: int = CHARACTERS,
    keep_steps: Collection[int] = (),
    seed: int = 0,
    max_length: int = 256,
    batch_size: int = 256,
    learning_rate: float = 1e-4,
    weight_decay: float = 0.01,
    warmup: float = 0.01,
    text_column: str = "text",
    overwrite: bool = False,
    progress: bool = True,
    **options: Any,
) -> AdaptResult:
    """Train a masked language model from scratch on a general corpus.

    The folder ``out`` appears whole at the end, as that of :func:`acclimate.adapt`, whose engine does the training:
    the same call goes on after a kill and returns at once when all is done. The models of ``keep_steps`` are in it as
    ``out/step-000100``, each an ordinary model folder to fine-tune or adapt; while the training runs they are found in
    ``.OUT.work/kept``. Such a model is stopped early on a schedule that was made for the whole budget: its learning
    rate has not come down to zero. So were those of Gu et al. (EMNLP 2020, "Train No Evil"), stopped at 100k, 200k and
    300k of 1M steps.

    The defaults are those of that paper, which follow BERT's: batches of 256 texts of 256 tokens, learning rate 1e-4,
    weight decay 0.01, warm-up over the first hundredth. They were made for 1M steps of a model of 110M parameters;
    a small model on a small budget wants a higher rate (see ``docs/pretrain.md``).

    Args:
        corpus: Text files, folders or globs, or a :class:`acclimate.corpus.Corpus`.
        out: Folder to make.
        architecture: A family (:data:`acclimate.training.architecture.FAMILIES`), or a folder, JSON file or model of
            the hub whose configuration is taken.
        size: ``"tiny"``, ``"mini"``, ``"small"``, ``"medium"`` (Turc et al., 2019) or ``"base"``; by default what the
            configuration says.
        changes: Single settings of the configuration, as ``{"num_hidden_layers": 6}``.
        tokenizer: A folder or model; or ``"wordpiece"`` or ``"byte-bpe"`` to train one, by default what suits the
            architecture.
        vocab_size: Of a trained tokenizer; by default 30,000, or what the text gives if that is less.
        lowercase: Whether a trained tokenizer ignores case; by default only for WordPiece.
        tokenizer_characters: Size of the random sample of documents that a tokenizer is trained on, at most.
        keep_steps: Optimiser steps after which the model is kept; 0 is the start.
        seed: From it come the first weights and every later random choice.
        max_length: Tokens of a text at most; longer documents become several rows.
        batch_size: Texts a step, however many micro-batches they make.
        learning_rate: Peak, reached after the warm-up, then linear to zero, over steps or, with ``max_minutes``, time.
        weight_decay: Of AdamW, on matrices only.
        warmup: Share of the training in which the learning rate rises.
        text_column: Where the text is in tables and JSON lines.
        overwrite: Replace an ``out`` that another configuration made.
        progress: Show bars.
        options: Others of :func:`acclimate.adapt`, with its defaults: the budget (``steps``, ``epochs``, ``tokens`` or
            ``max_minutes``), what is masked, ``precision``, ``layout``, ``save_every``.

    Raises:
        UserError: If something is wrong with the input; nothing that was written before is lost.
    """
    out = Path(out)
    budget = Budget(**{name: options.get(name) for name in ("steps", "epochs", "tokens", "max_minutes")})
    check_positive(tokenizer_characters=tokenizer_characters)
    config = configure(architecture, size, changes)
    if tokenizer is None:
        tokenizer = "wordpiece" if config.model_type in WORDPIECE else "byte-bpe"
    if str(tokenizer) not in KINDS and (vocab_size, lowercase) != (None, None):
        raise UserError(f"The tokenizer '{tokenizer}' is not trained here: leave out vocab-size and lower-casing.")
    text = as_corpus(corpus, text_column)
    method = FromScratch(description(config), str(tokenizer), vocab_size, lowercase, tokenizer_characters)
    check_steps(keep_steps, method, budget.steps)
    start = out.parent / f".{out.name}.start"
    group = processes()

    def made() -> Path:
        with group.first_alone():
            if group.first:
                with only_writer(start):
                    _make_start(start, config, method, text, seed, progress)
        return start

    result = adapt(
        made,
        text,
        method,
        out,
        keep_steps=keep_steps,
        seed=seed,
        max_length=max_length,
        batch_size=batch_size,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        warmup=warmup,
        overwrite=overwrite,
        progress=progress,
        **options,
    )
    if group.first:
        shutil.rmtree(start, ignore_errors=True)
    return result


def _make_start(start: Path, config: Any, method: FromScratch, text: Corpus, seed: int, progress: bool) -> None:
    """Make the model folder of step 0, unless it is there from a run that was cut."""
    plan = plain({**asdict(method), "files": method.file_contents(), "seed": seed, "corpus": text.fingerprint})
    if read_card(start) == plan:
        return
    tokenizer = _tokenizer(method, text, progress)
    model = fresh_model(fit_vocabulary(config, tokenizer), seed)
    room = longest_text(model)
    tokenizer.model_max_length = min(tokenizer.model_max_length, room or tokenizer.model_max_length)
    millions = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    TrainingBar.say(
        f"{type(model).__name__} from scratch: {config.num_hidden_layers} layers, width {config.hidden_size}, "
        f"{len(tokenizer):,} tokens, {millions:.1f} M parameters, seed {seed}.",
        enabled=progress,
    )
    with new_folder(start) as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        write_json(folder / CARD, plan)


def _tokenizer(method: FromScratch, text: Corpus, progress: bool) -> PreTrainedTokenizerBase:
    kind = next((kind for kind in KINDS if kind == method.tokenizer), None)
    if kind is None:
        tokenizer = load_tokenizer(method.tokenizer)
        if tokenizer.mask_token_id is None or tokenizer.pad_token_id is None:
            raise UserError(f"The tokenizer '{method.tokenizer}' has no mask or no padding token; give another.")
        return tokenizer
    documents, total = sample(text, method.tokenizer_characters, progress)
    read = sum(map(len, documents))
    TrainingBar.say(
        f"Training a tokenizer ({kind}) on {len(documents):,} documents: {read:,} of {total:,} characters.",
        enabled=progress,
    )
    return train_tokenizer(documents, kind, method.vocab_size, lowercase=method.lowercase, progress=progress)
