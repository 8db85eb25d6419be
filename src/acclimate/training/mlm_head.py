"""Warming up the language-model head of a checkpoint that has none."""

from __future__ import annotations

from pathlib import Path

from acclimate.corpus import TokenDataset
from acclimate.device import choose_precision, default_device
from acclimate.masking import RandomMasking
from acclimate.models import LanguageModel, head_parameters
from acclimate.models.batching import padding_policy, training_tokens
from acclimate.objectives import LanguageModelling
from acclimate.progress import print_message
from acclimate.training.batches import Collator, StepDataset
from acclimate.training.distributed import ProcessGroup
from acclimate.training.engine import Engine
from acclimate.training.inputs import Budget
from acclimate.training.trainer import train


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
    head = list(head_parameters(model).values())
    print_message(
        f"{type(model).__name__}: the checkpoint has no language-model head. A new one, tied to the embeddings, is "
        f"warmed up on {tokens:,} tokens with the encoder frozen.",
        enabled=progress,
    )
    frozen = {id(parameter) for parameter in model.parameters()} - {id(parameter) for parameter in head}
    for parameter in model.parameters():
        parameter.requires_grad_(id(parameter) not in frozen)
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
            seed=seed,
            learning_rate=1e-3,
            appended=appended,
            title="warm up the head",
            progress=progress,
        )
    finally:
        for parameter in model.parameters():
            parameter.requires_grad_(True)
