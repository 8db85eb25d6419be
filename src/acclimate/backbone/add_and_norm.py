"""The end of a layer in one pass: dropout, the residual stream and layer normalisation ("Add & Norm").

Vaswani et al. (2017, Section 3.1) give each part of a layer the end LayerNorm(x + dropout(part(x))). Operation by
operation it is three passes over memory forward and three back, all of them memory and no arithmetic. The layers of
BERT and its kin end so twice, in modules of one shape, which get a forward of their own; names of weights stay.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from acclimate.backbone.draws import random_key
from acclimate.backbone.dropout import CheapDropout, cut_and_factor
from acclimate.backbone.passes import Passes, passes_for

FAMILIES = ("bert", "roberta", "xlm_roberta", "camembert", "electra")
"""Packages of ``transformers.models`` whose layers end in modules of this shape."""
ENDS = ("SelfOutput", "Output")
PARTS = {"dense": nn.Linear, "dropout": CheapDropout, "LayerNorm": nn.LayerNorm}


class AddAndNorm(nn.Module):
    """What such a module does, in one pass after its linear layer."""

    dense: nn.Linear
    dropout: CheapDropout
    LayerNorm: nn.LayerNorm

    def forward(self, hidden_states: Tensor, input_tensor: Tensor) -> Tensor:
        """Return LayerNorm(input_tensor + dropout(dense(hidden_states))), both (..., width)."""
        update = self.dense(hidden_states)
        passes = self._passes(update, input_tensor)
        if passes is None:
            normal: Tensor = self.LayerNorm(self.dropout(update) + input_tensor)
            return normal
        norm, draw = self.LayerNorm, cut_and_factor(self.dropout.p if self.training else 0.0)
        end: Tensor = _AddAndNorm.apply(update, input_tensor, norm.weight, norm.bias, norm.eps, passes, *draw)
        return end

    def _passes(self, update: Tensor, residual: Tensor) -> Passes | None:
        """Return the compiled pass, unless types differ (under autocast, say) or somebody listens to a part."""
        norm = self.LayerNorm
        if any(part._forward_hooks or part._forward_pre_hooks for part in (self.dropout, norm)):
            return None
        others = residual, norm.weight, norm.bias
        if any(other is None or other.dtype != update.dtype or not passes_for(other) for other in others):
            return None
        return passes_for(update) if update.shape == residual.shape else None


class _AddAndNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        update: Tensor,
        residual: Tensor,
        weight: Tensor,
        bias: Tensor,
        epsilon: float,
        passes: Passes,
        cut: int,
        factor: float,
    ) -> Tensor:
        """``cut`` and ``factor`` are for :meth:`Passes.drop`, the others for :meth:`Passes.add_and_norm`."""
        ctx.passes, ctx.draw = passes, (random_key() if cut else 0, cut, factor)
        out, sums, stats = passes.add_and_norm(update, residual, weight, bias, epsilon, *ctx.draw)
        ctx.save_for_backward(sums, stats, weight)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of update, residual, weight and bias."""
        slopes = ctx.passes.add_and_norm_back(gradients[0], *ctx.saved_tensors, *ctx.draw)
        wanted = [slope if needed else None for slope, needed in zip(slopes, ctx.needs_input_grad, strict=False)]
        return *wanted, None, None, None, None


def join_layer_ends(model: nn.Module) -> None:
    """Let the ends of layers, where they are of the known shape, be one pass; after dropout was made cheap."""
    for module in model.modules():
        package, name = type(module).__module__.split("."), type(module).__name__
        known = package[:2] == ["transformers", "models"] and package[2] in FAMILIES and name.endswith(ENDS)
        if known and {part: type(child) for part, child in module.named_children()} == PARTS:
            module.__class__ = AddAndNorm
