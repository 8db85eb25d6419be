"""Importance to general knowledge, measured once for a model, a text and a seed, and found again after that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor

from acclimate.backbone import Gated
from acclimate.corpus.progress import Progress
from acclimate.objectives import Batch
from acclimate.training.run import Run
from acclimate.updates import dropout_importance
from acclimate.updates.importance import Representation


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


def _counted(batches: Iterator[Batch], bar: Progress) -> Iterator[Batch]:
    """Pass batches on, and tell the bar how many real tokens have been read when the next one is asked for."""
    read = 0
    for batch in batches:
        yield batch
        read += batch.tokens
        bar.at(read)
