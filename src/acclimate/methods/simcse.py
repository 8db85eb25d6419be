"""Language modelling plus a contrast between two dropout masks of the same text (Gao et al., EMNLP 2021)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from acclimate.errors import check_not_negative, check_positive
from acclimate.methods import Method, register
from acclimate.objectives import BatchObjective, LanguageModelling, Objective, TextContrast
from acclimate.registry import Published, with_presets


@register(
    "simcse",
    aliases=("mlm-simcse",),
    paper="Gao et al., EMNLP 2021; Ke et al., EMNLP 2022",
    summary="language modelling plus a contrast between two dropout masks of a text, against all other texts",
)
@with_presets
@dataclass
class LMWithSimCSE(Method):
    """L = L_LM + weight x mean over texts i of -log( e^(cos(z_i, z_i') / t) / sum_j e^(cos(z_i, z_j') / t) ).

    z_i and z_i' are mean-pooled representations of text i under two dropout masks. The negatives are the other texts
    in the step. Causal models are pooled in the same way: the LM loss reads the states of all tokens, and the last
    token of a text that was split from a document is an arbitrary one.

    Attributes:
        preset: ``"paper"`` or ``"released-code"`` for their values of the parameters that are not given; both have the
            same. None for the defaults.
        weight: Weight of the contrastive loss (released code of DGA: 1).
        temperature: t (Gao et al.: 0.05).
        tokens: ``"masked"`` contrasts representations of the masked text, one of which the LM loss needs anyway: two
            forward passes in total. ``"original"`` encodes the original text twice, in addition to that. A causal
            language model reads no masked text, so both are the same. If DGA's ``contrast_tokens`` is the same, DGA
            differs from this method only in the soft mask and the negatives from general knowledge.
    """

    purpose: ClassVar[str] = "Learn better representations"
    cost: ClassVar[float] = 2.0
    preset: Literal["paper", "released-code"] | None = None
    weight: float = 1.0
    temperature: float = 0.05
    tokens: Annotated[
        Literal["original", "masked"],
        Published(
            {"paper": "original", "released-code": "original"},
            "Reads the same text as DGA does by default, so that the two can be compared, in two forward passes "
            "instead of three.",
        ),
    ] = "masked"

    def __post_init__(self) -> None:
        """Validate the weight and the temperature."""
        check_not_negative(weight=self.weight)
        check_positive(temperature=self.temperature)

    def objectives(self) -> list[Objective | BatchObjective]:
        """Return the LM loss and the contrastive loss."""
        return [LanguageModelling(), TextContrast(self.weight, self.temperature, self.tokens)]
