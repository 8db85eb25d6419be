"""Distillation of a text into the state of one token that the teacher does not read."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from acclimate.api import Batch, DropTokens, Objective, Outputs, View


class TokenDistillation(Objective):
    """Mean over texts of D(f0(x), h), where h is the student's last hidden state at the distillation token.

    It is DeiT (Touvron et al., ICML 2021) as adapted in the DGA paper. f0(x) is the mean over tokens of the hidden
    states of the frozen original for the unmasked text without the token. The student reads the masked text, the view
    of the LM loss. The code of this baseline was not released, so D is a choice: the divergence of softmaxes over
    features, as in the paper's other distillation, the cosine distance, or the squared distance (mean over features).
    """

    name = "distillation"

    def __init__(
        self, token: int, weight: float = 1.0, distance: Literal["divergence", "cosine", "squared"] = "divergence"
    ) -> None:
        """Set up the two views.

        Args:
            token: Id of the distillation token, which occurs once in every text.
            weight: Factor of the term.
            distance: D.
        """
        self.token, self.weight, self.distance = token, weight, distance
        self.student, self.teacher = View(), View(DropTokens((token,)), reader="reference")
        self.views = (self.student, self.teacher)

    def count(self, batch: Batch) -> int:
        """Return the number of texts."""
        return batch.texts

    def total(self, outputs: Outputs) -> Tensor:
        """Return the summed distances."""
        batch = outputs.batch
        place = batch.on_device((batch.host.original.flatten() == self.token).nonzero()[:, 0])
        learned = outputs.hidden(self.student).flatten(0, 1)[place].float()
        target = outputs.pooled(self.teacher)[batch.text.flatten()[place]]
        if self.distance == "cosine":
            return (1 - nn.functional.cosine_similarity(learned, target, dim=-1)).sum()
        if self.distance == "squared":
            return (learned - target).square().mean(-1).sum()
        student, teacher = learned.log_softmax(-1), target.log_softmax(-1)
        return nn.functional.kl_div(student, teacher, reduction="sum", log_target=True)
