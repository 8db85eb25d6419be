"""Task-adaptive pre-training, alone and after that on the domain (Gururangan et al., ACL 2020)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from acclimate.errors import UserError, check_positive
from acclimate.methods import Method, register
from acclimate.methods.mlm import MLM
from acclimate.training.method import Stage


@register(
    "tapt",
    paper="Gururangan et al., ACL 2020",
    summary="MLM on the texts of the end task's train split, or on a text like them",
)
@dataclass
class TAPT(Method):
    """Masked language modelling on the text of a task, never on its dev or test text.

    The paper trains 100 epochs with batches of 256 texts and a learning rate of 1e-4. The first and the last are the
    defaults here, too; the batch is 64 as for every method (``batch_size``).

    Without a task it reads the corpus that it is given: more unlabelled text of the same kind, say (the "curated" TAPT
    of the paper).
    """

    learning_rate: ClassVar[float] = 1e-4
    reads: ClassVar[Literal["domain", "task"]] = "task"


@register(
    "dapt+tapt",
    paper="Gururangan et al., ACL 2020",
    summary="MLM on the text of the domain, then on that of the end task's train split",
)
@dataclass
class DAPTThenTAPT(Method):
    """First ``mlm`` on the corpus, then ``tapt`` on the text of the task, from where the first stage ended.

    Budget and learning rate of the run (``steps``, ``tokens``, ...) are those of the first stage. Each stage has an
    optimiser and a warm-up of its own, as two runs one after the other would have.

    Attributes:
        task_epochs: Passes over the text of the task; the paper's 100 unless another limit is set.
        task_steps: Or optimiser steps.
        task_tokens: Or tokens.
        task_minutes: Or minutes.
        task_learning_rate: Of the second stage; by default what the first has.
    """

    needs_task: ClassVar[bool] = True

    task_epochs: float | None = None
    task_steps: int | None = None
    task_tokens: int | None = None
    task_minutes: float | None = None
    task_learning_rate: float | None = None

    def __post_init__(self) -> None:
        """Check the second stage now instead of when the first is done."""
        given = {name: value for name, value in self.settings().items() if value is not None}
        check_positive(**given)
        if len(given.keys() - {"task_learning_rate"}) > 1:
            raise UserError("Give one of task_epochs, task_steps, task_tokens and task_minutes.")

    def stages(self) -> list[Stage]:
        """Return the two adaptations."""
        limits = {
            "epochs": self.task_epochs,
            "steps": self.task_steps,
            "tokens": self.task_tokens,
            "max_minutes": self.task_minutes,
        }
        rate = {} if self.task_learning_rate is None else {"learning_rate": self.task_learning_rate}
        return [Stage(MLM(), "domain"), Stage(TAPT(), "task", {**limits, **rate})]
