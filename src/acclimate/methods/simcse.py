"""MLM+SimCSE: two dropout draws of a text against all other texts (baseline of Ke et al., EMNLP 2022)."""

from dataclasses import dataclass
from typing import Literal

from acclimate.errors import check_not_negative, check_positive
from acclimate.methods import Method, register
from acclimate.objectives import BatchObjective, LanguageModelling, Objective, TextContrast


@register(
    "mlm-simcse",
    paper="Gao et al., EMNLP 2021; Ke et al., EMNLP 2022",
    summary="MLM, with two dropout draws of each text contrasted with all other texts",
)
@dataclass
class MLMWithSimCSE(Method):
    """L = L_MLM + weight x mean over i of -log( e^(cos(z_i, z_i') / t) / sum_j e^(cos(z_i, z_j') / t) ).

    z and z' are mean-pooled readings of a text under two dropout draws; negatives are the other texts of the step.

    Attributes:
        weight: Of the contrast (released code of DGA: 1).
        temperature: t (Gao et al.: 0.05).
        tokens: ``"original"`` reads the clean text twice beside the MLM loss; ``"masked"`` contrasts readings of the
            corrupted text, one of which the MLM loss reads anyway: two readings instead of three. That is DGA without
            its soft mask and its general negatives, whose default is ``"masked"``, too.
    """

    weight: float = 1.0
    temperature: float = 0.05
    tokens: Literal["original", "masked"] = "original"

    def __post_init__(self) -> None:
        """Check the temperature."""
        check_not_negative(weight=self.weight)
        check_positive(temperature=self.temperature)

    def objectives(self) -> list[Objective | BatchObjective]:
        """Return the MLM loss and the contrast."""
        return [LanguageModelling(), TextContrast(self.weight, self.temperature, self.tokens)]
