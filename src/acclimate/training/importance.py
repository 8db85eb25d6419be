"""Importance to general knowledge, measured once for a model, a text and a seed, and found again after that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from acclimate.backbone import Gated
from acclimate.backbone.units import PARTS
from acclimate.corpus.progress import Progress
from acclimate.objectives import Batch
from acclimate.training.run import Run
from acclimate.updates import dropout_importance
from acclimate.updates.importance import Representation

SINGLY, THINNED = 32, 64
"""Units of a layer that are kept each, and how many of more."""


def measured_importance(
    run: Run,
    units: Mapping[str, Sequence[Gated]],
    tokens: int,
    reads: Representation = "hidden",
    title: str = "Importance",
) -> dict[str, Tensor]:
    """Measure importance on a part of a run's text (DGA, Eq. 6 to 8), or take it from the cache.

    Args:
        run: The model, its text and the seed; what is measured depends on nothing else of it.
        units: What is measured, as :meth:`Run.units` gives it.
        tokens: Tokens of text to measure on; the whole text if it has fewer.
        reads: What the divergence is taken between, see :func:`acclimate.updates.dropout_importance`.
        title: What the progress bar says.

    Returns:
        (layers, units) for each part, float32, not normalised.

    Raises:
        UserError: As :func:`acclimate.updates.dropout_importance`.
    """

    def measure() -> dict[str, Tensor]:
        batches = run.sample(tokens, readings=2)
        total = min(tokens, int(getattr(run.rows, "tokens", tokens))) // run.group.size
        with Progress(title, total, unit="tokens", enabled=run.progress) as bar:
            return dropout_importance(
                run.model,
                units,
                _counted(batches, bar),
                representation=reads,
                precision=run.precision,
                add=run.group.add,
            )

    return run.cached("importance", {"tokens": tokens, "reads": reads, "parts": sorted(units)}, measure)


def importance_account(
    raw: Mapping[str, Tensor], protection: Mapping[str, Tensor], **how: str | int | float
) -> dict[str, Any]:
    """Return importances as plain values, to be kept beside a model and drawn.

    Args:
        raw: (layers, units) for each part, as measured.
        protection: The same, normalised: what a soft mask protects.
        how: What else is worth saying, such as how they were measured.

    Returns:
        For each part its ``name``, and ``raw`` and ``protection`` as lists. Of more than :data:`SINGLY` units a layer
        only a thinned, falling list is kept (``sorted``), since their order means nothing: both lists stand in the
        order of ``raw``.
    """
    parts: dict[str, Any] = {}
    for part in raw:
        values, shares = raw[part].float().cpu(), protection[part].float().cpu()
        layers, units = values.shape
        thinned = units > SINGLY
        if thinned:
            order = values.argsort(1, descending=True)
            kept = torch.linspace(0, units - 1, THINNED).round().long()
            values, shares = values.gather(1, order)[:, kept], shares.gather(1, order)[:, kept]
        name = PARTS[part]  # type: ignore[index]
        lists = {"raw": _rounded(values), "protection": _rounded(shares)}
        parts[part] = {"name": name, "layers": layers, "units": units, "sorted": thinned, **lists}
    return {**how, "parts": parts}


def _rounded(values: Tensor) -> list[list[float]]:
    return [[float(f"{value:.4g}") for value in row] for row in values.tolist()]


def _counted(batches: Iterator[Batch], bar: Progress) -> Iterator[Batch]:
    """Pass batches on, and tell the bar how many real tokens have been read when the next one is asked for."""
    read = 0
    for batch in batches:
        yield batch
        read += batch.tokens
        bar.at(read)
