"""The same texts in micro-batches, in packed rows, or with artificial hidden states."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from acclimate.engine.batches import Collator
from acclimate.models.kinds import MASKED
from acclimate.parts.masking import RandomMasking
from acclimate.parts.objectives import Batch, Outputs, ViewInput
from tests.adaptation.helpers import rows
from tests.tiny import tiny_tokenizer

PADDING = 50.0
"""Artificial state at padding, so large that reading it changes any result."""


def padded(texts: list[list[int]] | None = None, rate: float = 0.3, rewritings=(), seed: int = 0) -> Batch:
    """All texts in one padded micro-batch."""
    texts = [list(row) for row in rows()] if texts is None else texts
    collator = Collator.of(tiny_tokenizer(), RandomMasking(rate), MASKED, 1_000_000, rewritings=rewritings)
    (batch,) = collator([np.asarray(text) for text in texts], np.random.default_rng(seed))
    return batch


def cut(batch: Batch, size: int) -> list[Batch]:
    """A padded batch in micro-batches of ``size`` texts, each as wide as its longest text."""
    pieces = []
    for first in range(0, batch.texts, size):
        some = slice(first, first + size)
        text = batch.text[some]
        width = int((text >= 0).sum(1).max())
        moved = torch.where(text >= 0, text - first, -1)[:, :width]
        parts = [getattr(batch, name)[some, :width] for name in ("original", "masked", "labels")]
        rewritten = {}
        for how, (ids, number, known, segments) in batch.rewritten.items():
            columns = width if how.full and known is None else ids.shape[1]
            number = torch.where(number[some] >= 0, number[some] - first, -1)
            known = None if known is None else known[some]
            segments = None if segments is None else segments[some, :columns]
            rewritten[how] = ViewInput(ids[some, :columns], number[:, :columns], known, segments)
        each = {name: getattr(batch, name) for name in ("source", "seeds")}
        each = {name: None if value is None else value[some] for name, value in each.items()}
        pieces.append(Batch(*parts, moved, len(text), rewritten, **each))
    return pieces


def packed(batch: Batch, per_row: int = 2) -> Batch:
    """The texts of a padded batch in packed rows of ``per_row`` texts, in the same order."""

    def pack(values, empty):
        lines = [torch.cat([values[i][batch.text[i] == i] for i in group]) for group in groups]
        width = max(len(line) for line in lines)
        return torch.stack([torch.cat([line, line.new_full((width - len(line),), empty)]) for line in lines])

    groups = [range(first, min(first + per_row, batch.texts)) for first in range(0, batch.texts, per_row)]
    text = pack(batch.text, -1)
    rewritten = {
        how: ViewInput(pack(ids, 0), text) if how.full and known is None else ViewInput(ids, number, known, segments)
        for how, (ids, number, known, segments) in batch.rewritten.items()
    }
    parts = [pack(batch.original, 0), pack(batch.masked, 0), pack(batch.labels, -100), text, batch.texts, rewritten]
    return Batch(*parts, batch.source, batch.seeds)


def spread(states: list[torch.Tensor], batch: Batch, text: torch.Tensor | None = None) -> torch.Tensor:
    """Place the states (tokens, width) of each text at its tokens: (rows, tokens, width)."""
    text = batch.text if text is None else text
    width = states[0].shape[1]
    hidden = torch.full((*text.shape, width), PADDING, dtype=states[0].dtype)
    return hidden.index_put(torch.nonzero(text >= 0, as_tuple=True), torch.cat(states))


def outputs(batch: Batch, states: dict, embedded: dict | None = None) -> Outputs:
    """Outputs with artificial states: for each view the states of each text."""
    hidden = {view: spread(each, batch, batch.view_input(view.tokens).text) for view, each in states.items()}
    first = {view: spread(each, batch) for view, each in (embedded or {}).items()}
    return Outputs(hidden, batch, {}, first)


def random_states(batch: Batch, width: int = 6, seed: int = 0, grad: bool = True, text=None) -> list[torch.Tensor]:
    """Random states in float64 for each text."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.bincount((batch.text if text is None else text).flatten() + 1, minlength=batch.texts + 1)[1:]
    return [torch.randn(int(n), width, generator=generator, dtype=torch.float64).requires_grad_(grad) for n in lengths]


def by_text(batch: Batch, name: str) -> list[torch.Tensor]:
    """The values of a field for each text, in order."""
    return [getattr(batch, name)[batch.text == number] for number in range(batch.texts)]


def without_labels(batch: Batch, number: int) -> Batch:
    """The batch without the masked tokens of one text."""
    return replace(batch, labels=torch.where(batch.text == number, -100, batch.labels))


def same_gradients(fast: torch.Tensor, slow: torch.Tensor, leaves: list[torch.Tensor]) -> None:
    """Both losses agree, and so do their gradients with respect to the leaves."""
    torch.testing.assert_close(fast, slow, atol=1e-6, rtol=1e-5, check_dtype=False)
    ours = torch.autograd.grad(fast, leaves, allow_unused=True)
    theirs = torch.autograd.grad(slow, leaves, allow_unused=True)
    assert any(value is not None and value.abs().max() > 1e-6 for value in theirs)
    for a, b in zip(ours, theirs, strict=True):
        zero = torch.zeros(())
        torch.testing.assert_close(
            zero if a is None else a.sum(), zero if b is None else b.sum(), atol=1e-5, rtol=1e-4, check_dtype=False
        )
        if a is not None and b is not None:
            torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-4, check_dtype=False)
