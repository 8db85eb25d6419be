"""No adaptation: the base model, which every comparison includes."""

from dataclasses import dataclass
from typing import ClassVar

from acclimate.adaptation.method import Method, register


@register("none", summary="no adaptation: the base model, the reference of every comparison")
@dataclass
class NoAdaptation(Method):
    """Leave the base model unchanged."""

    purpose: ClassVar[str] = "For comparison"
    kinds: ClassVar[tuple[str, ...]] = ("masked", "causal", "seq2seq")
    cost: ClassVar[float] = 0.0
    trains: ClassVar[bool] = False
    without_adapter: ClassVar[str] = "it trains nothing"
