"""Prompting jobs: what causal models do without fine-tuning, by the likelihood of label words and by generation."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from acclimate.base.errors import UserError
from acclimate.base.records import Record, optional
from acclimate.evaluation.prompts import AskedPrompt, choose_prompts, solved_examples
from acclimate.evaluation.scoring import classification_metrics
from acclimate.models.checkpoints import load_config
from acclimate.models.kinds import kind_of_checkpoint
from acclimate.results.cells import interval_text, signed
from acclimate.results.scores import Interval, TaskScores
from acclimate.results.study import ReportTable
from acclimate.study.config import StudyConfig
from acclimate.study.inputs import OTHER, Checkpoint, StudyInputs
from acclimate.study.job import Job, JobResult, Model, Planner, RunContext, StudyModel, StudyView, register
from acclimate.study.jobs.capabilities import score_measurement
from acclimate.study.jobs.head_to_head import compare_prompts
from acclimate.study.score_tables import PROMPTS_TITLE, prompt_table
from acclimate.study.settings import TaskSpec
from acclimate.study.summary import (
    TaskResult,
    TaskRuns,
    compare_runs,
    correct_for_multiple_comparisons,
    summarize_scores,
)

WITHOUT_TRAINING = "without fine-tuning"
OTHER_DOMAIN = "other domain, without fine-tuning"


def is_causal(path: str) -> bool:
    """Return whether a model is causal."""
    return not kind_of_checkpoint(load_config(path).architectures, path).uses_masking


def check_causal(inputs: StudyInputs, what: str) -> None:
    """Raise UserError if no base model of the study is causal."""
    if not any(is_causal(checkpoint.path) for checkpoint in inputs.checkpoints.values()):
        raise UserError(f"study: {what} needs a causal language model, and the study has none; remove it.")


def reads_prompts(planner: Planner, subject: StudyModel) -> bool:
    """Return whether a model is causal, and is not a second row of its base model."""
    known = planner.inputs.checkpoints[str(subject.place.model)]
    checkpoint = subject.model if isinstance(subject.model, Checkpoint) else known
    return subject.measures_loss and is_causal(checkpoint.path)


def _adapt_seeds(planner: Planner, subject: StudyModel) -> list[int]:
    """Return the seeds that a measurement of a model is compared under: its own, or all for one without a seed."""
    own = subject.place.adapt_seed
    return planner.config.adapt_seeds if own is None else [own]


class PromptedResult(TaskResult):
    """The result with a prompt, or with the best of several for each seed.

    Attributes:
        choices: Number of the prompt that each seed chose.
    """

    choices: dict[str, int] | None = optional()


@register("likelihood", summary="classify texts by the likelihood of label words, without fine-tuning")
class LikelihoodJob(Job):
    """Classify the test split of a task by the likelihood of label words.

    Attributes:
        model: The model.
        task: The task.
        settings: The prompts and the words: see :class:`acclimate.study.settings.LikelihoodSpec`.
        seeds: Seeds of adaptation that choose a prompt: its own, or all for the base model.
        all_seeds: All seeds of adaptation.
    """

    model: Model
    task: Any
    settings: Mapping[str, Any]
    seeds: tuple[int, ...]
    all_seeds: tuple[int, ...]

    cost: ClassVar[float] = 0.5
    result_type: ClassVar[type[Record]] = PromptedResult

    def run(self, context: RunContext) -> PromptedResult:
        """Choose a prompt for each seed on dev, then classify the test split with those that are needed."""
        started = time.perf_counter()
        task, scoring, settings = self.task, self.task.scoring(), dict(self.settings)
        prompts = [AskedPrompt.from_dict(prompt) for prompt in settings.pop("prompts")]
        classify = context.backend.likelihood(context.path(self.model))

        def ask(prompt: AskedPrompt, rows: Sequence[Any]) -> Any:
            solved = solved_examples(task.train, prompt.shots, [row.label for row in task.train])
            examples = [((row.text, row.text_pair), task.labels[row.label]) for row in solved]
            texts = [(row.text, row.text_pair) for row in rows]
            return classify(texts, task.labels, template=prompt.template, examples=examples, **settings)

        def hits(prompt: AskedPrompt, places: Sequence[int]) -> list[float]:
            rows = [task.dev[place] for place in places]
            return [float(row.label == own) for row, own in zip(rows, ask(prompt, rows).predicted, strict=True)]

        choices = dict.fromkeys(self.seeds, 0)
        if len(prompts) > 1:
            groups = task.groups("dev") or range(len(task.dev))
            choices = choose_prompts(prompts, hits, groups, self.seeds, self.all_seeds)
        gold = [row.label for row in task.test]
        # One model for all seeds is the base model, whose answers to the prompts of adapted models are a warning.
        for number in range(len(prompts)) if len(self.seeds) > 1 else choices.values():
            found = ask(prompts[number], task.test)
            prompts[number].predicted = found.predicted
            prompts[number].metrics = {
                **classification_metrics(gold, found.predicted, task.labels),
                "truncated": found.truncated,
            }
        first = prompts[next(iter(choices.values()))]
        return PromptedResult(
            task=task.name,
            metrics=first.metrics or {},
            gold=gold,
            predicted=first.predicted or [],
            labels=task.labels,
            seconds=time.perf_counter() - started,
            kind=scoring.name,
            scoring=scoring.details(),
            prompts=prompts if len(prompts) > 1 else None,
            choices={str(seed): number for seed, number in choices.items()} if len(prompts) > 1 else None,
        )

    @classmethod
    def is_used(cls, config: StudyConfig) -> bool:
        """Return whether a task has ``likelihood``."""
        return any(True for _ in _specs(config))

    @classmethod
    def check(cls, inputs: StudyInputs) -> None:
        """Check that there is a causal model, and that the tasks and their prompts fit."""
        from acclimate.evaluation.likelihood import check_template, label_words

        for home, spec in _specs(inputs.config):
            check_causal(inputs, f"'likelihood' of the task '{spec.name}'")
            task = inputs.tasks[home, spec.name].visible
            if task.scoring().name != "single_label":
                raise UserError(
                    f"study: 'likelihood' of the task '{spec.name}' needs one label per text; remove it there."
                )
            assert spec.likelihood is not None
            prompts = spec.likelihood.prompts(task)
            for prompt in prompts:
                check_template(prompt.template, task.test[0].text_pair is not None)
            if len(prompts) > 1 and not task.dev:
                raise UserError(
                    f"study: 'likelihood' of the task '{spec.name}' has several prompts, of which one is chosen on "
                    "the dev split, and the task has none; give it one, or a single prompt."
                )
            label_words(task.labels, spec.likelihood.words)

    @classmethod
    def measure(cls, planner: Planner, subject: StudyModel) -> None:
        """Add a job per task with ``likelihood``, of the domain and of other domains."""
        tasks = [(subject.domain.name, task) for task in subject.domain.tasks]
        tasks += [(OTHER, task) for task in planner.inputs.other_tasks(subject.domain)]
        tasks = [(home, task) for home, task in tasks if task.likelihood]
        if not tasks or not reads_prompts(planner, subject):
            return
        for home, task in tasks:
            found = planner.inputs.tasks[home, task.name].visible
            assert task.likelihood is not None
            settings = task.likelihood.model_dump(exclude={"template", "shots"})
            settings["prompts"] = [prompt.to_dict() for prompt in task.likelihood.prompts(found)]
            seeds, own = tuple(planner.config.adapt_seeds), tuple(_adapt_seeds(planner, subject))
            job = cls(
                place=subject.place, model=subject.model, task=found, settings=settings, seeds=own, all_seeds=seeds
            )
            role = OTHER_DOMAIN if home == OTHER else WITHOUT_TRAINING
            for seed in own:
                planner.add(job.at(task=task.name, seed=seed, role=role))

    @classmethod
    def measurements(cls, inputs: StudyInputs) -> list[str]:
        """Return the tasks that are answered without fine-tuning."""
        return [f"{task.name} {WITHOUT_TRAINING}" for _, task in _specs(inputs.config)]

    @classmethod
    def rows(cls, view: StudyView) -> dict[str, list[Any]]:
        """Return a table of the scores, compared with the base model."""
        found_runs = view.group(PromptedResult, lambda job: isinstance(job, LikelihoodJob))
        groups = {place: [run_of_seed(run) for run in runs] for place, runs in found_runs.items()}
        rows: list[tuple[str | None, str | None, TaskScores]] = []
        for runs in groups.values():
            place, metric = runs[0].job.place, "accuracy"
            row: TaskScores = summarize_scores(runs, metric, TaskScores)
            if place.method is not None:
                base = groups.get((place.model, place.domain, None, None, place.task, None, place.role))
                row.difference = compare_runs(runs, base) if base else None
            rows.append((place.role, place.adapted_for, row))
        if not rows:
            return {}
        correct_for_multiple_comparisons([row for _, _, row in rows])
        columns = ["model", "domain", "task", "method", "accuracy, %", "macro-F1, %", *DIFFERENCE]
        note = (
            "The test split, answered without fine-tuning: the label whose word is most likely after the prompt. "
            "Means over seeds of adaptation. Difference: accuracy to the base model, in percentage points, paired by "
            "text."
        )
        cut = sum(int(run.result.metrics.get("truncated", 0)) for runs in groups.values() for run in runs)
        note += " Some prompts were too long and were read without their start." if cut else ""
        cells = [
            [
                *(row.model, row.domain, f"{row.task} (other domain)" if role == OTHER_DOMAIN else row.task),
                row_label(row.method, adapted_for),
                *(100 * row.summaries[name].mean for name in ("accuracy", "macro_f1")),
                *difference_cells(row.comparison),
            ]
            for role, adapted_for, row in rows
        ]
        title = "Classification by the likelihood of label words"
        searched = _searched(groups)
        if searched:
            note += f" Each model has its own prompt: see the table '{PROMPTS_TITLE}'."
        found = [score_measurement(row, f"{row.task} {WITHOUT_TRAINING}", task) for _, task, row in rows]
        table = ReportTable(title=title, note=note, columns=columns, rows=cells, digits=1)
        measured = [row for row in found if row]
        head_to_head = compare_prompts(searched, dict.fromkeys(searched, "accuracy"))
        return {
            "tables": [table, prompt_table(groups.values())],
            "capabilities": measured,
            "head_to_head": head_to_head,
        }


def run_of_seed(run: JobResult[PromptedResult]) -> JobResult[TaskResult]:
    """Return a run with the prompt that its seed chose."""
    choices, seed = run.result.choices, str(run.job.place.seed)
    return JobResult(run.job, run.result.with_prompt(choices[seed]) if choices else run.result)


def _searched(groups: Mapping[Any, TaskRuns]) -> dict[tuple[str | None, ...], TaskRuns]:
    """Return the runs of which a prompt was chosen, by model, domain, task and row label, without other domains."""
    found: dict[tuple[str | None, ...], TaskRuns] = {}
    for runs in groups.values():
        place = runs[0].job.place
        own = place.role == WITHOUT_TRAINING and place.adapted_for in (None, place.task)
        if own and all(run.result.chosen is not None for run in runs):
            found[place.model, place.domain, place.task, place.method] = runs
    return found


def _specs(config: StudyConfig) -> Iterator[tuple[str, TaskSpec]]:
    """Yield the tasks with ``likelihood``, each with its domain or :data:`OTHER`."""
    tasks = [(domain.name, task) for domain in config.domains for task in domain.tasks]
    for home, task in [*tasks, *((OTHER, task) for task in config.other_tasks)]:
        if task.likelihood:
            yield home, task


DIFFERENCE = ("difference", "95 % interval", "verdict")


def difference_cells(entry: Interval | None, scale: float = 100, digits: int = 1) -> Iterable[Any]:
    """Return difference, interval and verdict of a comparison, by default in percent."""
    if entry is None:
        return (None, None, None)
    shown = signed(scale * entry.difference, digits), interval_text(entry, scale, digits)
    return (*shown, entry.verdict)


def row_label(method: str | None, task: str | None) -> str:
    """Return the name of a row: a method, with the task if the model was adapted for it alone, or the base model."""
    return "base model" if method is None else f"{method}, {task}" if task else method
