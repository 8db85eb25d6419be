"""MLM+TACO: neighbours share their context (baseline of Ke et al., EMNLP 2022)."""

from dataclasses import dataclass
from typing import Literal

from acclimate.errors import UserError, check_not_negative, check_positive
from acclimate.methods import Method, register
from acclimate.objectives import BatchObjective, ContextContrast, LanguageModelling, Objective


@register(
    "mlm-taco",
    paper="Fu et al., ACL 2022; Ke et al., EMNLP 2022",
    summary="MLM, with the context part of each token contrasted with a neighbour's and those of other texts",
)
@dataclass
class MLMWithTACO(Method):
    """L = L_MLM + weight x mean over t of -log( e(g_t, g_p) / (e(g_t, g_p) + sum_n e(g_t, g_n)) ).

    g = h - e is what the context added to a token: last hidden state less the output of the embedding layer.
    e(a, b) = exp(cos(a, b) / temperature); p is a random neighbour, n runs over random tokens of other texts. The
    gradient goes through g_t only.

    Attributes:
        weight: Of the contrast (TACO: 1).
        temperature: Of the cosines (TACO: 0.07).
        window: A neighbour is at most half of it away (TACO: 5, so two tokens to either side).
        negatives: Tokens of other texts (TACO: 50).
        tokens: ``"masked"`` (TACO) is the reading of the MLM loss; ``"original"`` (released code of DGA) reads the
            clean text once more.
    """

    weight: float = 1.0
    temperature: float = 0.07
    window: int = 5
    negatives: int = 50
    tokens: Literal["masked", "original"] = "masked"

    def __post_init__(self) -> None:
        """Check the window and what must be positive."""
        check_not_negative(weight=self.weight)
        check_positive(temperature=self.temperature, negatives=self.negatives)
        if self.window < 3 or self.window % 2 == 0:
            raise UserError(f"window must be odd and at least 3, not {self.window}: its middle is the token itself.")

    def objectives(self) -> list[Objective | BatchObjective]:
        """Return the MLM loss and the contrast."""
        return [
            LanguageModelling(),
            ContextContrast(self.weight, self.temperature, self.window, self.negatives, self.tokens),
        ]
