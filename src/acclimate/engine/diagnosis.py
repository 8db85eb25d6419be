"""The interfaces of engine and data that the trainer needs, and what is reported of a training that diverged."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import Tensor
from transformers import PreTrainedModel

from acclimate.base.device import Precision
from acclimate.base.errors import UserError
from acclimate.engine.distributed import ProcessGroup

MAX_NAMED_TEXTS = 3
"""Maximum number of texts that the error message names."""

log = logging.getLogger(__name__)


class StepEngine(Protocol):
    """Computes loss and gradients of one optimizer step."""

    group: ProcessGroup
    precision: Precision
    loss_scale: float
    """Factor on the loss before its gradients are computed, which the gradients of a step keep."""
    progress: float
    """Share of the training that came before the step, from 0 to 1; the trainer sets it."""
    tokens: int
    """Real tokens that the last step read, in all processes."""
    texts: int
    """Texts that the last step read, in all processes."""

    @property
    def model(self) -> PreTrainedModel:
        """The model in training."""

    def step(self, batches: Sequence[Any]) -> dict[str, Tensor]:
        """Add gradients; return each loss term by name, detached, and their weighted sum as ``"loss"``."""

    def is_finite(self, batches: Sequence[Any]) -> bool:
        """Return whether outputs and loss terms of these micro-batches are finite, read without dropout."""


class StepData(Protocol):
    """The micro-batches of every step: item ``i`` is the list of those that this process reads in step ``i``.

    A micro-batch has ``tokens`` and ``texts``, the numbers of its real tokens and texts, and ``to(device)``.
    """

    epoch_steps: int | None
    """Steps per epoch, where the end of an epoch matters to a callback or the log; None where it does not."""

    def __len__(self) -> int:
        """Return the number of steps."""

    def __getitem__(self, step: int) -> list[Any]:
        """Return the micro-batches of a step."""

    def indices(self, step: int) -> list[int]:
        """Return the indices of the texts that a step reads in all processes together."""

    def alone(self, step: int, index: int) -> list[Any]:
        """Return the micro-batches of one text of a step, without padding."""

    def mix(self, steps: int) -> list[dict[str, Any]]:
        """Return what the first ``steps`` steps read of each of several texts; empty if there is one."""

    def describe(self, index: int) -> str:
        """Return the source of a text and its first words, for error messages."""


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
        data: The data that it reads.
        step: Number of steps taken before this one.
        terms: The loss terms of this step, with their sum as ``"loss"``.
        learning_rate: The peak learning rate.
        checkpoint: The newest complete checkpoint; None if there is none.
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
    """Name the texts of a step that are not finite by themselves; if there are none, all texts of the step."""
    indices = data.indices(step)
    alone: list[int] = []
    if engine.group.size == 1:
        try:
            alone = [index for index in indices if not engine.is_finite(data.alone(step, index))]
        except Exception:  # a failure of this search must not hide the error that it explains
            log.debug("the search for the text failed", exc_info=True)
    if alone and len(alone) < len(indices):
        named = _name_texts(data, alone)
        return f"Of the {len(indices)} texts of the step, only these are not finite by themselves: {named}."
    if alone:
        named = _name_texts(data, indices)
        return f"None of the {len(indices)} texts of the step is finite by itself, so weights must be broken: {named}."
    return f"The step read {_name_texts(data, indices)}."


def _name_texts(data: StepData, indices: Sequence[int]) -> str:
    named = [data.describe(index) for index in indices[:MAX_NAMED_TEXTS]]
    more = f" and {len(indices) - MAX_NAMED_TEXTS} more" if len(indices) > MAX_NAMED_TEXTS else ""
    return ", ".join(named) + more
