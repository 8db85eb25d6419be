"""Self-distillation for further pre-training (Lee et al., ICLR 2023)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from transformers import PreTrainedModel

from acclimate.api import (
    LM,
    AdaptContext,
    BatchObjective,
    HeadLayer,
    LanguageModelling,
    Method,
    Objective,
    Published,
    Stage,
    UserError,
    check_not_negative,
    kind_of,
    pool_first_token,
    register_method,
)
from acclimate.papers.self_distill.objective import StateDistillation


@register_method(
    "self-distill",
    paper="Lee et al., ICLR 2023",
    summary="lm, then lm again from the base model, with text representations distilled from the first result",
)
@dataclass
class SelfDistillation(Method):
    """L = L_LM + weight x mean over texts x of || h(x) - h_T(x) ||^2, after a first stage that makes the teacher h_T.

    The first stage is ``lm``. The second starts from the base model again, and its representations of the unmasked
    texts are pulled towards those of the first result. Both stages have the options and the budget of the run, as in
    the paper, so ``max_minutes`` is the limit of each.

    Attributes:
        weight: Weight of the distillation loss (paper: 1).
        pooling: How the last hidden states become h: ``"mean"`` over the tokens, or ``"cls"``, the first token, as in
            the released code for images, which suits masked models only.
        teacher: A model that was adapted before, from the same base model. There is no first stage then.
    """

    purpose: ClassVar[str] = "Forget less"
    cost: ClassVar[float] = 3.3
    files: ClassVar[tuple[str, ...]] = ("teacher",)

    weight: float = 1.0
    pooling: Annotated[
        Literal["mean", "cls"],
        Published(
            {"released-code": "cls"},
            "The code is for images; the mean works for causal models as well.",
        ),
    ] = "mean"
    teacher: str | None = None

    def __post_init__(self) -> None:
        """Validate the weight."""
        check_not_negative(weight=self.weight)
        self._model: PreTrainedModel | None = None  # set by `check`

    def stages(self) -> list[Stage]:
        """Return the stage that makes the teacher, and the one that learns from it."""
        if self.teacher:
            return []

        def learn(results: Sequence[Path]) -> Method:
            return replace(self, teacher=str(results[0]))

        first = LM()
        first.check_model = self.check_model  # type: ignore[method-assign]  # what the second stage would refuse
        return [Stage(first, None), Stage(learn, None, from_base=True)]

    def check_model(self, model: PreTrainedModel, layers: Sequence[HeadLayer]) -> None:
        """Check that the pooling suits the model."""
        if self.pooling == "cls" and not kind_of(model).uses_masking:
            raise UserError("The first token of a causal language model has not read the text; use pooling=mean.")

    def check(self, run: AdaptContext) -> None:
        """Load the teacher, if it is known."""
        super().check(run)
        self._model = run.load_reader(self.teacher, "states") if self.teacher else None

    def readers(self) -> dict[str, PreTrainedModel]:
        """Return the teacher."""
        return {} if self._model is None else {"teacher": self._model}

    def objectives(self) -> list[Objective | BatchObjective]:
        """Return the LM loss and the distillation loss."""
        pooling = pool_first_token if self.pooling == "cls" else None
        return [LanguageModelling(), StateDistillation(self.weight, pooling)]
