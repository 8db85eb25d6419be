"""Domain-adaptive pre-training: continued language modelling on domain text."""

from dataclasses import dataclass
from typing import ClassVar

from acclimate.adaptation.method import Method, register


@register(
    "lm",
    paper="Gururangan et al., ACL 2020",
    summary="continued language modelling on the domain text, as the model was pre-trained; the usual baseline",
)
@dataclass
class LM(Method):
    """Minimize the language-model loss on the domain text (Don't Stop Pretraining, Gururangan et al., ACL 2020).

    It is the masked-LM loss for masked models, the next-token loss for causal ones, and for encoder-decoders the loss
    of the target of a corrupted text.
    """

    purpose: ClassVar[str] = "Start here"
    kinds: ClassVar[tuple[str, ...]] = ("masked", "causal", "seq2seq")


@register("mlm", paper="Gururangan et al., ACL 2020", summary="the method lm, refused for causal models")
@dataclass
class MLM(LM):
    """Minimize the masked-LM loss on the domain text: :class:`LM`, refused for models of another kind."""

    purpose: ClassVar[str] = "For comparison"
    kinds: ClassVar[tuple[str, ...]] = ("masked",)
