"""The confidence penalty (Pereyra et al., 2017), and the divergence between two classifiers."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def entropy(logits: Tensor, several: bool = False) -> Tensor:
    """Return the entropy of the predicted distribution of each example, in nats (Eq. 1 of DoKTra).

    Args:
        logits: (examples, classes).
        several: An example may have several labels: each class is a Bernoulli variable of its own, and the entropies
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
    """Return ``-weight * H``, what Eq. 2 of DoKTra adds to the cross-entropy; a mean over examples.

    Where an example may have several labels, it is a mean over classes too, as the binary cross-entropy of
    ``transformers`` is: then the balance of the two terms does not depend on the number of classes. (The released
    code has no working path for such tasks.)

    Args:
        logits: (examples, classes).
        weight: The paper's beta.
        several: As in :func:`entropy`.
    """
    classes = logits.shape[-1] if several else 1
    return -weight * entropy(logits, several).mean() / classes


def soft_divergence(logits: Tensor, teacher: Tensor, temperature: float = 1.0, several: bool = False) -> Tensor:
    """Return ``T^2 KL(teacher || student)`` of their softened predictions (Hinton et al., 2015); a mean over examples.

    The factor T^2 keeps the size of the gradient when the temperature changes.

    Args:
        logits: Of the student (examples, classes).
        teacher: Logits of the teacher (examples, classes).
        temperature: Divides both.
        several: As in :func:`entropy`: the divergences of all classes are added.
    """
    student, teacher = logits.float() / temperature, teacher.float() / temperature
    if several:  # each class is a distribution of two
        student, teacher = (nn.functional.logsigmoid(torch.stack((value, -value))) for value in (student, teacher))
    else:
        student, teacher = student.log_softmax(-1), teacher.log_softmax(-1)
    return temperature**2 * nn.functional.kl_div(student, teacher, reduction="sum", log_target=True) / len(logits)
