"""Importance to general knowledge, measured once for a model, a text and a seed, and found again after that."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from acclimate.backbone import Gated
from acclimate.backbone.units import PARTS
from acclimate.corpus.progress import Progress
from acclimate.objectives import Batch
from acclimate.training.run import SAMPLED_AT_ONCE, Run
from acclimate.updates import mean_importance, sampling_error, summed_importance
from acclimate.updates.importance import Representation
from acclimate.updates.sampling_error import FEWEST

READ, ERROR = "read", "error"
"""Names of what is kept in the cache beside the importances of parts, which have letters."""
SINGLY, THINNED = 32, 64
"""Units of a layer that are kept each, and how many of more."""


@dataclass(frozen=True)
class Measured:
    """Importances, and how they were measured.

    Attributes:
        raw: (layers, units) for each part, float32, not normalised.
        read: Tokens of text that were read.
        error: Standard error of the normalised ones (:func:`acclimate.updates.sampling_error`); None if too little
            was read to tell.
    """

    raw: dict[str, Tensor]
    read: int
    error: float | None


def measured_importance(
    run: Run,
    units: Mapping[str, Sequence[Gated]],
    tokens: int,
    reads: Representation = "hidden",
    error: float = 0.0,
    title: str = "Importance",
) -> Measured:
    """Measure importance on a part of a run's text (DGA, Eq. 6 to 8), or take it from the cache.

    Args:
        run: The model, its text and the seed; what is measured depends on nothing else of it.
        units: What is measured, as :meth:`Run.units` gives it.
        tokens: Tokens of text to measure on, at most; the whole text if it has fewer.
        reads: What the divergence is taken between, see :func:`acclimate.updates.dropout_importance`.
        error: Standard error of the normalised importances at which measuring stops; 0 reads all ``tokens``.
        title: What the progress bar says.

    Raises:
        UserError: As :func:`acclimate.updates.dropout_importance`.
    """
    options = {"tokens": tokens, "reads": reads, "parts": sorted(units), "error": error}
    kept = run.cached("importance", options, lambda: _measured(run, units, tokens, reads, error, title))
    spread = float(kept.pop(ERROR))
    return Measured(kept, int(kept.pop(READ)), None if math.isnan(spread) else spread)


def _measured(
    run: Run, units: Mapping[str, Sequence[Gated]], tokens: int, reads: Representation, error: float, title: str
) -> dict[str, Tensor]:
    """Measure group by group until that is exact enough; :data:`READ` and :data:`ERROR` stand beside the parts."""
    most = min(tokens, int(getattr(run.rows, "tokens", tokens)))
    least = min(most, FEWEST * SAMPLED_AT_ONCE * run.group.size)
    groups: list[tuple[int, dict[str, Tensor]]] = []
    found = None
    with Progress(title, least if error else most, unit="tokens", enabled=run.progress) as bar:
        read = _Count(bar, run.group.size)
        for batches in run.sampled(tokens, readings=2):
            mine = summed_importance(run.model, units, read.of(batches), representation=reads, precision=run.precision)
            groups.append(_together(mine, run))
            mean_importance(groups[-1:])  # what is not finite is told now, not at the end
            found = sampling_error(groups)
            if error and found is not None:
                if run.group.all(found <= error, run.device):
                    bar.expect(read.everyone)
                    break
                # The error falls with the root of what is read.
                bar.expect(min(most, round(read.everyone * (found / error) ** 2)))
    (together,) = run.group.add([torch.tensor(read.tokens, device=run.device)])
    return {**mean_importance(groups), READ: together, ERROR: torch.tensor(math.nan if found is None else found)}


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


def _together(mine: tuple[int, dict[str, Tensor]], run: Run) -> tuple[int, dict[str, Tensor]]:
    """Add the sums of all processes, which read other batches of the same group."""
    texts, sums = mine
    count, *totals = run.group.add([torch.tensor(float(texts), device=run.device), *sums.values()])
    return int(count), dict(zip(sums, totals, strict=True))


class _Count:
    """Passes batches on, and tells the bar how many real tokens have been read when the next one is asked for."""

    def __init__(self, bar: Progress, processes: int) -> None:
        self._bar = bar
        self._processes = processes
        self.tokens = 0

    @property
    def everyone(self) -> int:
        """About how many tokens all processes have read."""
        return self.tokens * self._processes

    def of(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        for batch in batches:
            yield batch
            self.tokens += batch.tokens
            self._bar.at(self.everyone)
