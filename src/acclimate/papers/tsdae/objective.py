"""Reconstruction of texts from their vectors (TSDAE, Wang et al., Findings of EMNLP 2021)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from acclimate.api import (
    Batch,
    Objective,
    Outputs,
    PoolingHead,
    Rewriting,
    View,
    Vocabulary,
    Words,
    chosen_positions,
    cross_entropy,
    make_rows,
    next_tokens,
    positions_by_text,
)


@dataclass(frozen=True)
class DeleteWords(Rewriting):
    """The text without a random part of its words, one row per text; special tokens and at least one word remain.

    Attributes:
        rate: Probability that a word is deleted.
    """

    rate: float = 0.6

    def __call__(
        self, ids: np.ndarray, text: np.ndarray, allowed: np.ndarray, vocabulary: Vocabulary, seeds: Sequence[int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Delete words of each text."""
        words = Words.of(ids, text, allowed, vocabulary.subwords)
        deleted = np.zeros(ids.size, dtype=bool)
        starts = np.searchsorted(words.text, np.arange(len(seeds) + 1))
        for number, seed in enumerate(seeds):
            first, end = starts[number], starts[number + 1]
            rng = np.random.default_rng(seed)
            gone = rng.random(end - first) < self.rate
            if gone.all() and len(gone):
                gone[rng.integers(len(gone))] = False
            tokens = slice(words.starts[first], words.starts[end])
            deleted[words.positions[tokens][np.repeat(gone, words.lengths[first:end])]] = True
        flat = ids.ravel()
        return make_rows([flat[place[~deleted[place]]] for place in positions_by_text(text)], ids, text)


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
