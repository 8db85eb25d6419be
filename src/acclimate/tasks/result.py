"""The result of a fine-tuning or distillation: measuring it, writing its folder, and finding it again.

Every result folder contains a record of everything that determined the result, so that the same call returns it at
once. A call that was killed resumes from the checkpoints in the working folder next to ``out``.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from acclimate.adaptation.result import open_work_folder, remove_work_folder
from acclimate.base.errors import UserError, postpone_stop
from acclimate.base.files import (
    RECORD_FILE,
    atomic_folder,
    is_intact,
    read_json_object,
    record_files,
    write_json,
    write_text,
)
from acclimate.base.progress import format_duration
from acclimate.base.records import build_value
from acclimate.cards.writers import write_task_model_card
from acclimate.data.writing import write_rows
from acclimate.engine.distributed import ProcessGroup
from acclimate.engine.trainer import LOG_FILE
from acclimate.evaluation.prompts import AskedPrompt
from acclimate.evaluation.scoring import Collapse, Scoring, make_scoring
from acclimate.evaluation.significance import score_interval
from acclimate.results.cells import bracket_text
from acclimate.results.display import Reported, data_frame
from acclimate.results.requirements import (
    Bounds,
    Decision,
    Requirement,
    check_names,
    decide,
    parse_requirements,
)
from acclimate.results.scores import Interval
from acclimate.results.study import StudyResults, table_results
from acclimate.tasks.interfaces import LabelledTask, Learner
from acclimate.tasks.readers import SPLITS
from acclimate.tasks.trainer import TrainingResult

if TYPE_CHECKING:
    import pandas

log = logging.getLogger(__name__)


@dataclass(frozen=True, repr=False)
class FinetuneResult(Reported):
    """The result of one fine-tuning, as plain values that can be written as JSON."""

    task: str
    seed: int
    metrics: dict[str, Any]
    """Metrics on the test split: those of the scoring, and further ones of the kind of task."""
    dev_metrics: dict[str, Any] | None
    """The same on the dev split, for the weights that were kept; None without a dev split."""
    gold: list[Any]
    """For each test item its class number, a list of them in a multi-label task, or the texts of its answers."""
    predicted: list[Any]
    """The predictions, in the same form; for a question its best answers, the best first."""
    probabilities: list[Any]
    """For each test item, in the order of the file, its probabilities: (items, classes).

    Softmax over the classes; in a multi-label task the sigmoid of each; for a question the scores of its answers; for
    a generated answer the whole output and its scores.
    """
    labels: list[str]
    seconds: float
    train_size: int
    """Number of training examples, after ``few_shot``."""
    steps: int
    epoch: int
    """The epoch whose weights were kept, counted from one."""
    train_loss: float
    """Mean over all steps, in nats."""
    precision: str
    losses: list[float] = field(default_factory=list)
    """Mean losses of equal parts of the training, in their order, in nats."""
    learning_rate: float | None = None
    """The peak learning rate."""
    kind: str = "single_label"
    """Name of the scoring: a key of :data:`acclimate.evaluation.scoring.SCORINGS`."""
    scoring: dict[str, Any] = field(default_factory=dict)
    """What :func:`acclimate.evaluation.scoring.make_scoring` needs in addition to score the predictions again."""
    first: str | None = None
    """Name of the task of the first stage; None if there was only one stage."""
    reading: dict[str, Any] = field(default_factory=dict)
    """How texts are read, which a prediction repeats: columns and edits; and the numbers of placeholders."""
    prompts: list[AskedPrompt] | None = None
    """The prompts of a model that is not trained, with their scores on dev; None if there was one."""
    chosen: int | None = None
    """Number of the prompt with the best score on dev."""
    warning: str = ""
    """What is wrong with the training; empty if nothing is."""
    training_seconds: float = 0.0
    """Seconds of training, without loading."""
    evaluation_seconds: float = 0.0
    """Seconds of measuring on dev and test after training."""

    def splits(self) -> dict[str, dict[str, float]]:
        """Return the metrics that are single numbers, by what they were measured on: ``"dev"``, ``"test"``."""
        return numbers({"dev": self.dev_metrics, "test": self.metrics})

    def document(self) -> dict[str, Any]:
        """Return what ``--json`` prints: what was measured, without the predictions of single items."""
        return {
            name: value for name, value in vars(self).items() if name not in ("gold", "predicted", "probabilities")
        }

    def describe(self) -> list[str]:
        """Return the size of the training and the metrics, in a few lines."""
        names = make_scoring(self.kind, self.scoring).metrics
        lines = [
            f"{self.task}, seed {self.seed}: {self.train_size:,} training examples, {self.steps:,} steps in "
            f"{format_duration(self.seconds)}, weights of epoch {self.epoch}"
        ]
        if self.prompts and self.chosen is not None:
            mine, dev = self.prompts[self.chosen], [prompt.dev or 0.0 for prompt in self.prompts]
            lines.append(
                f"prompt {mine.template!r} with {mine.shots} solved examples, chosen on dev: {mine.dev or 0.0:.4f}; "
                f"all {len(dev)} prompts {min(dev):.4f} to {max(dev):.4f}"
            )
        for split, metrics in self.splits().items():
            shown = ", ".join(f"{name} {metrics[name]:.4f}" for name in names if name in metrics)
            lines.append(f"{split}: {shown}")
        references = self.metrics.get("references", {})
        if references:
            shown = ", ".join(f"{name} {found[names[0]]:.4f}{gain(found)}" for name, found in references.items())
            lines.append(f"{names[0]} of others on test: {shown}")
        return [*lines, *([f"warning: {self.warning}"] if self.warning else [])]

    def decide(self, *requirements: str) -> Decision:
        """Decide whether scores of this model on the test split meet requirements, such as ``"accuracy >= 80"``.

        Scores are in percent, errors in the unit of the target.

        Raises:
            UserError: If one cannot be read, or has no metric of the task.
        """
        return decide_scores([self], requirements)

    def as_results(self) -> StudyResults:
        """Return the metrics on each split and those of each class, as the results of a study."""
        splits = self.splits()
        names = dict.fromkeys(name for metrics in splits.values() for name in metrics)
        metrics = [{"metric": name, **{split: found.get(name) for split, found in splits.items()}} for name in names]
        classes = [{"class": label, **row} for label, row in self.metrics.get("per_class", {}).items()]
        tables = {"Metrics": metrics, "Classes, on test": classes}
        return table_results(f"Fine-tuning on {self.task}", tables, seeds=[self.seed])

    def to_pandas(self) -> pandas.DataFrame:
        """Return a row per split with its metrics; ``pandas.concat`` joins the rows of several seeds."""
        return data_frame(
            [{"task": self.task, "seed": self.seed, "split": split, **row} for split, row in self.splits().items()]
        )


def check_metrics(requirements: Sequence[Requirement], scoring: Scoring) -> None:
    """Check that requirements are about metrics and errors of a scoring.

    Raises:
        UserError: If one is not, or asks for a high error.
    """
    check_names(requirements, [*scoring.metrics, *scoring.errors], scoring.errors)


def decide_scores(results: Sequence[FinetuneResult], texts: Sequence[str]) -> Decision:
    """Decide whether the mean score of fine-tunings with several seeds on the test split meets requirements.

    The interval is :func:`acclimate.evaluation.significance.score_interval`.

    Raises:
        UserError: As :meth:`FinetuneResult.decide`.
    """
    scoring = make_scoring(results[0].kind, results[0].scoring)
    requirements, predictions = parse_requirements(texts), [result.predicted for result in results]
    check_metrics(requirements, scoring)
    of, named = f"mean of {len(results)} seeds" if len(results) > 1 else "this model", {}
    for name in {one.name for one in requirements}:
        found, is_error = score_interval(scoring, results[0].gold, predictions, name), name in scoring.errors
        unit: dict[str, Any] = {"scale": 1.0, "unit": ""} if is_error else {"unit": "%"}
        ends = {"estimate": found.difference, "low": found.low, "high": found.high}
        named[name] = [Bounds(**{**ends, **unit}, of=of, is_error=is_error, is_difference=False)]
    return decide(requirements, named)


def gain(found: Mapping[str, Any]) -> str:
    """Return how much more the model scores than a reference, with its interval over test items."""
    entry: Interval = Interval.from_dict(found["difference"])
    return f" (this model {bracket_text(entry, 1, 4)})"


def numbers(metrics: Mapping[str, Mapping[str, Any] | None]) -> dict[str, dict[str, float]]:
    """Return the metrics that are single numbers, for each set of metrics that exists."""
    return {
        split: {name: value for name, value in found.items() if isinstance(value, int | float)}
        for split, found in metrics.items()
        if found
    }


ResultT = TypeVar("ResultT", bound=FinetuneResult)


@dataclass(frozen=True)
class RunFolder:
    """The output directory of a run that may have been finished, killed or not started.

    Attributes:
        out: The output directory; None if nothing is saved.
        identity: Everything that determines the result.
        group: The processes of the run.
    """

    out: Path | None
    identity: dict[str, Any]
    group: ProcessGroup = field(default_factory=ProcessGroup)

    @property
    def steps(self) -> Path | None:
        """The folder for the checkpoints of the training; None if nothing is saved."""
        return None if self.out is None else self._work(self.out) / "steps"

    @staticmethod
    def _work(out: Path) -> Path:
        return out.parent / f".{out.name}.work"

    def load_finished(self, kind: type[ResultT]) -> ResultT | None:
        """Return the result in ``out`` if it is that of the same run, and all its files are there; else None.

        Raises:
            UserError: If a file of the result is damaged.
        """
        record = read_json_object(self.out / RECORD_FILE) if self.out else None
        if self.out is None or record is None or record.get("identity") != self.identity:
            return None
        try:
            values, hints = build_value(dict[str, Any], record["result"], "result"), get_type_hints(kind)
            found = kind(**{name: build_value(hints[name], value, name) for name, value in values.items()})
        except (KeyError, TypeError, UserError):
            return None
        if not is_intact(self.out, RECORD_FILE, f"delete '{self.out}' to compute it again, or choose another folder"):
            return None
        # A killed process may have left its working folder.
        remove_work_folder(self._work(self.out), self.identity, self.group)
        return found

    def open_work(self) -> None:
        """Create the working folder, or keep the one of a killed run of the same identity."""
        if self.out is not None:
            open_work_folder(self._work(self.out), self.identity, self.group)

    def write(
        self,
        learner: Learner,
        trained: TrainingResult,
        result: FinetuneResult,
        *,
        verb: str,
        models: Mapping[str, str | Path],
        task: LabelledTask,
        options: Mapping[str, Any],
    ) -> None:
        """Write the model folder: weights, tokenizer, results, card and record; then remove the working folder.

        Args:
            learner: The model.
            trained: The result of the training.
            result: The measured result.
            verb: ``"finetune"`` or ``"distill"``.
            models: The models that were read, by role.
            task: The task.
            options: The options, which the card reports.
        """
        shown = {name: value for name, value in options.items() if name != "metric" and value is not False}
        sources = {role: str(model) for role, model in models.items()}
        if self.out is not None and self.group.first:
            with postpone_stop(), atomic_folder(self.out) as folder:
                learner.head.save(folder, self.out)
                _write_result(folder, result, learner, trained.log, task)
                length = getattr(learner.head, "max_length", options["max_length"])  # reduced to what the model reads
                write_task_model_card(folder, self.out, verb, sources, task, shown, result, length)
                write_json(folder / RECORD_FILE, {"identity": self.identity, "result": asdict(result)})
                record_files(folder, RECORD_FILE)
            shutil.rmtree(self._work(self.out), ignore_errors=True)
        self.group.wait()


def warn_of_collapse(collapse: Collapse, total: int, task: str, readable: Callable[[Any], Any]) -> None:
    """Warn that a model has not learned a task, such as one that gives nearly all of ``total`` items one answer."""
    answer = readable(collapse.answer) or "none"
    same = f"gives {collapse.items} of {total} items of '{task}' the same answer ({answer})"
    log.warning(
        "A model %s: it has not learned the task. Train it longer (epochs), with another learning_rate or on more "
        "examples.",
        f"{collapse.reason} on '{task}'" if collapse.reason else same,
    )


def _write_result(
    folder: Path, result: FinetuneResult, learner: Learner, lines: Sequence[dict[str, Any]], task: LabelledTask
) -> None:
    """Write ``metrics.json``, ``predictions.jsonl`` with a line per test item, and ``log.jsonl``.

    If splits were drawn, ``split.csv`` says for each row of the user's file in which split it is.
    """
    summary = asdict(result)
    for name in ("gold", "predicted", "probabilities", "scoring"):
        del summary[name]
    write_json(folder / "metrics.json", summary)
    by_class = result.kind in ("single_label", "multi_label")
    shown = [
        {"probabilities": dict(zip(result.labels, one, strict=True))} if by_class else one
        for one in result.probabilities
    ]
    items = [
        {
            **({"row": row} if row else {}),
            "gold": learner.readable(gold),
            "predicted": learner.readable(predicted),
            **(shares if isinstance(shares, Mapping) else {"probabilities": shares}),
        }
        for row, gold, predicted, shares in zip(
            task.row_names("test"), result.gold, result.predicted, shown, strict=True
        )
    ]
    if groups := result.scoring.get("groups"):
        items = [{**item, "group": group} for item, group in zip(items, groups, strict=True)]
    if items:
        write_text(
            folder / "predictions.jsonl", "".join(json.dumps(item, ensure_ascii=False) + "\n" for item in items)
        )
    if task.drawn:
        places = [(name, split) for split in SPLITS for name in task.row_names(split)]
        write_rows(folder / "split.csv", [{"row": row, "split": split} for row, split in places])
    write_text(folder / LOG_FILE, "".join(json.dumps(line) + "\n" for line in lines))
