"""Upsampling of some sources at the end of the training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from acclimate.api import (
    DOMAIN,
    History,
    Mix,
    UserError,
    Weights,
    check_names,
    check_weights,
    find_weights,
    register_mix,
)


@register_mix(
    "upsample",
    paper="Blakeney et al., 2024",
    summary="more of some sources at the end of the training; leaving one out there measures its use",
)
@dataclass(frozen=True)
class Upsample(Mix):
    """Reads more of some sources while the learning rate falls to zero (Blakeney et al., COLM 2024).

    The paper finds the last 10 to 20 % of the training best, of 5 to 30 %. It upsamples small sources of high quality
    and does not prescribe their weight.

    Attributes:
        sources: The sources to upsample, separated by commas.
        weight: Their weight at the end, together.
        tail: Share of the training that is the end.
        start: Weights before the end, which the sources keep relative to each other: ``size``, ``equal``, or by name.
        without: A source that is left out at the end. By how much a loss is then higher than with all sources is the
            use of that source for it (the paper measures data sets in this way).
        reuse: Whether the checkpoint before the end is kept in the cache, and trainings that differ in the end alone
            start from it. It takes three times the disk space of the model and does not change the result.
    """

    sources: tuple[str, ...] | str = DOMAIN
    weight: Annotated[float, Field(gt=0, le=1)] = 0.5
    tail: Annotated[float, Field(gt=0, lt=1)] = 0.2
    start: Weights = "size"
    without: str = ""
    reuse: bool = False

    main: ClassVar[str] = "sources"

    def __post_init__(self) -> None:
        """Check the weights.

        Raises:
            UserError: If those before the end are invalid.
        """
        check_weights(self.name, self.start)

    @property
    def upsampled(self) -> list[str]:
        """The names of the sources to upsample."""
        given = self.sources.split(",") if isinstance(self.sources, str) else self.sources
        return [name.strip() for name in given]

    @property
    def moments(self) -> tuple[float, ...]:
        """The start, and the begin of the end."""
        return (0.0, 1 - self.tail)

    @property
    def shared_until(self) -> float:
        """Share of the training that does not depend on what is read at the end; 0 if it is not to be reused."""
        return 1 - self.tail if self.reuse else 0.0

    def check(self, names: Sequence[str]) -> None:
        """Check that the parameters name sources, and that something is left to read at the end."""
        check_names(self.name, self.upsampled, names)
        check_names(self.name, self.start, names)
        check_names(self.name, [self.without] if self.without else [], names)
        self.propose_end(find_weights(self.start, names, np.ones(len(names))), names)

    def propose(self, history: History) -> np.ndarray:
        """Return the weights before the end, or those of the end."""
        start = find_weights(self.start, history.names, history.sizes)
        return start if len(history.rounds) == 1 else self.propose_end(start, history.names)

    def propose_end(self, start: np.ndarray, names: Sequence[str]) -> np.ndarray:
        """Return the weights at the end (sources,).

        Args:
            start: The weights before (sources,).
            names: The names of the sources.

        Raises:
            UserError: If no source is left.
        """
        chosen = np.array([name in self.upsampled for name in names])
        found = np.zeros(len(names))
        for part, weight in ((chosen, self.weight), (~chosen, 1 - self.weight)):
            total = start[part].sum()
            found[part] = weight * (start[part] / total if total else 1 / max(1, part.sum()))
        found[[name == self.without for name in names]] = 0
        if not found.sum():
            raise UserError(
                f"Mix 'upsample' leaves out '{self.without}', and no other source has a weight at the end."
            )
        return found / found.sum()
