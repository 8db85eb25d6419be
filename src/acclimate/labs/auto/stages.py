"""Running the stages of a tournament as studies: rungs, the claim, and the timing before them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from acclimate.base.errors import OutOfTimeError, UserError, first_line
from acclimate.base.files import write_text
from acclimate.base.records import Record, fingerprint
from acclimate.evaluation.dips import monitored_points
from acclimate.evaluation.embeddings import is_sentence_encoder
from acclimate.evaluation.significance import PairedPredictions
from acclimate.labs.advise.jobs import Advice
from acclimate.labs.auto.confirming import count_reads
from acclimate.labs.auto.plan import (
    BASE,
    CHEAPEST,
    Entrant,
    Facts,
    Price,
    Prices,
    Skipped,
    afterwards,
    choose_entrants,
)
from acclimate.models.checkpoints import load_config
from acclimate.models.kinds import kind_of_checkpoint
from acclimate.report.formatting import describe_learning
from acclimate.results.adaptations import read_curves
from acclimate.results.cells import joined
from acclimate.results.scores import LossRow, ScoreRow
from acclimate.results.study import StudyResults
from acclimate.study.changes import change_values
from acclimate.study.compare import prepare, start_workers
from acclimate.study.config import StudyConfig
from acclimate.study.contamination import Contamination
from acclimate.study.executor import Executor, JobStore
from acclimate.study.fitting import Change, merge_settings, smaller_tasks
from acclimate.study.graph import plan as plan_jobs
from acclimate.study.graph import read_study
from acclimate.study.in_memory import CompareCall
from acclimate.study.inputs import StudyInputs
from acclimate.study.job import Job, JobGraph, JobResult, Outcome, RunContext, StudyView
from acclimate.study.jobs.adapt import AdaptJob
from acclimate.study.jobs.finetune import FinetuneJob
from acclimate.study.jobs.lm_loss import LmLossJob, TextLoss
from acclimate.study.keeping import KeptRow, keep_models
from acclimate.study.learned import judge_base
from acclimate.study.pricing import Durations
from acclimate.study.pricing import Price as AdaptationPrice
from acclimate.study.summary import TaskResult, scoring_of, summarize, units_of_test
from acclimate.tasks.drawing import DEV_SHARE
from acclimate.tasks.interfaces import LabelledTask, find_width
from acclimate.tasks.recipe import rates_to_try

CLAIM_PAGE, LOG = "claim.html", "log.jsonl"
MONITORED_DOCUMENTS = 64
"""Documents that the stability monitor measures after each of its steps, and that losses are measured on in a race."""
HEADER = "# Written by `acclimate auto`; `acclimate compare {name} --out FOLDER` repeats this stage.\n"


class Stage(Record):
    """A rung or the claim: what is trained and scored.

    Attributes:
        name: Name of the stage and of its study file.
        entrants: The entrants, base first.
        tokens: Tokens per adaptation.
        seeds: Seeds, each of an adaptation and of the fine-tuning that starts from it.
        evaluate_on: ``"tune"``, ``"confirm"`` or ``"dev"``; None for the test splits.
        monitored: Whether the losses are measured from the first step on.
        spent: Seconds that had been spent when the stage was decided.
    """

    name: str
    entrants: list[Entrant]
    tokens: int
    seeds: list[int]
    evaluate_on: str | None = None
    monitored: bool = False
    spent: float = 0.0


@dataclass
class Scored:
    """Results of a stage for one entrant.

    Attributes:
        predictions: Predictions of all seeds on each task; ``b`` is None.
        seconds: Mean seconds of an adaptation; None if it has none of its own.
        curves: Losses on held-out text of each adaptation, from the base model on; none without a monitor.
        losses: Rows of the loss, by text.
        general: Loss on each general text in nats per token (seeds, texts), and the tokens of each (texts,); None if
            there is no general text.
        folder: Folder of the model of the first seed; None for the base model.
    """

    predictions: list[PairedPredictions]
    seconds: float | None = None
    curves: list[list[float]] = field(default_factory=list)
    losses: dict[str, LossRow] = field(default_factory=dict)
    general: tuple[np.ndarray, np.ndarray] | None = None
    folder: Path | None = None


@dataclass
class StageResult:
    """Results of a stage for all entrants.

    Attributes:
        entrants: The entrants with scores for all seeds, by label.
        failed: Why the others have none, by label.
        scoring: Mean seconds of one fine-tuning on every task.
        measuring: Mean seconds of measuring the losses of one model.
        advice: What a measurement says of the text before any training; empty without one.
        unlearned: Why the base model has not learned a task, and what to do; empty if it has.
        summarize: Returns the results of the stage as the results of a study; None in a simulation.
        keep: Keeps fine-tuned models of the stage, see :func:`acclimate.study.keeping.keep_models`.
    """

    entrants: dict[str, Scored]
    failed: dict[str, str] = field(default_factory=dict)
    scoring: float | None = None
    measuring: float | None = None
    advice: str = ""
    unlearned: str = ""
    summarize: Callable[[], StudyResults] | None = None
    keep: Callable[[Sequence[ScoreRow]], list[KeptRow]] | None = None


@dataclass
class Timing:
    """What was timed for a plan.

    Attributes:
        base: The study of the model, texts and tasks.
        stage: A stage of the base model alone.
        inputs: Its inputs.
        durations: The prices.
        adapting: Price of an adaptation, by label.
        entrants: The entrants that can be trained, base first.
        skipped: The others.
    """

    base: Mapping[str, Any]
    stage: Stage
    inputs: StudyInputs
    durations: Durations = field(default_factory=Durations)
    adapting: dict[str, AdaptationPrice] = field(default_factory=dict)
    entrants: list[Entrant] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)

    def jobs(self, settings: Mapping[str, Any] | None = None) -> list[Job]:
        """Return the jobs of the base model, with changes of the study by dotted path."""
        study = stage_study(change_values(self.base, settings or {}), self.stage)
        return list(plan_jobs(self.inputs.with_config(StudyConfig.of(study))).jobs.values())

    def leave_out(self, entrant: Entrant, error: BaseException) -> None:
        """Skip an entrant that cannot be trained.

        Raises:
            UserError: If it is the cheapest one, which is in every tournament.
        """
        if entrant.label == CHEAPEST:
            raise UserError(f"A short adaptation with '{CHEAPEST}' failed: {first_line(error)}") from error
        self.skipped.append(Skipped(label=entrant.label, reason=f"a short adaptation failed: {first_line(error)}"))

    def prices(self, settings: Mapping[str, Any] | None = None) -> Prices:
        """Return the prices of the study with changes."""
        jobs, known = self.jobs(settings), self.durations
        return Prices(
            scoring=known.total([job for job in jobs if isinstance(job, FinetuneJob)]),
            measuring=known.total([job for job in jobs if isinstance(job, LmLossJob)]),
            adapting={
                name: Price(overhead=one.overhead, per_token=one.per_token) for name, one in self.adapting.items()
            },
            timing=known.spent,
        )

    @property
    def smaller(self) -> list[Change]:
        """The changes of fine-tuning that make it shorter, each more than the one before."""
        epochs, rows = smaller_tasks(self.base, self.jobs())
        both = [[*epochs[-1:], one] for one in rows]
        return epochs + [Change(merge_settings(two), ", ".join(one.words for one in two)) for two in both]


def stage_study(base: Mapping[str, Any], stage: Stage) -> dict[str, Any]:
    """Return the study of a stage, as values of a study file.

    Args:
        base: The study of the model, texts and tasks, from :func:`acclimate.study.draft.draft_study`.
        stage: The stage.
    """
    merges = [one.merge for one in stage.entrants if one.merge is not None]
    methods = {one.label: dict(one.method) for one in stage.entrants if one.merge is None}
    for one in stage.entrants:
        methods.setdefault(one.trained, {**one.method, "scored": False})
    (domain,) = base["domains"]
    where = {} if stage.evaluate_on is None else {"evaluate_on": stage.evaluate_on}
    tasks = [{**(task if isinstance(task, Mapping) else {"path": task}), **where} for task in domain["tasks"]]
    monitor = {"monitor": True} if stage.monitored else {}
    measured: dict[str, Any] = {"documents": MONITORED_DOCUMENTS} if stage.monitored else {}
    if stage.evaluate_on != "dev":  # the race drops entrants by their loss on general text, so the claim reads others
        measured["general_half"] = stage.evaluate_on or "confirm"
    return {
        **base,
        "name": stage.name,
        "title": f"{base['title']}: {stage.name}",
        "notes": [],
        "methods": list(methods.values()),
        **({"merges": merges} if merges else {}),
        "domains": [{**domain, "tasks": tasks}],
        "leakage": "remove",
        "search": False,
        "adapt": {**base.get("adapt", {}), "tokens": stage.tokens, **monitor},
        "seeds": list(stage.seeds),
        "adapt_seeds": list(stage.seeds),
        "evaluate": {**base.get("evaluate", {}), **measured, "masked_texts": 0},
    }


def with_rates(base: Mapping[str, Any], rates: Sequence[float | None]) -> dict[str, Any]:
    """Return a study with learning rates of fine-tuning, one per task; None keeps the rate of the study."""
    (domain,) = base["domains"]
    tasks = [task if isinstance(task, Mapping) else {"path": task} for task in domain.get("tasks", ())]
    changed = [
        task if rate is None else {**task, "learning_rate": rate} for task, rate in zip(tasks, rates, strict=True)
    ]
    return {**base, "domains": [{**domain, "tasks": changed}]}


@dataclass
class Stages:
    """Runs stages as studies in one folder, which share the results of jobs.

    Attributes:
        base: The study of the model, texts and tasks.
        call: Options of :func:`acclimate.compare` that say where jobs run.
        context: Context that jobs run in.
        metrics: Primary metric by task, once the inputs have been read.
        unlearned: Why the base model had not learned a task in the last stage; empty if it had.
        advice: What a measurement says of the text before any training; empty without one.
    """

    base: Mapping[str, Any]
    call: CompareCall
    context: RunContext
    metrics: dict[str, str] = field(default_factory=dict)
    unlearned: str = ""
    advice: str = ""

    def run(self, stage: Stage) -> StageResult:
        """Run a stage, or read its results where they are finished.

        The weights of models of the race are removed, since no later stage reads them.

        Raises:
            UserError: If the stage cannot be run, or the base model has no scores.
        """
        out, study = self.context.out, stage_study(self.base, stage)
        text = yaml.safe_dump(study, sort_keys=False, allow_unicode=True, width=110)
        write_text(out / f"{stage.name}.yaml", HEADER.format(name=f"{stage.name}.yaml") + text)
        inputs, found = self._read(study)
        executor = Executor(JobStore(out), self.context)
        with start_workers(self.call, (study, None, ()), executor):
            graph = plan_jobs(inputs)
            outcomes = executor.execute(graph)
        made = _collect(stage, inputs, graph, outcomes, out, found)
        made.keep = partial(keep_models, StudyView(inputs, graph, outcomes, out), executor=executor)
        self.unlearned, self.advice = made.unlearned, made.advice or self.advice
        if stage.monitored:
            for job in graph.jobs.values():
                if job.makes_model and not job.is_shared_base:
                    _remove_weights(self.context.folder(job))
        return made

    def time(self, stage: Stage, minutes: float) -> Timing:
        """Time some steps of fine-tuning on each task, of adapting with each entrant, and of measuring losses.

        Args:
            stage: The stage; its entrants are the ones of the race, its seeds the first one of the race.
            minutes: The time for the whole tournament, of which timing takes a tenth at most.

        Raises:
            UserError: If fine-tuning or plain training cannot run, or the time is too short to time them.
        """
        first, *others = stage.entrants
        alone = Stage.from_dict({**stage, "entrants": [first]})
        timing = Timing(self.base, alone, self._read(stage_study(self.base, alone))[0])
        timing.entrants.append(first)
        jobs = {}
        together = self._adaptations(stage, others)
        for entrant in others:
            try:
                one = together or self._adaptations(stage, [entrant], alone=True)
                jobs[entrant.label] = one[entrant.label]
            except UserError as error:
                timing.leave_out(entrant, error)
        base, known = timing.jobs(), timing.durations
        known.time([*jobs.values(), *base], self.context.backend, minutes, progress=self.context.progress)
        known.check([jobs[CHEAPEST], *base])
        for entrant in (one for one in others if one.label in jobs):
            problem = known.problems.get(jobs[entrant.label].price_group)
            if problem is not None and not isinstance(problem, OutOfTimeError):
                timing.leave_out(entrant, problem)
                continue
            timing.entrants.append(entrant)
            timing.adapting[entrant.label] = known.price(jobs[entrant.label])
        return timing

    def _adaptations(self, stage: Stage, entrants: Sequence[Entrant], *, alone: bool = False) -> dict[str, AdaptJob]:
        """Return an adaptation of each entrant; none if an entrant cannot be planned, unless it is ``alone``.

        Raises:
            UserError: If an entrant that is alone cannot be planned.
        """
        study = stage_study(self.base, Stage.from_dict({**stage, "entrants": [stage.entrants[0], *entrants]}))
        try:
            graph = plan_jobs(self._read(study)[0])
        except UserError:
            if alone:
                raise
            return {}
        jobs = (job for job in graph.jobs.values() if isinstance(job, AdaptJob) and not job.is_shared_base)
        return {str(job.place.method): job for job in jobs}

    def facts(self, minutes: float, instruct: str | None) -> tuple[Facts, int, int | None, float | None]:
        """Return what the choice of entrants depends on, and what a race does: see :func:`_count_units`.

        Raises:
            UserError: If an input of the study is missing or wrong, or a task has no dev split.
        """
        inputs, _ = self._read(self._plan_study(instruct))
        (model,), (domain,) = inputs.config.models, inputs.config.domains
        kind = kind_of_checkpoint(load_config(model.path).architectures, model.path)

        def usable(name: str) -> str | None:
            from acclimate.adaptation.method import lookup

            try:
                lookup(name).check_kind(kind, model.name)
            except UserError as error:
                return first_line(error)
            return None

        tasks = [inputs.tasks[domain.name, task.name].task for task in domain.tasks]
        return Facts(
            kind=kind.name,
            embeds=is_sentence_encoder(model.path),
            documents=sum(1 for _ in inputs.corpora[domain.name]),
            train_rows=sum(len(task.train) for task in tasks),
            replayable=inputs.unmeasured is not None,
            replays=kind.replays_general_text,
            minutes=minutes,
            instruct=instruct,
            usable=usable,
            rates=_rates_to_try(inputs) if self.base.get("search") else [],
        ), *_count_units(tasks)  # in a study that is scored on dev, that is the test split

    def _plan_study(self, instruct: str | None) -> dict[str, Any]:
        """Return the study of plain training and what is made of it, which has all inputs of a tournament."""
        entrants, _ = choose_entrants(Facts(kind="", documents=0, train_rows=1, replayable=False, minutes=1))
        made = [*entrants[:2], *afterwards(entrants[1], instruct)]
        return stage_study(self.base, Stage(name="plan", entrants=made, tokens=1, seeds=[0], evaluate_on="dev"))

    def fingerprint(self, instruct: str | None) -> str:
        """Return a hash of the content of model, texts and tasks.

        Raises:
            UserError: If one is missing or wrong.
        """
        inputs = read_study(StudyConfig.of(self._plan_study(instruct)), self.context.backend)
        tasks = {"/".join(place): found.task for place, found in inputs.tasks.items()}
        general = [inputs.general, inputs.unmeasured]
        return fingerprint([inputs.checkpoints, inputs.corpora, inputs.heldout, general, tasks])

    def count_reads(self, stage: Stage, tournament: str) -> int:
        """Record that the items of a stage are read, and return how often they have been, this time included.

        A tournament that trains its stage again, because a text or the model has changed, reads them again.

        Args:
            stage: The stage.
            tournament: What identifies the tournament.
        """
        inputs, _ = self._read(stage_study(self.base, stage))
        run = f"{tournament} {fingerprint(sorted(plan_jobs(inputs).jobs))}"
        return max(count_reads(found.task, run) for found in inputs.tasks.values())

    def write_report(self, found: StageResult, *, keep: bool = False) -> list[KeptRow]:
        """Write the report of the claim, and the cards of its models; keep fine-tuned models if that is wanted."""
        from acclimate.cards.writers import write_model_cards
        from acclimate.report import write_report

        kept: list[KeptRow] = []
        if found.summarize is not None:
            results = found.summarize()
            if keep and found.keep is not None:
                results.rows["kept"] = kept = found.keep(results.scores)
            write_report(results, self.context.out / CLAIM_PAGE)
            write_model_cards(results, self.context.out)
        return kept

    def _read(self, study: Mapping[str, Any]) -> tuple[StudyInputs, Contamination]:
        inputs = read_study(StudyConfig.of(study), self.context.backend)
        self.metrics = {name: found.metric for (_, name), found in inputs.tasks.items()}
        return prepare(inputs, progress=False)


def _collect(
    stage: Stage,
    inputs: StudyInputs,
    graph: JobGraph,
    outcomes: Mapping[str, Outcome],
    out: Path,
    contamination: Contamination,
) -> StageResult:
    made, store, view = StageResult({}), JobStore(out), StudyView(inputs, graph, outcomes, out)
    losses: list[LossRow] = LmLossJob.rows(view)["losses"]
    made.summarize = lambda: summarize(inputs, graph, outcomes, out, contamination=contamination)
    (domain,) = inputs.config.domains
    metrics = {task.name: inputs.tasks[domain.name, task.name].metric for task in domain.tasks}
    runs: dict[tuple[str, str], dict[int, JobResult[TaskResult]]] = {}
    for run in view.find(TaskResult, lambda job: job.is_scored):
        place = run.job.place
        runs.setdefault((str(place.method), str(place.task)), {})[int(place.seed or 0)] = run
    texts = list(view.find(TextLoss))
    for entrant in stage.entrants:
        label = entrant.label
        entries = [job for job in graph.entries if (job.place.method or BASE) == label]
        own = {task: runs.get((label, task), {}) for task in metrics}
        if any(found.keys() != set(stage.seeds) for found in own.values()):
            links = [link for job in entries for link in reversed(job.chain)]
            errors = [outcomes[link.key].error for link in links if outcomes[link.key].state == "failed"]
            made.failed[label] = next(iter(errors), "it has no scores")
            continue
        adapted = [job for job in entries if isinstance(job, AdaptJob)]
        made.entrants[label] = Scored(
            predictions=[
                PairedPredictions(
                    (first := found[stage.seeds[0]]).result.gold,
                    [found[seed].result.predicted for seed in stage.seeds],
                    None,
                    metrics[task],
                    scoring_of(first.result),
                    units_of_test([first], metrics[task]),  # tasks on the same texts are not independent
                )
                for task, found in own.items()
            ],
            seconds=float(np.mean([store.seconds(job) for job in adapted])) if adapted else None,
            curves=[_heldout_curve(out / "models" / job.key) for job in adapted] if stage.monitored else [],
            losses={row.text: row for row in losses if row.method == label},
            general=_general_losses(
                [(job.place.adapt_seed, one) for job, one in texts if job in entries and job.place.text == "general"]
            ),
            folder=next((out / "models" / job.key for job in entries if job.makes_model and label != BASE), None),
        )
    if BASE in made.failed:
        raise UserError(f"The base model has no score: {made.failed[BASE]}")
    scoring = [store.seconds(job) for job in graph.jobs.values() if isinstance(job, FinetuneJob)]
    measuring = [store.seconds(job) for job in graph.jobs.values() if isinstance(job, LmLossJob)]
    made.scoring = float(np.mean(scoring)) * len(metrics)
    made.unlearned = _describe_unlearned(view)
    made.advice = next((result.says for _, result in view.find(Advice)), "")
    made.measuring = float(np.mean(measuring)) * (1 + (inputs.general is not None))
    return made


def _count_units(tasks: Sequence[LabelledTask]) -> tuple[int, int | None, float | None]:
    """Return the number of test items of tasks, of groups of these, and their share of the rows if it was drawn.

    The groups are None if no item has one, and the share is if dev was not drawn.
    """
    found = [(len(task.test), task.groups("test")) for task in tasks]
    units = sum(count if groups is None else max(groups) + 1 for count, groups in found)
    drawn = DEV_SHARE if any(getattr(task, "drawn", "") for task in tasks) else None
    return sum(count for count, _ in found), None if all(groups is None for _, groups in found) else units, drawn


def _rates_to_try(inputs: StudyInputs) -> list[list[float | None]]:
    """Return what a search of the learning rate tries: of each trial the rates by task, None for those not searched.

    The second trial is the default; there are no trials if no task has the default rate.
    """
    (model,), (domain,) = inputs.config.models, inputs.config.domains
    rates = rates_to_try(find_width(model.path))
    tuned = [inputs.has_default_rate(domain.name, task) for task in domain.tasks]
    return [[rate if own else None for own in tuned] for rate in rates] if any(tuned) else []


def _describe_unlearned(view: StudyView) -> str:
    found = {place: learning for place, learning in judge_base(view).items() if not learning.has_learned}
    if not found:
        return ""
    metrics = {name: one.metric for (_, name), one in view.inputs.tasks.items()}
    why = joined([describe_learning(one, metrics[str(task)], f" on {task}") for (_, _, task, _), one in found.items()])
    epochs = max(job.epochs for job in view.graph.jobs.values() if isinstance(job, FinetuneJob))
    return f"{why}. Train longer: --set finetune.epochs={2 * epochs}"


def _remove_weights(folder: Path) -> None:
    """Remove the files of a model, except for the log of its training."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != LOG:
            path.unlink()


def _heldout_curve(folder: Path) -> list[float]:
    """Return the loss on held-out text after each step that the stability monitor measured.

    The loss on general text has no part in it: what is forgotten for good is no temporary rise.
    """
    return [loss for _, loss in monitored_points(read_curves(folder / LOG)["heldout_curve"])]


def _general_losses(results: Sequence[tuple[int | None, TextLoss]]) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the loss on each text with tokens (seeds, texts), and these tokens (texts,); None without results.

    The models that one seed of adaptation made for several tasks count as one: their losses are averaged.

    Args:
        results: Seeds of adaptation with losses.
    """
    if not results:
        return None
    _, first = results[0]
    counts = np.asarray(first.per_text_masked or [1] * len(first.per_text), dtype=float)
    used = counts > 0
    by_seed: dict[int | None, list[list[float]]] = {}
    for seed, result in results:
        by_seed.setdefault(seed, []).append(result.per_text)
    losses = np.asarray([np.mean(models, axis=0) for models in by_seed.values()], dtype=float)
    return losses[:, used] / counts[used], counts[used]
