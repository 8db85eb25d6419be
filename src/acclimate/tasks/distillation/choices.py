"""What can be chosen of a distillation, and which choices have no sense."""

from __future__ import annotations

import math
from typing import get_args

from acclimate.errors import UserError, unknown
from acclimate.modules.connectors import Connector
from acclimate.tasks.distillation.phases import switch_epoch

CONNECTORS = get_args(Connector)
OBJECTIVES = ("boundary", "kl")
SCHEDULES = ("shared", "each")


def check_choices(objective: str, connector: str, schedule: str, share: float, epochs: int, **numbers: float) -> None:
    """Check what :func:`acclimate.tasks.distill`, which documents it, was asked for.

    Args:
        objective: One of :data:`OBJECTIVES`.
        connector: One of ``Connector``; whether it suits both widths is checked where these are known.
        schedule: One of :data:`SCHEDULES`.
        share: Of the epochs, that distil.
        epochs: Of both phases.
        **numbers: Others, by name: all above zero, but a margin can be zero.

    Raises:
        UserError: If a choice has no sense.
    """
    known = (("objective", objective, OBJECTIVES), ("connector", connector, CONNECTORS))
    for name, value, choices in (*known, ("schedule", schedule, SCHEDULES)):
        if value not in choices:
            raise unknown(name, value, choices)
    if objective == "kl" and connector == "student":
        raise UserError("connector='student' has nothing to learn from with objective='kl'; leave it out.")
    if not 0 <= share <= 1:
        raise UserError(f"distill_share={share} must lie between 0 and 1.")
    if share and not switch_epoch(epochs, share):
        raise UserError(
            f"distill_share={share} of epochs={epochs} is not one whole epoch, so nothing would be distilled; give "
            "more epochs or a larger share, or 0 if that is what you want."
        )
    for name, number in numbers.items():
        if not (0 < number < math.inf or (name == "margin" and number == 0)):
            raise UserError(f"{name}={number} must be above 0.")
