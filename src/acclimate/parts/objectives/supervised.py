"""Losses of labelled texts that are drawn in addition to a step's texts, and an adversary that compares the two."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from acclimate.models.encoding import encode
from acclimate.parts.masking import Drawing
from acclimate.parts.objectives.base import Batch, BatchObjective, Objective, Outputs, View, mean_pool


class ClassificationHeads(nn.ModuleList):
    """A linear layer per task, from the mean of the last hidden states of a text to its classes."""

    def __init__(self, width: int, classes: Sequence[int]) -> None:
        """Make the heads.

        Args:
            width: Width of the states.
            classes: Number of classes of each task.
        """
        heads = [nn.Linear(width, count) for count in classes]
        for head in heads:
            nn.init.normal_(head.weight, std=0.02)
            nn.init.zeros_(head.bias)
        super().__init__(heads)


def known_numbers(batch: Batch, view: View) -> Tensor:
    """Return what the drawing of a view knows of each text (texts, numbers), on the CPU."""
    known = batch.host.view_input(view.tokens).known
    assert known is not None, "a drawing knows something of each text"
    return known


class DrawnObjective(Objective):
    """A mean loss over the examples that :class:`acclimate.parts.masking.Drawing` adds, one for each text."""

    def __init__(self, drawing: Drawing, weight: float) -> None:
        self.weight, self.view = weight, View(drawing)
        self.views = (self.view,)

    def count(self, batch: Batch) -> int:
        """Return the number of texts; one example is drawn for each."""
        return batch.texts

    def known(self, batch: Batch) -> Tensor:
        """Return the numbers of each example, such as its label: (texts, numbers), on the CPU."""
        return known_numbers(batch, self.view)


class DrawnClassification(DrawnObjective):
    """Mean over drawn texts of their cross-entropy, in nats, or in units of log(number of classes of their task).

    In the latter unit a uniform prediction costs 1 in every task (Muppet, Aghajanyan et al., EMNLP 2021).
    """

    def __init__(
        self,
        examples: Drawing,
        heads: ClassificationHeads,
        weight: float = 1.0,
        per_log_classes: bool = False,
        name: str = "classification",
    ) -> None:
        """Set up the view of the drawn texts.

        Args:
            examples: What is drawn, with the number of the task and the class.
            heads: The heads, by task.
            weight: Factor of the term.
            per_log_classes: Whether losses are divided by log(classes).
            name: Name of the term.
        """
        super().__init__(examples, weight)
        self.name, self.heads = name, heads
        self.scales = [math.log(head.out_features) if per_log_classes else 1.0 for head in heads]  # type: ignore[arg-type]

    def total(self, outputs: Outputs) -> Tensor:
        """Return the summed losses."""
        batch = outputs.batch
        known, vectors = self.known(batch), outputs.pooled(self.view)
        losses = [0 * vectors.sum()]
        for task, (head, scale) in enumerate(zip(self.heads, self.scales, strict=True)):
            places = (known[:, 0] == task).nonzero()[:, 0]
            if len(places):
                logits = head(vectors[batch.on_device(places)]).float()
                labels = batch.on_device(known[places, 1])
                losses.append(nn.functional.cross_entropy(logits, labels, reduction="sum") / scale)
        return torch.stack(losses).sum()


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
        vectors = reverse_gradient(torch.cat((drawn, own)), reversal_factor(outputs.progress, self.rate))
        labels = torch.arange(2, device=vectors.device).repeat_interleave(len(own))
        return nn.functional.cross_entropy(self.classifier(vectors).float(), labels, reduction="sum")


class SimilarityDistillation(BatchObjective):
    """Similarity-preserving distillation of drawn texts (Tung and Mori, ICCV 2019).

    The loss is || S / |S| - T / |T| ||^2 / n^2, where S holds the inner products of the student's vectors of all n
    texts that a step draws, T of the teacher's, and each row is divided by its norm. Vectors are means of the
    last hidden states. Texts that are similar for the teacher become similar for the student.
    """

    name = "similarity"

    def __init__(self, examples: Drawing, weight: float = 1.0, teacher: str = "reference") -> None:
        """Set up the two views.

        Args:
            examples: The texts.
            weight: Factor of the term.
            teacher: The reader that is the teacher.
        """
        self.weight = weight
        self.views = (View(examples), View(examples, reader=teacher))
        self._width = 0

    def represent(self, outputs: Outputs) -> Tensor:
        """Return the concatenated vectors of student and teacher: (texts, width of both)."""
        student, teacher = (outputs.pooled(view) for view in self.views)
        self._width = student.shape[1]
        return torch.cat((student, teacher), dim=1)

    def loss(self, representations: Tensor) -> Tensor:
        """Return the squared distance of the two matrices."""
        vectors = representations[:, : self._width], representations[:, self._width :].detach()
        student, teacher = (nn.functional.normalize(part @ part.T, dim=1) for part in vectors)
        return (student - teacher).square().mean()


class NoiseConsistency(Objective):
    """Mean over drawn texts of KL(p || p') + KL(p' || p), where p' is predicted with noise in the embeddings (R3F).

    The noise is normal and added to the token embeddings, which makes predictions smooth (Aghajanyan et al., ICLR
    2021). The texts are read once more for p', with another dropout mask.
    """

    name = "r3f"
    readings = 1

    def __init__(
        self,
        examples: Drawing,
        heads: ClassificationHeads,
        model: PreTrainedModel,
        weight: float = 1.0,
        deviation: float = 1e-5,
    ) -> None:
        """Set up the view of the texts without noise.

        Args:
            examples: As for :class:`DrawnClassification`.
            heads: The heads, by task.
            model: The student.
            weight: Factor of the term.
            deviation: Standard deviation of the noise.
        """
        self.heads, self.model, self.weight, self.deviation = heads, model, weight, deviation
        self.view = View(examples)
        self.views = (self.view,)

    def count(self, batch: Batch) -> int:
        """Return the number of texts; one is drawn for each."""
        return batch.texts

    def total(self, outputs: Outputs) -> Tensor:
        """Return the summed divergences."""
        batch = outputs.batch
        ids, text, _, segments = batch.view_input(self.view.tokens)
        host = batch.host.view_input(self.view.tokens)
        assert host.known is not None, "examples have labels"
        embeddings = self.model.get_input_embeddings()
        hook = embeddings.register_forward_hook(lambda *call: call[-1] + self.deviation * torch.randn_like(call[-1]))
        try:
            noisy = mean_pool(encode(self.model, ids, text, segments=segments), host.text, batch.texts)
        finally:
            hook.remove()
        clean, losses = outputs.pooled(self.view), [0 * noisy.sum()]
        for task, head in enumerate(self.heads):
            places = (host.known[:, 0] == task).nonzero()[:, 0]
            if len(places):
                here = batch.on_device(places)
                p, q = (head(vectors[here]).float().log_softmax(-1) for vectors in (clean, noisy))
                losses.append(((p.exp() - q.exp()) * (p - q)).sum())  # both divergences together
        return torch.stack(losses).sum()
