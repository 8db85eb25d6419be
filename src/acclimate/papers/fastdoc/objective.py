"""Losses of whole documents, read as sequences of sentence vectors, from their metadata (FPDM / FastDoc)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from acclimate.api import ClassificationHeads, DrawnObjective, DrawTriplets, Outputs


class DocumentMetadata(DrawnObjective):
    """Mean over triplets of the triplet margin loss plus the cross-entropies of all levels of all three documents.

    The encoder reads a document as the frozen vectors of its sentences, each in the place of a token embedding, so a
    document of a hundred sentences costs as much as a text of a hundred tokens. Its vector is the mean of the last
    hidden states (Nandy et al., 2023; margin 1, Euclidean distance, all weights 1).
    """

    name = "metadata"
    readings = 3

    def __init__(
        self,
        triplets: DrawTriplets,
        model: PreTrainedModel,
        documents: Sequence[Tensor],
        codes: Tensor,
        projection: nn.Module,
        heads: ClassificationHeads,
        weight: float = 1.0,
        margin: float = 1.0,
    ) -> None:
        """Set up the term.

        Args:
            triplets: Draws the indices of documents.
            model: The student.
            documents: The vectors of the sentences of each document, (sentences, dimensions), on any device.
            codes: The class of each document at each level (documents, levels), on the CPU.
            projection: From sentence vectors to the width of token embeddings.
            heads: The heads, by level.
            weight: Factor of the term.
            margin: Margin of the triplet loss.
        """
        super().__init__(triplets, weight)
        self.model, self.documents, self.codes = model, documents, codes
        self.projection, self.heads, self.margin = projection, heads, margin

    def total(self, outputs: Outputs) -> Tensor:
        """Return the summed losses."""
        batch = outputs.batch
        chosen = self.known(batch).T.flatten()  # all anchors, then all positives, then all negatives
        vectors = self.encode([self.documents[index] for index in chosen.tolist()])
        anchor, positive, negative = vectors.chunk(3)
        loss = nn.functional.triplet_margin_loss(anchor, positive, negative, self.margin, reduction="sum")
        for head, labels in zip(self.heads, self.codes[chosen].T, strict=True):
            loss = loss + nn.functional.cross_entropy(head(vectors).float(), batch.on_device(labels), reduction="sum")
        return loss

    def encode(self, documents: Sequence[Tensor]) -> Tensor:
        """Return the vectors (documents, width), in float32, of documents given as (sentences, dimensions) each."""
        device = self.model.device
        rows = nn.utils.rnn.pad_sequence([document.to(device) for document in documents], batch_first=True)
        lengths = torch.tensor([len(document) for document in documents], device=device)
        real = torch.arange(rows.shape[1], device=device) < lengths[:, None]
        read = self.model.base_model(inputs_embeds=self.projection(rows), attention_mask=real.long())
        states = read.last_hidden_state.float() * real[..., None]
        return states.sum(1) / lengths[:, None]
