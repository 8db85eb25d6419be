"""MLM+KD: masked language modelling regularized by distillation from the base model (baseline of Ke et al., 2022)."""

from dataclasses import dataclass
from typing import Literal

from acclimate.errors import check_not_negative, check_positive
from acclimate.methods import Method, register
from acclimate.objectives import BatchObjective, Distillation, LanguageModelling, Objective


@register(
    "mlm-kd",
    paper="Hinton et al., 2015; Ke et al., EMNLP 2022",
    summary="MLM plus distillation of every token's hidden state from the frozen base model",
)
@dataclass
class MLMWithDistillation(Method):
    """L = L_MLM + weight x mean over tokens of T^2 KL(softmax(f0(x) / T) || softmax(f(x) / T)).

    f0 is the frozen base model. The softmax runs over the features of a token's last hidden state.

    Attributes:
        weight: Weight of the distillation loss (released code of DGA: 1).
        temperature: T, which divides the hidden states (paper: 1).
        tokens: ``"original"`` compares hidden states of the original text. ``"masked"`` compares those of the masked
            text, which the MLM loss needs anyway: one student forward pass instead of two.
        divergence: ``"forward"`` is KL(base || student); ``"reverse"`` (released code) is KL(student || base).
    """

    weight: float = 1.0
    temperature: float = 1.0
    tokens: Literal["original", "masked"] = "original"
    divergence: Literal["forward", "reverse"] = "forward"

    def __post_init__(self) -> None:
        """Validate the weight and the temperature."""
        check_not_negative(weight=self.weight)
        check_positive(temperature=self.temperature)

    def objectives(self) -> list[Objective | BatchObjective]:
        """Return the MLM loss and the distillation loss."""
        return [LanguageModelling(), Distillation(self.weight, self.temperature, self.tokens, self.divergence)]
