"""Losses of labelled texts that are drawn in addition to a step's texts, and an adversary that compares the two."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from acclimate.parts.masking import Drawing
from acclimate.parts.objectives.base import Batch, Objective, Outputs, View


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
