"""Weights from a bandit whose reward is the progress of the loss (EXP3, Auer et al., 2002)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator

from acclimate.api import AdaptiveMix, History, Measure, UserError, register_mix


def read_objectives(value: Any) -> Any:
    """Return names that are separated by commas as a tuple."""
    return tuple(one.strip() for one in value.split(",") if one.strip()) if isinstance(value, str) else value


@register_mix(
    "bandit",
    paper="Auer et al., 2002 (EXP3); Graves et al., ICML 2017; Schioppa et al., 2023",
    summary="more of the sources on which the loss falls fastest",
)
@dataclass(frozen=True)
class Bandit(AdaptiveMix):
    """Reads more of the sources on which the loss falls fastest (EXP3, Auer et al., 2002).

    The reward of a source is the share by which its loss fell since the round before; rewards are scaled to [-1, 1]
    by the 20th and 80th percentile of all so far (Graves et al., ICML 2017). The weights are a softmax of the sum of
    the rewards, mixed with equal weights. All sources with a weight are read between two rounds, so each reveals its
    reward, and EXP3's division by the probability of the arm that was drawn is not needed.

    With ``objectives`` an arm is a source read with one of them, so the shares of the objectives are learned in the
    training as well (Schioppa et al., 2023). A loss is compared with the earlier ones of its own arm alone.

    Attributes:
        eta: Factor of the rewards.
        explore: Share of the weights that is always divided equally.
        memory: Factor of a reward in the sum, one round later; with less than 1 older rewards fade, as the loss of a
            source that has been learned no longer falls.
        loss: The loss whose progress counts.
        objectives: Maskings, separated by commas, such as ``random,span p=0.4``: each is another objective. For a
            causal model ``random`` is the prediction of the next token.
        rule: ``exp3``, or ``fair``: weights in proportion to the moving average of the progress, instead of the
            softmax (Schioppa et al., 2023).
    """

    eta: float = 0.3
    explore: float = 0.2
    memory: float = 0.9
    loss: Literal["train", "heldout"] = "train"
    objectives: Annotated[tuple[str, ...], BeforeValidator(read_objectives)] = ()
    rule: Literal["exp3", "fair"] = "exp3"

    def __post_init__(self) -> None:
        """Check the parameters.

        Raises:
            UserError: If one is out of range.
        """
        super().__post_init__()
        if self.eta <= 0 or not 0 <= self.explore <= 1 or not 0 <= self.memory <= 1:
            raise UserError(
                "Mix 'bandit': 'eta' must be positive, 'explore' and 'memory' between 0 and 1, "
                f"not {self.eta}, {self.explore} and {self.memory}."
            )
        if self.objectives and (self.loss != "train" or len({*self.objectives}) < max(2, len(self.objectives))):
            raise UserError(
                "Mix 'bandit': 'objectives' are at least two different maskings, and need loss=train, as held-out "
                "text is masked alike for all."
            )

    @property
    def reads(self) -> tuple[Measure, ...]:
        """The loss in training or on held-out text."""
        return ("train_loss",) if self.loss == "train" else ("heldout_loss",)

    @property
    def delay(self) -> int:
        """Two losses make a reward; the loss in training is unknown before the first step."""
        return 2 if self.loss == "train" else 1

    def propose(self, history: History) -> np.ndarray:
        """Return the softmax of the sum of the rewards, mixed with equal weights."""
        progress = progress_of(history.measured(self.reads[0]))
        fading = self.memory ** np.arange(len(progress) - 1, -1, -1)
        if self.rule == "fair":
            found = np.maximum(0, fading @ progress)
            found = found if found.any() else history.uniform
        else:
            total = self.eta * fading @ scale_rewards(progress)
            found = np.exp(total - total.max())
        return (1 - self.explore) * found / found.sum() + self.explore * history.uniform


def progress_of(losses: np.ndarray) -> np.ndarray:
    """Return the share by which the loss of each source fell since it was last known, 0 if it is unknown: same shape.

    Args:
        losses: Losses of all rounds, NaN where a source was not read (rounds, sources).
    """
    found, last = np.zeros_like(losses), np.full(losses.shape[1], np.nan)
    for number, now in enumerate(losses):
        fell = (last - now) / np.where(last > 0, last, np.nan)
        found[number] = np.where(np.isfinite(fell), fell, 0.0)
        last = np.where(np.isfinite(now), now, last)
    return found


def scale_rewards(rewards: np.ndarray) -> np.ndarray:
    """Scale rewards to [-1, 1], the 20th percentile to -1 and the 80th to 1; zeros if these are equal."""
    low, high = np.percentile(rewards, [20, 80])
    return np.clip(2 * (rewards - low) / (high - low) - 1, -1, 1) if high > low else np.zeros_like(rewards)
