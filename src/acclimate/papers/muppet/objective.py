"""Predictions that noise in the embeddings does not change (R3F)."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from acclimate.api import Batch, ClassificationHeads, Drawing, Objective, Outputs, View, encode, mean_pool


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
            examples: What is drawn, with the number of the task and the class.
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
