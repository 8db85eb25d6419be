"""The causal detour of continued pre-training (Touchent and de la Clergerie, 2026)."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn
from transformers import PreTrainedModel

from acclimate.api import (
    AdaptContext,
    BatchObjective,
    HeadLayer,
    Method,
    Objective,
    UpdateRule,
    UserError,
    check_reads_left_to_right,
    layers_of,
    register_method,
    shorten,
)
from acclimate.papers.detour.objective import CausalThenMasked


class FreezeInCausalPhase(UpdateRule):
    """Keeps some layers as they are while the next token is predicted."""

    needs_whole_weights: ClassVar[bool] = False
    removes_gradients: ClassVar[bool] = True

    def __init__(self, layers: Sequence[nn.Module], term: CausalThenMasked) -> None:
        """Store the layers, and the term that knows the phase."""
        self.layers, self.term = layers, term

    def after_backward(self) -> None:
        """Remove the gradients of the layers, so that the optimizer skips their weights."""
        if not self.term.reads_views:
            for layer in self.layers:
                for weight in layer.parameters():
                    weight.grad = None


@register_method(
    "detour",
    paper="Touchent and de la Clergerie, 2026",
    summary="an encoder predicts the next token for most of the training, then masked tokens again",
)
@dataclass
class Detour(Method):
    """L = L_CLM for the first part of the training, then L_MLM: the detour of continued pre-training.

    In the first phase each token attends to earlier tokens of its text only, and the masked-LM head predicts the next
    one: every token is a target, not 15 % of them. The second phase is ``lm``. Both phases are one training with one
    optimizer, and each step reads the texts, and masks the tokens, that the same step of ``lm`` reads and masks.

    By default the learning rate is constant in the first phase and falls in the second.

    Attributes:
        causal: Share of the training that is the first phase; 0 for ``lm``. The authors' models read 50 of 55 billion
            tokens in it.
        frozen: Layers that do not train in the first phase, counted from 0, such as ``0-7``: the paper's ablation, in
            which the gain disappears with the low layers frozen and stays with the middle ones.
    """

    purpose: ClassVar[str] = "Learn better representations"
    cost: ClassVar[float] = 1.7
    kinds: ClassVar[tuple[str, ...]] = ("masked",)
    kinds_reason: ClassVar[str] = "lets an encoder read from left to right for a while"
    paper_options: ClassVar[Mapping[str, Any]] = {"learning_rate": 2e-4, "batch_size": 384, "max_length": 8_192}
    without_patience: ClassVar[str] = "the masked-LM loss rises while the next token is predicted"

    causal: float = 0.9
    frozen: str | int | None = None

    def __post_init__(self) -> None:
        """Validate the share and the layers."""
        if not 0 <= self.causal < 1:
            raise UserError(f"causal is a share of the training, 0 or more and below 1, not {self.causal:g}.")
        found = re.fullmatch(r"([0-9]{1,4})(?:-([0-9]{1,4}))?", "0" if self.frozen is None else str(self.frozen))
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if first > last:
            raise UserError(f"frozen is a layer or a range of layers, such as 0-7, not {shorten(self.frozen)}.")
        self._numbers = range(first, last + 1)
        self._rule: FreezeInCausalPhase | None = None  # set by `prepare`
        self._terms: list[Objective | BatchObjective] = []

    @property
    def schedule(self) -> str:
        """A rate that falls in the second phase, and as for ``lm`` if that is everything."""
        return f"wsd decay={1 - self.causal:g}" if self.causal else "linear"

    def check_model(self, model: PreTrainedModel, layers: Sequence[HeadLayer]) -> None:
        """Check that the model can read from left to right, and has the layers to freeze."""
        check_reads_left_to_right(model)
        found = layers_of(model.base_model)
        if self.frozen is not None and self._numbers[-1] >= len(found):
            sets = "set" if len(found) == 1 else "sets"
            raise UserError(
                f"{type(model).__name__} has {len(found)} {sets} of layer weights, so not '{self.frozen}'."
            )

    def prepare(self, run: AdaptContext) -> None:
        """Find the layers to freeze, and check that there is a second phase."""
        if run.steps and math.ceil(self.causal * run.steps - 1e-9) >= run.steps:
            raise UserError(
                f"Of {run.steps} steps none is in the last {1 - self.causal:g} of the training, which predicts masked "
                "tokens; train longer, or lower 'causal'."
            )
        term = CausalThenMasked(run.model, self.causal)
        self._terms = [term]
        if self.frozen is not None:
            layers = layers_of(run.model.base_model)
            self._rule = FreezeInCausalPhase([layers[number] for number in self._numbers], term)

    def objectives(self) -> list[Objective | BatchObjective]:
        """Return the loss of both phases."""
        return self._terms

    def update_rule(self) -> UpdateRule | None:
        """Return what keeps the layers as they are, if there are any."""
        return self._rule
