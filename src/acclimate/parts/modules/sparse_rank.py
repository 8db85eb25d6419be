"""A low-rank adapter that keeps the components that it needs: CoDyRA (Lu et al., 2024).

The change of a weight is sum_i w_i b_i a_i^T. While the factors train, a proximal step shrinks the weights w of the
components towards zero, so that layers that need little of the rank end with less of it. The paper merges the change
after each domain and starts anew, as every adapter here does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from acclimate.base.errors import UserError, check_positive
from acclimate.models.adapters import register
from acclimate.models.lora import TRAINED, LowRankAdapter
from acclimate.parts.updates import UpdateRule

COMPONENTS = "component_weights"
"""Parameter of A with the weights of the components (r,)."""
RATE = 20.0
"""Learning rate of these weights as a multiple of the factors' rate. They start at one, and the entries of A near one
over the root of its width, so that both change by about the same share."""


@register("codyra", paper="Lu et al., 2024", summary="a low-rank adapter that keeps the components that it needs")
@dataclass(eq=False)
class SparseRankAdapter(LowRankAdapter):
    """A low-rank adapter whose components have weights.

    Attributes:
        sparsity: Factor of the sum of the absolute weights of the components, which start at 1: after each step they
            move towards zero by this times their learning rate, which is 20 times the factors'. Adam moves a
            weight by at most about its learning rate, so 1 leaves nothing after enough steps.
        dense: Share of the training before they are shrunk.
    """

    merged_names, stacks = (f".{COMPONENTS}",), False

    sparsity: float = 0.5
    dense: float = 0.3

    def __post_init__(self) -> None:
        """Validate the numbers."""
        super().__post_init__()
        check_positive(sparsity=self.sparsity)
        if not 0 <= self.dense < 1:
            raise UserError(f"'dense' is a share of the training, from 0 to below 1, not {self.dense:g}.")

    def add(self) -> None:
        """Add the factors, and the weights of their components."""
        super().add()
        for layer in self.layers.values():
            a = layer.lora_A[TRAINED]
            a.register_parameter(COMPONENTS, nn.Parameter(torch.ones(self.r, device=a.weight.device)))
            a.register_forward_hook(_weigh)

    @property
    def place(self) -> str:
        """Location in the model and number of components left, for messages."""
        weights = [layer.lora_A[TRAINED].get_parameter(COMPONENTS) for layer in self.layers.values()]
        left = sum(int((values != 0).sum()) for values in weights)
        return f"{super().place}, {left:,} of {sum(map(len, weights)):,} components"

    def factors(self) -> list[tuple[nn.Parameter, nn.Parameter]]:
        """Refuse what exchanges the components of a product.

        Raises:
            UserError: Always.
        """
        raise UserError(
            f"The adapter '{self.name}' weighs its components, which the rule 'refactor' replaces; remove one."
        )

    def update_rule(self) -> SoftThreshold:
        """Return the rule that shrinks the weights of the components."""
        return SoftThreshold(self.model, self.sparsity, self.dense)

    def _masked_factors(self, name: str, layer: Any) -> dict[str, tuple[Tensor, Tensor]]:
        """Return A and B with the weights of the components in A."""
        weights = layer.lora_A[TRAINED].get_parameter(COMPONENTS).detach()
        return {part: (weights[:, None] * a, b) for part, (a, b) in super()._masked_factors(name, layer).items()}


def _weigh(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    """Multiply the output of A by the weights of its components."""
    return output * module.get_parameter(COMPONENTS).to(output.dtype)


class SoftThreshold(UpdateRule):
    """Proximal steps of an L1 penalty: w = sign(w) max(|w| - sparsity x learning rate, 0) after each step."""

    needs_whole_weights: ClassVar[bool] = False

    def __init__(self, model: nn.Module, sparsity: float, dense: float) -> None:
        """Find the weights of the components.

        Args:
            model: The model with its adapter.
            sparsity: Factor of the penalty.
            dense: Share of the training before the first proximal step.
        """
        self.sparsity, self.dense = sparsity, dense
        self.weights = {name: value for name, value in model.named_parameters() if name.endswith(f".{COMPONENTS}")}

    def learning_rate_factors(self) -> Mapping[str, float]:
        """Return the factor of the weights of the components."""
        return dict.fromkeys(self.weights, RATE)

    @torch.no_grad()
    def step(self, optimizer: torch.optim.Optimizer, take: Callable[[], Any]) -> None:
        """Let the optimizer update all weights; after the dense part of the training, shrink component weights."""
        super().step(optimizer, take)
        if self.progress < self.dense:
            return
        rates = {weight: group["lr"] for group in optimizer.param_groups for weight in group["params"]}
        for weight in self.weights.values():
            if weight in rates:
                weight.copy_(nn.functional.softshrink(weight, self.sparsity * rates[weight]))
