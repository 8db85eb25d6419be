"""Contrastive losses over texts: DGA (Ke et al., EMNLP 2022, Section 3.2) and SimCSE (Gao et al., EMNLP 2021)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from acclimate.parts.objectives.base import BatchObjective, Gates, Outputs, PoolingHead, View

Similarity = Literal["cosine", "dot"]


def similarities(anchors: Tensor, keys: Tensor, kind: Similarity = "cosine") -> Tensor:
    """Return the similarity of every anchor to every key.

    The product is computed in float32 even under autocast: near one, bfloat16 rounds a cosine to steps of 0.004, which
    a temperature of 0.01 turns into steps of 0.4 in the logits.

    Args:
        anchors: (..., anchors, width).
        keys: (..., keys, width).
        kind: Cosine, or plain dot product.

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
    """Compute Eq. 15 of DGA, averaged over texts.

    For each text, the numerator is the similarity to its own positive. The denominator sums over the positives of all
    texts and, if given, the negatives of all texts.

    Args:
        anchor: (texts, width).
        positive: (texts, width).
        negative: (texts, width), or None for the loss without negatives (Eq. 1).
        temperature: Divides the cosine similarities.

    Returns:
        A scalar.
    """
    others = positive if negative is None else torch.cat([positive, negative])
    own = torch.arange(len(anchor), device=anchor.device)
    return nn.functional.cross_entropy(similarities(anchor, others) / temperature, own)


class GeneralKnowledgeContrast(BatchObjective):
    """Contrast of full knowledge (under two dropout masks) with general knowledge (Eq. 11 to 15).

    The general knowledge of a text is its representation with the normalized importances as gates.

    Attributes:
        temperature: Divides the cosine similarities; 0.05 in the paper.
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
            importance: Normalized importances (layers, units) in [0, 1] of each part.
            temperature: Divides the cosine similarities.
            weight: The paper's lambda.
            tokens: With ``"masked"`` the anchor shares the view of the LM loss, so each text is read three times.
                With ``"original"`` (as in the released code) the unmasked text is read three times in addition.
            knowledge: What general knowledge is contrasted with: ``"full"`` (no gates), or ``"domain"`` (one minus
                the importances as gates), the ablation "domain-specific" of Table 3. The latter does not share the
                view of the LM loss.
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
        """Return the pooled anchor, positive and general representations: (texts, 3, width)."""
        return torch.stack([outputs.pooled(view) for view in self.views], dim=1)

    def loss(self, representations: Tensor) -> Tensor:
        """Return Eq. 15 over all texts."""
        anchor, positive, general = representations.unbind(1)
        return contrastive_loss(anchor, positive, general, self.temperature)


class TextContrast(BatchObjective):
    """Mean over texts of -log( exp(cos(z_i, z_i') / t) / sum_j exp(cos(z_i, z_j') / t) ).

    z and z' are the vectors of a text under two dropout masks; j runs over all texts of the step.
    """

    name = "simcse"

    def __init__(
        self,
        weight: float = 1.0,
        temperature: float = 0.05,
        tokens: Literal["original", "masked"] = "original",
        pooling: PoolingHead | None = None,
    ) -> None:
        """Set up the two views.

        Args:
            weight: Factor of the term.
            temperature: Divides the cosines.
            tokens: With ``"original"`` the unmasked text is read twice, besides the view of the LM loss, as in SimCSE
                and in the DGA paper. With ``"masked"`` one of the two is the view of the LM loss, which saves one of
                three forward passes; but both are then masked at the same positions, which reveals the pair.
            pooling: How the hidden states of a text become its vector; None for their mean.
        """
        self.weight, self.temperature, self.pooling = weight, temperature, pooling
        self.views = (View(tokens, draw=0), View(tokens, draw=1))

    def represent(self, outputs: Outputs) -> Tensor:
        """Return both vectors of each text: (texts, 2, width)."""
        return torch.stack([outputs.pooled(view, self.pooling) for view in self.views], dim=1)

    def loss(self, representations: Tensor) -> Tensor:
        """Return the contrast over all texts."""
        first, second = representations.unbind(1)
        return contrastive_loss(first, second, None, self.temperature)
