"""Update rules: hooks around the optimizer step, soft masking by importance (DGA, Eq. 9), and frozen rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

from acclimate.base.errors import UserError
from acclimate.models.gates import UnitGroup

T = TypeVar("T")
COPIED_BYTES = 256 * 10**6
"""Maximum bytes of weights that :class:`SoftMask` copies at a time. A single weight that is larger is copied whole."""
ROUNDED_VALUES = 2**22
"""Values that are rounded stochastically at a time, to bound the memory of their float32 copies."""


class UpdateRule:
    """Hooks around every optimizer step; by default they do nothing."""

    needs_whole_weights: ClassVar[bool] = True
    """Whether the weights must not be sharded among processes."""
    removes_gradients: ClassVar[bool] = False
    """Whether :meth:`after_backward` sets gradients to zero, for which it comes after all that add to them."""
    steps_taken: int = 0
    """Number of optimizer steps before this one; the trainer sets it."""
    progress: float = 0.0
    """Share of the training that came before the step; the trainer sets it."""

    @property
    def is_complete(self) -> bool:
        """Whether the model between two steps could be the result."""
        return True

    def learning_rate_factors(self) -> Mapping[str, float]:
        """Return factors of the learning rate, by name of the weight; those that are missing are 1."""
        return {}

    def after_backward(self) -> None:
        """Run when the gradients of the step are complete, before they are clipped."""

    def before_step(self) -> None:
        """Run on the final gradients: accumulated, unscaled and clipped."""

    def after_step(self) -> None:
        """Run after the optimizer has updated the weights, weight decay included."""

    def step(self, optimizer: torch.optim.Optimizer, take: Callable[[], Any]) -> None:
        """Let the optimizer update the weights, between :meth:`before_step` and :meth:`after_step`.

        Args:
            optimizer: The optimizer of the training.
            take: Its own ``step``.
        """
        self.before_step()
        take()
        self.after_step()

    def delta_factors(self) -> list[tuple[Tensor, Tensor]]:
        """Return weights and the factors of their change that replace the rule where a low-rank adapter trains.

        The weights themselves are frozen then; see :meth:`acclimate.models.lora.LowRankAdapter.mask`.
        """
        return []


class CombinedRules(UpdateRule):
    """Several rules at once; each wraps those after it, so that the last one is the nearest to the optimizer."""

    def __init__(self, rules: Sequence[UpdateRule]) -> None:
        """Store the rules; the parts of combined ones stand by themselves."""
        parts = [one.rules if isinstance(one, CombinedRules) else [one] for one in rules]
        self.rules: list[UpdateRule] = [part for found in parts for part in found]

    @property
    def needs_whole_weights(self) -> bool:  # type: ignore[override]
        """Whether one of them needs whole weights."""
        return any(rule.needs_whole_weights for rule in self.rules)

    @property
    def is_complete(self) -> bool:
        """Whether the model could be the result for every rule."""
        return all(rule.is_complete for rule in self.rules)

    def learning_rate_factors(self) -> Mapping[str, float]:
        """Return the products of the factors of all rules."""
        found: dict[str, float] = {}
        for rule in self.rules:
            for name, factor in rule.learning_rate_factors().items():
                found[name] = factor * found.get(name, 1.0)
        return found

    def after_backward(self) -> None:
        """Run ``after_backward`` of every rule: first of rules that add to gradients, then of rules that remove some.

        So clipping leaves out what does not move.
        """
        for rule in sorted(self.rules, key=lambda rule: rule.removes_gradients):
            rule.after_backward()

    def step(self, optimizer: torch.optim.Optimizer, take: Callable[[], Any]) -> None:
        """Let the optimizer update the weights, inside the steps of all rules."""
        for rule in reversed(self.rules):
            rule.steps_taken, rule.progress = self.steps_taken, self.progress
            take = partial(rule.step, optimizer, take)
        take()


class SoftMask(UpdateRule):
    """Scale the learning of each unit by one minus its importance (Eq. 9).

    :meth:`acclimate.models.UnitGroup.spread_over_parameters` defines which weights belong to a unit.

    With ``on="update"``, the default, a weight moves (1 - I) of the way that the optimizer moved it: the update is
    constrained, as the paper says. With ``on="gradient"`` the gradient is scaled, as the equation is written and as
    the released code does with AdamW. Under Adam this has almost no effect, since a constant factor cancels between
    the first moment and the root of the second, and weight decay still moves a protected unit as far as any other.
    """

    needs_whole_weights: ClassVar[bool] = False

    def __init__(
        self,
        units: Mapping[str, Sequence[UnitGroup]],
        importance: Mapping[str, Tensor],
        on: Literal["update", "gradient"] = "update",
    ) -> None:
        """Check the importance.

        Args:
            units: Layers of each part of the model.
            importance: Normalized importance (layers, units) of the same parts, in [0, 1].
            on: What is scaled.

        Raises:
            UserError: If ``on`` has another value, or an importance is not a finite number in [0, 1].
        """
        if on not in ("update", "gradient"):
            raise UserError(f"A soft mask scales the 'update' or the 'gradient', not '{on}'.")
        for values in importance.values():
            if not bool(((values >= 0) & (values <= 1)).all()):
                raise UserError("Importance values must be numbers between 0 and 1; normalize them first.")
        self.on, self._units, self._importance = on, units, importance

    @cached_property
    def scaled(self) -> list[tuple[Tensor, Tensor]]:
        """The weights of the units, and the factors of their learning, which broadcast over the weights.

        They are computed when they are first needed, since sharding a model replaces its weights. The factors of a
        sharded weight belong to its local shard.
        """
        return [
            (weight, _local_factors(weight, (1 - share).to(weight.device)))
            for part, values in self._importance.items()
            for layer, layer_importance in zip(self._units[part], values, strict=True)
            for weight, share in layer.spread_over_parameters(layer_importance)
        ]

    def delta_factors(self) -> list[tuple[Tensor, Tensor]]:
        """Return the factors of the weights that are matrices; with an adapter nothing else changes.

        Raises:
            UserError: If the gradient is to be scaled: no gradient of an adapter belongs to single weights.
        """
        if self.on == "gradient":
            raise UserError("An adapter can scale the update of weights, not their gradient; use mask_on=update.")
        return [(weight, factor) for weight, factor in self.scaled if factor.dim() == 2]

    @torch.no_grad()
    def before_step(self) -> None:
        """Scale the gradients, if they are what is scaled."""
        for weight, factor in self.scaled if self.on == "gradient" else ():
            if weight.grad is not None:
                local_shard(weight.grad).mul_(factor)

    @torch.no_grad()
    def step(self, optimizer: torch.optim.Optimizer, take: Callable[[], Any]) -> None:
        """Let the optimizer update the weights, and undo the masked share of the update.

        That takes a copy of each masked weight. To bound their memory, the weights are updated in groups: an optimizer
        skips parameters that have no gradient, and keeps its state per parameter. All gradients are None afterwards.
        """
        if self.on == "gradient":
            return super().step(optimizer, take)
        trained = (weight for group in optimizer.param_groups for weight in group["params"])
        gradients = {weight: weight.grad for weight in trained if weight.grad is not None}
        masked = [(weight, factor) for weight, factor in self.scaled if weight in gradients]
        others = gradients.keys() - {weight for weight, _ in masked}  # updated with the first group
        _set_gradients(dict.fromkeys(gradients))
        for group in list(group_by_size(masked)) or [[]]:
            weights = [weight for weight, _ in group]
            _set_gradients({weight: gradients.pop(weight) for weight in (*weights, *others)})
            before = [local_shard(weight).clone() for weight in weights]
            take()
            _undo_shares([local_shard(weight) for weight in weights], before, [factor for _, factor in group])
            del before  # otherwise it would exist until the next group is copied
            _set_gradients(dict.fromkeys((*weights, *others)))
            others = set()


def _set_gradients(gradients: Mapping[Tensor, Tensor | None]) -> None:
    for weight, gradient in gradients.items():
        weight.grad = gradient


def group_by_size(scaled: Sequence[tuple[Tensor, T]]) -> Iterator[list[tuple[Tensor, T]]]:
    """Split weights, with what belongs to each, into groups of at most :data:`COPIED_BYTES`, unless one is larger."""
    group: list[tuple[Tensor, T]] = []
    size = 0
    for weight, factor in scaled:
        more = local_shard(weight).nbytes
        if group and size + more > COPIED_BYTES:
            yield group
            group, size = [], 0
        group.append((weight, factor))
        size += more
    if group:
        yield group


def _undo_shares(weights: list[Tensor], before: list[Tensor], factors: list[Tensor]) -> None:
    """Let each weight keep a share of its change: w = before + factor (w - before), in place.

    A factor of zero restores the value before bit for bit. Values in bf16 are computed in fp32 and rounded
    stochastically: to the nearest, changes of less than half a unit in the last place would be lost, and half of a
    change of one unit would be none or all of it.
    """
    if not weights:
        return
    if weights[0].dtype == torch.bfloat16:
        for weight, old, factor in zip(weights, before, factors, strict=True):
            rows = max(1, ROUNDED_VALUES // max(1, weight[:1].numel()))
            parts = (values.split(rows) for values in (weight, old, factor.expand_as(weight)))
            for now, then, share in zip(*parts, strict=True):
                now.copy_(_round_stochastically(then.float() + share * (now.float() - then.float())))
        return
    torch._foreach_sub_(weights, before)
    torch._foreach_mul_(weights, factors)
    torch._foreach_add_(weights, before)


def _round_stochastically(values: Tensor) -> Tensor:
    """Round float32 values to bfloat16, up or down with the probabilities that keep the expected value.

    The bits that bfloat16 lacks are the distance to the next value towards zero, so random bits are added to them.
    """
    noise = torch.randint(1 << 16, values.shape, dtype=torch.int32, device=values.device)
    return ((values.view(torch.int32) + noise) & -(1 << 16)).view(torch.float32).bfloat16()


def local_shard(values: Tensor) -> Tensor:
    """Return the shard of this process of a sharded tensor; other tensors unchanged."""
    return values.to_local() if isinstance(values, DTensor) else values.detach()


def _local_factors(weight: Tensor, factor: Tensor) -> Tensor:
    """Return the part of the factors of a weight that belongs to its local shard."""
    if not isinstance(weight, DTensor):
        return factor
    placements = [
        Replicate() if place.is_shard() and factor.shape[place.dim] == 1 else place  # type: ignore[attr-defined]
        for place in weight.placements
    ]
    return distribute_tensor(factor, weight.device_mesh, placements, src_data_rank=None).to_local()


class FreezeOtherRows(UpdateRule):
    """Train some rows of a weight; the others keep their exact values, under weight decay too."""

    removes_gradients: ClassVar[bool] = True

    def __init__(self, weight: nn.Parameter, rows: Sequence[int]) -> None:
        """Store the values of the other rows.

        Args:
            weight: (rows, ...).
            rows: Indices of the rows that train.
        """
        self.weight = weight
        others = torch.ones(len(weight), dtype=torch.bool)
        others[list(rows)] = False
        self.others = others.nonzero()[:, 0].to(weight.device)  # a mask would make the host wait for the device
        self.values: Tensor = weight.detach()[self.others].clone()

    @torch.no_grad()
    def after_backward(self) -> None:
        """Zero the gradients of the other rows, so that they do not count towards the norm for clipping.

        A gradient hook on the weight would not see them all: kernels add to ``grad`` directly.
        """
        if self.weight.grad is not None:
            self.weight.grad.index_fill_(0, self.others, 0)

    @torch.no_grad()
    def after_step(self) -> None:
        """Restore the other rows."""
        self.weight.index_copy_(0, self.others, self.values.to(self.weight.dtype))
