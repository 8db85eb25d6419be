"""Fine-tuning jobs: scores on end tasks of each domain, and forgetting of tasks of other domains."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any, ClassVar, Self

import numpy as np
from scipy.stats import rankdata

from acclimate.base.records import Record
from acclimate.evaluation.significance import PairedPredictions, item_deviation, mean_paired_bootstrap
from acclimate.results.scores import WITHHELD, ForgettingRow, Interval, MeanRow, MetricSummary, ScoreRow
from acclimate.results.study import StageName
from acclimate.study.config import StudyConfig
from acclimate.study.inputs import OTHER, Checkpoint, StudyInputs, TaskInput
from acclimate.study.job import (
    FORGETTING,
    Job,
    JobResult,
    Model,
    Place,
    Planner,
    RunContext,
    StudyModel,
    StudyView,
    Timed,
    register,
)
from acclimate.study.jobs.adapt import adaptation_seconds
from acclimate.study.jobs.capabilities import score_measurement
from acclimate.study.learned import judge_base, withhold_verdicts
from acclimate.study.score_tables import check_reviews, score_tables
from acclimate.study.settings import TaskSpec
from acclimate.study.summary import (
    TaskResult,
    TaskRuns,
    compare_runs,
    correct_for_multiple_comparisons,
    count_verdicts,
    is_replicated,
    pair_by_seed,
    pool_confidence,
    replicate_groups,
    scoring_of,
    summarize_scores,
    test_of,
    units_of_test,
)
from acclimate.tasks.options import FinetuneOptions
from acclimate.tasks.recipe import MEASURED_EPOCHS, default_epochs, default_rate

PILOT_STEPS = 8
"""Maximum number of steps of the fine-tuning that measures the speed."""
FIRST_STAGE = ("first_epochs", "first_learning_rate")
"""Options that apply only with a task to train on before."""


@register("finetune", summary="fine-tune a model on an end task and score it")
class FinetuneJob(Job):
    """Fine-tune a model on a task with one seed.

    Attributes:
        model: The model.
        task: The task.
        first: The task to train on before it; None for none.
        settings: Options of ``finetune``, defaults included.
        positive: Label whose probability is kept for each test item; None for none.
        seed: Seed of fine-tuning.
        options: The explicit options, passed to ``finetune``.
    """

    model: Model
    task: Any
    first: Any = None
    positive: str | None = None
    settings: Mapping[str, Any]
    seed: int
    options: Mapping[str, Any] = field(compare=False)

    result_type: ClassVar[type[Record]] = TaskResult
    counts_as_score: ClassVar[bool] = True
    options_type: ClassVar[type[Any] | None] = FinetuneOptions
    stages: ClassVar[tuple[StageName, ...]] = (
        StageName(
            stage="finetuning",
            name="fine-tuning",
            note="Fine-tuning includes evaluation; adaptation and distillation do not.",
        ),
    )

    @classmethod
    def is_used(cls, config: StudyConfig) -> bool:
        """Return whether this kind scores the tasks."""
        return config.evaluate.quick == bool(cls.setting)

    @classmethod
    def of(cls, inputs: StudyInputs, home: str, task: TaskSpec, seed: int, place: Place, model: Model) -> Self:
        """Return the job of a task of a domain, or of :data:`OTHER`, with the place of the model and its task."""
        from acclimate.data.task_kinds import find_task_kind

        settings, options = finetune_settings(inputs, home, task, str(place.model))
        found = inputs.tasks[home, task.name]
        tuned = replace(place, task=task.name, seed=seed)
        if not settings["epochs"] and find_task_kind(found.task).zero_shot:
            own = {"prompt_seeds": list(inputs.config.seeds), "every_prompt": place.method == inputs.config.baseline}
            settings, options = {**settings, **own}, {**options, **own}
        data: dict[str, Any] = {"task": found.visible, "first": found.first, "settings": settings, "seed": seed}
        positive = task.review.positive if task.review and home != OTHER else None
        return cls(place=tuned, model=model, options=options, positive=positive, **data)

    def run(self, context: RunContext) -> TaskResult:
        """Fine-tune the model and score it on the test split."""
        given = dict(self.options)
        if self.first is not None:
            given["first"] = self.first
        if self.makes_model:
            given["out"] = context.folder(self)
        result = context.backend.finetune(context.path(self.model), self.task, seed=self.seed, progress=False, **given)
        made: TaskResult = TaskResult.of(result)
        made.training_seconds = getattr(result, "training_seconds", result.seconds)
        made.evaluation_seconds = getattr(result, "evaluation_seconds", 0.0)
        if self.positive is not None:
            place = made.labels.index(self.positive)
            made.scores = [float(row[place]) for row in result.probabilities]
        return made

    def next_pilot(self, model: Checkpoint, timed: Sequence[Timed], seconds: float) -> Job | None:
        """Return a fine-tuning of one step, in which libraries compile, then one of as many as there is time for."""
        from acclimate.data.task_kinds import find_task_kind
        from acclimate.tasks.splits import limit_splits

        steps = 1
        if timed:
            spent = timed[0].result.training_seconds + timed[0].result.evaluation_seconds
            steps = min(PILOT_STEPS, int(seconds / max(spent, 1e-3)))
        if len(timed) > 1 or (timed and steps < 2):
            return None
        kind, epochs, rows = find_task_kind(self.task), min(1, self.epochs), steps * int(self.settings["batch_size"])
        left_out = ("few_shot", "select", "out", "tune", *FIRST_STAGE)
        options = {name: value for name, value in self.options.items() if name not in left_out}
        settings = {**self.settings, "epochs": epochs, "few_shot": None, "select": "last"}
        few = limit_splits(self.task, train=rows, dev=max(1, rows // 4), test=max(1, rows // 4))
        made = replace(self, model=model, first=None, settings=settings, options={**options, "epochs": epochs})
        return replace(made, task=kind.shrink(few))

    def expected_seconds(self, timed: Sequence[Timed]) -> float:
        """Return the time of loading, and of all rows at the speed of the last pilot."""
        pilot = timed[-1]
        training, evaluation = pilot.result.training_seconds, pilot.result.evaluation_seconds
        loading = max(
            0.0, min(one.seconds - one.result.training_seconds - one.result.evaluation_seconds for one in timed)
        )
        trained, evaluated = (here / max(1, there) for here, there in zip(self.work, pilot.job.work, strict=True))
        return loading + trained * training + evaluated * evaluation

    @property
    def epochs(self) -> int:
        """Passes over the train split."""
        return int(self.settings.get("epochs", 1))

    @property
    def work(self) -> tuple[int, int]:
        """Number of rows that are trained on, and of rows that are evaluated."""
        from acclimate.data.task_kinds import find_task_kind
        from acclimate.tasks.interfaces import count_train_rows

        epochs, train = self.epochs, count_train_rows(self.task, self.settings.get("few_shot"))
        first = 0 if self.first is None else len(self.first.train) * int(self.settings.get("first_epochs") or epochs)
        times = min(epochs, MEASURED_EPOCHS) if self.settings.get("select") == "dev" else 0
        each, shared = find_task_kind(self.task).read_items(self.task, self.settings)
        evaluated = each * (len(self.task.dev) * (1 + times) + len(self.task.test))
        return first + train * epochs, evaluated + shared * (2 + (epochs > 0) + times)  # test, dev, and before

    def stage_seconds(self, result: TaskResult, view: StudyView) -> dict[str, float] | None:
        """Return the seconds of adaptation, if there is one, and of fine-tuning."""
        adapted = adaptation_seconds(self.model, view)
        tuned = {"finetuning": float(result.seconds or 0.0)}
        return None if adapted is None else {"adaptation": adapted, **tuned} if adapted else tuned

    @classmethod
    def measure(cls, planner: Planner, subject: StudyModel) -> None:
        """Add fine-tunings on the tasks of the domain and, to measure forgetting, on tasks of other domains."""
        tasks = [] if subject.is_reference else [(subject.domain.name, task) for task in subject.domain.tasks]
        others = [(OTHER, task) for task in planner.inputs.other_tasks(subject.domain)]
        for seed in subject.seeds:
            for home, task in [*tasks, *(others if subject.measures_forgetting else [])]:
                job = cls.of(planner.inputs, home, task, seed, subject.place, subject.model)
                planner.add(job.at(role=FORGETTING if home == OTHER else None))

    @classmethod
    def check(cls, inputs: StudyInputs) -> None:
        """Check the labels that are reviewed."""
        check_reviews(inputs)

    @classmethod
    def measurements(cls, inputs: StudyInputs) -> list[str]:
        """Return the tasks of the domains, and tasks of other domains."""
        return [*dict.fromkeys(name for _, name in inputs.tasks)]

    @classmethod
    def rows(cls, view: StudyView) -> dict[str, list[Any]]:
        """Return the rows of scores, of means and wins over tasks, and of forgetting on tasks of other domains."""
        runs = scored_runs(view)
        scores, forgetting = _score_rows(view, runs), _forgetting_rows(view)
        compared = [*scores, *forgetting]
        measured = [score_measurement(row, row.task, getattr(row, "adapted_for", None)) for row in compared]
        return {
            **{"scores": scores, "means": _mean_rows(view, runs)},
            **{"verdict_counts": count_verdicts(scores), "forgetting": forgetting},
            "capabilities": [row for row in measured if row],
            "tables": score_tables(view, runs, scores),
        }


def finetune_settings(
    inputs: StudyInputs, home: str, task: TaskSpec, model: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of fine-tuning on a task, defaults included, and the explicit options.

    Args:
        inputs: Inputs of the study.
        home: Domain of the task, or :data:`OTHER`.
        task: The task and its settings.
        model: Name of the base model.
    """
    from acclimate.data.task_kinds import find_task_kind
    from acclimate.tasks.interfaces import count_train_rows

    found: TaskInput = inputs.tasks[home, task.name]
    given = inputs.config.finetune_settings(task)
    if given.get("select") == "dev":
        given["metric"] = found.metric
    settings = {**inputs.options["finetune"], **given}
    if settings.get("max_length", 0) is None:
        settings["max_length"] = found.task.default_length
    pairs = find_task_kind(found.task).own_training
    if settings["epochs"] is None:
        rows = count_train_rows(found.task, settings.get("few_shot"))
        settings["epochs"] = default_epochs(rows, settings["batch_size"], contrastive=pairs)
    if settings["learning_rate"] is None:
        settings["learning_rate"] = default_rate(inputs.checkpoints[model].width, contrastive=pairs)
    return settings, given


