"""Language modelling with bottleneck adapters and a frozen model (Houlsby et al., ICML 2019)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from transformers import PreTrainedModel

from acclimate.api import AdaptContext, HeadLayer, Method, add_adapters, check_positive, gate_units, register_method


@register_method(
    "adapter",
    paper="Houlsby et al., ICML 2019",
    summary="language modelling that trains bottleneck adapters only",
)
@dataclass
class LMAdapter(Method):
    """Language modelling that trains adapters and freezes all other weights.

    An adapter, h + W_up gelu(W_down h), follows the output projection of each attention and each feed-forward block.
    Fine-tuning on an end task trains all weights. A nonlinear adapter cannot be folded into the layer before it, so
    plain ``transformers`` cannot run the result. Its folder is written so that other loaders fail: if they ignored the
    adapters, they would silently return the base model.

    The released code of DGA instead uses a bottleneck of 128, a second nonlinearity and no near-identity
    initialization; this implementation follows the paper.

    Attributes:
        size: Width of the bottleneck.
    """

    purpose: ClassVar[str] = "Forget less"
    loads_without_acclimate: ClassVar[bool] = False
    without_adapter: ClassVar[str] = "it trains its own adapters"

    size: int = 64

    def __post_init__(self) -> None:
        """Validate the width."""
        check_positive(size=self.size)

    def check_model(self, model: PreTrainedModel, layers: Sequence[HeadLayer]) -> None:
        """Check that adapters can be inserted."""
        gate_units(model, layers, ["O"])

    def prepare(self, run: AdaptContext) -> None:
        """Insert the adapters and freeze all other weights."""
        run.model.requires_grad_(False)
        for parameter in add_adapters(run.model, run.layers, self.size, run.seed):
            parameter.requires_grad_(True)
