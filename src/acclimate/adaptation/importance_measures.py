"""Importance for general knowledge: measured once per model, text and seed, and cached."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from acclimate.adaptation.method import SAMPLE_GROUP_TOKENS, AdaptContext
from acclimate.base.progress import Progress
from acclimate.models.gates import PARTS, UnitGroup
from acclimate.parts.objectives import Batch
from acclimate.parts.updates import estimate_sampling_error, mean_importance, summed_importance
from acclimate.parts.updates.importance import MIN_GROUPS, Reads

TEXT_COUNT = "texts"
"""Name of the number of texts in the cache, next to the sums of the parts, whose names are single letters."""
MAX_LISTED_UNITS, THINNED_UNITS = 32, 64
"""Maximum units per layer of which a report lists all, and the size of the sample that it lists of more units."""


@dataclass(frozen=True)
class MeasuredImportance:
    """Importance of heads and units, and how it was measured.

    Attributes:
        raw: (layers, units) per part, float32, not normalized.
        read: Tokens of text that were read.
        error: Standard error of the normalized importances (:func:`acclimate.parts.updates.estimate_sampling_error`);
        None
            if too little text was read to estimate it.
    """

    raw: dict[str, Tensor]
    read: int
    error: float | None


def measure_importance(
    context: AdaptContext,
    units: Mapping[str, Sequence[UnitGroup]],
    tokens: int,
    reads: Reads = "hidden",
    error: float = 0.0,
    title: str = "Importance",
) -> MeasuredImportance:
    """Measure importance on a sample of a run's text (DGA, Eq. 6 to 8), group by group, to the requested precision.

    The sums of each group are cached: a run that was killed, or needs a smaller error, continues from them.

    Args:
        context: The adaptation, of which model, text, seed, precision and number of processes affect the result.
        units: What to measure, as :meth:`AdaptContext.units` returns it.
        tokens: Maximum tokens of text to measure on.
        reads: What is measured, see :func:`acclimate.parts.updates.summed_importance`.
        error: Standard error of the normalized importance at which measuring stops; 0 to read all ``tokens``.
        title: Title of the progress bar.

    Raises:
        UserError: As :func:`acclimate.parts.updates.summed_importance` and
        :func:`acclimate.parts.updates.mean_importance`.
    """
    most = min(tokens, int(getattr(context.rows, "tokens", tokens)))
    least = min(most, MIN_GROUPS * SAMPLE_GROUP_TOKENS * context.group.size)
    tensor_cache = context.tensor_cache("importance", {"reads": reads, "parts": sorted(units), "masks": "by group"})
    groups: list[tuple[int, dict[str, Tensor]]] = []
    read, found = 0, None
    with Progress(title, least if error else most, unit="tokens", enabled=context.progress) as bar:
        for number, (size, batches) in enumerate(context.sample_groups(tokens, readings=2)):
            tracked = _with_progress(batches, bar, read, context.group.size)
            sums = tensor_cache(partial(_measure_group, context, units, tracked, reads), number, size)
            groups.append((int(sums.pop(TEXT_COUNT)), sums))
            read += size
            bar.update(read)
            found = estimate_sampling_error(groups)
            if error and found is not None:
                if context.group.all(found <= error):
                    bar.set_total(read)
                    break
                # The error falls with the square root of the tokens read.
                bar.set_total(min(most, round(read * (found / error) ** 2)))
    return MeasuredImportance(mean_importance(groups), read, found)


def _measure_group(
    context: AdaptContext, units: Mapping[str, Sequence[UnitGroup]], batches: Iterable[Batch], reads: Reads
) -> dict[str, Tensor]:
    """Measure one group of texts; return the sums over texts and processes by part, and the number of texts."""
    texts, sums = summed_importance(context.model, units, batches, representation=reads, precision=context.precision)
    count, *totals = context.group.add([torch.tensor(float(texts), device=context.device), *sums.values()])
    together = dict(zip(sums, totals, strict=True))
    mean_importance([(int(count), together)])  # raises before values that are not finite are cached
    return {TEXT_COUNT: count, **together}


def _with_progress(batches: Iterable[Batch], bar: Progress, before: int, processes: int) -> Iterator[Batch]:
    """Pass micro-batches on, and update the bar with the tokens read by all processes."""
    for batch in batches:
        yield batch
        before += batch.tokens * processes
        bar.update(before)


def summarize_importance(
    raw: Mapping[str, Tensor], protection: Mapping[str, Tensor], **how: str | int | float
) -> dict[str, Any]:
    """Return importance as plain values, to be stored next to a model and plotted.

    Args:
        raw: (layers, units) per part, as measured.
        protection: The same, normalized: what a soft mask protects.
        how: Further entries, such as how it was measured.

    Returns:
        For each part its ``name``, and ``raw`` and ``protection`` as lists. Of more than :data:`MAX_LISTED_UNITS`
        units per layer only a sample in descending order of ``raw`` is kept (``sorted``), since their order has no
        meaning.
    """
    parts: dict[str, Any] = {}
    for part in raw:
        values, shares = raw[part].float().cpu(), protection[part].float().cpu()
        layers, units = values.shape
        thinned = units > MAX_LISTED_UNITS
        if thinned:
            order = values.argsort(1, descending=True)
            kept = torch.linspace(0, units - 1, THINNED_UNITS).round().long()
            values, shares = values.gather(1, order)[:, kept], shares.gather(1, order)[:, kept]
        name = PARTS[part]  # type: ignore[index]
        lists = {"raw": _rounded(values), "protection": _rounded(shares)}
        parts[part] = {"name": name, "layers": layers, "units": units, "sorted": thinned, **lists}
    return {**how, "parts": parts}


def _rounded(values: Tensor) -> list[list[float]]:
    return [[float(f"{value:.4g}") for value in row] for row in values.tolist()]
