"""Task-adaptive pre-training, alone or after domain-adaptive pre-training (Gururangan et al., ACL 2020)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from acclimate.api import LM, Method, Stage, UserError, check_positive, register_method


@register_method(
    "tapt",
    paper="Gururangan et al., ACL 2020",
    summary="language modelling on the training texts of the end task, or on similar text",
)
@dataclass
class TAPT(Method):
    """Language modelling on the training texts of a task, never on its dev or test texts.

    Without a task it reads the given corpus, for example more unlabelled text of the same kind (the paper's "curated
    TAPT").
    """

    purpose: ClassVar[str] = "Use the end task"
    kinds: ClassVar[tuple[str, ...]] = ("masked", "causal", "seq2seq")
    learning_rate: ClassVar[float] = 1e-4
    paper_options: ClassVar[Mapping[str, Any]] = {"epochs": 100, "batch_size": 256, "learning_rate": 1e-4}
    reads: ClassVar[Literal["domain", "task"]] = "task"


@register_method(
    "dapt+tapt",
    paper="Gururangan et al., ACL 2020",
    summary="language modelling on the domain text, then on the training texts of the end task",
)
@dataclass
class DAPTThenTAPT(Method):
    """First ``lm`` on the corpus, then ``tapt`` on the task's texts, starting from the result of the first stage.

    The budget and learning rate of the run (``steps``, ``tokens``, ...) apply to the first stage. Each stage has its
    own optimizer and warm-up, as in two separate runs.

    Attributes:
        task_epochs: Epochs of the second stage; the paper's 100 unless another limit is set.
        task_steps: Maximum optimizer steps of the second stage.
        task_tokens: Maximum tokens of the second stage.
        task_minutes: Maximum minutes of the second stage.
        task_learning_rate: Learning rate of the second stage; defaults to the first stage's.
    """

    purpose: ClassVar[str] = "Use the end task"
    kinds: ClassVar[tuple[str, ...]] = ("masked", "causal", "seq2seq")
    cost: ClassVar[float] = 2.0
    needs_task: ClassVar[bool] = True

    task_epochs: float | None = None
    task_steps: int | None = None
    task_tokens: int | None = None
    task_minutes: float | None = None
    task_learning_rate: float | None = None

    def __post_init__(self) -> None:
        """Validate the second stage before the first one runs."""
        given = {name: value for name, value in self.settings().items() if value is not None}
        check_positive(**given)
        if len(given.keys() - {"task_learning_rate"}) > 1:
            raise UserError("Give only one of task_epochs, task_steps, task_tokens and task_minutes.")

    @property
    def learns_labels(self) -> bool:
        """No: the second stage reads the texts of the task only."""
        return False

    def stages(self) -> list[Stage]:
        """Return the two adaptations."""
        limits = {
            "epochs": self.task_epochs,
            "steps": self.task_steps,
            "tokens": self.task_tokens,
            "max_minutes": self.task_minutes,
        }
        rate = {} if self.task_learning_rate is None else {"learning_rate": self.task_learning_rate}
        return [Stage(LM(), "domain"), Stage(TAPT(), "task", {**limits, **rate})]
