"""Token-aware contrast with the frozen original (TaCL, Su et al., Findings of NAACL 2022)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from acclimate.api import Batch, Objective, Outputs, Similarity, View, similarities


class TokenAwareContrast(Objective):
    """Mean over the masked tokens i of -log( exp(s(h_i, r_i) / t) / sum_j exp(s(h_i, r_j) / t) ).

    h are the hidden states of the model in training for the masked text, the view of the MLM loss; r are those of the
    frozen original for the unmasked text; j runs over the real tokens of the same text. The model thus has to identify
    the masked token from its context, by its representation in the original.

    The frozen original has no dropout (the authors of TaCL state that they forgot to turn it off). In the released
    code of DGA the model reads the unmasked text; an unchanged model then minimizes the loss, so this is not offered.
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
            similarity: The cosine, the default of TaCL, or the dot product, which is used with a temperature of 1, as
                in the released code of DGA.
            positions: The tokens that the mean is over: those that the MLM loss predicts, as in the equation of TaCL,
                or all others, as in the released code of DGA.
        """
        self.weight, self.temperature, self.similarity, self.positions = weight, temperature, similarity, positions
        self.student, self.teacher = View(), View("original", reader="reference")
        self.views = (self.student, self.teacher)

    def _chosen(self, batch: Batch) -> Tensor:
        """Return the positions that the mean is over (rows, tokens), on the CPU."""
        batch = batch.host
        masked = batch.labels >= 0
        return masked if self.positions == "masked" else (batch.text >= 0) & ~masked

    def count(self, batch: Batch) -> int:
        """Return the number of tokens that the mean is over."""
        return int(self._chosen(batch).sum())

    def total(self, outputs: Outputs) -> Tensor:
        """Return the summed losses of those tokens."""
        batch = outputs.batch
        rows, places = map(batch.on_device, self._chosen(batch).nonzero(as_tuple=True))
        scores = similarities(outputs.hidden(self.student), outputs.hidden(self.teacher), self.similarity)
        scores, text = scores[rows, places], batch.text
        same = text[rows] == text[rows, places][:, None]
        scores = (scores / self.temperature).masked_fill(~same, -torch.inf)
        return nn.functional.cross_entropy(scores, places, reduction="sum")
