"""Agreement and disagreement of hidden states with those of the model before the adaptation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from torch import Tensor, nn

from acclimate.api import Batch, DropTokens, Objective, Outputs, Rewriting, View, Vocabulary, positions_by_text


@dataclass(frozen=True)
class RandomPrompt(Rewriting):
    """The original text with the embeddings of random words as its prompt.

    ``prompt`` are the ids of the virtual tokens, and ``size`` is the number of rows of the embedding table.
    """

    prompt: tuple[int, ...]
    size: int

    def __call__(
        self, ids: np.ndarray, text: np.ndarray, allowed: np.ndarray, vocabulary: Vocabulary, seeds: Sequence[int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draw as many words as there are virtual tokens for each text, with its seed."""
        found = ids.ravel().copy()
        for positions, seed in zip(positions_by_text(text), seeds, strict=True):
            own = positions[np.isin(found[positions], self.prompt)]
            words = np.random.default_rng(seed).choice(vocabulary.ordinary, len(own))
            found[own] += self.size * (1 + words)
        return found.reshape(ids.shape), text


def squared_distance(states: Tensor, before: Tensor) -> Tensor:
    """Return ||h - h_0||^2 / width of each token (tokens,)."""
    return (states - before).square().mean(-1)


def squared_cosine(states: Tensor, before: Tensor) -> Tensor:
    """Return cos(h, h_0)^2 of each token (tokens,), which is 0 where the two are orthogonal."""
    return nn.functional.cosine_similarity(states, before, dim=-1).square()


class StateComparison(Objective):
    """Mean over the tokens of the texts, without prompts, of a comparison of the states h and h_0.

    h are the last states of the student, which reads ``tokens``, and h_0 those of the reference for the original text
    without a prompt. ``compare`` maps both (tokens, width) to the value of each token.
    """

    def __init__(
        self,
        name: str,
        compare: Callable[[Tensor, Tensor], Tensor],
        tokens: Literal["original"] | RandomPrompt,
        prompt: tuple[int, ...],
        weight: float,
    ) -> None:
        """Set up the views; ``prompt`` are the ids of the virtual tokens."""
        self.name, self.compare, self.weight = name, compare, weight
        self.plain = View(DropTokens(prompt), reader="reference")
        self.views = (View(tokens), self.plain)

    def count(self, batch: Batch) -> int:
        """Return the number of real tokens without prompts."""
        return int((batch.host.view_input(self.plain.tokens).text >= 0).sum())

    def total(self, outputs: Outputs) -> Tensor:
        """Return the sum over these tokens."""
        places = outputs.batch.positions(self.plain.tokens)
        states = [outputs.hidden(view).flatten(0, 1).index_select(0, places).float() for view in self.views]
        return self.compare(*states).sum()
