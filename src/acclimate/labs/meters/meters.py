"""How far an adapted model is from its base model: in its predictions and in its weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from acclimate.base.device import in_full
from acclimate.evaluation.lm_loss import Reference, open_language_model, read_targets, summed_losses
from acclimate.models.loading import virtual_ids
from acclimate.models.probe import attach


def measure_meters(
    base: str | Path, adapted: str | Path, texts: Mapping[str, Sequence[str]], *, max_length: int = 128
) -> dict[str, Any]:
    """Measure how far an adapted model is from its base model.

    Both read the rows that the base model's loss is measured on (:func:`acclimate.evaluation.lm_loss.read_targets`),
    with the same masks, and predict the same tokens; the divergence is exact, over the whole vocabulary.

    Args:
        base: Folder or Hub name of the base model.
        adapted: Folder or Hub name of the adapted model.
        texts: Texts by name.
        max_length: Maximum tokens per text, or per window of it.

    Returns:
        ``kl``: mean KL(base || adapted) per predicted token in nats, on each text (Shenfeld et al., 2025); None if
        the tokenizers differ. ``distance``: see :func:`weight_distance`.

    Raises:
        UserError: If a model cannot be read or has no trained language-model head.
    """
    start, end = open_language_model(base), open_language_model(adapted)
    found: dict[str, Any] = {"distance": weight_distance(start.model, end.model), "kl": dict.fromkeys(texts)}
    if start.tokenizer.get_vocab() != end.tokenizer.get_vocab() or virtual_ids(end.tokenizer):
        return found
    for loaded in (start, end):
        attach(loaded.model)
        loaded.model.eval()
    for name, own in texts.items():
        documents = read_targets(start.model, start.tokenizer, own, max_length)
        rows = [row for document in documents for row in document.rows]
        sums = summed_losses(end.model, end.tokenizer, rows, Reference(start.model))
        found["kl"][name] = sum(total for total, _ in sums) / sum(count for _, count in sums)
    return found


def weight_distance(base: nn.Module, adapted: nn.Module) -> float:
    """Return the Euclidean distance between the weights that two models share, over the norm of those of the base."""
    others = dict(adapted.named_parameters())
    moved = total = 0.0
    for name, weight in base.named_parameters():
        if name in others and others[name].ndim == weight.ndim:
            shape = [slice(min(sizes)) for sizes in zip(weight.shape, others[name].shape, strict=True)]
            before, after = (in_full(one.detach()[tuple(shape)]) for one in (weight, others[name]))
            moved += float((after - before).square().sum())
            total += float(before.square().sum())
    return math.sqrt(moved / total) if total else 0.0