def scored_runs(view: StudyView) -> dict[tuple[str | None, ...], TaskRuns]:
    """Return the runs by model, domain, task and row label."""
    found: dict[tuple[str | None, ...], TaskRuns] = {}
    for group in view.group(TaskResult, lambda job: job.is_scored and job.place.search is None).values():
        place = group[0].job.place
        found[place.model, place.domain, place.task, place.method] = group
    return found


def _mean_rows(view: StudyView, found: Mapping[tuple[str | None, ...], TaskRuns]) -> list[MeanRow]:
    """Return one row per model and row label with scores on all tasks; none if the study has a single task."""
    config, rows = view.inputs.config, []
    tasks = [(domain.name, task.name) for domain in config.domains for task in domain.tasks]
    metrics = [view.inputs.tasks[place].metric for place in tasks]
    for model in config.models if len(tasks) > 1 else ():
        runs = {label: [found.get((model.name, *place, label), []) for place in tasks] for label in config.row_labels}
        complete = {label: own for label, own in runs.items() if all(own)}
        base = complete.get(config.baseline, [])
        made = [
            average_over_tasks(own, base if label != config.baseline else [], metrics)
            for label, own in complete.items()
        ]
        tests = list(map(test_of, next(iter(complete.values()), [])))
        for row, rank in zip(made, mean_ranks(list(complete.values()), metrics, tests), strict=True):
            if row is not None:
                row.rank = rank
                rows.append(row)
    return rows


