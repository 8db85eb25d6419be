"""Contrast of texts under two dropout draws (unsupervised SimCSE, Gao et al., EMNLP 2021)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from acclimate.objectives.base import BatchObjective, Outputs, View
from acclimate.objectives.contrast import contrast


class TextContrast(BatchObjective):
    """Mean over texts of -log( exp(cos(z_i, z_i') / t) / sum_j exp(cos(z_i, z_j') / t) ).

    z and z' are the mean-pooled readings of a text under two dropout draws, j runs over all texts of the step.
    """

    name = "simcse"

    def __init__(
        self,
        weight: float = 1.0,
        temperature: float = 0.05,
        tokens: Literal["original", "masked"] = "original",
    ) -> None:
        """Set up the two views.

        Args:
            weight: Factor of the term.
            temperature: Divides the cosines.
            tokens: With ``"original"`` the uncorrupted text is read twice beside the reading of the MLM loss, as in
                SimCSE and in the DGA paper. With ``"masked"`` one of the two is the MLM reading, so that two readings
                do instead of three; but both then have their masks at the same places, which gives the pair away.
        """
        self.weight, self.temperature = weight, temperature
        self.views = (View(tokens, draw=0), View(tokens, draw=1))

    def represent(self, outputs: Outputs) -> Tensor:
        """Return both pooled readings of each text: (texts, 2, width)."""
        return torch.stack([outputs.pooled(view) for view in self.views], dim=1)

    def loss(self, representations: Tensor) -> Tensor:
        """Return the contrast over all texts."""
        first, second = representations.unbind(1)
        return contrast(first, second, None, self.temperature)
