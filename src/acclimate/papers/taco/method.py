"""Language modelling plus a contrast between the contexts of neighbouring tokens (TACO, Fu et al., ACL 2022)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from acclimate.api import (
    BatchObjective,
    LanguageModelling,
    Method,
    Objective,
    Published,
    UserError,
    check_not_negative,
    check_positive,
    register_method,
)
from acclimate.papers.taco.objective import ContextContrast


@register_method(
    "taco",
    paper="Fu et al., ACL 2022; Ke et al., EMNLP 2022",
    summary="language modelling plus a contrast between the contexts of neighbouring tokens, against other texts",
)
@dataclass
class LMWithTACO(Method):
    """L = L_LM + weight x mean over tokens t of -log( e(g_t, g_p) / (e(g_t, g_p) + sum_n e(g_t, g_n)) ).

    g = h - e is the contextual part of a token: its last hidden state minus the output of the embedding layer.
    e(a, b) = exp(cos(a, b) / temperature). The positive p is a random neighbour of t, and n runs over random tokens of
    other texts. The gradient flows through g_t only.

    Attributes:
        weight: Weight of the contrastive loss (TACO: 1).
        temperature: Temperature of the cosines (TACO: 0.07).
        window: Width of the window that neighbours are drawn from, an odd number of tokens centred on the token
            (TACO: 5, so up to two tokens to either side).
        negatives: Number of negative tokens, drawn from other texts (TACO: 50).
        tokens: ``"masked"`` (TACO) uses the forward pass of the LM loss; ``"original"`` (released code of DGA) adds a
            pass over the original text. A causal language model reads no masked text, so both are the same.
    """

    purpose: ClassVar[str] = "Learn better representations"
    weight: float = 1.0
    temperature: float = 0.07
    window: int = 5
    negatives: int = 50
    tokens: Annotated[
        Literal["masked", "original"], Published({"released-code": "original"}, "As in the paper on TACO.")
    ] = "masked"

    def __post_init__(self) -> None:
        """Validate the window and the numbers."""
        check_not_negative(weight=self.weight)
        check_positive(temperature=self.temperature, negatives=self.negatives)
        if self.window < 3 or self.window % 2 == 0:
            raise UserError(
                f"window must be an odd number of at least 3, since it is centred on a token: {self.window}."
            )

    def objectives(self) -> list[Objective | BatchObjective]:
        """Return the LM loss and the contrastive loss."""
        return [
            LanguageModelling(),
            ContextContrast(self.weight, self.temperature, self.window, self.negatives, self.tokens),
        ]
