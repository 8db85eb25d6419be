"""Skip work on tokens whose states nothing reads: padding, and most positions of the last layer.

In an encoder, all operations except attention process each token separately. All texts of a batch are therefore
concatenated into one row without padding. Attention pads them again, or reads them as they are where the device has a
kernel for it (:mod:`acclimate.kernels.varlen`). States and gradients stay the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from acclimate.base.device import copy_to

TOKEN_MULTIPLE = 16
"""The number of tokens is rounded up to a multiple of this: oneDNN compiles a kernel for each new shape."""
MIN_PADDING_SHARE = 1 / 32
"""Minimum share of padding in a batch that is worth removing."""


@contextmanager
def cut_last_layer(ends: Sequence[nn.Module], select: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Return a context in which a model finishes its last layer for some tokens only.

    What follows the attention of a layer (output projection, feed-forward, normalizations) has three quarters of its
    weights and processes each token by itself. Skipping tokens that nothing reads changes neither loss nor gradient.

    Args:
        ends: The modules that combine the context vectors and the residual stream of the last layer. An ensemble has
            two.
        select: The function from states (rows, tokens, width) to those to continue with: (rows, selected, width) or
            (1, selected, width).
    """
    cut: list[Any] = list(ends)
    for end in cut:
        if not isinstance(end, _CutEnd):  # for good: compiled code would not notice a hook that comes and goes
            end.__class__ = _cut_class(type(end))  # type: ignore[arg-type]
        end.selections = (*end.selections, select)
    try:
        yield
    finally:
        for end in cut:
            end.selections = end.selections[:-1]


class _CutEnd(nn.Module):
    """A module at which a layer can be cut: its inputs go through the selections of the contexts that it runs in."""

    selections: tuple[Callable[[Tensor], Tensor], ...] = ()

    def forward(self, *states: Tensor) -> Any:
        """Run the module on the selected tokens."""
        for select in self.selections:
            states = tuple(select(values) for values in states)
        return super().forward(*states)


@cache
def _cut_class(kind: type[nn.Module]) -> type[nn.Module]:
    return type(kind.__name__, (_CutEnd, kind), {})


