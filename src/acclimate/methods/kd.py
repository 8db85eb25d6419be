"""MLM+KD: masked language modelling held near the original by distillation (baseline of Ke et al., EMNLP 2022)."""

from dataclasses import dataclass
from typing import Literal

from acclimate.errors import check_not_negative, check_positive
from acclimate.methods import Method, register
from acclimate.objectives import BatchObjective, Distillation, LanguageModelling, Objective


@register(
    "mlm-kd",
    paper="Hinton et al., 2015; Ke et al., EMNLP 2022",
    summary="MLM, with the hidden states of each token distilled from the frozen original",
)
@dataclass
class MLMWithDistillation(Method):
    """L = L_MLM + weight x mean over tokens of T^2 KL(softmax(f0(x) / T) || softmax(f(x) / T)), over features.

    Attributes:
        weight: Of the distillation (released code of DGA: 1).
        temperature: T, divides the hidden states (paper: 1).
        tokens: ``"original"`` compares the readings of the clean text; ``"masked"`` those of the corrupted text, one
            of which the MLM loss reads anyway: one reading of the student instead of two.
        divergence: ``"forward"`` is KL(original || student); ``"reverse"`` (released code) KL(student || original).
    """

    weight: float = 1.0
    temperature: float = 1.0
    tokens: Literal["original", "masked"] = "original"
    divergence: Literal["forward", "reverse"] = "forward"

    def __post_init__(self) -> None:
        """Check the temperature."""
        check_not_negative(weight=self.weight)
        check_positive(temperature=self.temperature)

    def objectives(self) -> list[Objective | BatchObjective]:
        """Return the MLM loss and the distillation."""
        return [LanguageModelling(), Distillation(self.weight, self.temperature, self.tokens, self.divergence)]
