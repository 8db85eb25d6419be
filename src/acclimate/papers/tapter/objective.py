"""Regularization of the embeddings towards word vectors (TAPTER, Nishida et al., Findings of EMNLP 2021)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call

from acclimate.api import Batch, Objective, Outputs


class EmbeddingProjection(nn.Module):
    """f(z) = LN(W z + b), from embeddings to word vectors; discarded after training."""

    def __init__(self, width: int, dimension: int) -> None:
        """Make f for embeddings of ``width`` and vectors of ``dimension``."""
        super().__init__()
        self.linear, self.norm = nn.Linear(width, dimension), nn.LayerNorm(dimension)
        nn.init.normal_(self.linear.weight, std=width**-0.5)
        nn.init.zeros_(self.linear.bias)

    def forward(self, embedding: Tensor) -> Tensor:
        """Map (..., width) to (..., dimension)."""
        return self.norm(self.linear(embedding))


class EmbeddingRegularizer(Objective):
    """Mean over the tokens x in R(X) of || f(E[x]) - F[x] ||^2.

    E is the static embedding table, looked up at the original tokens (the equation has X, not its masked version), F
    are the word vectors, and R(X) the occurrences of regularized tokens. The mean is over the whole step rather than
    per text, which the paper leaves open, so all occurrences have the same weight. The term needs no forward pass.
    """

    name = "embedding"
    views = ()

    def __init__(
        self, table: Tensor, projection: EmbeddingProjection, vectors: Tensor, regularized: Tensor, weight: float = 1.0
    ) -> None:
        """Set up the term.

        Args:
            table: E (vocabulary, width), with gradients.
            projection: f, with gradients.
            vectors: F (tokens, dimension), for the first tokens of the vocabulary at least.
            regularized: Whether each token is regularized (tokens,).
            weight: Factor of the term; the paper has none.
        """
        self.table, self.projection, self.weight = table, projection, weight
        self.vectors, self.regularized = vectors.to(table), regularized.cpu()
        # E and f stay in float32 even when a step runs on bfloat16 copies of the weights.
        self._exact: dict[str, Tensor] = dict(projection.named_parameters())

    def _occurrences(self, batch: Batch) -> Tensor:
        """Return the ids of R(X), on the CPU."""
        ids = batch.host.original[batch.host.text >= 0]
        return ids[self.regularized[ids]]

    def count(self, batch: Batch) -> int:
        """Return the number of occurrences in R(X)."""
        return len(self._occurrences(batch))

    def total(self, outputs: Outputs) -> Tensor:
        """Return the summed squared distances; each distinct token of a micro-batch is projected once."""
        found = self._occurrences(outputs.batch).unique(return_counts=True)
        ids, counts = (outputs.batch.on_device(part) for part in found)
        with torch.autocast(self.table.device.type, enabled=False):
            projected: Tensor = functional_call(self.projection, self._exact, (self.table[ids],))
            return ((projected - self.vectors[ids]).square().sum(-1) * counts).sum()
