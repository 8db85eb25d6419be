"""Distillation of the vector of each text from a frozen teacher."""

from __future__ import annotations

from torch import Tensor

from acclimate.api import Batch, Objective, Outputs, PoolingHead, View


class StateDistillation(Objective):
    """Mean over texts of || h(x) - h_T(x) ||^2, the squared distance to the text's vector of a frozen teacher.

    x is the unmasked text, and the distance is a sum over features (Lee et al., ICLR 2023).
    """

    name = "self-distill"

    def __init__(self, weight: float = 1.0, pooling: PoolingHead | None = None) -> None:
        """Set up the two views; the reader of the second is called ``"teacher"``.

        Args:
            weight: Factor of the term.
            pooling: How the hidden states of a text become its vector; None for their mean.
        """
        self.weight, self.pooling = weight, pooling
        self.student, self.teacher = View("original"), View("original", reader="teacher")
        self.views = (self.student, self.teacher)

    def count(self, batch: Batch) -> int:
        """Return the number of texts."""
        return batch.texts

    def total(self, outputs: Outputs) -> Tensor:
        """Return the summed squared distances."""
        student, teacher = (outputs.pooled(view, self.pooling) for view in self.views)
        return (student - teacher).square().sum()
