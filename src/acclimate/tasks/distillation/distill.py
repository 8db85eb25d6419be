"""Knowledge distillation from a teacher of the domain into a student of another architecture, in one call."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import nn
from transformers import set_seed

from acclimate.adaptation.result import warn_of_explosion
from acclimate.base.device import to_device
from acclimate.base.errors import UserError
from acclimate.base.locks import with_output_lock
from acclimate.base.options import recorded, verb
from acclimate.data.task_kinds import TASK_KINDS, find_task_kind
from acclimate.engine.micro_batches import with_memory_limit
from acclimate.evaluation.scoring import make_scoring
from acclimate.models.checkpoints import load_config
from acclimate.parts.modules.connectors import Connectors
from acclimate.results.scores import DistillationRow
from acclimate.results.study import MethodRow, StudyResults
from acclimate.tasks.distillation.initial_models import finetune_into, load_or_evaluate, load_or_finetune
from acclimate.tasks.distillation.student_training import DistillationLoss, build_phase_hooks
from acclimate.tasks.distillation.teacher_targets import TeacherTargets, compute_teacher_targets, representation_width
from acclimate.tasks.interfaces import LabelledTask, resolve_options
from acclimate.tasks.options import DistillOptions
from acclimate.tasks.result import FinetuneResult, numbers
from acclimate.tasks.run import TaskRun
from acclimate.tasks.trainer import TrainingResult, train


@dataclass(frozen=True, kw_only=True, repr=False)
class DistillResult(FinetuneResult):
    """The result of a distillation.

    ``seconds`` is the wall-clock time of the call, in which cached stages take almost none; ``epoch``, ``steps`` and
    ``train_loss`` cover both phases.
    """

    objective: str
    connector: str
    """The option ``connector``, with ``"auto"`` resolved; ``"none"`` if no units are compared."""
    distilled_epochs: int
    """Epochs of the first phase."""
    disagreement: list[float]
    """Number of units that are active in only one of the models (Eq. 4 of DoKTra).

    A mean over up to 512 train examples, without dropout: before the first step, then after each epoch of both phases.
    Empty if no units are compared.
    """
    units: int
    """Number of units that are compared; 0 if a model or the task has no representation of whole texts."""
    teacher_metrics: dict[str, Any]
    """Metrics of the teacher on the test split."""
    teacher_dev_metrics: dict[str, Any] | None
    teacher_trained: bool
    """Whether the teacher was fine-tuned by this distillation."""
    student_metrics: dict[str, Any]
    """Metrics of the student on the test split before distillation."""
    student_dev_metrics: dict[str, Any] | None
    stage_seconds: dict[str, float]
    """Seconds of each stage.

    The stages are ``teacher`` and ``student`` (their fine-tuning; zero if they already were classifiers of the task),
    ``teacher_targets`` (computing them) and ``distillation`` (both phases). A cached stage counts the seconds that it
    originally took, so the sum can exceed ``seconds``.
    """

    def splits(self) -> dict[str, dict[str, float]]:
        """Return the metrics of teacher and student on test, and those of the result on each split."""
        return numbers({"teacher": self.teacher_metrics, "student before": self.student_metrics}) | super().splits()

    def describe(self) -> list[str]:
        """Return the size of the training, the metrics and the disagreement, in a few lines."""
        if not self.disagreement:
            return super().describe()
        first, last = self.disagreement[0], self.disagreement[-1]
        return [
            *super().describe(),
            f"units active in only one of the models: {first:.0f} of {self.units} before, {last:.0f} at the end",
        ]

    def as_results(self) -> StudyResults:
        """Return the metrics of teacher and student, and the curve of their disagreement, as results of a study."""
        metric = make_scoring(self.kind, self.scoring).metrics[0]
        row = DistillationRow(
            model="student",
            domain=self.task,
            task=self.task,
            method=self.objective,
            metric=metric,
            teacher=self.teacher_metrics[metric],
            before=self.student_metrics[metric],
            after=self.metrics[metric],
            units=self.units,
            distilled_epochs=self.distilled_epochs,
            disagreement=self.disagreement,
        )
        return replace(
            super().as_results(),
            title=f"Distillation on {self.task}",
            models=["student"],
            domains=[self.task],
            methods=[MethodRow(label=self.objective, name=self.objective)],
            rows={"distill": [row]},
        )


def choose_objective(objective: str, task: LabelledTask) -> str:
    """Return the objective of a distillation, with ``"auto"`` resolved.

    Raises:
        UserError: If the task cannot be distilled, or not with this objective.
    """
    kind = find_task_kind(task)
    if not kind.distillation:
        able = [name for name in TASK_KINDS.names() if TASK_KINDS.lookup(name).distillation]
        raise UserError(
            f"'{task.name}' is a task of the kind '{task.task_kind}', which cannot be distilled; the kinds that can "
            f"are {', '.join(able)}."
        )
    if objective == "auto":
        return kind.distillation[0]
    if objective not in kind.distillation:
        raise UserError(
            f"The objective '{objective}' does not apply to '{task.name}', a task of the kind '{task.task_kind}'; use "
            f"{' or '.join(map(repr, kind.distillation))}."
        )
    return objective


def _connect(options: DistillOptions, objective: str, compares: bool) -> Connectors | None:
    """Return the projections between the representations of teacher and student; None if none are compared.

    Args:
        options: The options.
        objective: The resolved objective.
        compares: Whether the kind of task has models with a representation of whole texts.
    """
    if objective == "kl" and options.connector == "student":
        raise UserError("'connector' cannot be 'student' with the objective 'kl', which does not train it.")
    models = (options.teacher, options.student)
    widths = [representation_width(model) if compares else None for model in models]
    teacher, student = widths
    if teacher and student:
        return Connectors(options.connector, teacher, student, options.seed)
    if objective == "boundary":
        model = models[widths.index(None)]
        raise UserError(
            f"'{model}' ({load_config(model).model_type}) has no first token that represents the whole text, so its "
            "representation cannot be distilled; use the objective 'kl', or an encoder such as BERT or RoBERTa."
        )
    return None


class Distillation(TaskRun[DistillOptions, DistillResult]):
    """One call of ``distill``.

    Attributes:
        objective: The resolved objective.
        of_teacher, of_student: The options with which each is fine-tuned first, unless it is a model of the task.
    """

    verb, product, doing = "distill", "a distilled model", "distill"
    result_type = DistillResult

    def __init__(self, options: DistillOptions) -> None:
        """Open the task, and check the options against it.

        Raises:
            UserError: If they do not fit together, or there are several processes.
        """
        super().__init__(options)
        if self.group.size > 1:
            raise UserError("Distillation runs in one process; start it without torchrun or accelerate launch.")
        self.models = {"teacher": options.teacher, "student": options.student}
        self.tasks = {"task": self.task}
        self.objective = choose_objective(options.objective, self.task)
        if not self.task.labels:  # a number has no entropy
            self.options = options = replace(options, confidence_penalty=0.0, teacher_penalty=0.0)
        self.resolved, self.scoring = resolve_options(options, self.task)
        fine_tuning = replace(self.resolved, few_shot=None, select="last", confidence_penalty=0.0)
        self.of_teacher = replace(
            fine_tuning,
            seed=options.seed if options.teacher_seed is None else options.teacher_seed,
            epochs=options.teacher_epochs,
            learning_rate=options.teacher_learning_rate,
            confidence_penalty=options.teacher_penalty,
        )
        epochs, rate = options.student_epochs, options.student_learning_rate
        self.of_student = replace(fine_tuning, epochs=epochs, learning_rate=rate)
        if options.few_shot is not None:  # both models learn from the same examples
            self.task = replace(self.task, train=self.task.few_shot(options.few_shot, options.seed))

    def settings(self) -> dict[str, Any]:
        """Return the options, with precision and objective resolved."""
        resolved = {"precision": self.precision, "objective": self.objective}
        return recorded(self.options, ("teacher", "student", "task"), **resolved)

    def reuse(self, done: DistillResult) -> DistillResult:
        """Write the teacher's folder, if this call asks for one that the earlier call did not write."""
        if self.options.teacher_out is not None and done.teacher_trained:
            finetune_into(self.options.teacher_out, self.options.teacher, self.task, self.of_teacher, self.precision)
        return done

    def prepare(self) -> Callable[..., TrainingResult]:
        """Fine-tune both models, and compute what the student learns from the teacher."""
        options = self.options
        self.connectors = _connect(options, self.objective, "boundary" in find_task_kind(self.task).distillation)
        targets = self._ask_teacher()
        gc.collect()  # frees the teacher, since mixed precision creates reference cycles
        terms = (self.objective, options.margin, options.scale, options.temperature, self.precision)
        loss = DistillationLoss(self.learner.head, targets, self.connectors, *terms)
        rows = [{**row, "index": index} for index, row in enumerate(self.learner.rows(self.task.train))]
        hooks, self.disagreement = build_phase_hooks(
            loss, rows, self.resolved, options.distilled_epochs, options.schedule, options.connector_learning_rate
        )
        return partial(train, self.learner.head, rows, hooks=hooks)

    def _ask_teacher(self) -> TeacherTargets:
        """Load or fine-tune and evaluate both models, keep the student as the learner, and return its targets."""
        options, data, precision, device = self.options, self.task, self.precision, self.device
        teacher, teacher_seconds, self.teacher_trained = load_or_finetune(
            options.teacher, data, self.of_teacher, precision, device, options.teacher_out
        )
        nn.Module.to(teacher.head.model, "cpu")  # leaves the accelerator to the student's fine-tuning
        self.learner, student_seconds, _ = load_or_finetune(options.student, data, self.of_student, precision, device)
        to_device(teacher.head.model)
        set_seed(options.seed)
        if self.connectors:
            self.connectors.to(device)
        targets = compute_teacher_targets(teacher.head, teacher.rows(data.train), self.connectors, precision)
        targets = targets.match(*(model.head.answer_keys(data.train) for model in (teacher, self.learner)))
        self.scores = [load_or_evaluate(model, precision) for model in (teacher, self.learner)]
        self.seconds = {
            "teacher": teacher_seconds,
            "student": student_seconds,
            "teacher_targets": targets.seconds,
        }
        return targets

    def make_result(self, fields: dict[str, Any], trained: TrainingResult) -> DistillResult:
        """Return the result with the metrics of teacher and student."""
        switch, connectors, (teacher, student) = self.options.distilled_epochs, self.connectors, self.scores
        supervised = [line for line in trained.log if line.get("epoch", 0) > switch]
        seconds = {**self.seconds, "distillation": self.trained - self.prepared}
        return DistillResult(
            **fields,
            train_size=len(self.task.train),
            warning=warn_of_explosion(supervised, self.resolved.learning_rate, "task", len(self.task.labels)),
            objective=self.objective,
            connector=connectors.kind if connectors else "none",
            distilled_epochs=switch,
            disagreement=self.disagreement,
            units=connectors.units if connectors else 0,
            teacher_metrics=teacher["test"],
            teacher_dev_metrics=teacher.get("dev"),
            teacher_trained=self.teacher_trained,
            student_metrics=student["test"],
            student_dev_metrics=student.get("dev"),
            stage_seconds={name: round(value, 3) for name, value in seconds.items()},
        )


@verb(DistillOptions)
@with_output_lock
@with_memory_limit
def distill(options: DistillOptions) -> DistillResult:
    """Distill a teacher of a domain into a student of any architecture, width and tokenizer (DoKTra, ACL 2022).

    The teacher is fine-tuned on the task with a confidence penalty, the student without; a checkpoint that already is
    a model of the task's labels is used unchanged. Then the student is trained for another ``epochs`` epochs. In
    the first ``floor(distill_share * epochs)``, its representation of the first token learns to be active where that
    of the teacher is, and its head is not trained; in the others, it is trained on the labels with a confidence
    penalty. With ``objective="kl"``, the first phase trains the whole student on the softened predictions of the
    teacher; decoders and entities have this objective only. Of entities, the predictions for the words that both
    tokenizers know are compared; of regression, the predicted numbers, by their squared distance.

    The defaults are the paper's, tuned for models of 60 to 355 million parameters; small models need learning rates
    that are three to ten times as high. As in the released code, there is no warm-up and no weight decay.

    Returns:
        The metrics of teacher and student, and the disagreement of their activations after each epoch.

    Raises:
        UserError: If a model or the task cannot be used, an option is invalid, or a loss becomes NaN or infinite.
    """
    return Distillation(options).run()
