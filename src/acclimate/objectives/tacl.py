"""Token-aware contrast with the frozen original (TaCL, Su et al., Findings of NAACL 2022)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from acclimate.objectives.base import Batch, Objective, Outputs, View
from acclimate.objectives.contrast import Similarity, similarities


class TokenAwareContrast(Objective):
    """Mean over the masked tokens i of -log( exp(s(h_i, r_i) / t) / sum_j exp(s(h_i, r_j) / t) ).

    h is the reading of the corrupted text by the model in training, which the MLM loss reads anyway; r is the reading
    of the original text by the frozen original, and j runs over the real tokens of the same text. So the model has
    to tell from the context which token stood at a masked place, in the terms of the original.

    The frozen original reads without dropout (the authors of TaCL forgot to switch it off and say so). The released
    code of DGA lets the model read the clean text; the loss is then met by staying as one is, so that is not offered.
    """

    name = "tacl"

    def __init__(
        self,
        weight: float = 1.0,
        temperature: float = 0.01,
        similarity: Similarity = "cosine",
        positions: Literal["masked", "unmasked"] = "masked",
    ) -> None:
        """Set up the two views.

        Args:
            weight: Factor of the term.
            temperature: Divides the similarities.
            similarity: The cosine, the default of TaCL; or the dot product, for which a temperature of 1 is meant, as
                in the released code of DGA.
            positions: Over which tokens the mean goes: those that the MLM loss predicts, as in the equation of TaCL,
                or all others, as in the released code of DGA.
        """
        self.weight, self.temperature, self.similarity, self.positions = weight, temperature, similarity, positions
        self.student, self.teacher = View(), View("original", reader="reference")
        self.views = (self.student, self.teacher)

    def _chosen(self, batch: Batch) -> Tensor:
        masked = batch.labels >= 0
        return masked if self.positions == "masked" else (batch.text >= 0) & ~masked

    def count(self, batch: Batch) -> int:
        """Return the number of tokens that the mean goes over."""
        return int(self._chosen(batch).sum())

    def total(self, outputs: Outputs) -> Tensor:
        """Return the summed losses of those tokens."""
        text = outputs.batch.text
        chosen = self._chosen(outputs.batch)
        rows, places = chosen.nonzero(as_tuple=True)
        scores = similarities(outputs.hidden(self.student), outputs.hidden(self.teacher), self.similarity)[chosen]
        same = text[rows] == text[chosen][:, None]
        scores = (scores / self.temperature).masked_fill(~same, -torch.inf)
        return nn.functional.cross_entropy(scores, places, reduction="sum")
