"""Ensemble of the original and the MLM-adapted model (ablation of Ke et al., EMNLP 2022, Table 3)."""

from dataclasses import dataclass
from typing import ClassVar

from acclimate.methods import Method, register
from acclimate.models import keep_original
from acclimate.training.method import AdaptContext


@register(
    "ensemble",
    paper="Ke et al., EMNLP 2022",
    summary="MLM; in the end task the adapted and the original encoder learn together, their outputs averaged",
)
@dataclass
class Ensemble(Method):
    """Adapt as ``mlm`` does; in the end task read each text with both encoders.

    The paper says "concatenating their outputs and taking the average"; no code of it was released. Here the head
    reads (f_adapted(x) + f_original(x)) / 2, the mean of the last hidden states token by token, and both learn with
    it. It costs two models in the end task. Its masked-LM losses are those of the adapted half.
    """

    loads_without_acclimate: ClassVar[bool] = False

    def prepare(self, run: AdaptContext) -> None:
        """Keep the original beside the model, frozen."""
        keep_original(run.model)
