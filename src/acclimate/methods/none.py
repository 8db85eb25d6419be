"""No adaptation: the model as it came, the base of every comparison."""

from dataclasses import dataclass
from typing import ClassVar

from acclimate.methods import Method, register


@register("none", summary="no adaptation: the base of every comparison")
@dataclass
class NoAdaptation(Method):
    """Leave the model as it is."""

    trains: ClassVar[bool] = False
