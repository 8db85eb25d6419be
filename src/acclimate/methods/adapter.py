"""MLM with adapters: only small bottlenecks learn (Houlsby et al., ICML 2019)."""

from dataclasses import dataclass
from typing import ClassVar

from acclimate.errors import check_positive
from acclimate.methods import Method, register
from acclimate.models import add_adapters
from acclimate.training.method import AdaptContext


@register("mlm-adapter", paper="Houlsby et al., ICML 2019", summary="MLM that trains bottleneck adapters only")
@dataclass
class MLMAdapter(Method):
    """Minimise the masked-LM loss over the weights of adapters, everything else frozen.

    An adapter, h + W_up gelu(W_down h), stands behind the output projection of each attention and each feed-forward.
    In the end task everything learns. A nonlinear adapter cannot be folded into the layer before it, so the result is
    not a model that ``transformers`` alone could run; its folder says so and stops loaders that do not know adapters,
    since leaving them out silently would measure the model that was not adapted.

    The released code of DGA has a bottleneck of 128, a second nonlinearity and no start near the identity; this is
    the paper's.

    Attributes:
        size: Width of the bottleneck.
    """

    loads_without_acclimate: ClassVar[bool] = False

    size: int = 64

    def __post_init__(self) -> None:
        """Check the width."""
        check_positive(size=self.size)

    def prepare(self, run: AdaptContext) -> None:
        """Put the adapters in and freeze the rest."""
        run.model.requires_grad_(False)
        for parameter in add_adapters(run.model, run.layers, self.size, run.seed):
            parameter.requires_grad_(True)