def mean_ranks(methods: Sequence[Sequence[TaskRuns]], metrics: Sequence[str], tests: Sequence[str]) -> list[float]:
    """Return the rank of each method by its mean score, averaged over tasks; 1 is the best.

    Tasks with one test set, such as several numbers of labels, count as one task: their ranks are averaged first.

    Args:
        methods: Runs of each method on each task.
        metrics: The metric of each task.
        tests: The identity of the test set of each task.
    """
    means = [
        [float(np.mean([run.result.metrics[name] for run in runs])) for runs, name in zip(own, metrics, strict=True)]
        for own in methods
    ]
    if not means:
        return []
    weights = [1 / tests.count(test) for test in tests]
    # Rounded, so that equal scores do not differ by the order of a sum.
    return np.average(rankdata(-np.round(means, 12), axis=0), axis=1, weights=weights).tolist()


def average_over_tasks(
    runs: Sequence[TaskRuns], base: Sequence[TaskRuns], metrics: Sequence[str], n: int = 2000
) -> MeanRow | None:
    """Return the mean of a method over tasks.

    Args:
        runs: Runs of the method on each task.
        base: Reference runs on each task; empty for no comparison.
        metrics: The metric of each task.
        n: Number of resamples of the statistics.

    Returns:
        The row, over the seeds with scores on all tasks; None if there is none.
    """
    pairs = [pair_by_seed(ours, theirs) for ours, theirs in zip(runs, base or runs, strict=True)]
    common = set.intersection(*({run.job.place.seed for run, _ in task} for task in pairs))
    if not common:
        return None
    pairs = [[pair for pair in task if pair[0].job.place.seed in common] for task in pairs]
    scores = [[run.result.metrics[name] for run, _ in task] for task, name in zip(pairs, metrics, strict=True)]
    place, by_seed = runs[0][0].job.place, np.mean(scores, axis=0)
    spread = float(by_seed.std(ddof=1)) if len(by_seed) > 1 else None
    difference, standardized, constant = _mean_differences(pairs, metrics, n) if base else (None, None, None)
    return MeanRow(
        model=str(place.model),
        method=str(place.method),
        tasks=len(runs),
        test_sets=len(set(map(test_of, runs))),
        score=MetricSummary(mean=float(by_seed.mean()), sd=spread, by_seed=by_seed.tolist()),
        difference=difference,
        standardized=standardized,
        constant=constant,
    )


