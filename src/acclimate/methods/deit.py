"""MLM+AdaptedDeiT: masked language modelling with a distillation token (baseline of Ke et al., EMNLP 2022)."""

from dataclasses import dataclass
from typing import Literal

from acclimate.errors import check_not_negative
from acclimate.methods import Method, register
from acclimate.modules import virtual_ids
from acclimate.objectives import BatchObjective, LanguageModelling, Objective, TokenDistillation
from acclimate.training.method import AdaptContext


@register(
    "mlm-deit",
    paper="Touvron et al., ICML 2021; Ke et al., EMNLP 2022",
    summary="MLM, with a distillation token that learns the frozen original's representation of the text",
)
@dataclass
class MLMWithDistillationToken(Method):
    """L = L_MLM + weight x mean over texts of D(pool(f0(x)), h_token).

    The token stands at the end of every text, also in the end task, where the classifier reads the first token as it
    does for every model: what the distillation token is for there, the paper does not say.

    Attributes:
        weight: Of the distillation.
        distance: D; see :class:`acclimate.objectives.TokenDistillation`.
    """

    weight: float = 1.0
    distance: Literal["divergence", "cosine", "squared"] = "divergence"

    def __post_init__(self) -> None:
        """Check the weight, and start without a token: :meth:`prepare` knows it."""
        check_not_negative(weight=self.weight)
        self._token = -1

    @property
    def virtual_tokens(self) -> int:
        """The distillation token."""
        return 1

    def prepare(self, run: AdaptContext) -> None:
        """Find the token."""
        (self._token,) = virtual_ids(run.tokenizer)

    def objectives(self) -> list[Objective | BatchObjective]:
        """Return the MLM loss and the distillation."""
        return [LanguageModelling(), TokenDistillation(self._token, self.weight, self.distance)]
