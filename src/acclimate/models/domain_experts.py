"""Experts per domain: copies of the feed-forward layers of an encoder, each text read by its domain's (Hallee et al.).

The domain of a text is in its ids: with domain k, from 1, they are ``id + k size``, where size is the number of rows
of the embedding table. In a text with a domain, the first special token has an embedding of the domain. A text
without one is read with the mean of the experts and of these embeddings.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from acclimate.models.attention import LAYER_INDEX
from acclimate.models.compiling import layers_of
from acclimate.models.families import KERNELS_ATTRIBUTE, kernels_of
from acclimate.models.gates import feed_forward_units

ROUTE = "acclimate_route"
"""Argument of attention in a forward pass: the :class:`Route` of its tokens."""


class Route(NamedTuple):
    """The order of flattened tokens by domain, the order back, and the number of tokens without one and of each."""

    order: Tensor
    back: Tensor
    sizes: list[int]


class RoutedLinear(nn.Module):
    """Copies of a linear layer: each token is read by its domain's, and by the mean of all if it has none."""

    def __init__(self, linear: nn.Linear, domains: int) -> None:
        """Make a copy per domain."""
        super().__init__()
        self.experts = nn.ModuleList(copy.deepcopy(linear) for _ in range(domains))
        self.route: Route | None = None  # of the forward pass in progress

    def forward(self, states: Tensor) -> Tensor:
        """Map (rows, tokens, inputs) to (rows, tokens, outputs)."""
        assert self.route is not None, "the model was called without ids"
        plain, *parts = states.flatten(0, -2)[self.route.order].split(self.route.sizes)
        found = [expert(part) for expert, part in zip(self.experts, parts, strict=True)]
        if len(plain):
            names = [name for name, _ in self.experts[0].named_parameters()]
            found.insert(0, nn.functional.linear(plain, **{name: self.mean(name) for name in names}))
        return torch.cat(found)[self.route.back].view(*states.shape[:-1], -1)

    def mean(self, name: str) -> Tensor:
        """Return the mean of a parameter over the experts."""
        return torch.stack([getattr(expert, name) for expert in self.experts]).mean(0)


class DomainExperts:
    """The experts of a model in training, and the ordinary models that they become."""

    def __init__(self, model: PreTrainedModel, domains: int, token: int) -> None:
        """Replace the linear layers of the feed-forward blocks by copies per domain.

        Args:
            model: An encoder, which :func:`acclimate.models.probe.attach` has prepared.
            domains: Number of domains.
            token: Id of the first special token of a text.
        """
        units = [unit for part in "IO" for unit in feed_forward_units(model, part, 1)]
        linears = [linear for unit in units for linear in (unit.linear, unit.factor) if linear is not None]
        names = {id(module): name for name, module in model.named_modules()}
        self.linears: dict[str, Any] = {names[id(linear)]: linear for linear in linears}
        self.routed = {name: RoutedLinear(linear, domains) for name, linear in self.linears.items()}
        for name, routed in self.routed.items():
            model.set_submodule(name, routed)
        table: Any = model.get_input_embeddings()
        table.domains = nn.Parameter(table.weight.detach()[token].expand(domains, -1).clone())
        self.model, self.table, self.token = model, table, token
        self._starts: Any = None  # the domain of each first token of a text, else -1
        self._handles = [
            model.base_model.register_forward_pre_hook(self._find_route, with_kwargs=True),
            table.register_forward_hook(self._mark),
        ]
        # Hooks of a layer itself do not run where gradient checkpointing runs it again; those of its attention do.
        for layer in layers_of(model.base_model):
            hook = partial(_receive, [module for module in layer.modules() if isinstance(module, RoutedLinear)])
            for module in (module for module in layer.modules() if hasattr(module, LAYER_INDEX)):
                self._handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))
        # An expert has to know the text of each token, also in the last layer.
        self._kernels = kernels_of(model)
        setattr(model, KERNELS_ATTRIBUTE, replace(self._kernels, last_layer_cut=False))

    def _find_route(self, model: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Read the domains in the ids, and remove them before the encoder reads these."""
        codes, size = inputs[0] if inputs else options["input_ids"], self.table.num_embeddings
        domain, ids = codes // size, codes % size
        self._starts = torch.where(ids == self.token, domain, -1)
        order = domain.flatten().argsort(stable=True)
        numbers = torch.arange(1 + len(self.table.domains), device=codes.device)
        sizes = (domain.flatten() == numbers[:, None]).sum(1).tolist()
        options = {**options, ROUTE: Route(order, order.argsort(), sizes)}
        return ((ids, *inputs[1:]), options) if inputs else ((), {**options, "input_ids": ids})

    def _mark(self, table: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        """Replace the embedding of the first token of a text by its domain's."""
        starts, self._starts = self._starts, None
        rows = torch.cat([self.table.domains.mean(0, keepdim=True), self.table.domains])
        return torch.where((starts >= 0)[..., None], rows[starts].to(output.dtype), output)

    def close(self) -> None:
        """Make the model an ordinary one again, with the mean of the experts."""
        for handle in self._handles:
            handle.remove()
        for name, linear in self.linears.items():
            self.model.set_submodule(name, linear)
        self._first = self.table.domains.detach()
        del self.table.domains
        setattr(self.model, KERNELS_ATTRIBUTE, self._kernels)
        self.use(None)

    @torch.no_grad()
    def use(self, domain: int | None) -> None:
        """Give a model that is an ordinary one again the weights of a domain, from 0; None for the mean of all."""
        for name, linear in self.linears.items():
            for part, weight in linear.named_parameters():
                routed = self.routed[name]
                weight.copy_(routed.mean(part) if domain is None else getattr(routed.experts[domain], part))
        self.table.weight[self.token] = self._first.mean(0) if domain is None else self._first[domain]


def _receive(routed: Sequence[RoutedLinear], attention: nn.Module, inputs: Any, options: dict[str, Any]) -> Any:
    """Give the experts of a layer the route that its attention gets, before they run."""
    for module in routed:
        module.route = options[ROUTE]
    return inputs, {name: value for name, value in options.items() if name != ROUTE}
