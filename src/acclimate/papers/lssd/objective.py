"""Distillation from the original model whose most probable token has changed places with the true one."""

from __future__ import annotations

from torch import Tensor, nn

from acclimate.api import Batch, Objective, Outputs, View


class LogitSwapDistillation(Objective):
    """Mean over labelled tokens y of T^2 KL(q' || p), with p the student's prediction of the token (Mix-CPT).

    q' is the prediction q of the frozen original in which y and the most probable token a have changed places: y
    becomes the most probable token, and the set of probabilities stays the same. (Jiang et al.,
    ICLR 2025, call it logit swap self-distillation.) Student and original read the tokens of the LM loss.
    """

    name = "lssd"
    chosen_only = True

    def __init__(self, weight: float = 1.0, temperature: float = 1.0) -> None:
        """Set up the two views.

        Args:
            weight: Factor of the term.
            temperature: T, which divides the logits of both models.
        """
        self.weight, self.temperature = weight, temperature
        self.views = (View(), View(reader="reference"))

    def count(self, batch: Batch) -> int:
        """Return the number of labelled positions."""
        return batch.labelled

    def total(self, outputs: Outputs) -> Tensor:
        """Return the summed divergences."""
        return outputs.map_logits(self._divergence, self.views, outputs.batch.targets).sum()

    def _divergence(self, student: Tensor, teacher: Tensor, targets: Tensor) -> Tensor:
        """Return the divergence at each position (positions,), without a swapped copy of the teacher's logits.

        Swapping leaves the entropy of q unchanged, and moves q_a - q_y from log p_a to log p_y in the cross-entropy.
        """
        log_p, log_q = ((logits / self.temperature).log_softmax(-1) for logits in (student, teacher))
        top = log_q.argmax(-1, keepdim=True)
        gold = targets[:, None]
        moved = log_q.gather(1, top).exp() - log_q.gather(1, gold).exp()
        plain = nn.functional.kl_div(log_p, log_q, reduction="none", log_target=True).sum(-1)
        return self.temperature**2 * (plain + (moved * (log_p.gather(1, top) - log_p.gather(1, gold)))[:, 0])
