"""Pseudo-labels with a distillation of similarities (after "Similarity-Based Domain Adaptation with LLMs")."""

from dataclasses import dataclass
from typing import ClassVar

from transformers import PreTrainedModel

from acclimate.api import (
    AdaptContext,
    BatchObjective,
    DrawnClassification,
    LabelledMethod,
    Objective,
    UserError,
    check_not_negative,
    register_method,
)
from acclimate.papers.similarity_kd.objective import SimilarityDistillation


@register_method(
    "similarity-kd",
    paper="He et al., 2025; Tung and Mori, ICCV 2019",
    summary="language modelling plus labels of target text, often pseudo-labels, and a teacher's similarities of them",
)
@dataclass
class SimilarityDistilled(LabelledMethod):
    """L = lm_weight L_LM + label_weight L_labels + similarity_weight || S / |S| - T / |T| ||^2 / n^2.

    The labels are those of the train split of the task, usually pseudo-labels that a language model gave to text of
    the target domain. For each text of the corpus a step reads one such example. S holds the inner products of the
    model's vectors of the n examples of a step, T those of a frozen teacher, with rows of norm 1. Noisy labels then
    cannot pull apart texts that are alike for the teacher.

    The paper is known to us by its abstract, which does not give the form of the similarity loss; this one is that of
    Tung and Mori. The head is discarded; fine-tune the result on the same task.

    Attributes:
        teacher: Another model with the same tokenizer, of any width. By default the frozen base model.
        similarity_weight: Weight of the distance of similarities. It is a mean over pairs, and thus small.
        label_weight: Weight of the loss of the labels.
        lm_weight: Weight of the LM loss; 0 leaves it out.
    """

    purpose: ClassVar[str] = "Use the end task"
    cost: ClassVar[float] = 2.4
    needs_task: ClassVar[bool] = True
    files: ClassVar[tuple[str, ...]] = ("teacher",)

    teacher: str | None = None
    similarity_weight: float = 100.0
    label_weight: float = 1.0
    lm_weight: float = 1.0

    def __post_init__(self) -> None:
        """Validate the weights."""
        check_not_negative(
            similarity_weight=self.similarity_weight, label_weight=self.label_weight, lm_weight=self.lm_weight
        )
        if not (self.lm_weight or self.label_weight or self.similarity_weight):
            raise UserError("All weights are 0, so nothing would be learned; set one.")
        self._model: PreTrainedModel | None = None  # these are set by `prepare`
        self._terms: list[Objective | BatchObjective] = []

    def check(self, run: AdaptContext) -> None:
        """Check the kind of the task, and load the teacher."""
        self.check_tasks([run.task])
        self._model = None if self.teacher is None else run.load_reader(self.teacher, "similarities")
        super().check(run)

    def prepare(self, run: AdaptContext) -> None:
        """Tokenize the examples and add the head."""
        examples = self.draw_examples(run, [run.task])
        heads = run.seeded(lambda: self.add_heads(run, [run.task]))
        reader = "reference" if self.teacher is None else "teacher"
        self._terms = [
            DrawnClassification(examples, heads, self.label_weight),
            SimilarityDistillation(examples, self.similarity_weight, reader),
        ]

    def readers(self) -> dict[str, PreTrainedModel]:
        """Return the teacher, unless it is the base model."""
        return {} if self._model is None else {"teacher": self._model}

    def objectives(self) -> list[Objective | BatchObjective]:
        """Return the LM loss, unless its weight is 0, and the losses of labels and similarities."""
        return [*self.language_modelling(self.lm_weight), *self._terms]
