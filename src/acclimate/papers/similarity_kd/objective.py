"""Distillation that keeps which drawn texts are similar."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from acclimate.api import BatchObjective, Drawing, Outputs, View


class SimilarityDistillation(BatchObjective):
    """Similarity-preserving distillation of drawn texts (Tung and Mori, ICCV 2019).

    The loss is || S / |S| - T / |T| ||^2 / n^2, where S holds the inner products of the student's vectors of all n
    texts that a step draws, T of the teacher's, and each row is divided by its norm. Vectors are means of the
    last hidden states. Texts that are similar for the teacher become similar for the student.
    """

    name = "similarity"

    def __init__(self, examples: Drawing, weight: float = 1.0, teacher: str = "reference") -> None:
        """Set up the two views.

        Args:
            examples: The texts.
            weight: Factor of the term.
            teacher: The reader that is the teacher.
        """
        self.weight = weight
        self.views = (View(examples), View(examples, reader=teacher))
        self._width = 0

    def represent(self, outputs: Outputs) -> Tensor:
        """Return the concatenated vectors of student and teacher: (texts, width of both)."""
        student, teacher = (outputs.pooled(view) for view in self.views)
        self._width = student.shape[1]
        return torch.cat((student, teacher), dim=1)

    def loss(self, representations: Tensor) -> Tensor:
        """Return the squared distance of the two matrices."""
        vectors = representations[:, : self._width], representations[:, self._width :].detach()
        student, teacher = (nn.functional.normalize(part @ part.T, dim=1) for part in vectors)
        return (student - teacher).square().mean()
