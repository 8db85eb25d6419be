"""A training on a labelled task, from its options to the folder of its result, as fine-tuning and distillation."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import torch
import transformers

from acclimate.base.device import choose_precision, default_device
from acclimate.base.files import RECORD_FILE, check_replaceable, check_writable, follow_link
from acclimate.base.version import __version__
from acclimate.data.reading import EDITS
from acclimate.data.task_kinds import open_task
from acclimate.engine.callbacks import check_trackers, tensorboard_folder
from acclimate.engine.distributed import join_process_group
from acclimate.evaluation.learning import bin_losses
from acclimate.evaluation.scoring import Scoring
from acclimate.models.checkpoints import model_fingerprint
from acclimate.tasks.interfaces import EvaluationResult, LabelledTask, Learner, ResolvedOptions
from acclimate.tasks.options import DistillOptions, FinetuneOptions
from acclimate.tasks.result import FinetuneResult, RunFolder, warn_of_collapse
from acclimate.tasks.trainer import TrainingResult

OptionsT = TypeVar("OptionsT", FinetuneOptions, DistillOptions)
ResultT = TypeVar("ResultT", bound=FinetuneResult)


class TaskRun(ABC, Generic[OptionsT, ResultT]):
    """One call of a verb that trains on a labelled task.

    Attributes:
        options: The options as they were given.
        task: The task whose test split is scored.
        resolved: The options of the training, with the defaults of the task filled in; the subclass sets them.
        scoring: How predictions for the test split are scored; the subclass sets it.
        precision: The resolved precision.
        models, tasks: The models and the tasks that are read, by role; the subclass sets them.
        learner: The model that is trained, from :meth:`prepare` on.
    """

    verb: ClassVar[str]
    product: ClassVar[str]
    """What the folder of the result holds, for messages."""
    doing: ClassVar[str]
    """Name of the training in its progress bar."""
    result_type: type[ResultT]
    resolved: ResolvedOptions
    scoring: Scoring
    models: dict[str, str | Path]
    tasks: dict[str, LabelledTask | None]
    learner: Learner

    def __init__(self, options: OptionsT) -> None:
        self.started = time.perf_counter()
        self.options: OptionsT = options
        self.trackers = check_trackers(options.report_to)
        self.group = join_process_group()
        self.task: Any = open_task(options.task, options)
        self.target = None if options.out is None else follow_link(options.out)
        self.device = default_device()
        self.precision = choose_precision(options.precision, self.device)

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Return every option that determines the result, defaults included, but models and tasks."""

    @abstractmethod
    def prepare(self) -> Callable[..., TrainingResult]:
        """Load :attr:`learner`; return its training, which takes options, precision and the arguments of trackers."""

    @abstractmethod
    def make_result(self, fields: dict[str, Any], trained: TrainingResult) -> ResultT:
        """Return the result, from the fields that every result has."""

    def reuse(self, done: ResultT) -> ResultT:
        """Return the result that an earlier call with the same identity left in the folder."""
        return done

    def identity(self) -> dict[str, Any]:
        """Return everything that determines the result, as plain values; models and tasks by their content.

        Raises:
            UserError: If a model does not exist.
        """
        values = {
            "verb": self.verb,
            "acclimate": __version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "device": self.device.type,
            "models": {role: model_fingerprint(str(model)) for role, model in self.models.items()},
            "tasks": {role: task and [task.name, task.fingerprint()] for role, task in self.tasks.items()},
            "precision": self.precision,
            "options": self.settings(),
            **({"reading": self.task.reading} if self.task.reading else {}),  # which the saved model states
        }
        return json.loads(json.dumps(values, default=str))

    def run(self) -> ResultT:
        """Return the result in the output directory if it is this run's; else train, evaluate and write it."""
        folder = RunFolder(self.target, self.identity() if self.target else {}, self.group)
        if (done := folder.load_finished(self.result_type)) is not None:
            return self.reuse(done)
        check_replaceable(self.target, RECORD_FILE, self.product)
        check_writable(self.target)
        train = self.prepare()
        folder.open_work()
        self.prepared = time.perf_counter()
        with tensorboard_folder(self.trackers, self.target):
            trained = train(
                self.resolved,
                self.precision,
                work=folder.steps,
                title=f"{self.doing} on {self.task.name}",
                score=self._score if self.resolved.select == "dev" else None,
                report_to=self.trackers,
                run_name=self.task.name if self.target is None else self.target.name,
            )
        self.trained = time.perf_counter()
        result = self.make_result(self._measure(trained), trained)
        shown = {**self.settings(), "first": result.first, **{name: self.task.reading.get(name) for name in EDITS}}
        folder.write(self.learner, trained, result, verb=self.verb, models=self.models, task=self.task, options=shown)
        return result

    def _score(self) -> float:
        return float(self.learner.measure("dev", self.precision).metrics[self.resolved.metric])

    def _measure(self, trained: TrainingResult) -> dict[str, Any]:
        """Evaluate the model on dev and test; return the fields that every result has but ``train_size``."""
        task, learner, scoring = self.task, self.learner, self.scoring
        learner.finish()
        # In fp32, so that the predictions are those of any program that loads the saved folder.
        dev_metrics = learner.measure("dev", "fp32").metrics if task.dev else None
        test = learner.measure("test", "fp32") if task.test else EvaluationResult({}, [], [], [])
        if test.gold and (collapse := scoring.find_collapse(test.gold, test.predicted)) is not None:
            warn_of_collapse(collapse, len(test.predicted), task.name, learner.readable)
        return {
            "task": task.name,
            "seed": self.resolved.seed,
            "metrics": test.metrics,
            "dev_metrics": dev_metrics,
            "gold": test.gold,
            "predicted": test.predicted,
            "probabilities": test.probabilities,
            "labels": list(task.labels),
            "seconds": time.perf_counter() - self.started,
            "training_seconds": self.trained - self.prepared,
            "evaluation_seconds": time.perf_counter() - self.trained,
            "steps": trained.steps,
            "epoch": trained.epoch,
            "train_loss": trained.loss,
            "losses": bin_losses(trained.log[: -1 if task.contrasts_in_batch else None]),
            "precision": self.precision,
            "kind": scoring.name,
            "scoring": scoring.details(),
            "reading": task.reading,
        }
