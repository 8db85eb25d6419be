"""Leaving padding out of all that works token by token, which is everything in an encoder but attention.

Texts of different lengths share a rectangle only while they attend. Before and after they stand one behind the other
in a single row, and one token stands for all padding. Same states, same gradients.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from transformers import PreTrainedModel

from acclimate.device import can_unpad_on
from acclimate.kernels.last_layer import BERT_LIKE, LIBRARY

TOKENWISE_FAMILIES = (*BERT_LIKE, "distilbert", "albert", "modernbert")
"""Types of models whose encoders work token by token, but for attention, and can be told positions."""
KNOWN_CODE = (LIBRARY, "transformers.activations", "torch.nn.modules.", "acclimate.")
"""Where the code of their modules is; of other code nobody knows what it does."""
TOKEN_MULTIPLE = 16
"""Of what the number of tokens is a multiple: oneDNN compiles a kernel for each new shape of a product."""
MIN_PADDING_SHARE = 1 / 32
"""Share of a rectangle that must be left out to pay for the moving to and fro."""


def can_unpad(model: PreTrainedModel) -> bool:
    """Say whether the encoder of a model may read texts so: all but its attention works token by token."""
    config = model.config
    if (
        not can_unpad_on(model.device)
        or config.model_type not in TOKENWISE_FAMILIES
        or getattr(config, "is_decoder", False)
    ):
        return False
    chunks = getattr(config, "chunk_size_feed_forward", 0)  # of rows, which are of another length then
    return not chunks and all(type(part).__module__.startswith(KNOWN_CODE) for part in model.base_model.modules())


class Unpadded:
    """Where the tokens of padded rows are in one row without padding, and back.

    Attributes:
        shape: Rows and tokens of a row, with padding.
        kept: Where each token that is left is in the flattened rows (kept,).
        back: Which of those that are left stands at each place of the flattened rows (rows x tokens,).
    """

    def __init__(self, text: Tensor) -> None:
        """Find the places.

        Args:
            text: Which text each token belongs to (rows, tokens); -1 for padding, of which there is some.
        """
        self.shape = text.shape
        real = (text >= 0).flatten()
        places, padding = real.nonzero()[:, 0], (~real).nonzero()[:1, 0]
        self.kept = torch.cat([places, padding.expand(TOKEN_MULTIPLE - len(places) % TOKEN_MULTIPLE)])
        self.back = real.cumsum(0).sub_(1).masked_fill_(~real, len(places))

    @classmethod
    def if_worthwhile(cls, text: Tensor) -> Unpadded | None:
        """Return the places where there is enough padding to leave out; otherwise None."""
        if bool((text >= 0).all()):
            return None
        unpadded = cls(text)
        return unpadded if len(unpadded) <= (1 - MIN_PADDING_SHARE) * text.numel() else None

    def __len__(self) -> int:
        """Return how many tokens are left."""
        return len(self.kept)

    @cached_property
    def rows(self) -> Tensor:
        """Which row each token that is left comes from (kept,)."""
        return self.kept // self.shape[1]

    def values(self, padded: Tensor) -> Tensor:
        """Return what stands at the tokens that are left: (1, kept) from (rows, tokens)."""
        return padded.flatten()[self.kept][None]

    def places(self, padded: Tensor) -> Tensor:
        """Return where tokens are now, from where they were in the flattened rows; both (places,)."""
        return self.back[padded]

    def firsts(self, states: Tensor) -> Tensor:
        """Return the first token of each row, which is none of padding: (rows, 1, width) from (1, kept, width)."""
        return states[0][self.back[:: self.shape[1]]][:, None]

    def close(self, states: Tensor) -> Tensor:
        """Leave padding out: (1, kept, width) from (rows, tokens, width).

        The gradient of what stands at padding must be zero; it is where nobody reads it.
        """
        moved: Tensor = _IndexSelect.apply(states.reshape(-1, states.shape[-1]), self.kept, self.back)
        return moved[None]

    def open(self, states: Tensor) -> Tensor:
        """Put padding back: (rows, tokens, width) from (1, kept, width); see :meth:`close`."""
        moved: Tensor = _IndexSelect.apply(states.reshape(-1, states.shape[-1]), self.back, self.kept)
        return moved.view(*self.shape, -1)


class _IndexSelect(torch.autograd.Function):
    """Rows by their places; the gradient goes back the same way instead of being summed up from zeros."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, there: Tensor, back: Tensor) -> Tensor:
        ctx.back = back
        return states.index_select(0, there)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return gradients[0].reshape(-1, gradients[0].shape[-1]).index_select(0, ctx.back), None, None
