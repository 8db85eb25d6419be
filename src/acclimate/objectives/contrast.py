"""Contrast of general with full knowledge (DGA, Ke et al., EMNLP 2022, Section 3.2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from acclimate.objectives.base import BatchObjective, Gates, Outputs, View
from acclimate.objectives.similarity import similarities


def contrast(anchor: Tensor, positive: Tensor, negative: Tensor | None, temperature: float) -> Tensor:
    """Compute Eq. 15, averaged over texts.

    For each text the numerator is the similarity to its own positive; the denominator sums the similarities to the
    positives of all texts and, if given, to the negatives of all texts.

    Args:
        anchor: (texts, width).
        positive: (texts, width).
        negative: (texts, width), or None for the loss without them (Eq. 1).
        temperature: Divides the cosine similarities.

    Returns:
        A scalar.
    """
    others = positive if negative is None else torch.cat([positive, negative])
    own = torch.arange(len(anchor), device=anchor.device)
    return nn.functional.cross_entropy(similarities(anchor, others) / temperature, own)


class GeneralContrast(BatchObjective):
    """Full knowledge twice (two dropout draws) against general knowledge (Eq. 11 to 15).

    The general knowledge of a text is its representation with the normalised importances as gates.

    Attributes:
        temperature: Divides the cosine similarities; the paper takes 0.05.
    """

    name = "contrast"

    def __init__(
        self,
        importance: Mapping[str, Tensor],
        temperature: float = 0.05,
        weight: float = 1.0,
        tokens: Literal["masked", "original"] = "masked",
        knowledge: Literal["full", "domain"] = "full",
    ) -> None:
        """Set up the three views.

        Args:
            importance: Normalised importances (layers, units) in [0, 1] of each part.
            temperature: Divides the cosine similarities.
            weight: The paper's lambda.
            tokens: With ``"masked"`` the anchor is the view that the MLM loss reads anyway, so a text is read three
                times in all; with ``"original"`` (as the released code) the uncorrupted text is read three times
                beside it.
            knowledge: What general knowledge is contrasted with: ``"full"`` (no gates), or ``"domain"`` (one minus
                the importances as gates), the ablation "domain-specific" of Table 3, whose anchor is a reading of
                its own.
        """
        self.temperature, self.weight = temperature, weight
        gates = None
        if knowledge == "domain":
            gates = Gates({part: 1 - values for part, values in importance.items()})
        self.anchor = View(tokens, draw=0, gates=gates)
        self.positive = View(tokens, draw=1, gates=gates)
        self.general = View(tokens, draw=2, gates=Gates(importance))
        self.views = (self.anchor, self.positive, self.general)

    def represent(self, outputs: Outputs) -> Tensor:
        """Return the pooled anchor, positive and general representation: (texts, 3, width)."""
        return torch.stack([outputs.pooled(view) for view in self.views], dim=1)

    def loss(self, representations: Tensor) -> Tensor:
        """Return Eq. 15 over all texts."""
        anchor, positive, general = representations.unbind(1)
        return contrast(anchor, positive, general, self.temperature)
