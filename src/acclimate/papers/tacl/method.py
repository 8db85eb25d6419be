"""MLM+TaCL: token-level contrast between the model and the frozen base model (baseline of Ke et al., EMNLP 2022)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from acclimate.api import (
    BatchObjective,
    LanguageModelling,
    Method,
    Objective,
    Published,
    check_not_negative,
    check_positive,
    register_method,
)
from acclimate.papers.tacl.objective import TokenAwareContrast


@register_method(
    "tacl",
    paper="Su et al., NAACL 2022; Ke et al., EMNLP 2022",
    summary="MLM plus a contrast between each masked token and the frozen base model's tokens of the same text",
)
@dataclass
class MLMWithTaCL(Method):
    """L = L_MLM + weight x mean over masked tokens i of -log( e^(s(h_i, r_i) / t) / sum_j e^(s(h_i, r_j) / t) ).

    h_i is the model's hidden state for token i of the masked text, r_i the frozen base model's hidden state for token
    i of the original text. j runs over the tokens of that text.

    Attributes:
        weight: Weight of the contrastive loss (released code of DGA: 1).
        temperature: t (TaCL: 0.01).
        similarity: s, ``"cosine"`` (TaCL) or ``"dot"`` (released code of DGA; use temperature 1).
        positions: Tokens that the mean runs over: ``"masked"`` (TaCL) or ``"unmasked"`` (released code of DGA).
    """

    purpose: ClassVar[str] = "Learn better representations"
    cost: ClassVar[float] = 1.3
    kinds: ClassVar[tuple[str, ...]] = ("masked",)
    kinds_reason: ClassVar[str] = "identifies masked tokens from the text on both sides"

    weight: float = 1.0
    temperature: float = 0.01
    similarity: Annotated[
        Literal["cosine", "dot"], Published({"released-code": "dot"}, "As in the paper on TaCL.")
    ] = "cosine"
    positions: Annotated[
        Literal["masked", "unmasked"], Published({"released-code": "unmasked"}, "As in the paper on TaCL.")
    ] = "masked"

    def __post_init__(self) -> None:
        """Validate the weight and the temperature."""
        check_not_negative(weight=self.weight)
        check_positive(temperature=self.temperature)

    def objectives(self) -> list[Objective | BatchObjective]:
        """Return the MLM loss and the contrastive loss."""
        return [
            LanguageModelling(),
            TokenAwareContrast(self.weight, self.temperature, self.similarity, self.positions),
        ]
