"""The masked language-model loss."""

from __future__ import annotations

from torch import Tensor, nn

from acclimate.objectives.base import Batch, Objective, Outputs, View


class LanguageModelling(Objective):
    """Cross-entropy of the original token at the chosen positions (Devlin et al., 2019), a mean over them.

    The vocabulary projection runs at those positions only, which changes neither value nor gradient.
    """

    name = "mlm"
    chosen_only = True

    def __init__(self, weight: float = 1.0, view: View | None = None) -> None:
        self.weight = weight
        self.view = view or View()
        self.views = (self.view,)

    def count(self, batch: Batch) -> int:
        """Return the number of chosen positions."""
        return int((batch.labels >= 0).sum())

    def total(self, outputs: Outputs) -> Tensor:
        """Return the summed cross-entropy."""
        labels = outputs.batch.labels
        logits = outputs.masked_logits(self.view).float()
        return nn.functional.cross_entropy(logits, labels[labels >= 0], reduction="sum")
