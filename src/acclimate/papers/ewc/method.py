"""EWC over several domains: weights that mattered in any of them are held (Kirkpatrick et al., PNAS 2017)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from acclimate.api import (
    FISHER_TOKENS,
    AdaptContext,
    Count,
    Method,
    PullToStart,
    UserError,
    check_positive,
    format_count,
    measure_fisher,
    register_method,
)

FISHER, ANCHOR = "ewc/fisher/", "ewc/anchor/"
"""Beginnings of the names of the carried tensors: the summed Fisher information and what weights are pulled to."""


@register_method(
    "ewc",
    paper="Kirkpatrick et al., PNAS 2017; Schwarz et al., ICML 2018",
    summary="language modelling that holds the weights that mattered in earlier domains, by their Fisher information",
)
@dataclass
class ElasticWeights(Method):
    """L = L_LM + strength / 2 x sum over earlier domains d and weights i of F_di (w_i - w_di)^2.

    F_d is the diagonal of the Fisher information of the text of domain d, in nats per predicted token, measured at the
    end of its adaptation; w_d are the weights at that time. Both are stored next to the model, and the next adaptation
    of the model with ``ewc`` is limited by them. The first domain is plain language modelling: to hold what matters
    for general text, add the update rule ``ewc``.

    The sum over all domains is a single quadratic function, so two tensors of the size of the model are stored,
    however many domains there are.

    Attributes:
        strength: Factor of the term; the best one differs by powers of ten among models and texts.
        rule: ``"summed"`` is the formula above. ``"online"`` (Schwarz et al.) pulls to the weights at the start
            of the run alone, with the Fisher information of all domains: half of the storage.
        decay: Factor of the Fisher information of earlier domains each time that one is added; below 1, old domains
            are let go.
        tokens: Maximum tokens of the domain text that the Fisher information is measured on.
    """

    purpose: ClassVar[str] = "Forget less"
    kinds: ClassVar[tuple[str, ...]] = ("masked", "causal", "seq2seq")
    cost: ClassVar[float] = 1.1
    without_adapter: ClassVar[str] = "it trains all weights and holds some, which an adapter leaves as they are"

    strength: float = 100.0
    rule: Literal["summed", "online"] = "summed"
    decay: float = 1.0
    tokens: int = FISHER_TOKENS

    def __post_init__(self) -> None:
        """Validate the numbers."""
        check_positive(strength=self.strength, tokens=self.tokens, decay=self.decay)
        if self.decay > 1:
            raise UserError(f"decay must be at most 1, not {self.decay:g}: it lets old domains go.")
        self._pull: PullToStart | None = None  # set by `prepare`, as is the number of earlier domains
        self._domains = 0

    def check(self, run: AdaptContext) -> None:
        """Check that weights are whole."""
        if run.sharded:
            raise UserError(
                "Method 'ewc' measures Fisher information after the training, on whole weights; remove fsdp."
            )
        super().check(run)

    def prepare(self, run: AdaptContext) -> None:
        """Read what earlier domains left."""
        weights = dict(run.model.named_parameters())
        fisher = run.carried.select(FISHER, like=weights, negative=False)
        self._domains = run.carried.record("ewc", dict[str, Count], {}).get("domains", 0)
        if not fisher:
            run.say("EWC: no earlier domain, so no weight is held.")
            return
        anchors = run.carried.select(ANCHOR, like=weights)
        if self.rule == "summed" and not anchors:
            raise UserError(
                "The model carries no weights of earlier domains, since its rule was online; use rule=online."
            )
        self._pull = PullToStart(run.model, self.strength, fisher, anchors if self.rule == "summed" else None)
        run.say(f"EWC: weights are held for {format_count(self._domains, 'earlier domain')}.")

    def update_rule(self) -> PullToStart | None:
        """Return the pull to the weights of earlier domains, if there are any."""
        return self._pull

    def finish(self, run: AdaptContext) -> None:
        """Measure the Fisher information of this domain, and add it to the information of earlier domains."""
        weights = {name: weight.detach() for name, weight in run.model.named_parameters()}
        old = run.carried.select(FISHER, like=weights), run.carried.select(ANCHOR, like=weights)
        new = measure_fisher(run, self.tokens, cached=False)  # no other run starts from these weights
        fisher, anchors = add_quadratic(*old, new, weights, self.decay)
        for name in [name for name in run.carried.tensors if name.startswith("ewc/")]:
            del run.carried.tensors[name]
        stored = {FISHER: fisher} if self.rule == "online" else {FISHER: fisher, ANCHOR: anchors}
        run.carried.tensors |= {
            prefix + name: value for prefix, part in stored.items() for name, value in part.items()
        }
        domains = self._domains + 1
        run.carried.records["ewc"] = {"domains": domains}
        size = sum(value.nbytes for part in stored.values() for value in part.values())
        run.say(
            f"EWC: the Fisher information of {format_count(domains, 'domain')} takes {size / 1e6:,.1f} MB next to the "
            "model."
        )


def add_quadratic(
    fisher: Mapping[str, Tensor],
    anchors: Mapping[str, Tensor],
    new: Mapping[str, Tensor],
    weights: Mapping[str, Tensor],
    decay: float = 1.0,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return f and a of f (w - a)^2 = decay x F (w - A)^2 + N (w - W)^2 + constant, by the name of the weight.

    Args:
        fisher: F; nothing before the first domain.
        anchors: A; 0 where it is missing, which matters only if the result is used.
        new: N, of the weights that train.
        weights: W.
        decay: Factor of F.

    Returns:
        f and a in float32 on the CPU; a is W where f is 0.
    """
    total, pulled = {}, {}
    for name in sorted(fisher.keys() | new.keys()):
        now = weights[name].detach().float().cpu()
        old = decay * fisher[name].float() if name in fisher else torch.zeros_like(now)
        added = new[name].float().cpu() if name in new else torch.zeros_like(now)
        total[name] = old + added
        share = torch.where(total[name] > 0, added / total[name].clamp_min(torch.finfo(torch.float32).tiny), 1)
        pulled[name] = torch.lerp(anchors[name].float() if name in anchors else torch.zeros_like(now), now, share)
    return total, pulled
