"""Classification of source texts with knowledge at their pivots, which pseudo-labels of the target update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from acclimate.api import (
    Batch,
    Drawing,
    DrawnObjective,
    Outputs,
    SubwordTable,
    Words,
    best_first,
    encode,
    encode_visible,
    mean_pool,
)
from acclimate.papers.dask.knowledge import Mention, grow_trees


class DrawIndices(Drawing):
    """The index of an example, which is all that is known of it; its text is read by the objective."""

    full = False

    def __init__(self, count: int) -> None:
        """Set the number of examples."""
        self.count, self.width = count, 1

    def draw(self, rng: np.random.Generator) -> tuple[np.ndarray, Sequence[int]]:
        """Return a token, and the index."""
        return np.zeros(1, dtype=np.int64), [int(rng.integers(self.count))]


class Polarity(nn.Module):
    """How often texts with a word have each label: in the source, and in the target by pseudo-labels.

    The pivots are the words for which the mean of both shares is farthest from equal shares: the sum of the absolute
    differences, for two labels the absolute value of the mean polarity 2p - 1. All state is in buffers, which
    checkpoints include.
    """

    source: Tensor
    target: Tensor
    pending: Tensor
    step: Tensor

    def __init__(self, source: np.ndarray, rate: float) -> None:
        """Begin with the source's shares in both domains.

        Args:
            source: Shares of the labels in texts with a word (words, labels).
            rate: The weight of one text of the target in the moving average.
        """
        super().__init__()
        self.rate = rate
        shares = torch.as_tensor(source, dtype=torch.float32)
        for name, value in (("source", shares), ("target", shares.clone()), ("pending", torch.zeros_like(shares))):
            self.register_buffer(name, value)
        self.register_buffer("step", torch.tensor(-1.0))

    def _apply(self, fn: Any, recurse: bool = True) -> Polarity:
        """Stay on the CPU, where pivots are chosen."""
        return self

    def pivots(self, count: int) -> list[int]:
        """Return the numbers of the words that are pivots now, the best first."""
        shares = ((self.source + self.target) / 2).double().numpy()
        scores = np.abs(shares - 1 / shares.shape[1]).sum(1)
        return best_first(scores, np.arange(len(scores)))[:count].tolist()

    def observe(self, words: Tensor, labels: Tensor) -> None:
        """Note that texts with these words have these pseudo-labels; both (occurrences,)."""
        self.pending.index_put_((words, labels), self.pending.new_ones(len(words)), accumulate=True)

    def advance(self, progress: float) -> None:
        """Update the target's shares by what was observed in the step before, when a new step begins.

        n texts with the mean label m change the shares s to (1 - rate)^n s + (1 - (1 - rate)^n) m, whatever the order
        of the texts.
        """
        if float(self.step) == np.float32(progress):
            return
        count = self.pending.sum(1, keepdim=True)
        kept = (1 - self.rate) ** count
        self.target.copy_(kept * self.target + (1 - kept) * self.pending / count.clamp(min=1))
        self.pending.zero_()
        self.step.fill_(progress)


@dataclass(eq=False)
class KnowledgeClassification(DrawnObjective):
    """Mean over drawn source texts, with the branches of their pivots, of the cross-entropy of their labels.

    The vector of a text is the mean of the last hidden states of its own tokens; branches act through attention. In a
    training step, the texts of the target get pseudo-labels, without dropout, and those that are sure enough change
    the pivots of the next step.

    Attributes:
        model: The student.
        head: From vectors of texts to logits of the labels.
        polarity: What decides the pivots.
        texts: Token ids, mentions of words with a number, and label of each source text.
        branches: Token ids of the branches of each word.
        numbers: The number of each word that can be a pivot.
        subwords: The words of the vocabulary.
        special: Ids of special tokens.
        weight: Factor of the term.
        count_pivots: Number of pivots.
        confidence: Minimum probability of a pseudo-label.
        room: See :func:`acclimate.papers.dask.knowledge.grow_trees`: maximum tokens, and positions.
    """

    name = "classification"
    readings = 3
    """A source text with branches, at most twice as long, and a target text."""

    model: PreTrainedModel
    head: nn.Module
    polarity: Polarity
    texts: Sequence[tuple[Sequence[int], Sequence[Mention], int]]
    branches: Mapping[int, Sequence[Sequence[int]]]
    numbers: Mapping[str, int]
    subwords: SubwordTable
    special: Sequence[int]
    weight: float
    count_pivots: int
    confidence: float
    room: tuple[int, int | None]

    def __post_init__(self) -> None:
        """Set up the view of the drawn texts."""
        super().__init__(DrawIndices(len(self.texts)), self.weight)

    def total(self, outputs: Outputs) -> Tensor:
        """Return the summed cross-entropy."""
        batch = outputs.batch
        if self.model.training:
            self.polarity.advance(self.progress)
        drawn = [self.texts[index] for index in self.known(batch)[:, 0].tolist()]
        pivots = self.polarity.pivots(self.count_pivots)
        branches = {number: self.branches[number] for number in pivots if number in self.branches}
        trees = grow_trees([(ids, mentions) for ids, mentions, _ in drawn], branches, *self.room)
        inputs = (batch.on_device(part) for part in (trees.ids, trees.position, trees.visible()))
        own = torch.where(trees.branch == 0, torch.arange(len(drawn))[:, None], -1)
        vectors = mean_pool(encode_visible(self.model, *inputs), own, len(drawn))
        labels = batch.on_device(torch.tensor([label for *_, label in drawn]))
        found = nn.functional.cross_entropy(self.head(vectors).float(), labels, reduction="sum")
        if self.model.training:  # last: autocast keeps the first copy of a weight, which here would have no gradient
            self._observe(batch)
        return found

    @torch.no_grad()
    def _observe(self, batch: Batch) -> None:
        """Give the target texts pseudo-labels and pass them on, for the words that can be pivots."""
        self.model.eval()
        states = encode(self.model, batch.original, batch.text)
        self.model.train()
        ids, text = batch.host.original.numpy(), batch.host.text.numpy()
        found = self.head(mean_pool(states, batch.host.text, batch.texts)).float().softmax(-1).max(-1)
        labels = torch.where(found.values >= self.confidence, found.indices, -1).tolist()  # waits once
        words = Words.of(ids, text, (text >= 0) & ~np.isin(ids, self.special), self.subwords)
        forms = words.surface_forms(ids, self.subwords, lowercase=True)
        every = [(self.numbers.get(form, -1), place) for form, place in zip(forms, words.text.tolist(), strict=True)]
        pairs = sorted({(number, place) for number, place in every if number >= 0 <= labels[place]})
        places = torch.tensor([[number, labels[place]] for number, place in pairs], dtype=torch.long).view(-1, 2)
        self.polarity.observe(*places.unbind(1))
