"""Phases: one set of sources after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar, Literal

import numpy as np

from acclimate.api import History, Mix, UserError, check_names, find_weights, parse_number, register_mix, shorten


@register_mix(
    "phases",
    paper="Logeswaran et al., 2019",
    summary="one set of sources after the other, such as open text, then open and domain text, then domain text",
)
@dataclass(frozen=True)
class Phases(Mix):
    """Reads one set of sources after the other, in one training with one learning-rate schedule.

    Logeswaran et al. (ACL 2019) go from open text to that of the source and target worlds, then to the target world
    alone; others go from the text of the domain to that of the task (Gururangan et al., 2020). They train each phase
    by itself, with a new warm-up: that is ``adapt`` once per phase.

    Attributes:
        chain: The phases in their order; ``law+domain`` reads two sources.
        lengths: Relative lengths of the phases in steps; by default they are equal, as in the paper.
        within: Weights within a phase: ``size`` reads the sources as if their texts were one, as in the paper;
            ``equal`` reads as many tokens of each.
    """

    chain: tuple[str, ...] | str = ()
    lengths: tuple[float, ...] | float | str = ()
    within: Literal["size", "equal"] = "size"

    main: ClassVar[str] = "chain"

    def __post_init__(self) -> None:
        """Check the phases and their lengths.

        Raises:
            UserError: If there is no phase, or not one positive length for each.
        """
        if not self.phases or not all(name for phase in self.phases for name in phase):
            raise UserError(
                "Mix 'phases' needs the sources of each phase, such as chain=law,law+domain,domain, not "
                f"{shorten(self.chain)}."
            )
        if len(self.durations) != len(self.phases) or not all(
            isinstance(length, int | float) and length > 0 for length in self.durations
        ):
            raise UserError(
                f"Mix 'phases' has {len(self.phases)} phases, so 'lengths' must be as many positive numbers, such as "
                f"{','.join('1' for _ in self.phases)}, not {shorten(self.lengths)}."
            )

    @property
    def phases(self) -> list[list[str]]:
        """The names of the sources of each phase."""
        given = self.chain.split(",") if isinstance(self.chain, str) else self.chain
        return [[name.strip() for name in phase.split("+")] for phase in given]

    @property
    def durations(self) -> list[float]:
        """The relative length of each phase."""
        given = self.lengths if isinstance(self.lengths, tuple) else str(self.lengths).split(",")
        return [parse_number(length) for length in given] or [1.0] * len(self.phases)

    @property
    def moments(self) -> tuple[float, ...]:
        """Shares of the training at which the phases begin."""
        ends = list(accumulate(self.durations))
        return (0.0, *(end / ends[-1] for end in ends[:-1]))

    def check(self, names: Sequence[str]) -> None:
        """Check that the phases name sources, and that each source is in one of them."""
        named = [name for phase in self.phases for name in phase]
        check_names(self.name, named, names)
        for name in set(names) - set(named):
            raise UserError(f"Mix 'phases' reads the source '{name}' in no phase; name it, or leave out the source.")

    def propose(self, history: History) -> np.ndarray:
        """Return the weights of the phase that begins."""
        phase = self.phases[len(history.rounds) - 1]
        weights = find_weights(self.within, history.names, history.sizes)
        weights = np.where([name in phase for name in history.names], weights, 0.0)
        return weights / weights.sum()
