"""Distillation losses: from the frozen original during adaptation, and between classifiers of end tasks."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from acclimate.parts.objectives.base import Batch, Objective, Outputs, View


class Distillation(Objective):
    """Mean over real tokens, including special ones, of T^2 KL(softmax(r_t / T) || softmax(h_t / T)).

    h_t and r_t are the last hidden states of the model in training and of the frozen original for the same input
    (MLM+KD of the DGA paper). The softmax is over the features of a token. The factor T^2 keeps the magnitude
    of the gradient (Hinton et al., 2015); the DGA paper uses T = 1.

    The released code of DGA takes the softmax over the tokens of a padded batch and keeps the dropout of the teacher.
    The loss of a text would then depend on its padding and would not be zero for equal models, so neither is offered.
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
            tokens: The input of both models. ``"original"`` is the unmasked text, as in the paper. ``"masked"`` shares
                the view of the LM loss, which saves one of two forward passes, but compares two guesses at masked
                positions.
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
        student, teacher = (
            nn.functional.log_softmax(outputs.real(view).float() / self.temperature, dim=-1) for view in self.views
        )
        if self.divergence == "reverse":
            student, teacher = teacher, student
        divergence = nn.functional.kl_div(student, teacher, reduction="sum", log_target=True)
        return self.temperature**2 * divergence


def activation_boundary_loss(student: Tensor, active: Tensor, margin: float = 1.0, scale: float = 1e-3) -> Tensor:
    """Return the activation boundary loss, Eq. 5 of DoKTra (Choi et al., 2022; Heo et al., 2019).

    ``L(x) = || rho(t) * relu(margin - s) + (1 - rho(t)) * relu(margin + s) ||_2^2``, averaged over examples, where rho
    is 1 above zero and 0 otherwise. A unit costs ``(margin - s)^2`` if the teacher's is active and s is below the
    margin, ``(margin + s)^2`` if it is inactive and s is above minus the margin, and zero otherwise.

    Args:
        student: Representations (examples, units).
        active: Whether each unit of the teacher is above zero, boolean (examples, units).
        margin: The paper's mu.
        scale: Factor of the loss. The squared norm is a sum over units and starts at some hundreds; the released code
            of both papers multiplies it by 0.001. The steps of Adam do not depend on the factor while this is the only
            loss. It matters for gradient clipping, and for Adam's moments when another loss follows.

    Returns:
        A scalar, the mean over the given examples. The released code divides by the size of a full batch, which gives
        a short last batch less weight.
    """
    student = student.float()
    signed = student.where(active, -student)
    return scale * (margin - signed).relu().square().sum(-1).mean()


def count_disagreements(student: Tensor, active: Tensor) -> Tensor:
    """Return Eq. 4 of DoKTra: the number of units, per example, that are active in only one of the two models.

    Args:
        student: Representations (examples, units).
        active: As in :func:`activation_boundary_loss`.

    Returns:
        Integers (examples,). They have no gradient; training uses Eq. 5 instead.
    """
    return ((student > 0) != active).sum(-1)


def entropy(logits: Tensor, several: bool = False) -> Tensor:
    """Return the entropy of the predicted distribution of each example, in nats (Eq. 1 of DoKTra).

    Args:
        logits: (examples, classes).
        several: Whether an example may have several labels. Then each class is a Bernoulli variable, and the entropies
            of all classes are added.

    Returns:
        (examples,).
    """
    logits = logits.float()
    if several:
        chance = logits.sigmoid()
        return -(chance * nn.functional.logsigmoid(logits) + (1 - chance) * nn.functional.logsigmoid(-logits)).sum(-1)
    return -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1)


def confidence_penalty(logits: Tensor, weight: float, several: bool = False) -> Tensor:
    """Return ``-weight * H``, the term that Eq. 2 of DoKTra adds to the cross-entropy (Pereyra et al., 2017).

    It is a mean over examples. Where an example may have several labels, it is also a mean over classes, as is the
    binary cross-entropy of ``transformers``, so that the balance of the two does not depend on the number of classes.
    (The released code does not work for such tasks.)

    Args:
        logits: (examples, classes).
        weight: The paper's beta.
        several: As in :func:`entropy`.
    """
    classes = logits.shape[-1] if several else 1
    return -weight * entropy(logits, several).mean() / classes


def soft_target_loss(logits: Tensor, teacher: Tensor, temperature: float = 1.0, several: bool = False) -> Tensor:
    """Return the mean over examples of ``T^2 KL(teacher || student)`` of softened predictions (Hinton et al., 2015).

    The factor T^2 keeps the magnitude of the gradient when the temperature changes.

    Args:
        logits: Logits of the student (examples, classes).
        teacher: Logits of the teacher (examples, classes).
        temperature: Divides both.
        several: As in :func:`entropy`: the divergences of all classes are added.
    """
    student, teacher = logits.float() / temperature, teacher.float() / temperature
    if several:  # each class is a distribution over two outcomes
        student, teacher = (nn.functional.logsigmoid(torch.stack((value, -value))) for value in (student, teacher))
    else:
        student, teacher = student.log_softmax(-1), teacher.log_softmax(-1)
    return temperature**2 * nn.functional.kl_div(student, teacher, reduction="sum", log_target=True) / len(logits)