def _mean_differences(
    pairs: Sequence[Sequence[tuple[JobResult[TaskResult], JobResult[TaskResult]]]], metrics: Sequence[str], n: int
) -> tuple[Interval, Interval | None, list[str] | None]:
    """Return the mean difference over tasks, the standardized one, and the tasks left out of it: see :class:`MeanRow`.

    Args:
        pairs: For each task, runs and reference runs of the same seeds.
        metrics: The metric of each task.
        n: Number of resamples of the statistics.
    """
    tasks, scales, names = [], [], []
    for task, metric in zip(pairs, metrics, strict=True):
        ours, theirs = ([run.result.predicted for run in side] for side in zip(*task, strict=True))
        first = task[0][0].result
        own = scoring_of(first)
        tasks.append(PairedPredictions(first.gold, ours, theirs, metric, own, units_of_test([task[0][0]], metric)))
        scales.append(item_deviation(first.gold, theirs, metric, own, n))
        names.append(str(task[0][0].job.place.task))
    jobs = [tuple(run.job for pair in seed for run in pair) for seed in zip(*pairs, strict=True)]

    def compare(places: Sequence[int], divisors: Sequence[float] | None) -> Interval:
        chosen = [tasks[place] for place in places]
        made = mean_paired_bootstrap(chosen, n, seed_groups=replicate_groups(jobs), scales=divisors)
        interval: Interval = Interval.from_dict(made.as_dict())
        return interval if is_replicated(jobs) else interval.without_verdict(WITHHELD)

    varying = [place for place, scale in enumerate(scales) if scale > 0]
    constant = [name for name, scale in zip(names, scales, strict=True) if not scale > 0]
    standardized = compare(varying, [scales[place] for place in varying]) if varying else None
    return compare(range(len(tasks)), None), standardized, constant or None


def _score_rows(view: StudyView, found: Mapping[tuple[str | None, ...], TaskRuns]) -> list[ScoreRow]:
    config, rows = view.inputs.config, list[ScoreRow]()
    learned = judge_base(view)
    for model, domain in itertools.product(config.models, config.domains):
        for task in domain.tasks:
            metric = view.inputs.tasks[domain.name, task.name].metric
            base = found.get((model.name, domain.name, task.name, config.baseline))
            for label in config.row_labels:
                runs = found.get((model.name, domain.name, task.name, label), ())
                if runs:
                    row: ScoreRow = summarize_scores(runs, metric, ScoreRow)
                    row.reliability = pool_confidence(runs)
                    row.stage_seconds = mean_stage_seconds(runs, view)
                    row.learning = learned.get((model.name, domain.name, task.name, label))
                    if base and label != config.baseline:
                        row.difference = compare_runs(runs, base)
                    rows.append(row)
    withhold_verdicts(rows)
    correct_for_multiple_comparisons(rows)
    return rows


def mean_stage_seconds(runs: TaskRuns, view: StudyView) -> dict[str, float]:
    """Return the seconds of each stage that led to a score, averaged over runs, and their ``sum``.

    An adaptation or a teacher shared by several runs counts in full for each, since producing one model takes that
    long. Runs with a missing adaptation or teacher result are skipped; empty if all are.
    """
    found = [row for job, result in runs if (row := job.stage_seconds(result, view)) is not None]
    names = dict.fromkeys(name for row in found for name in row)
    means = {name: float(np.mean([row.get(name, 0.0) for row in found])) for name in names}
    return {**means, "sum": sum(means.values())} if means else {}


def _forgetting_rows(view: StudyView) -> list[ForgettingRow]:
    """Return one row per model, domain, method and task of another domain, compared with the base model.

    The reference is the base model even if the study has another baseline. Holm's correction is applied to these
    comparisons as a separate family.
    """
    groups = view.group(TaskResult, lambda job: job.place.role == FORGETTING)
    found: dict[Place, TaskRuns] = {}
    for group in groups.values():
        place = group[0].job.place
        key = Place(
            model=place.model, domain=place.domain, task=place.task, method=place.method, adapted_for=place.adapted_for
        )
        found[key] = group
    rows = []
    for place, runs in found.items():
        if place.method is None:
            continue
        metric = view.inputs.tasks[OTHER, str(place.task)].metric
        row: ForgettingRow = summarize_scores(runs, metric, ForgettingRow, adapted_for=place.adapted_for)
        base = found.get(Place(model=place.model, domain=place.domain, task=place.task))
        row.difference = compare_runs(runs, base) if base else None
        row.before = row.comparison.before if row.comparison else None
        rows.append(row)
    order = view.inputs.config.row_labels
    rows.sort(key=lambda row: (row.model, row.domain, row.task, order.index(row.method)))
    correct_for_multiple_comparisons(rows)
    return rows
