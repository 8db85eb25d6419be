"""The error message for a training that became NaN or infinite: which step, which loss term, which texts."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from acclimate.errors import UserError
from acclimate.training.steps import StepData, StepEngine

MAX_NAMED_TEXTS = 3
"""Texts that the message names."""

log = logging.getLogger(__name__)


def make_divergence_error(
    engine: StepEngine,
    data: StepData,
    step: int,
    terms: dict[str, Tensor],
    learning_rate: float,
    checkpoint: Path | None,
) -> UserError:
    """Make the error for a loss, a gradient or weights that are not finite.

    Args:
        engine: The engine in training.
        data: What it reads.
        step: Steps taken before this one.
        terms: The loss terms of this step, with their sum as ``"loss"``.
        learning_rate: The peak learning rate.
        checkpoint: The newest complete checkpoint.
    """
    values = {name: float(value) for name, value in terms.items()}
    bad = [name for name, value in values.items() if name != "loss" and not np.isfinite(value)]
    if bad:
        what = f"The loss is {values['loss']} at step {step + 1}: {_describe_terms(bad)} not finite"
    elif not np.isfinite(values["loss"]):
        what = f"The loss is {values['loss']} at step {step + 1}: each term is finite, but not their weighted sum"
    else:
        shown = ", ".join(f"{name} {value:.4g}" for name, value in values.items() if name != "loss")
        what = f"At step {step + 1} the loss is finite ({shown}), but the gradient or a weight is not"
    kept = "the base model is unchanged"
    if checkpoint is not None:
        kept = f"the checkpoint of step {checkpoint.name.rpartition('-')[2]} is kept"
    return UserError(
        f"{what}. {_describe_texts(engine, data, step)} Lower the learning rate (now {learning_rate:g}) or "
        f"use precision fp32; {kept}."
    )


def _describe_terms(names: Sequence[str]) -> str:
    quoted = " and ".join(f"'{name}'" for name in names)
    return f"the term {quoted} is" if len(names) == 1 else f"the terms {quoted} are"


def _describe_texts(engine: StepEngine, data: StepData, step: int) -> str:
    """Name the texts of a step that are not finite when read alone; if there are none, all texts of the step."""
    indices = data.indices(step)
    alone: list[int] = []
    if engine.group.size == 1:
        try:
            alone = [index for index in indices if not engine.is_finite(data.alone(step, index))]
        except Exception:  # a failure of this search must not hide the error that it explains
            log.debug("the search for the text failed", exc_info=True)
    if alone and len(alone) < len(indices):
        verb = "is" if len(alone) == 1 else "are"
        return (
            f"Of the {len(indices)} texts of the step, {_name_texts(data, alone)} {verb} not finite when read alone."
        )
    if alone:
        named = _name_texts(data, indices)
        return f"All {len(indices)} texts of the step are not finite when read alone, so the weights are: {named}."
    return f"The step read {_name_texts(data, indices)}."


def _name_texts(data: StepData, indices: Sequence[int]) -> str:
    named = [data.describe(index) for index in indices[:MAX_NAMED_TEXTS]]
    more = f" and {len(indices) - MAX_NAMED_TEXTS} more" if len(indices) > MAX_NAMED_TEXTS else ""
    return ", ".join(named) + more
