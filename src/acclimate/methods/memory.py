"""A memory of a domain that is interpolated with any model of the same tokens (Memory Decoder, Cao et al., 2025)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from acclimate.errors import UserError, check_positive
from acclimate.methods import Method, register
from acclimate.models import encode
from acclimate.models.checkpoints import model_fingerprint
from acclimate.objectives import Batch, BatchObjective, LanguageModelling, Objective, Outputs, View
from acclimate.training.method import AdaptContext

SAME = 1e-4
"""Squared distance, relative to that of the query from zero, below which the nearest entry is the query itself."""
TOKENS_PER_ENTRY = 8
"""Tokens of text per entry, of which a masked model predicts about one in seven."""
DISTANCES = 1 << 25
"""Distances computed at a time."""


class Datastore:
    """States of a model at tokens to predict, and the tokens (Khandelwal et al., ICLR 2020)."""

    def __init__(self, keys: Tensor, tokens: Tensor, neighbors: int, temperature: float) -> None:
        """Set the entries.

        Args:
            keys: States (entries, width).
            tokens: The token that follows, or that is masked, at each (entries,).
            neighbors: Number of nearest entries of a distribution.
            temperature: Divides the squared distances.
        """
        self.keys, self.tokens, self._squares = keys, tokens, keys.square().sum(-1)
        self.neighbors, self.temperature = neighbors, temperature

    def find(self, queries: Tensor) -> tuple[Tensor, Tensor]:
        """Return the tokens of the nearest entries and their probabilities, softmax(-distance^2 / temperature).

        Where the nearest entry is the query itself, it does not count.

        Args:
            queries: States (positions, width).

        Returns:
            Tokens and probabilities (positions, neighbors + 1), of which at least one has no probability if there are
            more entries than neighbors.
        """
        step = max(1, DISTANCES // len(self.keys))
        with torch.no_grad(), torch.autocast(queries.device.type, enabled=False):
            found = [self._find(part.float()) for part in queries.split(step)]
        tokens, chances = zip(*found, strict=True)
        return torch.cat(tokens), torch.cat(chances)

    def _find(self, queries: Tensor) -> tuple[Tensor, Tensor]:
        own = queries.square().sum(-1, keepdim=True)
        squares = (own + self._squares - 2 * queries @ self.keys.T).clamp_min(0)
        nearest, places = squares.topk(min(self.neighbors + 1, len(self.keys)), largest=False, sorted=True)
        scores = -nearest / self.temperature
        is_query = nearest[:, 0] <= SAME * own[:, 0]
        scores[:, 0].masked_fill_(is_query, -torch.inf)
        if len(self.keys) > self.neighbors:
            scores[:, -1].masked_fill_(~is_query, -torch.inf)
        return self.tokens[places], scores.softmax(-1)


class NeighborDistillation(Objective):
    """Mean over predicted tokens of KL(p || q): p of the nearest entries of a datastore, q of the model."""

    name = "memory"

    def __init__(self, datastore: Datastore | None, reader: str, weight: float) -> None:
        """Set the view of the model in training and that of the model whose states are compared."""
        self.datastore, self.weight = datastore, weight
        self.student, self.reader = View(), View(reader=reader)
        self.views = (self.student, self.reader)

    def count(self, batch: Batch) -> int:
        """Return the number of predicted tokens."""
        return batch.labelled

    def total(self, outputs: Outputs) -> Tensor:
        """Return the summed divergences."""
        assert self.datastore is not None, "the method has been prepared"
        batch = outputs.batch
        queries = outputs.hidden(self.reader).flatten(0, 1)[batch.chosen[: batch.labelled]]
        return outputs.map_logits(_divergence, (self.student,), *self.datastore.find(queries)).sum()


def _divergence(logits: Tensor, tokens: Tensor, chances: Tensor) -> Tensor:
    """Return the divergence at each position (positions,)."""
    logs = logits.log_softmax(-1)
    target = torch.zeros_like(logs).scatter_add_(1, tokens, chances.to(logs.dtype))
    return (torch.xlogy(target, target) - target * logs).sum(-1)


@register(
    "memory",
    aliases=("memory-decoder",),
    paper="Cao et al., 2025",
    summary="a small model learns what the nearest contexts of the domain text predict, to be mixed with large ones",
)
@dataclass
class Memory(Method):
    """L = (1 - weight) L_LM + weight x mean over predicted tokens of KL(p_neighbors || p).

    p_neighbors is the distribution of the tokens at the ``neighbors`` most similar contexts of the domain text,
    without the token itself. Contexts are compared by the last hidden states of a frozen model of the same tokenizer,
    where the paper takes the input of the last feed-forward block. The result is a memory, which ``acclimate merge
    --method memory`` and :class:`acclimate.merging.memory.MemoryProcessor` mix with any model of the same tokenizer.

    Attributes:
        expert: The model that compares contexts, best one that was adapted to the domain; by default the base model.
        weight: Share of the divergence in the loss (paper: 0.5).
        neighbors: Number of contexts (paper: 1,024).
        temperature: Divides the squared distances (paper: 16).
        entries: Maximum contexts that are kept, from a random part of the text. Memory and time grow with them.
    """

    purpose: ClassVar[str] = "Forget less"
    cost: ClassVar[float] = 3.0
    preparation: ClassVar[str] = "reading the text with the expert"
    files: ClassVar[tuple[str, ...]] = ("expert",)

    expert: str | None = None
    weight: float = 0.5
    neighbors: int = 1024
    temperature: float = 16.0
    entries: int = 100_000

    def __post_init__(self) -> None:
        """Validate the parameters."""
        check_positive(neighbors=self.neighbors, temperature=self.temperature, entries=self.entries)
        if not 0 < self.weight <= 1:
            raise UserError(f"'weight' is a share of the loss, more than 0 and at most 1, not {self.weight:g}.")
        self._datastore: Datastore | None = None  # set by `prepare`
        self._expert: PreTrainedModel | None = None

    def prepare(self, run: AdaptContext) -> None:
        """Load the expert and read the text with it."""
        if run.group.size > 1:
            raise UserError("The method 'memory' runs in one process; start it without torchrun or accelerate.")
        self._expert = run.load_reader(self.expert, "similarities") if self.expert else None
        which = model_fingerprint(self.expert) if self.expert else None
        found = run.cached("memory", {"expert": which, "entries": self.entries}, lambda: self._read(run))
        if len(found["tokens"]) < 2:
            raise UserError("The method 'memory' needs at least two tokens to predict; give more text.")
        self._datastore = Datastore(found["keys"], found["tokens"], self.neighbors, self.temperature)
        run.say(f"Memory: {len(found['tokens']):,} contexts")

    def _read(self, run: AdaptContext) -> dict[str, Tensor]:
        """Return the states and the tokens of the contexts."""
        model = run.model if self._expert is None else self._expert
        training = model.training
        model.eval()
        keys, tokens, count = [], [], 0
        with torch.no_grad():
            for batch in run.sample(self.entries * TOKENS_PER_ENTRY):
                there = batch.to(run.device)
                states = encode(model, there.masked, there.text).flatten(0, 1)[there.chosen[: there.labelled]]
                keys.append(states.float())
                tokens.append(there.targets)
                count += there.labelled
                if count >= self.entries:
                    break
        model.train(training)
        return {"keys": torch.cat(keys)[: self.entries], "tokens": torch.cat(tokens)[: self.entries]}

    def readers(self) -> dict[str, PreTrainedModel]:
        """Return the expert."""
        return {} if self._expert is None else {"expert": self._expert}

    def objectives(self) -> list[Objective | BatchObjective]:
        """Return the LM loss and the divergence."""
        reader = "expert" if self.expert else "reference"
        return [LanguageModelling(1 - self.weight), NeighborDistillation(self._datastore, reader, self.weight)]
