"""Domain-adaptive pre-training by masked language modelling."""

from dataclasses import dataclass

from acclimate.methods import Method, register


@register(
    "mlm",
    paper="Gururangan et al., ACL 2020",
    summary="continued masked language modelling on the domain text, the usual baseline",
)
@dataclass
class MLM(Method):
    """Minimize the masked-LM loss on the domain text (Don't Stop Pretraining, Gururangan et al., ACL 2020)."""
