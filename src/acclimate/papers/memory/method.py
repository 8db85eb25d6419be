"""A memory of a domain that is interpolated with any model of the same tokens (Memory Decoder, Cao et al., 2025)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from acclimate.api import (
    AdaptContext,
    Batch,
    BatchObjective,
    LanguageModelling,
    Method,
    Objective,
    Outputs,
    UserError,
    View,
    autocast,
    check_positive,
    check_single_process,
    encode,
    model_fingerprint,
    positions_by_text,
    register_method,
    step_context,
)

TOKENS_PER_ENTRY = 8
"""Tokens of text per entry, of which a masked model predicts about one in seven."""
DISTANCES = 1 << 25
"""Distances computed at a time."""


class Datastore:
    """States of a model at tokens to predict, and the tokens (Khandelwal et al., ICLR 2020)."""

    def __init__(self, keys: Tensor, tokens: Tensor, places: Tensor, neighbors: int, temperature: float) -> None:
        """Set the entries.

        Args:
            keys: States (entries, width).
            tokens: The token that follows, or that is masked, at each (entries,).
            places: The text and position of each, from :func:`find_places` (entries,).
            neighbors: Number of nearest entries of a distribution.
            temperature: Divides the squared distances.
        """
        self.keys, self.tokens, self.places, self._squares = keys, tokens, places, keys.square().sum(-1)
        self.neighbors, self.temperature = neighbors, temperature

    def find(self, queries: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """Return the tokens of the nearest entries and their probabilities, softmax(-distance^2 / temperature).

        An entry of the same text and position does not count, since its token is the answer. It is found by its place
        and not by its distance, which depends on rounding and on what is masked.

        Args:
            queries: States (positions, width).
            places: The text and position of each (positions,).

        Returns:
            Tokens and probabilities (positions, neighbors), all 0 where no entry is of another place.
        """
        step = max(1, DISTANCES // len(self.keys))
        with torch.no_grad(), torch.autocast(queries.device.type, enabled=False):
            parts = zip(queries.split(step), places.split(step), strict=True)
            found = [self._find(part.float(), own) for part, own in parts]
        tokens, chances = zip(*found, strict=True)
        return torch.cat(tokens), torch.cat(chances)

    def _find(self, queries: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
        squares = queries.square().sum(-1, keepdim=True) + self._squares - 2 * queries @ self.keys.T
        squares = squares.clamp_min(0).masked_fill(own[:, None] == self.places, torch.inf)
        nearest, entries = squares.topk(min(self.neighbors, len(self.keys)), largest=False)
        return self.tokens[entries], (-nearest / self.temperature).softmax(-1).nan_to_num(0)


def find_places(batch: Batch) -> Tensor:
    """Return a number for the text and position of each labelled token: int64 (positions,), on the batch's device.

    Equal texts have equal numbers. Different ones have different numbers, but for collisions of 56 bits.
    """
    host = batch.host
    ids, found = host.original.numpy().ravel(), np.zeros(host.text.numel(), dtype=np.int64)
    for positions in positions_by_text(host.text.numpy()):
        digest = hashlib.blake2b(ids[positions].tobytes(), digest_size=7).digest()
        found[positions] = int.from_bytes(digest, "big") + np.arange(len(positions))
    return batch.on_device(torch.from_numpy(found)[host.labels.flatten() >= 0])


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
        nearest = self.datastore.find(queries, find_places(batch))
        return outputs.map_logits(_divergence, (self.student,), *nearest).sum()


def _divergence(logits: Tensor, tokens: Tensor, chances: Tensor) -> Tensor:
    """Return the divergence at each position (positions,)."""
    logs = logits.log_softmax(-1)
    target = torch.zeros_like(logs).scatter_add_(1, tokens, chances.to(logs.dtype))
    return (torch.xlogy(target, target) - target * logs).sum(-1)


@register_method(
    "memory",
    paper="Cao et al., 2025",
    summary="a small model learns what the nearest contexts of the domain text predict, to be mixed with large ones",
)
@dataclass
class Memory(Method):
    """L = (1 - weight) L_LM + weight x mean over predicted tokens of KL(p_neighbors || p).

    p_neighbors is the distribution of the tokens at the ``neighbors`` most similar contexts of the domain text,
    without the token itself. Contexts are compared by the last hidden states of a frozen model of the same tokenizer,
    where the paper takes the input of the last feed-forward block. These have another scale, so that the paper's
    temperature makes p_neighbors sharper or flatter than it was there. The result is a memory, which ``acclimate merge
    --method memory`` and :class:`acclimate.papers.memory.merge.MemoryProcessor` mix with any model of the same
    tokenizer.

    Attributes:
        expert: The model that compares contexts, best one that was adapted to the domain; by default the base model.
        weight: Share of the divergence in the loss (paper: 0.5).
        neighbors: Number of contexts (paper: 1,024).
        temperature: Divides the squared distances (paper: 16, for states of another scale).
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

    def check(self, run: AdaptContext) -> None:
        """Check that there is one process, and load the expert."""
        check_single_process(self.name, run)
        super().check(run)
        self._expert = run.load_reader(self.expert, "similarities") if self.expert else None

    def prepare(self, run: AdaptContext) -> None:
        """Read the text with the expert."""
        which = model_fingerprint(self.expert) if self.expert else None
        found = run.cached("memory", {"expert": which, "contexts": self.entries}, lambda: self._read(run))
        if len(found["tokens"]) < 2:
            raise UserError("The method 'memory' needs at least two tokens to predict; give more text.")
        entries = (found["keys"], found["tokens"], found["places"])
        self._datastore = Datastore(*entries, self.neighbors, self.temperature)
        run.say(f"Memory: {len(found['tokens']):,} contexts")

    def _read(self, run: AdaptContext) -> dict[str, Tensor]:
        """Return the states, the tokens and the places of the contexts; states in the precision of the training."""
        model = run.model if self._expert is None else self._expert
        training = model.training
        model.eval()
        parts, count = list[tuple[Tensor, Tensor, Tensor]](), 0
        with torch.no_grad(), step_context(run.model, run.precision)(), autocast(run.precision, run.device):
            for batch in run.sample(self.entries * TOKENS_PER_ENTRY):
                there = batch.to(run.device)
                states = encode(model, there.masked, there.text).flatten(0, 1)[there.chosen[: there.labelled]]
                parts.append((states.float(), there.targets, find_places(there)))
                count += there.labelled
                if count >= self.entries:
                    break
        model.train(training)
        joined = (torch.cat(each)[: self.entries] for each in zip(*parts, strict=True))
        return dict(zip(("keys", "tokens", "places"), joined, strict=True))

    def readers(self) -> dict[str, PreTrainedModel]:
        """Return the expert."""
        return {} if self._expert is None else {"expert": self._expert}

    def objectives(self) -> list[Objective | BatchObjective]:
        """Return the LM loss and the divergence."""
        reader = "expert" if self.expert else "reference"
        return [LanguageModelling(1 - self.weight), NeighborDistillation(self._datastore, reader, self.weight)]
