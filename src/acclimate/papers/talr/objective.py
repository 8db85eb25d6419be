"""Language modelling with a weight per token that depends on its loss (TALR, Lin et al., 2025)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from acclimate.api import BatchObjective, Outputs, View, cross_entropy


class WeightedLanguageModelling(BatchObjective):
    """Mean over the labelled tokens t of the step of w_t L_t, where L_t is the cross-entropy of t in nats.

    The weights w_t are proportional to exp(-L_t / tau), which is p_t^(1 / tau), and have no gradient. They minimize
    sum_t w_t L_t + tau sum_t w_t log w_t, so tokens that the model finds unlikely count less. With exp(+L_t / tau)
    they count more (tilted empirical risk, Li et al., ICLR 2021). A large tau gives all tokens the same weight.
    """

    name = "talr"
    chosen_only = True

    def __init__(
        self,
        favors: Literal["likely", "unlikely"] = "likely",
        tau: float | None = None,
        normalized: bool = True,
        floor: float = 0.0,
        weight: float = 1.0,
    ) -> None:
        """Set up the view of the LM loss.

        Args:
            favors: Tokens with high weights.
            tau: In nats. None for the median over the texts of the step of the mean cross-entropy of a text.
            normalized: Whether the weights of a step have mean 1, before ``floor``; else they are exp(-L_t / tau).
            floor: Minimum of a weight.
            weight: Factor of the term.
        """
        self.sign = -1.0 if favors == "likely" else 1.0
        self.tau, self.normalized, self.floor, self.weight = tau, normalized, floor, weight
        self.view = View()
        self.views = (self.view,)

    def represent(self, outputs: Outputs) -> Tensor:
        """Return for each labelled token its cross-entropy, and that of its text: (tokens, 2).

        The second column is the mean over the labelled tokens of the text at the first of them, and -1 at the others.
        """
        batch = outputs.batch
        losses = outputs.map_logits(cross_entropy, (self.view,), batch.targets)
        text = batch.host.text[batch.host.labels >= 0]
        first = torch.ones_like(text, dtype=torch.bool)
        first[1:] = text[1:] != text[:-1]
        sizes = torch.bincount(text, minlength=batch.texts).clamp(min=1)
        text, first, sizes = (batch.on_device(part) for part in (text, first, sizes))
        detached = losses.detach()
        means = detached.new_zeros(batch.texts).index_add(0, text, detached) / sizes
        return torch.stack((losses, means[text].where(first, -1)), 1)

    def loss(self, representations: Tensor) -> Tensor:
        """Return the weighted mean over all labelled tokens."""
        losses, means = representations.unbind(1)
        weights = self.weights(losses.detach(), means.detach())
        return (weights * losses).sum() / max(1, len(losses))

    def weights(self, losses: Tensor, means: Tensor) -> Tensor:
        """Return the weight of each token (tokens,).

        Args:
            losses: Cross-entropy of each token (tokens,).
            means: Mean cross-entropy of each text; negative values are left out (tokens,).
        """
        tau = means.where(means >= 0, torch.nan).nanmedian().clamp(min=1e-6) if self.tau is None else self.tau
        tilted = self.sign * losses / tau
        weights = len(losses) * tilted.softmax(0) if self.normalized else tilted.exp()
        return weights.clamp(min=self.floor)
