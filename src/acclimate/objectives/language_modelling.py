"""The language-model loss of masked and causal models."""

from __future__ import annotations

from torch import Tensor, nn

from acclimate.model_kinds import MASKED, ModelKind
from acclimate.objectives.base import Batch, Objective, Outputs, View


class LanguageModelling(Objective):
    """Mean cross-entropy of the labels, in nats.

    The kind of the model decides the labels of a batch: the original tokens at masked positions (Devlin et al., 2019),
    or the next token at every position. The vocabulary projection runs at labelled positions only, which changes
    neither value nor gradient.
    """

    chosen_only = True

    def __init__(self, weight: float = 1.0, view: View | None = None, kind: ModelKind = MASKED) -> None:
        self.weight = weight
        self.view = view or View()
        self.views = (self.view,)
        self.name = kind.term

    def for_kind(self, kind: ModelKind) -> LanguageModelling:
        """Return the loss of a kind of models."""
        return type(self)(self.weight, self.view, kind)

    def count(self, batch: Batch) -> int:
        """Return the number of labelled positions."""
        return int((batch.labels >= 0).sum())

    def total(self, outputs: Outputs) -> Tensor:
        """Return the summed cross-entropy."""
        labels = outputs.batch.labels
        logits = outputs.masked_logits(self.view).float()
        return nn.functional.cross_entropy(logits, labels[labels >= 0], reduction="sum")
