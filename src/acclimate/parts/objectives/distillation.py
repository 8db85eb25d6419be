"""Distillation losses: from the frozen original during adaptation, and between classifiers of end tasks."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from acclimate.parts.masking.rewriting import DropTokens
from acclimate.parts.objectives.base import Batch, Objective, Outputs, PoolingHead, View


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
