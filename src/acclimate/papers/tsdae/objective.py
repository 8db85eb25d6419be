"""Reconstruction of texts from their vectors (TSDAE, Wang et al., Findings of EMNLP 2021)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from acclimate.api import (
    Batch,
    DeleteWords,
    Objective,
    Outputs,
    PoolingHead,
    View,
    chosen_positions,
    cross_entropy,
    next_tokens,
)


class SentenceReconstruction(Objective):
    """Mean over tokens t of -log p(x_t | x_<t, v), in nats, where v is the vector of the text without some words.

    The decoder reads the tokens before t, and of the damaged text nothing but v, so v has to hold what the text says.
    The final special token is predicted as well; the first is given.
    """

    name = "tsdae"
    readings = 1

    def __init__(
        self,
        decode: Callable[[Tensor, Tensor, Tensor], Tensor],
        pooling: PoolingHead | None = None,
        deletion: float = 0.6,
        weight: float = 1.0,
    ) -> None:
        """Set up the view of the damaged text.

        Args:
            decode: Function of token ids, the index of the text of each token (both (rows, tokens)) and the vectors
                (texts, width) to the states of the decoder (rows, tokens, width), such as
                :meth:`acclimate.parts.modules.TiedDecoder.decode`. The head of the language model reads them.
            pooling: How the hidden states of a text become its vector; None for their mean.
            deletion: Probability that a word is deleted.
            weight: Factor of the term.
        """
        self.decode, self.pooling, self.weight = decode, pooling, weight
        self.view = View(DeleteWords(deletion))
        self.views = (self.view,)

    @staticmethod
    def _targets(batch: Batch) -> Tensor:
        """Return the token that follows each token in its text, or -100 (rows, tokens); on the CPU."""
        host = batch.host
        return torch.from_numpy(next_tokens(host.original.numpy(), host.text.numpy()))

    def count(self, batch: Batch) -> int:
        """Return the number of tokens to predict: all but the first of each text."""
        return int((self._targets(batch) >= 0).sum())

    def total(self, outputs: Outputs) -> Tensor:
        """Return the summed cross-entropy."""
        batch, targets = outputs.batch, self._targets(outputs.batch)
        states = self.decode(batch.original, batch.text, outputs.pooled(self.view, self.pooling)).flatten(0, 1)
        places = chosen_positions(targets >= 0, states.device.type)
        losses = outputs.map_states(
            cross_entropy,
            states.index_select(0, batch.on_device(places)),
            batch.on_device(targets.flatten()[places]),
        )
        return losses[: int((targets >= 0).sum())].sum()
