"""Language modelling regularized by distillation from the base model (MLM+KD of Ke et al., EMNLP 2022)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from acclimate.api import (
    BatchObjective,
    Distillation,
    LanguageModelling,
    Method,
    Objective,
    Published,
    check_not_negative,
    check_positive,
    register_method,
)


@register_method(
    "kd",
    paper="Hinton et al., 2015; Ke et al., EMNLP 2022",
    summary="language modelling plus distillation of every token's hidden state from the frozen base model",
)
@dataclass
class LMWithDistillation(Method):
    """L = L_LM + weight x mean over tokens of T^2 KL(softmax(f0(x) / T) || softmax(f(x) / T)).

    f0 is the frozen base model. The softmax runs over the features of a token's last hidden state.

    Attributes:
        weight: Weight of the distillation loss (released code of DGA: 1).
        temperature: T, which divides the hidden states (paper: 1).
        tokens: ``"original"`` compares hidden states of the original text. ``"masked"`` compares states of the masked
            text, which the LM loss needs anyway: one student forward pass instead of two. A causal
            language model reads no masked text, so both are the same, in one pass.
        divergence: ``"forward"`` is KL(base || student); ``"reverse"`` (released code) is KL(student || base).
    """

    purpose: ClassVar[str] = "Forget less"
    kinds: ClassVar[tuple[str, ...]] = ("masked", "causal", "seq2seq")
    cost: ClassVar[float] = 2.3
    weight: float = 1.0
    temperature: float = 1.0
    tokens: Literal["original", "masked"] = "original"
    divergence: Annotated[
        Literal["forward", "reverse"],
        Published(
            {"released-code": "reverse"},
            "The direction of distillation in the paper.",
        ),
    ] = "forward"

    def __post_init__(self) -> None:
        """Validate the weight and the temperature."""
        check_not_negative(weight=self.weight)
        check_positive(temperature=self.temperature)

    def objectives(self) -> list[Objective | BatchObjective]:
        """Return the LM loss and the distillation loss."""
        return [LanguageModelling(), Distillation(self.weight, self.temperature, self.tokens, self.divergence)]
