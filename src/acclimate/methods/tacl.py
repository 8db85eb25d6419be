"""MLM+TaCL: masked tokens find their place in the frozen original (baseline of Ke et al., EMNLP 2022)."""

from dataclasses import dataclass
from typing import Literal

from acclimate.errors import check_not_negative, check_positive
from acclimate.methods import Method, register
from acclimate.objectives import BatchObjective, LanguageModelling, Objective, TokenAwareContrast


@register(
    "mlm-tacl",
    paper="Su et al., NAACL 2022; Ke et al., EMNLP 2022",
    summary="MLM, with each masked token contrasted with the tokens of its text in the frozen original",
)
@dataclass
class MLMWithTaCL(Method):
    """L = L_MLM + weight x mean over masked i of -log( e^(s(h_i, r_i) / t) / sum_j e^(s(h_i, r_j) / t) ).

    h is the model's reading of the corrupted text, r the frozen original's reading of the clean one; j runs over the
    tokens of the same text.

    Attributes:
        weight: Of the contrast (released code of DGA: 1).
        temperature: t (TaCL: 0.01).
        similarity: s, ``"cosine"`` (default of TaCL), or ``"dot"`` (released code of DGA; take temperature 1).
        positions: The mean goes over the ``"masked"`` tokens (TaCL), or over the ``"unmasked"`` (released code).
    """

    weight: float = 1.0
    temperature: float = 0.01
    similarity: Literal["cosine", "dot"] = "cosine"
    positions: Literal["masked", "unmasked"] = "masked"

    def __post_init__(self) -> None:
        """Check the temperature."""
        check_not_negative(weight=self.weight)
        check_positive(temperature=self.temperature)

    def objectives(self) -> list[Objective | BatchObjective]:
        """Return the MLM loss and the contrast."""
        return [
            LanguageModelling(),
            TokenAwareContrast(self.weight, self.temperature, self.similarity, self.positions),
        ]
