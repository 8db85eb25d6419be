"""What an objective asks for and what it gets: views of a batch.

A view says how one model reads the batch. The engine takes the union of the views of all objectives, runs one forward
for all that the same model reads, and hands out the slices; two objectives that ask for equal views share them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from acclimate.masking import Rewriting
from acclimate.models.batching import chosen_positions


@dataclass(frozen=True, eq=False)
class Gates:
    """Gates that a view applies to every text: (layers, units) for each part. Equal only to itself."""

    values: Mapping[str, Tensor]


@dataclass(frozen=True)
class View:
    """How a model reads the batch.

    Attributes:
        tokens: The corrupted tokens, the original ones, or the texts rewritten in another way.
        draw: Number of the dropout draw; views that differ in nothing else get independent dropout.
        gates: Gates on the heads or other units; None means ones.
        reader: The model in training, or its frozen original (no gradient, no dropout).
    """

    tokens: Literal["masked", "original"] | Rewriting = "masked"
    draw: int = 0
    gates: Gates | None = None
    reader: Literal["student", "reference"] = "student"

    @property
    def full(self) -> bool:
        """Whether it reads about as many tokens as the texts have."""
        return not isinstance(self.tokens, Rewriting) or self.tokens.full


class ViewInput(NamedTuple):
    """What a view reads: token ids, and the number of the text of each token, -1 at padding; both (rows, tokens)."""

    ids: Tensor
    text: Tensor


@dataclass(frozen=True)
class Batch:
    """Some rows of tokens with their corruption; the micro-batch that one forward reads.

    Attributes:
        original: Token ids (rows, tokens).
        masked: Corrupted ids (rows, tokens).
        labels: Original id where the token was chosen, else -100 (rows, tokens).
        text: Number of the text each token belongs to, from 0; -1 at padding (rows, tokens).
        texts: How many texts there are.
        rewritten: The texts written in the other ways that views ask for.
    """

    original: Tensor
    masked: Tensor
    labels: Tensor
    text: Tensor
    texts: int
    rewritten: dict[Rewriting, ViewInput] = field(default_factory=dict)

    def to(self, device: torch.device) -> Batch:
        """Return the batch on ``device``."""
        moved = {name: getattr(self, name).to(device) for name in ("original", "masked", "labels", "text")}
        rewritten = {how: ViewInput(ids.to(device), text.to(device)) for how, (ids, text) in self.rewritten.items()}
        return replace(self, **moved, rewritten=rewritten)

    def reading(self, tokens: Literal["masked", "original"] | Rewriting) -> ViewInput:
        """Return what a view of those ``tokens`` reads.

        Raises:
            ValueError: If the collator was not asked for that rewriting.
        """
        if isinstance(tokens, Rewriting):
            if tokens not in self.rewritten:
                raise ValueError(f"the collator of this batch does not make {tokens}; give it Engine.rewritings")
            return self.rewritten[tokens]
        return ViewInput(self.masked if tokens == "masked" else self.original, self.text)

    @property
    def chosen(self) -> Tensor:
        """Where the chosen positions are in the flattened rows, in order, and the first once more to round up."""
        return chosen_positions(self.labels >= 0)

    @property
    def tokens(self) -> int:
        """Number of real tokens."""
        return int((self.text >= 0).sum())


def mean_pool(hidden: Tensor, text: Tensor, texts: int) -> Tensor:
    """Average the hidden states of each text over its real tokens (DGA, Eq. 12).

    Args:
        hidden: (rows, tokens, width).
        text: Number of the text of each token, -1 at padding (rows, tokens).
        texts: How many texts there are.

    Returns:
        (texts, width) in float32.
    """
    real = text >= 0
    index = text[real]
    total = hidden.new_zeros(texts, hidden.shape[-1], dtype=torch.float32)
    total = total.index_add(0, index, hidden[real].float())
    return total / torch.bincount(index, minlength=texts).clamp(min=1)[:, None]


def mark_text_starts(text: Tensor) -> Tensor:
    """Return where a text begins (rows, tokens), from the number of the text of each token, -1 at padding."""
    first = torch.ones_like(text, dtype=torch.bool)
    first[:, 1:] = text[:, 1:] != text[:, :-1]
    return first & (text >= 0)


class Outputs:
    """What the forward made of the views; what is derived from them is computed once and shared."""

    def __init__(
        self,
        hidden: dict[View, Tensor],
        batch: Batch,
        heads: dict[str, Callable[[Tensor], Tensor]],
        embedded: dict[View, Tensor] | None = None,
        chosen: dict[View, Tensor] | None = None,
    ) -> None:
        """Keep what is known of each view, and the vocabulary head of each reader.

        Args:
            hidden: Hidden states (rows, tokens, width).
            batch: What was read.
            heads: From hidden states to logits, by reader.
            embedded: What entered the first layer (rows, tokens, width).
            chosen: Of views that are not in ``hidden``: the states at :attr:`Batch.chosen` only (places, width).
        """
        self._hidden, self.batch, self._heads, self._embedded = hidden, batch, heads, embedded or {}
        self._chosen = chosen or {}
        self._pooled: dict[View, Tensor] = {}
        self._logits: dict[View, Tensor] = {}

    def hidden(self, view: View) -> Tensor:
        """Last hidden states (rows, tokens, width); padding has no meaning.

        Raises:
            ValueError: If all terms that read the view are ``chosen_only``.
        """
        if view in self._chosen:
            raise ValueError("a term that is chosen_only asks for all hidden states; take that attribute back")
        return self._hidden[view]

    def embedded(self, view: View) -> Tensor:
        """What entered the first layer (rows, tokens, width), for terms whose ``embeddings`` is true."""
        return self._embedded[view]

    def pooled(self, view: View) -> Tensor:
        """Mean over the real tokens of each text: (texts, width), float32."""
        if view not in self._pooled:
            self._pooled[view] = mean_pool(self._hidden[view], self.batch.reading(view.tokens).text, self.batch.texts)
        return self._pooled[view]

    def masked_logits(self, view: View) -> Tensor:
        """Vocabulary logits at the chosen positions only, in row order: (chosen, vocabulary)."""
        return self.scored(view)[: int((self.batch.labels >= 0).sum())]

    def scored(self, view: View) -> Tensor:
        """The same, perhaps followed by rows that mean nothing: their number suits the device."""
        if view not in self._logits:
            states = (
                self._chosen[view] if view in self._chosen else self._hidden[view].flatten(0, 1)[self.batch.chosen]
            )
            self._logits[view] = self._heads[view.reader](states)
        return self._logits[view]


class Objective(ABC):
    """A loss term that is a mean over items (tokens, texts), so that micro-batches add up exactly.

    Attributes:
        name: How the term is called in logs.
        weight: Factor of the term in the total loss.
        views: The views that the term reads.
        embeddings: Whether it asks for what entered the first layer, :meth:`Outputs.embedded`.
        chosen_only: Whether it asks its views for :meth:`Outputs.masked_logits` only, which saves a part of the last
            layer where no other term asks for more.
    """

    name: str
    weight: float
    views: tuple[View, ...]
    embeddings: bool = False
    chosen_only: bool = False

    @abstractmethod
    def count(self, batch: Batch) -> int:
        """Return over how many items of this micro-batch the mean goes; may be 0."""

    @abstractmethod
    def total(self, outputs: Outputs) -> Tensor:
        """Return the sum over those items, a scalar; 0 with a graph where there are none."""


class BatchObjective(ABC):
    """A loss term that needs all texts of the effective batch at once, for example for their negatives.

    The engine collects the representations of all micro-batches, takes the gradient of the loss with respect to them,
    and carries it on through the graph of each micro-batch. Where memory does not hold all graphs at once, the others
    are read without one, and once more, with the same dropout, when it is their turn. Values and gradients are those
    of one large batch.
    """

    name: str
    weight: float
    views: tuple[View, ...]
    embeddings: bool = False
    chosen_only: bool = False

    @abstractmethod
    def represent(self, outputs: Outputs) -> Tensor:
        """Return what the loss needs of each text (or token) of a micro-batch, in order: (texts, ...).

        Those of all micro-batches are joined along the first dimension.
        """

    @abstractmethod
    def loss(self, representations: Tensor) -> Tensor:
        """Return the loss of the whole batch from (all texts, ...), a scalar mean with a graph."""
