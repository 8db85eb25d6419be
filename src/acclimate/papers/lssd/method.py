"""Language modelling with logit swap self-distillation (Mix-CPT, Jiang et al., ICLR 2025)."""

from dataclasses import dataclass
from typing import ClassVar

from acclimate.api import (
    BatchObjective,
    LanguageModelling,
    Method,
    Objective,
    check_not_negative,
    check_positive,
    register_method,
)
from acclimate.papers.lssd.objective import LogitSwapDistillation


@register_method(
    "lssd",
    paper="Jiang et al., ICLR 2025",
    summary="language modelling plus distillation of the frozen base model's predictions, with the gold token on top",
)
@dataclass
class LogitSwap(Method):
    """L = L_LM + alpha x mean over predicted tokens y of T^2 KL(q' || p).

    p is the model's prediction, q' that of the frozen base model with the probabilities of y and of its most probable
    token swapped. The model learns y and keeps how the base model ranks the alternatives. The paper has decoders; with
    a masked model, the same is done at the masked positions.

    The paper also mixes general instructions into the text, which is ``--replay chat:FILE`` here.

    Attributes:
        alpha: Weight of the distillation. The paper's value is not known to us; 0 is ``lm``.
        temperature: T, which divides the logits of both models.
    """

    purpose: ClassVar[str] = "Forget less"
    kinds: ClassVar[tuple[str, ...]] = ("masked", "causal", "seq2seq")
    cost: ClassVar[float] = 1.4

    alpha: float = 0.3
    temperature: float = 1.0

    def __post_init__(self) -> None:
        """Validate the weight and the temperature."""
        check_not_negative(alpha=self.alpha)
        check_positive(temperature=self.temperature)

    def objectives(self) -> list[Objective | BatchObjective]:
        """Return the LM loss and, unless its weight is zero, the distillation."""
        distillation = [LogitSwapDistillation(self.alpha, self.temperature)] if self.alpha else []
        return [LanguageModelling(), *distillation]
