"""Training some parts of a model before the others: a head that a checkpoint lacks, or the rows of new tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import nn

from acclimate.adaptation.inputs import Budget
from acclimate.base.device import choose_precision, default_device
from acclimate.base.progress import print_message
from acclimate.data.token_dataset import TokenDataset
from acclimate.engine.batches import Collator, StepDataset
from acclimate.engine.distributed import ProcessGroup
from acclimate.engine.steps import Engine
from acclimate.engine.trainer import train
from acclimate.models.batching import padding_policy, training_tokens
from acclimate.models.loading import LanguageModel, head_parameters
from acclimate.parts.masking import RandomMasking
from acclimate.parts.objectives import LanguageModelling
from acclimate.parts.updates import UpdateRule


def warm_up_head(
    loaded: LanguageModel,
    rows: TokenDataset,
    work: Path,
    tokens: int,
    seed: int,
    precision: str,
    progress: bool,
    group: ProcessGroup | None = None,
    appended: int = 0,
) -> None:
    """Train a new head with the encoder frozen.

    Args:
        loaded: The model, whose head is new.
        rows: Text to train on.
        work: Folder for checkpoints.
        tokens: Tokens to train on.
        seed: Random seed.
        precision: Precision of the forward pass.
        progress: Whether to show a progress bar.
        group: The processes of the run.
        appended: Virtual tokens per row, which do not count as tokens trained on.
    """
    model = loaded.model
    print_message(
        f"{type(model).__name__}: the checkpoint has no language-model head. A new one, tied to the embeddings, is "
        f"warmed up on {tokens:,} tokens with the encoder frozen.",
        enabled=progress,
    )
    head = list(head_parameters(model).values())
    train_parts(loaded, rows, work, head, tokens, seed, precision, progress, group, appended, title="warm up the head")


def train_parts(
    loaded: LanguageModel,
    rows: TokenDataset,
    work: Path,
    parts: Sequence[nn.Parameter],
    tokens: int,
    seed: int,
    precision: str,
    progress: bool,
    group: ProcessGroup | None,
    appended: int,
    *,
    title: str,
    rule: UpdateRule | None = None,
) -> None:
    """Train some parameters of a language model, with the others frozen, and unfreeze all of them.

    Args:
        loaded: The model.
        rows: Text to train on.
        work: Folder for checkpoints.
        parts: What trains.
        tokens: Tokens to train on.
        seed: Random seed.
        precision: Precision of the forward pass.
        progress: Whether to show a progress bar.
        group: The processes of the run.
        appended: Virtual tokens per row, which do not count as tokens trained on.
        title: Title of the progress bar.
        rule: What happens around each optimizer step.
    """
    model, chosen = loaded.model, {id(parameter) for parameter in parts}
    for parameter in model.parameters():
        parameter.requires_grad_(id(parameter) in chosen)
    device = default_device()
    batch_size = 64
    collator = Collator.of(
        loaded.tokenizer, RandomMasking(), loaded.kind, training_tokens(model), policy=padding_policy(model)
    )
    steps = Budget(tokens=tokens).resolve(rows, batch_size, appended)
    engine = Engine(model, [LanguageModelling()], choose_precision(precision, device), group=group)
    data = StepDataset(rows, collator, batch_size=batch_size, steps=steps, seed=seed, group=group)
    try:
        train(
            engine,
            data,
            work,
            rule=rule,
            seed=seed,
            learning_rate=1e-3,
            appended=appended,
            title=title,
            progress=progress,
        )
    finally:
        for parameter in model.parameters():
            parameter.requires_grad_(True)
