"""What makes training cheaper on a CPU and changes no expectation: done to every model that is going to be trained."""

from __future__ import annotations

from torch import nn

from acclimate.backbone.dropout import cheapen_dropout
from acclimate.backbone.lookup import spare_embeddings
from acclimate.backbone.projection import spare_projection


def make_thrifty(model: nn.Module) -> None:
    """Make dropout cheap, and the gradients of embeddings and of the vocabulary projection."""
    cheapen_dropout(model)
    spare_embeddings(model)
    spare_projection(model)
