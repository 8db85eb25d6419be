"""Loss terms for one of several sources of text: learn the domain text, keep the states of general text (MixDA)."""

from __future__ import annotations

from copy import copy
from typing import Self

import torch
from torch import Tensor
from transformers import PreTrainedModel

from acclimate.api import Batch, ModelKind, Objective, Outputs, View, cross_entropy, encode

DOMAIN = 0
"""Index of the domain text among the sources of a batch."""


class DomainLanguageModelling(Objective):
    """Mean cross-entropy of the labels of the domain text, in nats; other sources do not count."""

    chosen_only = True

    def __init__(self, weight: float = 1.0) -> None:
        self.weight, self.view = weight, View()
        self.views = (self.view,)

    def for_kind(self, kind: ModelKind) -> Self:
        """Return the loss with the name that it has for a kind of language model."""
        found = copy(self)
        found.name = kind.term
        return found

    def count(self, batch: Batch) -> int:
        """Return the number of labelled positions of the domain text."""
        return len(self._places(batch))

    def total(self, outputs: Outputs) -> Tensor:
        """Return the summed cross-entropy."""
        places = outputs.batch.on_device(self._places(outputs.batch))
        states = outputs.labelled_states(self.view).index_select(0, places)
        return outputs.map_states(cross_entropy, states, outputs.batch.targets[places]).sum()

    def _places(self, batch: Batch) -> Tensor:
        """Return which labelled positions, in row order, are of the domain text; on the CPU."""
        host = batch.host
        text = host.text[host.labels >= 0]
        source = torch.zeros_like(text) if host.source is None else host.source[text]
        return (source == DOMAIN).nonzero()[:, 0]


class StateRetention(Objective):
    """Mean over real tokens of general text of ||h - h_0||^2 / width, with h_0 the last state of the base model.

    General text is all sources but the domain text. Both models read the tokens of the LM loss, and the base
    model reads no domain text. (MixDA compares the outputs of the layers that have adapters. The last states depend on
    all of these, and reading them needs no access to the inside of a model.)
    """

    name = "retention"

    def __init__(self, base: PreTrainedModel, weight: float = 1.0) -> None:
        """Set up the view of the LM loss.

        Args:
            base: The frozen base model, which :func:`acclimate.models.probe.attach` has prepared.
            weight: Factor of the term.
        """
        self.base, self.weight, self.view = base, weight, View()
        self.views = (self.view,)

    def count(self, batch: Batch) -> int:
        """Return the number of real tokens of general text."""
        return int(self._general(batch).sum())

    def total(self, outputs: Outputs) -> Tensor:
        """Return the summed squared distances."""
        batch, states = outputs.batch, outputs.hidden(self.view)
        general = self._general(batch)
        rows = batch.on_device(general.any(1).nonzero()[:, 0])
        if not len(rows):
            return 0 * states.flatten()[:1].sum()
        with torch.no_grad():
            kept = encode(self.base, batch.masked[rows], batch.text[rows])
        mine = batch.on_device(general[general.any(1)])
        return (states[rows][mine].float() - kept[mine].float()).square().mean(-1).sum()

    def _general(self, batch: Batch) -> Tensor:
        """Return which tokens are of general text, boolean (rows, tokens), on the CPU."""
        host = batch.host
        if host.source is None:
            return torch.zeros_like(host.text, dtype=torch.bool)
        return (host.text >= 0) & (host.source[host.text.clamp(min=0)] != DOMAIN)
