"""Contrast of general with full knowledge (DGA, Ke et al., EMNLP 2022, Section 3.2).

How alike two sets of vectors are.

Contrast of texts under two dropout draws (unsupervised SimCSE, Gao et al., EMNLP 2021).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from acclimate.objectives.base import BatchObjective, Gates, Outputs, View

Similarity = Literal["cosine", "dot"]


def similarities(anchors: Tensor, keys: Tensor, kind: Similarity = "cosine") -> Tensor:
    """Compare every anchor with every key.

    The product is taken in float32 also under autocast: a cosine near one has steps of 0.004 in bfloat16, which a
    temperature of 0.01 would turn into steps of 0.4 in the logits.

    Args:
        anchors: (..., anchors, width).
        keys: (..., keys, width).
        kind: The cosine, or the plain dot product.

    Returns:
        (..., anchors, keys).
    """
    with torch.autocast(anchors.device.type, enabled=False):
        wide = torch.promote_types(anchors.dtype, torch.float32)
        anchors, keys = anchors.to(wide), keys.to(wide)
        if kind == "cosine":
            anchors, keys = nn.functional.normalize(anchors, dim=-1), nn.functional.normalize(keys, dim=-1)
        return anchors @ keys.mT


def contrastive_loss(anchor: Tensor, positive: Tensor, negative: Tensor | None, temperature: float) -> Tensor:
    """Compute Eq. 15, averaged over texts.

    For each text the numerator is the similarity to its own positive; the denominator sums the similarities to the
    positives of all texts and, if given, to the negatives of all texts.

    Args:
        anchor: (texts, width).
        positive: (texts, width).
        negative: (texts, width), or None for the loss without them (Eq. 1).
        temperature: Divides the cosine similarities.

    Returns:
        A scalar.
    """
    others = positive if negative is None else torch.cat([positive, negative])
    own = torch.arange(len(anchor), device=anchor.device)
    return nn.functional.cross_entropy(similarities(anchor, others) / temperature, own)


class GeneralKnowledgeContrast(BatchObjective):
    """Full knowledge twice (two dropout draws) against general knowledge (Eq. 11 to 15).

    The general knowledge of a text is its representation with the normalised importances as gates.

    Attributes:
        temperature: Divides the cosine similarities; the paper takes 0.05.
    """

    name = "contrast"

    def __init__(
        self,
        importance: Mapping[str, Tensor],
        temperature: float = 0.05,
        weight: float = 1.0,
        tokens: Literal["masked", "original"] = "masked",
        knowledge: Literal["full", "domain"] = "full",
    ) -> None:
        """Set up the three views.

        Args:
            importance: Normalised importances (layers, units) in [0, 1] of each part.
            temperature: Divides the cosine similarities.
            weight: The paper's lambda.
            tokens: With ``"masked"`` the anchor is the view that the MLM loss reads anyway, so a text is read three
                times in all; with ``"original"`` (as the released code) the uncorrupted text is read three times
                beside it.
            knowledge: What general knowledge is contrasted with: ``"full"`` (no gates), or ``"domain"`` (one minus
                the importances as gates), the ablation "domain-specific" of Table 3, whose anchor is a reading of
                its own.
        """
        self.temperature, self.weight = temperature, weight
        gates = None
        if knowledge == "domain":
            gates = Gates({part: 1 - values for part, values in importance.items()})
        self.anchor = View(tokens, draw=0, gates=gates)
        self.positive = View(tokens, draw=1, gates=gates)
        self.general = View(tokens, draw=2, gates=Gates(importance))
        self.views = (self.anchor, self.positive, self.general)

    def represent(self, outputs: Outputs) -> Tensor:
        """Return the pooled anchor, positive and general representation: (texts, 3, width)."""
        return torch.stack([outputs.pooled(view) for view in self.views], dim=1)

    def loss(self, representations: Tensor) -> Tensor:
        """Return Eq. 15 over all texts."""
        anchor, positive, general = representations.unbind(1)
        return contrastive_loss(anchor, positive, general, self.temperature)


class TextContrast(BatchObjective):
    """Mean over texts of -log( exp(cos(z_i, z_i') / t) / sum_j exp(cos(z_i, z_j') / t) ).

    z and z' are the mean-pooled readings of a text under two dropout draws, j runs over all texts of the step.
    """

    name = "simcse"

    def __init__(
        self,
        weight: float = 1.0,
        temperature: float = 0.05,
        tokens: Literal["original", "masked"] = "original",
    ) -> None:
        """Set up the two views.

        Args:
            weight: Factor of the term.
            temperature: Divides the cosines.
            tokens: With ``"original"`` the uncorrupted text is read twice beside the reading of the MLM loss, as in
                SimCSE and in the DGA paper. With ``"masked"`` one of the two is the MLM reading, so that two readings
                do instead of three; but both then have their masks at the same places, which gives the pair away.
        """
        self.weight, self.temperature = weight, temperature
        self.views = (View(tokens, draw=0), View(tokens, draw=1))

    def represent(self, outputs: Outputs) -> Tensor:
        """Return both pooled readings of each text: (texts, 2, width)."""
        return torch.stack([outputs.pooled(view) for view in self.views], dim=1)

    def loss(self, representations: Tensor) -> Tensor:
        """Return the contrast over all texts."""
        first, second = representations.unbind(1)
        return contrastive_loss(first, second, None, self.temperature)
