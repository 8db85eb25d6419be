"""What can be chosen of a distillation, and which choices have no sense."""

from __future__ import annotations

import math

from acclimate.errors import UserError, unknown
from acclimate.modules.connectors import check_connector
from acclimate.tasks.distillation.phases import switch_epoch

OBJECTIVES = ("boundary", "kl")
SCHEDULES = ("shared", "each")
CHOICES = (
    *("objective", "connector", "schedule", "distill_share", "epochs"),
    *("margin", "scale", "temperature", "connector_learning_rate"),
)
"""Arguments of :func:`acclimate.tasks.distill` that :func:`check_choices` takes."""


def check_choices(
    objective: str, connector: str, schedule: str, distill_share: float, epochs: int, **numbers: float
) -> None:
    """Check what :func:`acclimate.tasks.distill`, which documents it, was asked for.

    Args:
        objective: One of :data:`OBJECTIVES`.
        connector: One of ``Connector``; whether it suits both widths is checked where these are known.
        schedule: One of :data:`SCHEDULES`.
        distill_share: Of the epochs.
        epochs: Of both phases.
        **numbers: Others, by name: all above zero, but a margin can be zero.

    Raises:
        UserError: If a choice has no sense.
    """
    for name, value, choices in (("objective", objective, OBJECTIVES), ("schedule", schedule, SCHEDULES)):
        if value not in choices:
            raise unknown(name, value, choices)
    check_connector(connector)
    if objective == "kl" and connector == "student":
        raise UserError("connector='student' has nothing to learn from with objective='kl'; leave it out.")
    if not 0 <= distill_share <= 1:
        raise UserError(f"distill_share={distill_share} must lie between 0 and 1.")
    if distill_share and not switch_epoch(epochs, distill_share):
        raise UserError(
            f"distill_share={distill_share} of epochs={epochs} is not one whole epoch, so nothing would be distilled; "
            "give more epochs or a larger share, or 0 if that is what you want."
        )
    for name, number in numbers.items():
        if not (0 < number < math.inf or (name == "margin" and number == 0)):
            raise UserError(f"{name}={number} must be above 0.")
