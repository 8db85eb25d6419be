"""A classifier of two domains whose gradient reaches the encoder with the opposite sign (Ganin et al., JMLR 2016)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from acclimate.api import Batch, Drawing, Objective, Outputs, View


class _Reversed(torch.autograd.Function):
    """The identity, whose gradient is multiplied by minus a factor."""

    @staticmethod
    def forward(context: Any, vectors: Tensor, factor: float) -> Tensor:
        context.factor = factor
        return vectors.view_as(vectors)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return -context.factor * gradients[0], None


def reverse_gradient(vectors: Tensor, factor: float) -> Tensor:
    """Return the same values, with a gradient that is multiplied by ``-factor`` (Ganin et al., JMLR 2016)."""
    return _Reversed.apply(vectors, factor)


def reversal_factor(progress: float, rate: float = 10.0) -> float:
    """Return the factor of the reversed gradient: 2 / (1 + exp(-rate progress)) - 1, which rises from 0 to almost 1.

    Args:
        progress: Share of the training that is over.
        rate: The paper's gamma.
    """
    return 2 / (1 + math.exp(-rate * progress)) - 1


class DomainAdversary(Objective):
    """Mean over drawn texts and the texts of the step of the cross-entropy of a classifier of the two.

    The classifier learns which texts were drawn. The gradient of its loss reaches the encoder with the opposite sign
    and a factor that rises during the training, so the encoder learns vectors from which that cannot be seen.
    """

    name = "adversary"

    def __init__(self, examples: Drawing, classifier: nn.Module, weight: float = 1.0, rate: float = 10.0) -> None:
        """Set up the two views.

        Args:
            examples: Texts of the other domain.
            classifier: From vectors (texts, width) to logits (texts, 2).
            weight: Factor of the term.
            rate: See :func:`reversal_factor`.
        """
        self.classifier, self.weight, self.rate = classifier, weight, rate
        self.views = (View(examples), View("original"))

    def count(self, batch: Batch) -> int:
        """Return the number of texts of both domains."""
        return 2 * batch.texts

    def total(self, outputs: Outputs) -> Tensor:
        """Return the summed cross-entropy."""
        drawn, own = (outputs.pooled(view) for view in self.views)
        vectors = reverse_gradient(torch.cat((drawn, own)), reversal_factor(self.progress, self.rate))
        labels = torch.arange(2, device=vectors.device).repeat_interleave(len(own))
        return nn.functional.cross_entropy(self.classifier(vectors).float(), labels, reduction="sum")
