"""Distillation of predictions from a teacher per source of text (after Kothari et al., 2024)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from acclimate.api import Batch, Objective, Outputs, View, cross_entropy, encode, language_head


class TeacherDistillation(Objective):
    """Mean over labelled tokens of T^2 KL(q || p), with q the prediction of the teacher of the text's source.

    p is the student's prediction. Both read the tokens of the LM loss, and each text is read by its own teacher only.
    For texts of a source without a teacher, q is the labelled token itself, without T, so that their cross-entropy
    has the same weight in all as the two losses of a taught token.
    """

    name = "teachers"
    chosen_only = True

    def __init__(self, teachers: Mapping[int, PreTrainedModel], weight: float = 1.0, temperature: float = 1.0) -> None:
        """Set up the view of the LM loss.

        Args:
            teachers: Frozen models that :func:`acclimate.models.probe.attach` has prepared, by index of the source.
            weight: Factor of the term.
            temperature: T, which divides the logits of both models.
        """
        self.teachers, self.weight, self.temperature = dict(teachers), weight, temperature
        self.heads = {source: language_head(model) for source, model in self.teachers.items()}
        self.view = View()
        self.views = (self.view,)

    def count(self, batch: Batch) -> int:
        """Return the number of labelled positions, so that a taught token counts as much as in the LM loss."""
        return batch.labelled

    def total(self, outputs: Outputs) -> Tensor:
        """Return the summed divergences."""
        batch, host = outputs.batch, outputs.batch.host
        labelled = (host.labels >= 0).flatten().nonzero()[:, 0]
        width, parts = host.text.shape[1], []
        for source, places in self._places(batch).items():
            # Packed rows may hold texts of several sources, and are read as a whole.
            rows, row = torch.unique(labelled[places] // width, return_inverse=True)
            here = batch.on_device(row * width + labelled[places] % width)
            rows = batch.on_device(rows)
            with torch.no_grad():
                states = encode(self.teachers[source], batch.masked[rows], batch.text[rows]).flatten(0, 1)
            chosen, head = batch.on_device(places), self.heads[source]
            parts.append(outputs.map_beside(self._divergence, self.view, chosen, head, states[here]).sum())
        untaught = torch.ones(batch.labelled, dtype=torch.bool)
        for places in self._places(batch).values():
            untaught[places] = False
        others = batch.on_device(untaught.nonzero()[:, 0])
        own = outputs.labelled_states(self.view).index_select(0, others)
        parts.append(outputs.map_states(cross_entropy, own, batch.targets[others]).sum())
        return torch.stack(parts).sum()

    def _divergence(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Return the divergence at each position; one model may have more rows of padding in its vocabulary."""
        words = min(student.shape[-1], teacher.shape[-1])
        student, teacher = ((logits[:, :words] / self.temperature).log_softmax(-1) for logits in (student, teacher))
        divergence = nn.functional.kl_div(student, teacher, reduction="none", log_target=True)
        return self.temperature**2 * divergence.sum(-1)

    def _places(self, batch: Batch) -> dict[int, Tensor]:
        """Return, by source, which labelled positions are of its texts, in row order, on the CPU; none are empty."""
        host = batch.host
        text = host.text[host.labels >= 0]
        source = torch.zeros_like(text) if host.source is None else host.source[text]
        found = {number: (source == number).nonzero()[:, 0] for number in self.teachers}
        return {number: places for number, places in found.items() if len(places)}