class Unpadded:
    """The index maps between padded rows and one row without padding.

    Attributes:
        shape: (rows, tokens) with padding.
        kept_indices: Index of each kept token in the flattened padded rows (kept,). One or more copies of a padding
            token follow, up to the next multiple of :data:`TOKEN_MULTIPLE`.
        inverse: Index, among the kept tokens, of each position of the flattened padded rows (rows x tokens,).
        varlen: Whether attention reads the kept tokens as they are.
    """

    def __init__(self, text: Tensor, device: torch.device | None = None, varlen: bool = False) -> None:
        """Compute the maps.

        Args:
            text: Index of the text of each token (rows, tokens), -1 at padding; on the CPU.
            device: The device of the maps, by default the CPU.
            varlen: See above.
        """
        self.shape, self.text, self.varlen = text.shape, text, varlen
        self.device = device or text.device
        real = (text >= 0).flatten()
        places, padding = real.nonzero()[:, 0], (~real).nonzero()[:1, 0]
        self._real = len(places)
        self._masks: dict[tuple[bool, int | None], Tensor] = {}
        added = TOKEN_MULTIPLE - len(places) % TOKEN_MULTIPLE if len(padding) else 0
        self.kept_indices = copy_to(torch.cat([places, padding.expand(added)]), self.device)
        self.inverse = copy_to(real.cumsum(0).sub_(1).masked_fill_(~real, len(places)), self.device)

    @classmethod
    def if_worthwhile(
        cls, text: Tensor, device: torch.device, varlen: bool = False, compiled: bool = False
    ) -> Unpadded | None:
        """Return the maps if attention reads the kept tokens, or there is enough padding to remove; otherwise None.

        Compiled layers always get them, all computed: for rows without padding they would be compiled again.
        """
        if compiled:
            return cls(text, device, varlen)._compute_all()
        if not varlen and bool((text >= 0).all()):
            return None
        unpadded = cls(text, device, varlen)
        return unpadded if varlen or len(unpadded) <= (1 - MIN_PADDING_SHARE) * text.numel() else None

    def __len__(self) -> int:
        """Return the number of kept tokens."""
        return len(self.kept_indices)

    @cached_property
    def rows(self) -> Tensor:
        """The padded row of each kept token (kept,)."""
        return self.kept_indices // self.shape[1]

    @cached_property
    def _bounds(self) -> Tensor:
        """Starts of the texts among the kept tokens, and their number; padding is a text of its own. On the CPU."""
        begins = torch.ones_like(self.text, dtype=torch.bool)
        begins[:, 1:] = self.text[:, 1:] != self.text[:, :-1]
        begins = begins.flatten()[(self.text >= 0).flatten()].nonzero()[:, 0]
        return torch.cat([begins, torch.tensor([self._real, len(self)])[: 1 + (len(self) > self._real)]])

    @cached_property
    def starts(self) -> Tensor:
        """Index, among the kept tokens, where each text begins, and the number of kept tokens: (texts + 1,), int32."""
        return copy_to(self._bounds.int(), self.device)

    @cached_property
    def first_tokens(self) -> Tensor:
        """Index, among the kept tokens, of the first token of the text of each kept token (kept,)."""
        bounds = self._bounds
        return copy_to(bounds[:-1].repeat_interleave(bounds.diff()), self.device)

    @cached_property
    def longest(self) -> int:
        """Number of tokens of the longest text."""
        return int(self._bounds.diff().max())

    def _compute_all(self) -> Unpadded:
        """Compute what is otherwise computed when it is first used, which compiled code cannot do; return self."""
        self.rows, self.first_tokens  # noqa: B018
        if self.varlen:
            self.starts, self.longest  # noqa: B018
        return self

    def attention_mask(self, causal: bool, window: int | None) -> Tensor:
        """Return where a query may attend to a key in padded rows (rows, 1, tokens, tokens), boolean.

        Args:
            causal: Whether a token attends to earlier ones only.
            window: A token attends to others that are less than this away; None for all of its text.
        """
        if (causal, window) not in self._masks:
            text, place = copy_to(self.text, self.device), torch.arange(self.shape[1], device=self.device)
            allowed = text[:, :, None] == text[:, None, :]
            ahead = place[None, :] - place[:, None]
            if causal:
                allowed = allowed & (ahead <= 0)
            if window is not None:
                allowed = allowed & (ahead.abs() < window)
            self._masks[causal, window] = allowed[:, None]
        return self._masks[causal, window]

    def values(self, padded: Tensor) -> Tensor:
        """Return the values of the kept tokens: (1, kept) from (rows, tokens)."""
        return padded.flatten()[self.kept_indices][None]

    def map_indices(self, padded: Tensor) -> Tensor:
        """Map indices into the flattened padded rows to indices of kept tokens; both (indices,)."""
        return self.inverse[padded]

    def first_states(self, states: Tensor) -> Tensor:
        """Return the first token of each row, which must not be padding: (rows, 1, width) from (1, kept, width)."""
        return states[0][self.inverse[:: self.shape[1]]][:, None]

    def remove_padding(self, states: Tensor) -> Tensor:
        """Return (1, kept, width) from (rows, tokens, width). The gradient at padding must be zero."""
        kept: Tensor = _IndexSelect.apply(states.reshape(-1, states.shape[-1]), self.kept_indices, self.inverse)
        return kept[None]

    def add_padding(self, states: Tensor) -> Tensor:
        """Return (rows, tokens, width) from (1, kept, width). The gradient at padding must be zero."""
        padded: Tensor = _IndexSelect.apply(states.reshape(-1, states.shape[-1]), self.inverse, self.kept_indices)
        return padded.view(*self.shape, -1)


class _IndexSelect(torch.autograd.Function):
    """``index_select`` whose backward is an ``index_select`` by the inverse map, instead of a sum into zeros."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, index: Tensor, inverse: Tensor) -> Tensor:
        ctx.inverse = inverse
        return states.index_select(0, index)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return gradients[0].reshape(-1, gradients[0].shape[-1]).index_select(0, ctx.inverse), None, None
