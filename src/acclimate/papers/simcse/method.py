"""A contrast between two dropout masks of the same text (Gao et al., EMNLP 2021), with language modelling or alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from transformers import PreTrainedModel

from acclimate.api import (
    AdaptContext,
    BatchObjective,
    HeadLayer,
    LanguageModelling,
    Method,
    Objective,
    PoolingHead,
    Published,
    TextContrast,
    UserError,
    check_dropout_masks,
    check_not_negative,
    check_positive,
    load_pooling_head,
    register_method,
    with_presets,
)


@register_method(
    "simcse",
    paper="Gao et al., EMNLP 2021; Ke et al., EMNLP 2022",
    summary="contrast between two dropout masks of a text, against other texts, with language modelling or alone",
)
@with_presets
@dataclass
class LMWithSimCSE(Method):
    """L = lm_weight x L_LM + weight x mean over i of -log( e^(cos(z_i, z_i') / t) / sum_j e^(cos(z_i, z_j') / t) ).

    z_i and z_i' are the vectors of text i under two dropout masks: those of a sentence encoder with its own pooling
    and further modules, though only the encoder is trained; for any other model the means over tokens. The negatives
    are the other texts in the step. Causal models are pooled in the same way: the LM loss reads the states of all
    tokens, and the last token of a text that was split from a document is an arbitrary one.

    With ``lm_weight=0`` it is SimCSE alone. It then learns sentence embeddings only, and the result is a folder that
    ``SentenceTransformer`` loads.

    Attributes:
        preset: ``"paper"`` or ``"released-code"`` for their values of the parameters that are not given; both have the
            same. None for the defaults.
        weight: Weight of the contrastive loss (released code of DGA: 1).
        temperature: t (Gao et al.: 0.05).
        tokens: ``"masked"`` contrasts representations of the masked text, one of which the LM loss needs anyway: two
            forward passes in total. ``"original"`` encodes the original text twice, in addition to that. A causal
            language model reads no masked text, nor does SimCSE alone, so both are the same. If DGA's
            ``contrast_tokens`` is the same, DGA differs from this method only in the soft mask and the negatives from
            general knowledge.
        lm_weight: Weight of the LM loss; 0 for SimCSE alone.
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
    lm_weight: float = 1.0

    def __post_init__(self) -> None:
        """Validate the weights and the temperature."""
        check_not_negative(weight=self.weight, lm_weight=self.lm_weight)
        check_positive(temperature=self.temperature)
        if not self.weight and not self.lm_weight:
            raise UserError("weight and lm_weight are both 0, so nothing would be learned; set one of them.")
        self._pooling: PoolingHead | None = None  # set by `prepare`

    @property
    def sentence_pooling(self) -> Literal["mean"] | None:
        """The mean over tokens, if it learns nothing but sentence embeddings."""
        return None if self.lm_weight else "mean"

    def check_model(self, model: PreTrainedModel, layers: Sequence[HeadLayer]) -> None:
        """Check that the model has dropout, unless nothing is contrasted."""
        check_dropout_masks(model)

    def prepare(self, run: AdaptContext) -> None:
        """Load the pooling of a sentence encoder."""
        self._pooling = load_pooling_head(run.model.name_or_path or "", run.device)

    def objectives(self) -> list[Objective | BatchObjective]:
        """Return the LM loss, unless its weight is 0, and the contrastive loss."""
        tokens = self.tokens if self.lm_weight else "original"
        language: list[Objective | BatchObjective] = [LanguageModelling(self.lm_weight)] if self.lm_weight else []
        return [*language, TextContrast(self.weight, self.temperature, tokens, self._pooling)]
