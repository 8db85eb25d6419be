"""Language modelling that weights each token by its likelihood (TALR, Lin et al., 2025)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from acclimate.api import (
    BatchObjective,
    LanguageModelling,
    Method,
    Objective,
    UserError,
    check_not_negative,
    check_positive,
    register_method,
)
from acclimate.papers.talr.objective import WeightedLanguageModelling


@register_method(
    "talr",
    paper="Lin et al., 2025",
    summary="language modelling in which tokens that the model finds unlikely count less, or more",
)
@dataclass
class TokenWeighting(Method):
    """L = mean over predicted tokens t of w_t L_t, with weights w_t proportional to exp(-L_t / tau).

    L_t is the cross-entropy of t. The weights are computed anew in every step, have mean 1 and no gradient. Unlikely
    tokens cause most of the forgetting, as the paper argues, and count less. But rare domain words are just such
    tokens, so ``favors=unlikely`` does the opposite, with weights proportional to exp(L_t / tau).

    The paper also finds that a low learning rate alone prevents most of the forgetting.

    Attributes:
        favors: Tokens that count more: ``"likely"`` (TALR) or ``"unlikely"`` (tilted risk, Li et al., ICLR 2021).
        tau: In nats, or ``"batch"`` for the median over the texts of a step of the mean cross-entropy of a text, as in
            the paper (the lower median of an even number). A large number gives all tokens the same weight, which is
            ``lm``.
        normalized: Whether the weights of a step have mean 1. Otherwise they are p_t^(1 / tau), and the step is
            smaller while the model finds the text unlikely; only with ``favors=likely``.
        floor: Minimum of a weight, so that no token is ignored.
    """

    purpose: ClassVar[str] = "Forget less"
    kinds: ClassVar[tuple[str, ...]] = ("masked", "causal", "seq2seq")
    cost: ClassVar[float] = 1.1

    favors: Literal["likely", "unlikely"] = "likely"
    tau: float | Literal["batch"] = "batch"
    normalized: bool = True
    floor: float = 0.0

    def __post_init__(self) -> None:
        """Validate the numbers and their combination."""
        check_not_negative(floor=self.floor)
        if self.tau != "batch":
            check_positive(tau=self.tau)
        if self.favors == "unlikely" and not self.normalized:
            raise UserError("favors=unlikely has weights without a limit, so it needs normalized=true.")

    def objectives(self) -> list[Objective | BatchObjective]:
        """Return the weighted loss, and the LM loss, which is reported only."""
        tau = None if self.tau == "batch" else self.tau
        weighted = WeightedLanguageModelling(self.favors, tau, self.normalized, self.floor)
        return [LanguageModelling(0), weighted]
