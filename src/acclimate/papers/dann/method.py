"""Domain-adversarial training with a labelled source and unlabelled target text (Ganin et al., JMLR 2016)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from torch import nn

from acclimate.api import (
    AdaptContext,
    BatchObjective,
    DrawnClassification,
    LabelledMethod,
    Objective,
    Published,
    UserError,
    check_not_negative,
    check_positive,
    register_method,
    with_presets,
)
from acclimate.papers.dann.objective import DomainAdversary


@register_method(
    "dann",
    paper="Ganin et al., JMLR 2016",
    summary="language modelling on target text, plus a labelled source task and an adversary that aligns both domains",
)
@with_presets
@dataclass
class DomainAdversarial(LabelledMethod):
    """L = lm_weight L_LM(target) + task_weight L_task(source) + adversary_weight L_domain(source, target).

    The text of the run is the target, and the train split of the task is the source: a step reads a source example
    for each target text. L_domain is the loss of a classifier of the two domains. Its gradient reaches the encoder
    reversed and times 2 / (1 + exp(-rate p)) - 1, where p is the share of the training that is over, so that the
    encoder learns vectors (the mean of the last hidden states) that predict the labels but not the domain.

    The heads are discarded. Fine-tune the result on the source task.

    Attributes:
        preset: ``"paper"`` for no language modelling. None for the defaults.
        lm_weight: Weight of the LM loss on the target text; 0 leaves it out.
        task_weight: Weight of the loss of the source labels.
        adversary_weight: Weight of the loss of the domain classifier.
        rate: How fast the reversed gradient rises (the paper's gamma).
    """

    purpose: ClassVar[str] = "Use the end task"
    cost: ClassVar[float] = 3.0
    needs_task: ClassVar[bool] = True

    preset: Literal["paper"] | None = None
    lm_weight: Annotated[
        float,
        Published(
            {"paper": 0.0}, "The text of the target teaches its language as well; UDALM (Karouzos et al., 2021)."
        ),
    ] = 1.0
    task_weight: float = 1.0
    adversary_weight: float = 1.0
    rate: float = 10.0

    def __post_init__(self) -> None:
        """Validate the weights."""
        check_not_negative(
            lm_weight=self.lm_weight, task_weight=self.task_weight, adversary_weight=self.adversary_weight
        )
        check_positive(rate=self.rate)
        if not self.lm_weight and not self.task_weight:
            raise UserError("lm_weight and task_weight are both 0, so only the adversary would be learned; set one.")
        self._terms: list[Objective | BatchObjective] = []  # set by `prepare`

    def check(self, run: AdaptContext) -> None:
        """Check the kind of the task."""
        self.check_tasks([run.task])
        super().check(run)

    def prepare(self, run: AdaptContext) -> None:
        """Tokenize the source examples and add both heads."""
        width = run.model.config.get_text_config().hidden_size
        examples = self.draw_examples(run, [run.task])

        def make() -> None:
            classifier = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))
            heads = self.add_heads(run, [run.task], adversary=classifier)
            self._terms = [
                DrawnClassification(examples, heads, self.task_weight),
                DomainAdversary(examples, classifier, self.adversary_weight, self.rate),
            ]

        run.seeded(make)

    def objectives(self) -> list[Objective | BatchObjective]:
        """Return the LM loss, unless its weight is 0, and the losses of both heads."""
        return [*self.language_modelling(self.lm_weight), *self._terms]
