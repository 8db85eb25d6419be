"""Token rows become the micro-batches of each step, the same ones whenever the same step is asked for.

A step is a function of the seed and its number alone. So a resumed run reads what the killed one would have read, and
no state of a loader has to be saved.

Where a step is cut into micro-batches: as little padding as can be had for the number of pieces.

In which order texts are read: an epoch visits each once, and a step that reaches over its end holds none twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from acclimate.errors import UserError
from acclimate.masking import IGNORE_INDEX, Masking, Rewriting, Vocabulary
from acclimate.models.batching import FEWEST_BATCHES, MINIMAL_PADDING, PaddingPolicy
from acclimate.objectives import Batch, ViewInput
from acclimate.options.training import Layout
from acclimate.training.distributed import ProcessGroup


def split_micro_batches(lengths: Sequence[int], limit: int, grain: PaddingPolicy) -> list[slice]:
    """Cut rows, in their order, into micro-batches so that padding and the price of each piece add up to the least.

    Of all ways to cut it is the cheapest (dynamic programming over the places to cut at).

    Args:
        lengths: Tokens of each row.
        limit: Tokens of a micro-batch at most, padding counted by its price; a row that is longer stands alone.
        grain: What widths are rounded up to, and the prices of padding and of a micro-batch in tokens.

    Returns:
        The rows of each micro-batch.
    """
    total = len(lengths)
    widths = np.array([grain.padded_width(length) for length in lengths], dtype=np.int64)
    before = np.concatenate([[0], np.cumsum(lengths)])
    cheapest = np.full(total + 1, np.inf)
    cheapest[0] = 0
    begin = np.zeros(total + 1, dtype=np.int64)
    for end in range(1, total + 1):
        first = min(int(np.searchsorted(before, before[end] - limit)), end - 1)  # without padding it is too much
        width = np.maximum.accumulate(widths[first:end][::-1])  # of the pieces that begin one, two, ... rows before
        rows = np.arange(1, len(width) + 1)
        read = grain.cost(before[end] - before[end - rows], rows * width)
        price = np.where((read <= limit) | (rows == 1), read + grain.batch_overhead + cheapest[end - rows], np.inf)
        best = int(price.argmin())
        cheapest[end], begin[end] = price[best], end - 1 - best
    cuts = []
    end = total
    while end:
        cuts.append(slice(int(begin[end]), end))
        end = int(begin[end])
    return cuts[::-1]


def fewest_micro_batches(lengths: Sequence[int], limit: int, grain: PaddingPolicy) -> int:
    """Return how many micro-batches rows need at least; the arguments are those of :func:`split_micro_batches`.

    Each takes what fits, which is the fewest in all, since a part of one that fits fits as well.
    """
    pieces = rows = width = real = 0
    for length in lengths:
        rows, width, real = rows + 1, max(width, grain.padded_width(length)), real + length
        if rows == 1 or grain.cost(real, rows * width) > limit:
            pieces, rows, width, real = pieces + 1, 1, grain.padded_width(length), length
    return pieces


class EpochSampler:
    """Which texts each step reads, a function of the seed and the step alone.

    Each epoch has an order drawn anew, and a step may reach over the end of one. A text that was among the last of an
    epoch and would come again in the same step changes places with a later one: a contrast between the texts of a
    step would take it as a negative of itself. Where an epoch has fewer than three steps some may stay.
    """

    def __init__(self, texts: int, batch_size: int, seed: int) -> None:
        """Draw nothing yet.

        Args:
            texts: How many there are.
            batch_size: Texts of a step.
            seed: Of the draws.
        """
        self.texts, self.batch_size, self.seed = texts, batch_size, seed
        self.epoch = lru_cache(maxsize=2)(self._epoch)

    def of(self, step: int) -> list[int]:
        """Return the texts of a step, by number."""
        places = range(step * self.batch_size, (step + 1) * self.batch_size)
        return [int(self.epoch(place // self.texts)[place % self.texts]) for place in places]

    def _epoch(self, number: int) -> np.ndarray:
        """Return the order of an epoch (texts,)."""
        order = self._drawn(number)
        before = self._shared_with_next_epoch(number - 1) if number else 0
        if not before:
            return order
        # Only the middle changes places with the beginning: the end is what the next epoch has to know of this one.
        beginning, end = self.batch_size - before, self.texts - self._shared_with_next_epoch(number)
        twice = np.isin(order[:end], self._drawn(number - 1)[-before:])
        here, there = twice[:beginning].nonzero()[0], beginning + (~twice[beginning:]).nonzero()[0]
        here, there = here[: len(there)], there[: len(here)]
        order[here], order[there] = order[there], order[here]
        return order

    def _drawn(self, epoch: int) -> np.ndarray:
        return np.random.default_rng([self.seed, 1, epoch]).permutation(self.texts)

    def _shared_with_next_epoch(self, epoch: int) -> int:
        """Return how many texts of an epoch share a step with those of the next one."""
        return min(self.texts, (epoch + 1) * self.texts % self.batch_size)


def make_vocabulary(tokenizer: PreTrainedTokenizerBase) -> Vocabulary:
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
        grain: What the widths of micro-batches are rounded up to, and how many of these there should be.
    """

    vocabulary: Vocabulary
    special: np.ndarray
    padding: int
    masking: Masking
    tokens: int
    layout: Layout = "padded"
    rewritings: tuple[Rewriting, ...] = ()
    grain: PaddingPolicy = MINIMAL_PADDING

    @classmethod
    def of(
        cls,
        tokenizer: PreTrainedTokenizerBase,
        masking: Masking,
        tokens: int,
        layout: Layout = "padded",
        rewritings: Sequence[Rewriting] = (),
        grain: PaddingPolicy = MINIMAL_PADDING,
    ) -> Collator:
        """Make a collator for a tokenizer."""
        padding = tokenizer.pad_token_id
        special = np.array(sorted(tokenizer.all_special_ids))
        padding = padding if isinstance(padding, int) else 0
        return cls(make_vocabulary(tokenizer), special, padding, masking, tokens, layout, tuple(rewritings), grain)

    def __call__(self, texts: Sequence[np.ndarray], rng: np.random.Generator) -> list[Batch]:
        """Cut texts (token ids with special tokens) into micro-batches and corrupt them.

        Which tokens are hidden, and how texts are rewritten, depends on the texts and ``rng`` alone, not on the cut:
        methods with other views, machines with other memory and runs of several processes hide the same ones.
        """
        if not texts:
            return []
        ordered = sorted(texts, key=len, reverse=True)
        lengths = [len(text) for text in ordered]
        masked, labels = self._corrupt(ordered, rng)
        # A stream of its own: a method that asks for rewritings masks the same tokens as one that does not.
        seeds = rng.spawn(1)[0].integers(2**63, size=len(ordered))
        return [
            self._batch(part, ordered, masked, labels, seeds)
            for part in self._cut(self._rows(lengths), lengths, self.tokens)
        ]

    def for_processes(self, texts: Sequence[np.ndarray], size: int) -> Collator:
        """Return the collator that cuts these texts into micro-batches that ``size`` processes can share evenly.

        It has the smallest limit with which there are no more of them than with this one's, rounded up to a multiple
        of ``size``: so they are of about the same size.
        """
        lengths = sorted(map(len, texts), reverse=True)
        widths = [sum(lengths[place] for place in row) for row in self._rows(lengths)]
        high = max(1, min(self.tokens, sum(lengths)))
        most = -(-fewest_micro_batches(widths, high, self.grain) // size) * size
        low = 1
        while low < high:
            middle = (low + high) // 2
            if fewest_micro_batches(widths, middle, self.grain) <= most:
                high = middle
            else:
                low = middle + 1
        return replace(self, tokens=high, grain=self.grain._replace(batch_overhead=FEWEST_BATCHES))

    def _rows(self, lengths: list[int]) -> list[list[int]]:
        """Put texts, by their places, longest first, into rows: one each, or first-fit into rows of the longest."""
        if self.layout == "padded":
            return [[place] for place in range(len(lengths))]
        rows: list[list[int]] = []
        room: list[int] = []
        for place, length in enumerate(lengths):
            found = next((row for row, free in enumerate(room) if free >= length), None)
            if found is None:
                rows.append([place])
                room.append(lengths[0] - length)
            else:
                rows[found].append(place)
                room[found] -= length
        return rows

    def _cut(self, rows: list[list[int]], lengths: list[int], limit: int) -> Iterator[list[list[int]]]:
        """Yield the rows of each micro-batch."""
        for part in split_micro_batches([sum(lengths[place] for place in row) for row in rows], limit, self.grain):
            yield rows[part]

    def _corrupt(self, texts: list[np.ndarray], rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return corrupted ids and labels, a text a row: both (texts, tokens of the longest)."""
        ids, text = self._pad_rows([[place] for place in range(len(texts))], texts, len(texts[0]))
        allowed = self._maskable_positions(ids, text)
        masked, labels = self.masking(ids, text, allowed, self.vocabulary, rng)
        assert ((labels == IGNORE_INDEX) | allowed).all()
        return masked, labels

    def _pad_rows(self, rows: list[list[int]], texts: list[np.ndarray], width: int) -> tuple[np.ndarray, np.ndarray]:
        """Return ids, and the number of the text of each token; both (rows, width)."""
        ids = np.full((len(rows), width), self.padding, dtype=np.int64)
        text = np.full((len(rows), width), -1, dtype=np.int64)
        for number, (row, span, place) in enumerate(_text_spans(rows, texts)):
            ids[row, span], text[row, span] = texts[place], number
        return ids, text

    def _maskable_positions(self, ids: np.ndarray, text: np.ndarray) -> np.ndarray:
        return (text >= 0) & ~np.isin(ids, self.special)

    def _batch(
        self,
        rows: list[list[int]],
        texts: list[np.ndarray],
        masked: np.ndarray,
        labels: np.ndarray,
        seeds: np.ndarray,
    ) -> Batch:
        width = self.grain.padded_width(max(sum(len(texts[place]) for place in row) for row in rows))
        ids, text = self._pad_rows(rows, texts, width)
        hidden, wanted = ids.copy(), np.full_like(ids, IGNORE_INDEX)
        here = []
        for row, span, place in _text_spans(rows, texts):
            here.append(seeds[place])
            length = len(texts[place])
            hidden[row, span], wanted[row, span] = masked[place, :length], labels[place, :length]
        allowed = self._maskable_positions(ids, text)
        rewritten = {}
        for how in self.rewritings:
            new = how(ids, text, allowed, self.vocabulary, here)
            rewritten[how] = ViewInput(torch.from_numpy(new[0]), torch.from_numpy(new[1]))
        tensors = [torch.from_numpy(array) for array in (ids, hidden, wanted, text)]
        return Batch(tensors[0], tensors[1], tensors[2], tensors[3], sum(map(len, rows)), rewritten)


def _text_spans(rows: list[list[int]], texts: list[np.ndarray]) -> Iterator[tuple[int, slice, int]]:
    """Yield for each text of some rows its row, where in it it stands, and its place among all texts."""
    for row, members in enumerate(rows):
        start = 0
        for place in members:
            yield row, slice(start, start + len(texts[place])), place
            start += len(texts[place])


class StepDataset(Dataset):
    """The micro-batches of every step: item ``i`` is the list for step ``i``."""

    def __init__(
        self,
        rows: Sequence[np.ndarray],
        collator: Collator,
        *,
        batch_size: int,
        steps: int,
        seed: int,
        group: ProcessGroup | None = None,
    ) -> None:
        """Set up ``steps`` steps of ``batch_size`` texts each, which the processes of ``group`` share.

        Raises:
            UserError: If there are fewer texts in a step than processes.
        """
        self.rows, self.collator, self.group = rows, collator, group or ProcessGroup()
        if batch_size < self.group.size:
            raise UserError(f"batch-size {batch_size} is less than the {self.group.size} processes; give each a text.")
        self.batch_size, self.steps, self.seed = batch_size, steps, seed
        self._order = EpochSampler(len(rows), batch_size, seed)

    def __len__(self) -> int:
        return self.steps

    def indices(self, step: int) -> list[int]:
        """Return which texts step ``step`` reads."""
        return self._order.of(step)

    def __getitem__(self, step: int) -> list[Batch]:
        texts = [np.asarray(self.rows[index]) for index in self.indices(step)]
        collator = self.collator
        if self.group.size > 1:
            # Every process makes all micro-batches, which costs little, and reads its share: none is without one.
            collator = collator.for_processes(texts, self.group.size)
        batches: list[Batch] = []
        while len(batches) < self.group.size:
            batches = collator(texts, np.random.default_rng([self.seed, 2, step]))
            collator = replace(collator, tokens=collator.tokens // 2, layout="padded")
        return self.group.assign_balanced(batches, [collator.grain.batch_cost(batch.text) for batch in batches])
