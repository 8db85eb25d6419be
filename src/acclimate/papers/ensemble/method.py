"""Ensemble of the base model and the adapted model (ablation of Ke et al., EMNLP 2022, Table 3)."""

from dataclasses import dataclass
from typing import ClassVar

from acclimate.api import AdaptContext, Method, keep_original, register_method


@register_method(
    "ensemble",
    paper="Ke et al., EMNLP 2022",
    summary="language modelling; the end task fine-tunes the adapted and the base encoder and averages their outputs",
)
@dataclass
class Ensemble(Method):
    """Adapt as ``lm`` does; in the end task read each text with both encoders.

    The paper says "concatenating their outputs and taking the average" and released no code for it. Here the task head
    reads (f_adapted(x) + f_base(x)) / 2, the mean of the last hidden states of each token, and fine-tuning trains both
    encoders. This doubles the cost of the end task. The reported losses are the losses of the adapted encoder.
    """

    purpose: ClassVar[str] = "Forget less"
    loads_without_acclimate: ClassVar[bool] = False

    def prepare(self, run: AdaptContext) -> None:
        """Store a frozen copy of the base model with the model."""
        keep_original(run.model)
