"""From token rows to the micro-batches of each step.

What a step reads depends only on the seed and the number of the step. A resumed run therefore reads what the killed
run would have read, and no state of a data loader has to be saved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from acclimate.base.errors import UserError
from acclimate.data.chat import plain_ids
from acclimate.data.token_dataset import Rows
from acclimate.engine.cutting import fewest_micro_batches, join_team, mask_blocks, pack_best_fit, split_micro_batches
from acclimate.engine.distributed import ProcessGroup
from acclimate.engine.row_options import Layout
from acclimate.engine.sampler import EpochSampler, StepOrder
from acclimate.models.batching import FEWEST_BATCHES, MINIMAL_PADDING, PaddingPolicy
from acclimate.models.kinds import ModelKind
from acclimate.parts.masking import IGNORE_INDEX, Masking, Rewriting, Strategy, Vocabulary
from acclimate.parts.masking.base import make_vocabulary
from acclimate.parts.masking.pairs import default_corruption
from acclimate.parts.objectives import Batch, ViewInput

MEASURED_STEPS, MEASURED_TEXTS = 100, 25_600
"""Maximum numbers of steps and texts from which the share of padding is estimated."""


@dataclass(frozen=True)
class Collator:
    """Makes micro-batches out of token rows.

    Attributes:
        vocabulary: The tokens that may replace a masked one.
        special: Ids that are never masked.
        padding: Id of the padding token.
        masking: Masking strategy.
        tokens: Maximum tokens per micro-batch, with padding counted at its cost; a longer row is a micro-batch by
            itself.
        layout: ``"padded"`` has one text per row, with texts of similar length together; ``"packed"`` puts
            several texts into a row, where they do not attend to each other.
        capacity: Maximum tokens per packed row, unless the longest text of a step has more.
        maskings: Masking of the texts of some sources, by index of the source, instead of ``masking``.
        rewritings: Ways of rewriting the texts that views need.
        policy: Rounding of the widths of micro-batches, and the cost of another micro-batch.
        kind: The kind of the model, which determines the labels.
    """

    vocabulary: Vocabulary
    special: np.ndarray
    padding: int
    masking: Masking
    kind: ModelKind
    tokens: int
    layout: Layout = "padded"
    rewritings: tuple[Rewriting, ...] = ()
    policy: PaddingPolicy = MINIMAL_PADDING
    capacity: int = 0
    maskings: Mapping[int, Masking] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        tokenizer: PreTrainedTokenizerBase,
        masking: Masking,
        kind: ModelKind,
        tokens: int,
        layout: Layout = "padded",
        rewritings: Sequence[Rewriting] = (),
        policy: PaddingPolicy = MINIMAL_PADDING,
        capacity: int = 0,
    ) -> Collator:
        """Create a collator for a tokenizer.

        An encoder-decoder gets the corruption that suits its tokenizer instead of a masking that makes no pairs.
        """
        padding = tokenizer.pad_token_id
        special = np.array(sorted(tokenizer.all_special_ids))
        padding = padding if isinstance(padding, int) else 0
        vocabulary = make_vocabulary(tokenizer)
        if kind.pairs and not getattr(masking, "pairs", False):
            masking = default_corruption(vocabulary)
        capacity = min(capacity, tokens)  # a wider row would be a micro-batch that exceeds the limit
        return cls(vocabulary, special, padding, masking, kind, tokens, layout, tuple(rewritings), policy, capacity)

    def __call__(self, texts: Sequence[np.ndarray], rng: np.random.Generator) -> list[Batch]:
        """Split texts (token ids with special tokens) into micro-batches and mask them, all with one generator.

        An id may be the complement ``~id`` of a token that is read but not predicted (:mod:`acclimate.data.chat`).
        Which tokens are masked, and how texts are rewritten, depends on the texts and ``rng`` alone, not on the split:
        it is the same for methods with other views, machines with less memory and runs of several processes.
        """
        if not texts:
            return []
        lengths = [len(text) for text in texts]
        order = np.argsort(-np.array(lengths), kind="stable")
        return self.build(dict(enumerate(texts)), [(order, rng)], self.plan(lengths))

    def plan(self, lengths: Sequence[int]) -> list[list[list[int]]]:
        """Return the micro-batches of a process that reads all texts: for each row the indices of its texts.

        Args:
            lengths: Tokens of each text.
        """
        order = np.argsort(-np.array(lengths), kind="stable").tolist()
        maskings = (self.masking, *self.maskings.values())
        growth = max(getattr(masking, "growth", 1.0) for masking in maskings) if self.kind.pairs else 1.0
        ordered = [round(growth * lengths[index]) for index in order]
        # What rewritings draw for a short text may be longer than the text.
        drawn = max((how.width for how in self.rewritings), default=0)
        parts = self._cut(self._rows(ordered), [max(length, drawn) for length in ordered], self.tokens)
        return [[[order[place] for place in row] for row in part] for part in parts]

    def plan_share(self, lengths: Sequence[int], group: ProcessGroup) -> list[list[list[int]]]:
        """Return the micro-batches of one of several processes, all with about the same tokens.

        A process has at least one, unless there are fewer texts than processes.
        """
        collator = self if group.size == 1 else self._for_processes(lengths, group.size)
        parts: list[list[list[int]]] = []
        while len(parts) < min(group.size, len(lengths)):
            parts = collator.plan(lengths)
            collator = replace(collator, tokens=collator.tokens // 2, layout="padded")
        return group.assign_balanced(parts, [collator._cost(part, lengths) for part in parts])

    def build(
        self,
        texts: Mapping[int, np.ndarray],
        blocks: Sequence[tuple[np.ndarray, np.random.Generator]],
        parts: Sequence[list[list[int]]],
        sources: Mapping[int, int | None] | None = None,
    ) -> list[Batch]:
        """Mask texts and return micro-batches of some of them.

        Args:
            texts: Token ids by index.
            blocks: The indices of the texts that are masked together, the longest first, and their generator.
            parts: For each micro-batch the indices of the texts of each row.
            sources: Source of each text by index; None if all have one source.
        """
        corrupted: dict[int, tuple[np.ndarray, np.ndarray, int]] = {}
        for own, rng, block in self._by_masking(blocks, sources or {}):
            if own.kind.pairs:
                texts = {**texts, **{index: own._pair(texts[index], rng) for index in block.tolist()}}
            elif own.kind.targets is not None and getattr(own.masking, "rearranges", False):
                texts = {**texts, **{index: own._rearrange(texts[index], rng) for index in block.tolist()}}
            masked, labels = own._corrupt([texts[index] for index in block.tolist()], rng)
            # A separate generator, so that a method with rewritings masks the same tokens as one without.
            seeds = rng.spawn(1)[0].integers(2**63, size=len(block))
            corrupted.update(zip(block.tolist(), zip(masked, labels, seeds, strict=True), strict=True))
        plain = {index: plain_ids(text) for index, text in texts.items()}
        batches = [self._batch(part, plain, corrupted) for part in parts]
        if not sources or None in sources.values():
            return batches
        found = [torch.tensor([sources[index] for row in part for index in row]) for part in parts]
        return [replace(batch, source=source) for batch, source in zip(batches, found, strict=True)]

    def _by_masking(
        self, blocks: Sequence[tuple[np.ndarray, np.random.Generator]], sources: Mapping[int, int | None]
    ) -> Iterator[tuple[Collator, np.random.Generator, np.ndarray]]:
        """Yield the parts of blocks whose texts have one masking, the collator with it, and their generator."""
        for block, rng in blocks:
            number = np.array([one if (one := sources.get(i)) in self.maskings else -1 for i in block.tolist()])
            for source in np.unique(number).tolist():
                own = self if source < 0 else replace(self, masking=self.maskings[source])
                yield own, rng, block[number == source]

    def _for_processes(self, lengths: Sequence[int], size: int) -> Collator:
        """Return the collator that splits these texts into micro-batches that ``size`` processes share evenly.

        Their number is the minimum that memory allows, rounded up to a multiple of ``size``, and they are of about the
        same size.
        """
        lengths = sorted(lengths, reverse=True)
        smaller = replace(self, capacity=min(self.capacity, -(-sum(lengths) // size)))  # at least a row for each
        widths = [sum(lengths[place] for place in row) for row in smaller._rows(lengths)]
        high = max(1, min(self.tokens, sum(lengths)))
        most = -(-fewest_micro_batches(widths, high, self.policy) // size) * size
        low = 1
        while low < high:
            middle = (low + high) // 2
            if fewest_micro_batches(widths, middle, self.policy) <= most:
                high = middle
            else:
                low = middle + 1
        return replace(smaller, tokens=high, policy=self.policy._replace(batch_overhead=FEWEST_BATCHES))

    def padded_tokens(self, lengths: Sequence[int]) -> int:
        """Return the tokens that the model reads of texts of these lengths, padding included unless it is skipped."""
        lengths = sorted(lengths, reverse=True)
        if self.policy.padding_cost == 0:
            return sum(lengths)
        total = 0
        for rows in self._cut(self._rows(lengths), lengths, self.tokens):
            total += len(rows) * self._width(rows, lengths)
        return total

    def _width(self, rows: list[list[int]], lengths: Sequence[int] | Mapping[int, int]) -> int:
        """Return the tokens of each row of a micro-batch, padding included."""
        return self.policy.padded_width(max(sum(lengths[place] for place in row) for row in rows))

    def _cost(self, rows: list[list[int]], lengths: Sequence[int]) -> float:
        """Return the cost of a micro-batch in tokens."""
        real = sum(lengths[place] for row in rows for place in row)
        return float(self.policy.cost(real, len(rows) * self._width(rows, lengths)))

    def _rows(self, lengths: list[int]) -> list[list[int]]:
        """Assign texts, longest first, to rows: one each, or by best fit."""
        if self.layout == "padded":
            return [[place] for place in range(len(lengths))]
        return pack_best_fit(lengths, max(self.capacity, lengths[0]))

    def _cut(self, rows: list[list[int]], lengths: list[int], limit: int) -> Iterator[list[list[int]]]:
        """Yield the rows of each micro-batch."""
        for part in split_micro_batches([sum(lengths[place] for place in row) for row in rows], limit, self.policy):
            yield rows[part]

    def _rearrange(self, text: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return the row that a causal model reads instead of a text; answers of conversations stay as they are."""
        assert isinstance(self.masking, Strategy)
        if (text < 0).any():
            return text
        return self.masking.rearrange(text, ~np.isin(text, self.special), self.vocabulary, rng)

    def _pair(self, text: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return source and target of a text: the complements ``~id`` of what is read, then what is predicted."""
        assert isinstance(self.masking, Strategy)
        text = plain_ids(text)
        made = self.masking.pair(text, ~np.isin(text, self.special), self.vocabulary, rng)
        return np.concatenate([~made.source, made.target])

    def _corrupt(self, texts: list[np.ndarray], rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return masked ids and labels, both (texts, tokens of the longest text)."""
        width = max(map(len, texts))
        ids, text = self._pad_rows([[place] for place in range(len(texts))], dict(enumerate(texts)), width)
        if self.kind.pairs:  # the decoder's state at a token of the target predicts it, see acclimate.models.encoding
            labels = np.where((ids >= 0) & (text >= 0), ids, IGNORE_INDEX)
            return ~ids, labels
        if self.kind.targets is not None:
            labels = self.kind.targets(ids, text)
            return plain_ids(ids), np.where(labels < 0, IGNORE_INDEX, labels)
        allowed = self._maskable_positions(ids, text)
        masked, labels = self.masking(ids, text, allowed, self.vocabulary, rng)
        assert ((labels == IGNORE_INDEX) | allowed).all()
        return masked, labels

    def _pad_rows(
        self, rows: list[list[int]], texts: Mapping[int, np.ndarray], width: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return ids, and the number of each token's text; both (rows, width)."""
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
        texts: Mapping[int, np.ndarray],
        corrupted: Mapping[int, tuple[np.ndarray, np.ndarray, int]],
    ) -> Batch:
        width = self._width(rows, {index: len(texts[index]) for row in rows for index in row})
        ids, text = self._pad_rows(rows, texts, width)
        hidden, wanted = ids.copy(), np.full_like(ids, IGNORE_INDEX)
        here = []
        for row, span, index in _text_spans(rows, texts):
            masked, labels, seed = corrupted[index]
            here.append(seed)
            length = len(texts[index])
            hidden[row, span], wanted[row, span] = masked[:length], labels[:length]
        if self.kind.pairs:
            ids = hidden
        allowed = self._maskable_positions(ids, text)
        rewritten = {}
        for how in self.rewritings:
            new = how(ids, text, allowed, self.vocabulary, here)
            rewritten[how] = ViewInput(*map(torch.from_numpy, new))
        tensors = [torch.from_numpy(array) for array in (ids, hidden, wanted, text)]
        seeds = torch.tensor(here)
        return Batch(tensors[0], tensors[1], tensors[2], tensors[3], sum(map(len, rows)), rewritten, seeds=seeds)


def _text_spans(rows: list[list[int]], texts: Mapping[int, np.ndarray]) -> Iterator[tuple[int, slice, int]]:
    """Yield for each text its row, its span in the row, and its index."""
    for row, members in enumerate(rows):
        start = 0
        for place in members:
            yield row, slice(start, start + len(texts[place])), place
            start += len(texts[place])


DESCRIBED_WORDS = 6
"""Words of a text that an error message shows."""


def describe_text(place: str, ids: Sequence[int], tokenizer: PreTrainedTokenizerBase | None) -> str:
    """Return where a text comes from, followed by its first words."""
    if tokenizer is None:
        return place
    text = str(tokenizer.decode(list(ids[: 10 * DESCRIBED_WORDS]), skip_special_tokens=True))
    return f"{place} ('{' '.join(text.split()[:DESCRIBED_WORDS])} …')"


class SharedTexts:
    """Reads sets of texts that processes share, with masks that do not depend on their number."""

    def __init__(
        self, rows: Sequence[np.ndarray], collator: Collator, entropy: Sequence[int], group: ProcessGroup
    ) -> None:
        """Prepare reading.

        Args:
            rows: All texts.
            collator: Makes the micro-batches.
            entropy: What, with the number of a set, decides its masks.
            group: The processes.
        """
        self.rows, self.collator, self._entropy, self.group = rows, collator, entropy, group

    def lengths(self, indices: Sequence[int]) -> np.ndarray:
        """Return the tokens of some texts (texts,); rows on disk are not read."""
        if isinstance(self.rows, Rows):
            return self.rows.lengths_of(indices)
        return np.array([len(self.rows[index]) for index in indices])

    def read(self, number: int, indices: list[int]) -> list[Batch]:
        """Return the micro-batches of this process of the set with that number, which has these texts."""
        blocks = self.blocks(indices)
        team, mine = join_team(self.group, len(blocks), len(indices))
        return self.read_blocks(number, indices, blocks, mine, team)

    def blocks(self, indices: Sequence[int]) -> list[np.ndarray]:
        """Return the places, in a set, of the texts that are masked together."""
        return mask_blocks(self.lengths(indices))

    def read_blocks(
        self, number: int, indices: list[int], blocks: list[np.ndarray], mine: slice, team: ProcessGroup
    ) -> list[Batch]:
        """Read some blocks of the texts of a set; return the micro-batches of one process of the team."""
        chosen = []
        for block in range(len(blocks))[mine]:
            entropy = [*self._entropy, number, *([block] if len(blocks) > 1 else [])]
            chosen.append((blocks[block], np.random.default_rng(entropy)))
        places = np.sort(np.concatenate(blocks[mine])).tolist()
        texts = {place: np.asarray(self.rows[indices[place]]) for place in places}
        parts = self.collator.plan_share([len(text) for text in texts.values()], team)
        ordered = [[[places[i] for i in row] for row in part] for part in parts]
        rows = self.rows
        sources = {place: rows.source(indices[place]) for place in places} if isinstance(rows, Rows) else None
        return self.collator.build(texts, chosen, ordered, sources)


class StepDataset(Dataset):
    """The micro-batches of every step: item ``i`` is the list for step ``i`` (a ``StepData``)."""

    epoch_steps: int | None = None

    def __init__(
        self,
        rows: Sequence[np.ndarray],
        collator: Collator,
        *,
        batch_size: int,
        steps: int,
        seed: int,
        group: ProcessGroup | None = None,
        order: StepOrder | None = None,
    ) -> None:
        """Set up ``steps`` steps of ``batch_size`` texts each, which the processes of ``group`` share.

        ``order`` chooses the texts of each step; by default an :class:`EpochSampler`.

        Raises:
            UserError: If a step has fewer texts than there are processes.
        """
        self.rows, self.collator, self.group = rows, collator, group or ProcessGroup()
        self._texts = SharedTexts(rows, collator, (seed, 2), self.group)
        if batch_size < self.group.size:
            raise UserError(f"batch-size {batch_size} is less than the {self.group.size} processes; increase it.")
        self.batch_size, self.steps, self.seed = batch_size, steps, seed
        self._order = order or EpochSampler(len(rows), batch_size, seed)

    def __len__(self) -> int:
        return self.steps

    def check_learnable(self) -> None:
        """Check that a token is to be predicted in one of the first steps; usually the first step shows it.

        Raises:
            UserError: If there is none in the first thousand steps, or in all if there are fewer.
        """
        steps = min(self.steps, 1000)
        for step in range(steps):
            indices = self.indices(step)
            blocks = self._texts.blocks(indices)
            for number in range(len(blocks)):
                mine = slice(number, number + 1)
                batches = self._texts.read_blocks(step, indices, blocks, mine, ProcessGroup())
                if any((batch.labels != IGNORE_INDEX).any() for batch in batches):
                    return
        raise UserError(
            f"No token of the text is chosen for prediction in {steps:,} steps, so the model would learn nothing. "
            "Give more text, more steps or another masking."
        )

    def indices(self, step: int) -> list[int]:
        """Return the indices of the texts that a step reads."""
        return self._order.of(step)

    def mix(self, steps: int) -> list[dict[str, Any]]:
        """Return what the first ``steps`` steps read of each of several texts; empty if there is one."""
        return self._order.describe(steps)

    def padding(self) -> float:
        """Return the share of padding in the micro-batches of the first steps that a single process reads."""
        steps = min(self.steps, MEASURED_STEPS, max(1, MEASURED_TEXTS // self.batch_size))
        lengths = [self._texts.lengths(self.indices(step)).tolist() for step in range(steps)]
        return 1 - sum(map(sum, lengths)) / sum(map(self.collator.padded_tokens, lengths))

    def alone(self, step: int, index: int) -> list[Batch]:
        """Return the micro-batch of one text of a step, without padding."""
        rng = np.random.default_rng([self.seed, 2, step])
        return replace(self.collator, policy=MINIMAL_PADDING)([np.asarray(self.rows[index])], rng)

    def describe(self, index: int) -> str:
        """Return the number of a text's document, counted from 1, and its first words."""
        place = self.rows.place(index) if hasattr(self.rows, "place") else f"text {index + 1:,}"
        ids = plain_ids(np.asarray(self.rows[index]))
        return describe_text(place, ids.tolist(), self.collator.vocabulary.tokenizer)

    def __getitem__(self, step: int) -> list[Batch]:
        return self._texts.read(step, self.indices(step))
