"""The loss of an encoder that predicts the next token first, and masked tokens at the end."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor
from transformers import PreTrainedModel

from acclimate.api import (
    Batch,
    LanguageModelling,
    ModelKind,
    Outputs,
    chosen_positions,
    cross_entropy,
    decode,
    next_tokens,
)


class CausalThenMasked(LanguageModelling):
    """Mean over tokens t of -log p(x_t | x_<t), in nats; after a share of the training, the masked-LM loss.

    In the first phase, ``clm`` in the log, a token attends to itself and to earlier tokens of its text, and the
    masked-LM head predicts the next one. All tokens but the first of each text are predicted, none from another text
    of the row. The second phase, ``mlm``, is :class:`LanguageModelling`. Text that is only measured is read as in the
    second phase.
    """

    def __init__(self, model: PreTrainedModel, causal: float) -> None:
        """Store the phases.

        Args:
            model: The encoder in training, attached.
            causal: Share of the training that is the first phase.
        """
        super().__init__()
        self.model, self.causal = model, causal

    @property
    def reads_views(self) -> bool:
        """Whether the training is in its second phase."""
        return self.progress >= self.causal

    @property
    def name(self) -> str:  # type: ignore[override]
        """Name of the phase."""
        return "mlm" if self.reads_views else "clm"

    def for_kind(self, kind: ModelKind) -> Self:
        """Return this term: the update rule reads the phase from it."""
        return self

    def count(self, batch: Batch) -> int:
        """Return the number of tokens to predict."""
        return super().count(batch) if self.reads_views else batch.tokens - batch.texts

    def loss_places(self, batch: Batch) -> Tensor:
        """Return the positions whose next token is predicted."""
        return super().loss_places(batch) if self.reads_views else batch.on_device(self._targets(batch)[0])

    def token_losses(self, outputs: Outputs) -> Tensor:
        """Return the cross-entropy of each predicted token (tokens,)."""
        if self.reads_views:
            return super().token_losses(outputs)
        batch = outputs.batch
        places, wanted = self._targets(batch)
        chosen = batch.on_device(chosen_positions(wanted >= 0, batch.text.device.type))
        states = decode(self.model, batch.original, batch.text).flatten(0, 1).index_select(0, chosen)
        losses = outputs.map_states(cross_entropy, states, batch.on_device(wanted)[chosen])
        return losses[: len(places)]

    @staticmethod
    def _targets(batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the positions with a next token in their text, and the next token of each or -100; on the CPU."""
        host = batch.host
        wanted = torch.from_numpy(next_tokens(host.original.numpy(), host.text.numpy())).flatten()
        return (wanted >= 0).nonzero()[:, 0], wanted
