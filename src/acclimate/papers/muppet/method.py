"""Pre-finetuning on many labelled tasks at once (Muppet, Aghajanyan et al., EMNLP 2021)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

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
    load_task,
    register_method,
    with_presets,
)
from acclimate.papers.muppet.objective import NoiseConsistency

FEW_TASKS = 15
"""Number of tasks below which pre-finetuning made models worse in the paper."""


@register_method(
    "muppet",
    paper="Aghajanyan et al., EMNLP 2021",
    summary="language modelling plus many labelled tasks at once, each loss divided by log(classes)",
)
@with_presets
@dataclass
class MultiTask(LabelledMethod):
    """L = lm_weight L_LM + mean over drawn examples of L_task / log(classes of the task).

    A step reads a labelled example for each text of the corpus, drawn from all examples of all tasks, so that every
    step mixes tasks in proportion to their size. Each task has a head on the mean of the last hidden states. The heads
    are discarded. Fine-tune the result on the end task.

    With a single task this is intermediate-task training (Phang et al., 2018).

    Attributes:
        preset: ``"paper"`` for no language modelling, and R3F. None for the defaults.
        tasks: A folder that holds the tasks, each a file or a folder as for ``--task``; only their train splits are
            read. By default the task of the run.
        lm_weight: Weight of the LM loss; 0 leaves it out.
        r3f: Weight of R3F (Aghajanyan et al., ICLR 2021), which keeps predictions alike under noise in the embeddings;
            it reads each example twice. The paper uses it, without its weight, which is 1 in the code of R3F.
        noise: Standard deviation of that noise.
    """

    purpose: ClassVar[str] = "Use the end task"
    cost: ClassVar[float] = 2.0
    files: ClassVar[tuple[str, ...]] = ("tasks",)

    preset: Literal["paper"] | None = None
    tasks: str | None = None
    lm_weight: Annotated[
        float, Published({"paper": 0.0}, "Keeps the language model, and learns the domain from its text.")
    ] = 1.0
    r3f: Annotated[float, Published({"paper": 1.0}, "Reads each example twice.")] = 0.0
    noise: float = 1e-5

    def __post_init__(self) -> None:
        """Validate the numbers."""
        check_not_negative(lm_weight=self.lm_weight, r3f=self.r3f)
        check_positive(noise=self.noise)
        self._tasks: list[Any] = []  # set by `check`
        self._terms: list[Objective | BatchObjective] = []  # set by `prepare`

    def check(self, run: AdaptContext) -> None:
        """Read the tasks."""
        self._tasks = self._load() or [task for task in [run.task] if task is not None]
        if not self._tasks:
            raise UserError(
                "Method 'muppet' needs labelled tasks; give a folder as 'muppet tasks=FOLDER' or one with --task."
            )
        self.check_tasks(self._tasks)
        super().check(run)

    def prepare(self, run: AdaptContext) -> None:
        """Add the heads of the tasks."""
        tasks = self._tasks
        if len(tasks) < FEW_TASKS:
            run.say(f"{len(tasks)} tasks; the paper found gains with more than {FEW_TASKS} only.")
        examples = self.draw_examples(run, tasks)
        heads = run.seeded(lambda: self.add_heads(run, tasks))
        self._terms = [DrawnClassification(examples, heads, per_log_classes=True)]
        if self.r3f:
            self._terms.append(NoiseConsistency(examples, heads, run.model, self.r3f, self.noise))

    def objectives(self) -> list[Objective | BatchObjective]:
        """Return the LM loss, unless its weight is 0, the tasks' loss, and R3F if it has a weight."""
        return [*self.language_modelling(self.lm_weight), *self._terms]

    def file_contents(self) -> dict[str, str]:
        """Return a hash of each task."""
        return super().file_contents() | {f"task {task.name}": task.fingerprint() for task in self._load()}

    def _load(self) -> list[Any]:
        """Return the tasks of the folder, in the order of their names; none if no folder is given."""
        if self.tasks is None:
            return []
        folder = Path(self.tasks).expanduser()
        if not folder.is_dir():
            raise UserError(f"There is no folder '{folder}' of tasks; put each task into it, as a file or a folder.")
        places = [place for place in sorted(folder.iterdir()) if not place.name.startswith(".")]
        if not places:
            raise UserError(f"The folder '{folder}' holds no task; put each into it, as a file or a folder.")
        return [load_task(place) for place in places]
