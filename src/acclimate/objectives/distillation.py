"""Distillation of the frozen original into the model in training (Hinton et al., 2015; MLM+KD of the DGA paper)."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from acclimate.objectives.base import Batch, Objective, Outputs, View


class Distillation(Objective):
    """Mean over real tokens, special ones included, of T^2 KL(softmax(r_t / T) || softmax(h_t / T)).

    h_t is the last hidden state of the model in training, before the vocabulary head, and r_t that of the frozen
    original for the same input; the softmax goes over the features of a token. The factor T^2 keeps the size of the
    gradient (Hinton et al., 2015); the DGA paper takes T = 1.

    The released code of DGA takes the softmax over the tokens of a padded batch and leaves the dropout of the teacher
    on. Then the loss of a text depends on its padding and is not zero for equal models; neither is offered.
    """

    name = "kd"

    def __init__(
        self,
        weight: float = 1.0,
        temperature: float = 1.0,
        tokens: Literal["original", "masked"] = "original",
        divergence: Literal["forward", "reverse"] = "forward",
    ) -> None:
        """Set up the two views.

        Args:
            weight: Factor of the term.
            temperature: Divides the hidden states.
            tokens: What both models read. ``"original"``: each token is the word that the original knows, which is
                what the paper compares. ``"masked"`` shares the reading of the MLM loss and saves one in two, but
                then masked positions compare two guesses.
            divergence: ``"forward"`` is KL(original || student), as in distillation; ``"reverse"`` is
                KL(student || original), as in the released code.
        """
        self.weight, self.temperature, self.divergence = weight, temperature, divergence
        self.student, self.teacher = View(tokens), View(tokens, reader="reference")
        self.views = (self.student, self.teacher)

    def count(self, batch: Batch) -> int:
        """Return the number of real tokens."""
        return batch.tokens

    def total(self, outputs: Outputs) -> Tensor:
        """Return the summed divergences."""
        real = outputs.batch.text >= 0
        student, teacher = (
            nn.functional.log_softmax(outputs.hidden(view)[real].float() / self.temperature, dim=-1)
            for view in self.views
        )
        if self.divergence == "reverse":
            student, teacher = teacher, student
        divergence = nn.functional.kl_div(student, teacher, reduction="sum", log_target=True)
        return self.temperature**2 * divergence
