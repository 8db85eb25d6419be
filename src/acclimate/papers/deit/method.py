"""MLM+AdaptedDeiT: masked language modelling with a distillation token (baseline of Ke et al., EMNLP 2022)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from acclimate.api import (
    AdaptContext,
    BatchObjective,
    LanguageModelling,
    Method,
    Objective,
    check_not_negative,
    register_method,
    virtual_ids,
)
from acclimate.papers.deit.objective import TokenDistillation


@register_method(
    "deit",
    paper="Touvron et al., ICML 2021; Ke et al., EMNLP 2022",
    summary="MLM plus a distillation token that is trained to match the frozen base model's text representation",
)
@dataclass
class MLMWithDistillationToken(Method):
    """L = L_MLM + weight x mean over texts of D(pool(f0(x)), h_token).

    f0 is the frozen base model, pool the mean over tokens, and h_token the hidden state of the distillation token.
    That token is appended to every text, in the end task as well. The classifier still reads the first token; the
    paper does not say how the end task uses the distillation token.

    Attributes:
        weight: Weight of the distillation loss.
        distance: D, one of ``"divergence"``, ``"cosine"`` and ``"squared"``; see
            :class:`acclimate.parts.objectives.TokenDistillation`.
    """

    purpose: ClassVar[str] = "Forget less"
    cost: ClassVar[float] = 1.3
    kinds: ClassVar[tuple[str, ...]] = ("masked",)
    kinds_reason: ClassVar[str] = "ends every text with an additional token, after which nothing could be generated"

    without_adapter: ClassVar[str] = "it trains a row of the embedding table, for the distillation token"

    weight: float = 1.0
    distance: Literal["divergence", "cosine", "squared"] = "divergence"

    def __post_init__(self) -> None:
        """Validate the weight."""
        check_not_negative(weight=self.weight)
        self._token = -1  # set by `prepare`

    @property
    def virtual_tokens(self) -> int:
        """One: the distillation token."""
        return 1

    def prepare(self, run: AdaptContext) -> None:
        """Look up the id of the distillation token."""
        (self._token,) = virtual_ids(run.tokenizer)

    def objectives(self) -> list[Objective | BatchObjective]:
        """Return the MLM loss and the distillation loss."""
        return [LanguageModelling(), TokenDistillation(self._token, self.weight, self.distance)]
