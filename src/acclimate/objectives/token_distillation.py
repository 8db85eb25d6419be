"""Distillation through a token of its own (DeiT, Touvron et al., ICML 2021, as adapted in the DGA paper)."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from acclimate.masking.tokens import WithoutTokens
from acclimate.objectives.base import Batch, Objective, Outputs, View


class TokenDistillation(Objective):
    """Mean over texts of D(f0(x), h), where h is the student's last hidden state at the distillation token.

    f0(x) is the mean over tokens of what the frozen original makes of the clean text; it does not see the token. The
    student reads the corrupted text, the reading of the MLM loss. No code of this baseline was released, so D is a
    choice: the divergence of softmaxes over features, as the paper's other distillation has it, the cosine distance,
    or the squared distance (mean over features).
    """

    name = "distillation"

    def __init__(
        self, token: int, weight: float = 1.0, distance: Literal["divergence", "cosine", "squared"] = "divergence"
    ) -> None:
        """Set up the two views.

        Args:
            token: Id of the distillation token; every text has it once.
            weight: Factor of the term.
            distance: D.
        """
        self.token, self.weight, self.distance = token, weight, distance
        self.student, self.teacher = View(), View(WithoutTokens((token,)), reader="reference")
        self.views = (self.student, self.teacher)

    def count(self, batch: Batch) -> int:
        """Return the number of texts."""
        return batch.texts

    def total(self, outputs: Outputs) -> Tensor:
        """Return the summed distances."""
        place = outputs.batch.original == self.token
        learned = outputs.hidden(self.student)[place].float()
        target = outputs.pooled(self.teacher)[outputs.batch.text[place]]
        if self.distance == "cosine":
            return (1 - nn.functional.cosine_similarity(learned, target, dim=-1)).sum()
        if self.distance == "squared":
            return (learned - target).square().mean(-1).sum()
        student, teacher = learned.log_softmax(-1), target.log_softmax(-1)
        return nn.functional.kl_div(student, teacher, reduction="sum", log_target=True)
