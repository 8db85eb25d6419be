"""Training with weights that are zero throughout (SPDF, Thangarasa et al., UAI 2023)."""

from __future__ import annotations

import zlib
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from acclimate.base.errors import UserError
from acclimate.models.compiling import layers_of
from acclimate.models.reach import describe_reach, linear_layers, stacked_experts
from acclimate.parts.updates.rules import UpdateRule


class StaticSparsity(UpdateRule):
    """Keep a fixed share of the weights of each linear layer at zero.

    The layers are in the repeated blocks: attention and feed-forward. Gradients of these weights are zero, so
    that clipping and the moments of the optimizer leave them out.
    """

    removes_gradients: ClassVar[bool] = True

    def __init__(
        self, model: PreTrainedModel, share: float, choice: Literal["magnitude", "random"], seed: int = 0
    ) -> None:
        """Choose the weights and set them to zero.

        Args:
            model: The model, with the weights that it starts from. The choice depends on nothing else but the seed, so
                that a resumed run makes it again.
            share: Share of the weights of each layer, rounded down to whole weights.
            choice: ``"magnitude"`` for the smallest ones, or ``"random"``.
            seed: Random seed.

        Raises:
            UserError: If no such weight trains.
        """
        self.share, self.choice = share, choice
        inside = {id(weight) for layer in layers_of(model.base_model) for weight in layer.parameters()}
        linear: dict[str, Any] = {name: module.weight for name, module in linear_layers(model).items()}
        self.kept: list[tuple[Tensor, Tensor]] = []
        for name, weight in (linear | stacked_experts(model)).items():
            if id(weight) in inside and weight.requires_grad:
                start = seed + zlib.crc32(name.encode())
                matrices = weight.detach().view(-1, *weight.shape[-2:])
                kept = [self._choose(matrix, start + number) for number, matrix in enumerate(matrices)]
                self.kept.append((weight, torch.stack(kept).view_as(weight)))
        if not self.kept:
            raise UserError(f"sparsity: no linear layer of {type(model).__name__} trains; remove sparsity.")
        self.reach = describe_reach(model, [weight for weight, _ in self.kept], "Sparsity")
        self.after_step()

    def describe(self) -> str:
        """Return one sentence on what is zero."""
        zeros = sum(int((~kept).sum()) for _, kept in self.kept)
        how = "the smallest of each" if self.choice == "magnitude" else "at random"
        what = f"{zeros:,} weights of {len(self.kept)} linear layers are zero and stay zero"
        return f"Sparse: {what}, chosen {how}. {self.reach}"

    def after_backward(self) -> None:
        """Remove the gradients of weights that are zero."""
        for weight, kept in self.kept:
            if weight.grad is not None:
                weight.grad.mul_(kept)

    @torch.no_grad()
    def after_step(self) -> None:
        """Set the weights to zero that another rule may have moved."""
        for weight, kept in self.kept:
            weight.mul_(kept)

    def _choose(self, weight: Tensor, seed: int) -> Tensor:
        """Return which entries of a weight are kept, boolean."""
        count = int(self.share * weight.numel())
        if self.choice == "magnitude":
            order = weight.abs().flatten().argsort(stable=True)
        else:
            order = torch.randperm(weight.numel(), generator=torch.Generator().manual_seed(seed)).to(weight.device)
        kept = torch.ones(weight.numel(), dtype=torch.bool, device=weight.device)
        kept[order[:count]] = False
        return kept.view_as(weight)
