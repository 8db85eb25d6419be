"""Token rows become the micro-batches of each step, the same ones whenever the same step is asked for.

A step is a function of the seed and its number alone. So a resumed run reads what the killed one would have read, and
no state of a loader has to be saved.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from acclimate.errors import UserError
from acclimate.masking import IGNORED, Masking, Rewriting, Vocabulary
from acclimate.objectives import Batch, Reading
from acclimate.training.processes import Processes

Layout = Literal["padded", "packed"]


def vocabulary_of(tokenizer: PreTrainedTokenizerBase) -> Vocabulary:
    """Return what masking needs to know of a tokenizer."""
    ordinary = np.setdiff1d(np.arange(len(tokenizer)), np.array(tokenizer.all_special_ids))
    assert isinstance(tokenizer.mask_token_id, int)
    return Vocabulary(tokenizer.mask_token_id, ordinary, tokenizer)


@dataclass(frozen=True)
class Collator:
    """Makes micro-batches out of token rows.

    Attributes:
        vocabulary: What may stand in for a masked token.
        special: Ids that are never masked.
        padding: Id of the padding token.
        masking: Which tokens are hidden.
        tokens: Tokens of a micro-batch, padding included; a single longer text makes one of its own.
        layout: ``"padded"`` gives each text a row, texts of like length together; ``"packed"`` puts several texts in
            a row without letting them see each other.
        rewritings: Other ways to write the texts that views ask for.
    """

    vocabulary: Vocabulary
    special: np.ndarray
    padding: int
    masking: Masking
    tokens: int
    layout: Layout = "padded"
    rewritings: tuple[Rewriting, ...] = ()

    @classmethod
    def of(
        cls,
        tokenizer: PreTrainedTokenizerBase,
        masking: Masking,
        tokens: int,
        layout: Layout = "padded",
        rewritings: Sequence[Rewriting] = (),
    ) -> Collator:
        """Make a collator for a tokenizer."""
        padding = tokenizer.pad_token_id
        special = np.array(sorted(tokenizer.all_special_ids))
        padding = padding if isinstance(padding, int) else 0
        return cls(vocabulary_of(tokenizer), special, padding, masking, tokens, layout, tuple(rewritings))

    def __call__(self, texts: Sequence[np.ndarray], rng: np.random.Generator) -> list[Batch]:
        """Cut texts (token ids with special tokens) into micro-batches and corrupt them."""
        order = sorted(range(len(texts)), key=lambda index: -len(texts[index]))
        ordered = [texts[index] for index in order]
        return [self._batch(rows, rng) for rows in self._cut(self._rows(ordered))]

    def _rows(self, texts: list[np.ndarray]) -> list[list[np.ndarray]]:
        """Put texts, longest first, into rows: one each, or first-fit into rows of the longest text."""
        if self.layout == "padded" or not texts:
            return [[text] for text in texts]
        width = len(texts[0])
        rows: list[list[np.ndarray]] = []
        room: list[int] = []
        for text in texts:
            place = next((row for row, free in enumerate(room) if free >= len(text)), None)
            if place is None:
                rows.append([text])
                room.append(width - len(text))
            else:
                rows[place].append(text)
                room[place] -= len(text)
        return rows

    def _cut(self, rows: list[list[np.ndarray]]) -> Iterator[list[list[np.ndarray]]]:
        part: list[list[np.ndarray]] = []
        width = 0
        for row in rows:
            length = sum(len(text) for text in row)
            if part and max(width, length) * (len(part) + 1) > self.tokens:
                yield part
                part, width = [], 0
            part.append(row)
            width = max(width, length)
        if part:
            yield part

    def _batch(self, rows: list[list[np.ndarray]], rng: np.random.Generator) -> Batch:
        width = max(sum(len(text) for text in row) for row in rows)
        ids = np.full((len(rows), width), self.padding, dtype=np.int64)
        text = np.full((len(rows), width), -1, dtype=np.int64)
        number = 0
        for row, members in enumerate(rows):
            start = 0
            for member in members:
                ids[row, start : start + len(member)] = member
                text[row, start : start + len(member)] = number
                start += len(member)
                number += 1
        allowed = (text >= 0) & ~np.isin(ids, self.special)
        masked, labels = self.masking(ids, text, allowed, self.vocabulary, rng)
        assert ((labels == IGNORED) | allowed).all()
        tensors = [torch.from_numpy(array) for array in (ids, masked, labels, text)]
        rewritten = self._rewrite(ids, text, allowed, rng)
        return Batch(tensors[0], tensors[1], tensors[2], tensors[3], number, rewritten)

    def _rewrite(
        self, ids: np.ndarray, text: np.ndarray, allowed: np.ndarray, rng: np.random.Generator
    ) -> dict[Rewriting, Reading]:
        if not self.rewritings:
            return {}
        # A stream of its own: a method that asks for rewritings masks the same tokens as one that does not.
        seed = int(rng.spawn(1)[0].integers(2**63))
        made = {}
        for how in self.rewritings:
            new = how(ids, text, allowed, self.vocabulary, np.random.default_rng(seed))
            made[how] = Reading(torch.from_numpy(new[0]), torch.from_numpy(new[1]))
        return made


class Steps(Dataset):
    """The micro-batches of every step: item ``i`` is the list for step ``i``.

    Each epoch visits every text once in an order drawn anew; a step may reach over the end of an epoch.
    """

    def __init__(
        self,
        rows: Sequence[np.ndarray],
        collator: Collator,
        *,
        batch_size: int,
        steps: int,
        seed: int,
        group: Processes | None = None,
    ) -> None:
        """Set up ``steps`` steps of ``batch_size`` texts each, which the processes of ``group`` share.

        Raises:
            UserError: If there are fewer texts in a step than processes.
        """
        self.rows, self.collator, self.group = rows, collator, group or Processes()
        if batch_size < self.group.size:
            raise UserError(f"batch-size {batch_size} is less than the {self.group.size} processes; give each a text.")
        self.batch_size, self.steps, self.seed = batch_size, steps, seed
        self._order = lru_cache(maxsize=2)(self._draw_order)

    def _draw_order(self, epoch: int) -> np.ndarray:
        return np.random.default_rng([self.seed, 1, epoch]).permutation(len(self.rows))

    def __len__(self) -> int:
        return self.steps

    def indices(self, step: int) -> list[int]:
        """Return which texts step ``step`` reads."""
        places = range(step * self.batch_size, (step + 1) * self.batch_size)
        return [int(self._order(place // len(self.rows))[place % len(self.rows)]) for place in places]

    def __getitem__(self, step: int) -> list[Batch]:
        texts = [np.asarray(self.rows[index]) for index in self.indices(step)]
        collator = self.collator
        if self.group.size > 1:
            # Every process makes all micro-batches, which costs little, and reads its share: none is without one.
            collator = replace(collator, tokens=min(collator.tokens, sum(map(len, texts)) // self.group.size))
        batches: list[Batch] = []
        while len(batches) < self.group.size:
            batches = collator(texts, np.random.default_rng([self.seed, 2, step]))
            collator = replace(collator, tokens=collator.tokens // 2, layout="padded")
        return self.group.share(batches)
