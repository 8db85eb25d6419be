"""Weights from an agent: any function from the state of the training to weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

import numpy as np

from acclimate.api import (
    USER_CODE_ERRORS,
    AdaptiveMix,
    History,
    Measure,
    UserError,
    first_line,
    identify_function,
    load_function,
    register_mix,
    shorten,
    unknown_name_error,
)

POLICY = "policy of the mix"


@register_mix(
    "agent",
    paper="Yang et al., 2025 (Data Mixing Agent)",
    summary="what a function of the user decides from the weights and losses so far",
)
@dataclass(frozen=True)
class Agent(AdaptiveMix):
    """Asks an agent for the weights (the interface of the Data Mixing Agent, Yang et al., 2025).

    The state is a dictionary of plain values: ``names`` and ``sizes`` (tokens) of the sources, ``step``, ``steps``,
    ``progress`` between 0 and 1, and ``rounds``, with the fields of :class:`Round` as far as they were measured; the
    weights of all but the last round are the actions before. The action is one nonnegative number per source, in the
    order of ``names`` or by name; they are divided by their sum. The rounds of finished trainings, which their results
    record in the same form, are trajectories to train an agent on.

    Attributes:
        policy: The function, or FILE.py:FUNCTION.
        observe: What is measured for the state, separated by commas.
        key: What identifies the function instead of its code, such as the version of a model that it calls.
    """

    policy: Any = None
    observe: str = "train_loss"
    key: str = ""

    files: ClassVar[tuple[str, ...]] = ("policy",)
    main: ClassVar[str] = "policy"

    def __post_init__(self) -> None:
        """Load the function.

        Raises:
            UserError: If there is none, or something is to be measured that does not exist.
        """
        super().__post_init__()
        if self.policy is None:
            raise UserError("Mix 'agent' needs a function; give policy=FILE.py:FUNCTION, or in Python a function.")
        load_function(self.policy, POLICY)
        for name in self.reads:
            if name not in get_args(Measure):
                raise unknown_name_error("measurement of a mix", name, get_args(Measure))

    @property
    def reads(self) -> tuple[Measure, ...]:
        """What the state contains."""
        return tuple(name.strip() for name in self.observe.split(",") if name.strip())  # type: ignore[misc]

    def propose(self, history: History) -> np.ndarray:
        """Return the action of the agent.

        Raises:
            UserError: If the function fails, or the action is not one nonnegative number per source, not all 0.
        """
        state = {
            "names": list(history.names),
            "sizes": history.sizes.tolist(),
            "step": history.step,
            "steps": history.steps,
            "progress": history.progress,
            "rounds": [one.to_dict() for one in history.rounds],
        }
        try:
            action = load_function(self.policy, POLICY)(state)
        except USER_CODE_ERRORS as error:
            raise UserError(
                f"The agent of the mix failed at step {history.step:,}: {type(error).__name__}: {first_line(error)}."
            ) from error
        if isinstance(action, Mapping):
            for name in action:
                history.index(str(name))
            action = [action.get(name, 0.0) for name in history.names]
        try:
            found = np.asarray(action, dtype=float)
        except (TypeError, ValueError):
            found = np.full(1, np.nan)
        if found.shape != (len(history.names),) or not np.isfinite(found).all() or found.min() < 0 or not found.sum():
            raise UserError(
                f"The agent of the mix returned {shorten(action)} at step {history.step:,}; expected "
                f"{len(history.names)} nonnegative numbers, not all 0."
            )
        return found / found.sum()

    def identity(self) -> dict[str, Any]:
        """Return everything that determines the mix; the function by its name and its code, or by the key."""
        return {**super().identity(), "policy": identify_function(self.policy, POLICY, self.key or None)}
