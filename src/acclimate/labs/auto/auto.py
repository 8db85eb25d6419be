"""``acclimate auto``: plan, race, claim, and the model that is returned."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from acclimate.adaptation.method import lookup
from acclimate.base.errors import UserError, unknown_name_error
from acclimate.base.files import atomic_folder, write_json
from acclimate.base.locks import with_output_lock
from acclimate.base.options import build, option_fields, verb
from acclimate.base.progress import print_message
from acclimate.base.records import Record, fingerprint, internal, read_record
from acclimate.base.verbs import Next
from acclimate.data.reading import LabelOptions, TextOptions, reading_words, text_words
from acclimate.engine.callbacks import check_trackers, report_summary
from acclimate.labs.auto.options import AutoOptions
from acclimate.labs.auto.plan import BASE, CHEAPEST, Entrant, Plan, afterwards, choose_entrants, make_plan, why_no_race
from acclimate.labs.auto.race import Race, Run, claim_of, claim_stage, race_seeds, run_race, search_seed
from acclimate.labs.auto.report import GENERAL, AutoResult, describe_plan
from acclimate.labs.auto.stages import Scored, Stage, StageResult, Stages
from acclimate.labs.auto.tuning import choose_rates
from acclimate.merging.weights import find_folder
from acclimate.results.requirements import Requirement, check_names, decide, parse_requirements
from acclimate.study.backend import Backend
from acclimate.study.changes import change_values
from acclimate.study.compare import check_study_folder
from acclimate.study.config import StudyConfig
from acclimate.study.draft import draft_study
from acclimate.study.fitting import Change
from acclimate.study.in_memory import CompareCall, place_data
from acclimate.study.job import RunContext
from acclimate.study.requirements import MEAN
from acclimate.study.workers import visible_gpus

STATE, RESULT, PAGE, MODEL = "tournament.json", "results.json", "report.html", "model"


class _Running(Record):
    """The stage that runs, the seconds that had been spent when it began or was resumed, and that time."""

    stage: str
    spent: float
    began: float


class _State(Record):
    """Decisions of a tournament so far, in a file, so that the same command resumes it.

    Attributes:
        options: What identifies the options.
        data: What identifies the content of model, texts and tasks.
        name: What identifies the tournament; another one in the same folder, after this was deleted, has another name.
        plan: The plan; None until it is made.
        stages: Stages that were decided, by name.
        ends: Seconds that had been spent when a stage ended, by name.
        path: The file.
        parallel: Jobs that run at the same time.
    """

    options: str
    data: str
    name: str
    plan: Plan | None
    stages: dict[str, Stage]
    ends: dict[str, float]
    running: _Running | None
    path: Path = internal()
    parallel: int = internal()

    @classmethod
    def open(cls, path: Path, options: str, data: str, parallel: int) -> _State:
        """Read the file, if there is one.

        Raises:
            UserError: If it is of a tournament with other options or data, or damaged.
        """
        other = "give another output directory, or delete it"
        if path.exists():
            state = read_record(path, cls, other)
        else:
            state = cls(options=options, data=data, name=uuid4().hex, plan=None, stages={}, ends={}, running=None)
        if state.options != options:
            raise UserError(f"'{path.parent}' holds a tournament with other options; {other}.")
        if state.data != data:
            raise UserError(
                f"'{path.parent}' holds a tournament of other data: the model, a text or a task has changed since it "
                f"began, and it decided by the old ones; {other}."
            )
        state.path, state.parallel = path, parallel
        state.start()
        return state

    def spent(self) -> float:
        """Return the seconds of the budget that have been spent since the plan was made."""
        return self._spent + (time.monotonic() - self._since) * self.parallel

    def start(self, spent: float = 0.0) -> None:
        """Set the clock."""
        self._spent, self._since = spent, time.monotonic()

    def decide(self, stage: Stage) -> Stage:
        """Return the stage as it was decided the first time, which this call is if it is not known."""
        if stage.name in self.stages:
            stage = self.stages[stage.name]
            self.start(max(stage.spent, self._spent))
            return stage
        stage = replace(stage, spent=self.spent())
        self.stages[stage.name] = stage
        self.save()
        return stage

    def run(self, stage: Stage, run: Run) -> StageResult:
        """Run a stage as it was decided, and set the clock to when it ended the first time.

        The next decision depends on the time that is left, so it has to be the same after an interruption.
        """
        stage = self.decide(stage)
        if stage.name not in self.ends:
            self._resume(stage.name)
        found = run(stage)
        if stage.name in self.ends:
            self.start(self.ends[stage.name])
        else:
            self.ends[stage.name] = self.spent()
            self.save()
        return found

    def _resume(self, name: str) -> None:
        """Count what the jobs of a stage took that were done before an interruption, and note when it goes on."""
        if (before := self.running) and before.stage == name:
            last = max((job.stat().st_mtime for job in self.path.parent.rglob("jobs/*.json")), default=before.began)
            self.start(before.spent + max(0.0, last - before.began) * self.parallel)
        self.running = _Running(stage=name, spent=self.spent(), began=time.time())
        self.save()

    def save(self) -> None:
        """Write the file."""
        write_json(self.path, self.to_dict())


@verb(AutoOptions)
@with_output_lock
def auto(options: AutoOptions) -> AutoResult:
    """Race adaptations of a model to your text under a budget, and return the best one, or the base model.

    Entrants with default settings are adapted, fine-tuned and scored on half of the dev split, in rungs with more and
    more tokens; those that are worse leave. The winner and the base model are then trained again with fresh seeds and
    compared once, on items not used for selection. Only if the gain is above zero, and what is lost on general text
    within the limit, is the adapted model returned. That nothing helps is a result, too.

    Every training is a job whose result is stored, so that the same call resumes after an interruption.

    Returns:
        The result. ``result.model`` is the folder of the model that is returned; ``out`` also has the report, the
        results, and a study file for each stage. ``result.decision`` says whether what you ``require`` of the claim is
        met: the gain on the task, or ``mean`` of several tasks, and ``general text``, which ``forget_at_most`` limits.

    Raises:
        UserError: If the model, text or task cannot be used, or the time is too short.
    """
    if options.forget_at_most is not None and not options.general:
        raise UserError("--forget-at-most limits the loss on general text: give --general as well.")
    out, trackers = check_auto_folder(options.out), check_trackers(options.report_to)
    stages, state = open_tournament(options, out)
    requirements, claimed = _read_requirements(options, stages)
    if state.plan is None:
        state.plan = _make_plan(options, stages, state.parallel)
        out.mkdir(parents=True, exist_ok=True)
        state.save()
    plan = state.plan
    stages.base = change_values(stages.base, plan.settings)
    state.start()
    result = AutoResult(
        plan=plan,
        minutes=options.minutes,
        folder=out,
        limit=options.forget_at_most,
        base=str(options.model),
    )
    if options.dry_run:
        return result
    print_message("\n".join(describe_plan(plan)), options.progress)
    notes: list[str] = []
    if plan.rates:
        notes = choose_rates(plan, stages, state.run, options.seed)
        state.start(max(0.0, state.spent() - plan.searching * state.parallel))
    if plan.races:
        race = run_race(
            plan,
            lambda stage: state.run(stage, stages.run),
            seed=options.seed,
            limit=options.forget_at_most,
            instruct=None if options.instruct is None else str(options.instruct),
            spent=state.spent,
            say=lambda line: print_message(line, options.progress),
        )
    else:
        race = Race([], plan.entrants[-1], None, None, plan.tokens, plan.prices, len(plan.entrants) - 1)
    result.metrics = stages.metrics
    result.rows, result.winner = race.rows, race.winner.label if race.winner else None
    result.dev_gain, result.shrunken_gain, result.entrants = race.dev_gain, race.shrunken, race.entrants
    result.notes = [*plan.notes, *notes, *race.notes]
    scored = None if race.winner is None else _claim(options, state, stages, race, race.winner, result)
    result.unlearned = stages.unlearned
    result.notes += [f"Before training: {stages.advice}"] if stages.advice else []
    holds = result.holds
    source = scored.folder if holds and scored is not None and scored.folder else find_folder(str(options.model))
    copy_model(source, out / MODEL)
    result.model = out / MODEL
    method = race.winner.method["name"] if race.winner is not None and holds else BASE
    if len(result.metrics) > 1 and lookup(str(method)).reads == "task":
        first = next(iter(result.metrics))
        result.notes.append(f"{result.winner} adapts to the text of each task; the model is the one of '{first}'.")
    result.seconds = plan.prices.timing + plan.searching + state.spent() / state.parallel
    write_json(out / RESULT, result.to_dict())
    result.report(out / PAGE)
    report_summary(trackers, out, result.claim.numbers() if result.claim else {})
    result.decision = decide(requirements, result.bounds(claimed)) if requirements else None
    return result


def _read_requirements(options: AutoOptions, stages: Stages) -> tuple[list[Requirement], list[str]]:
    """Return the requirements, of which the limit of forgetting is one, and the names of what is claimed.

    Raises:
        UserError: If something else is required.
    """
    tasks = [task.name for task in StudyConfig.of(stages.base).domains[0].tasks]
    names = [tasks[0] if len(tasks) == 1 else MEAN, *([GENERAL] if options.general else [])]
    found = parse_requirements(options.require)
    if found and options.forget_at_most is not None:
        found.append(Requirement(GENERAL, "<=", float(options.forget_at_most)))
    check_names(found, names, [GENERAL])
    return found, names


def _claim(
    options: AutoOptions, state: _State, stages: Stages, race: Race, winner: Entrant, result: AutoResult
) -> Scored:
    """Compare the winner and the base model once with fresh seeds; return the scores of the winner."""
    plan, spent = result.plan, state.spent()
    stage = state.decide(
        claim_stage(plan, winner, race.tokens, race.prices, seed=options.seed, test=options.test, spent=spent)
    )
    print_message(f"Claim: {winner.label} against the base model, {len(stage.seeds)} fresh seeds", options.progress)
    reads = stages.count_reads(stage, state.name)
    found = state.run(stage, stages.run)
    result.claim = claim_of(
        stage,
        found,
        used_seeds=race_seeds(options.seed) if plan.races else [],
        reads=reads,
        limit=options.forget_at_most,
        collapses=race.collapses.get(winner.label),
    )
    result.claim_seeds = list(stage.seeds)
    result.kept = stages.write_report(found, keep=options.keep is not None)
    return found.entrants[winner.label]


def show_auto(result: AutoResult, options: AutoOptions) -> Iterator[Any]:
    """Yield what ``acclimate auto`` prints."""
    yield from result.describe()
    if options.dry_run:
        return
    for row in result.kept:
        if (row.method == BASE) != result.holds:
            model = check_auto_folder(options.out) / row.folder
            yield Next(["predict", "--model", model, "--data", "DATA", "--out", "predictions.csv"], "to use it")
            return
    task = [*text_words("--task", options.task, "TASK", column=options.text_column), *reading_words(options)]
    yield Next(["finetune", "--model", result.model, *task, "--out", "finetuned"], "to train an end task")


def check_auto_folder(out: str | Path) -> Path:
    """Return the folder of a tournament.

    Raises:
        UserError: If it is a file, or holds something else.
    """
    out = Path(out)
    if (out / STATE).exists():
        return out
    if out.is_dir() and any((out / name).exists() for name in (RESULT, PAGE, MODEL)):
        raise UserError(f"'{out}' holds other results; give another output directory.")
    return check_study_folder(out)


def open_tournament(options: AutoOptions, out: Path) -> tuple[Stages, _State]:
    """Return what runs the stages of a tournament, and its state.

    Raises:
        UserError: If the options do not describe a study, or the folder is of another tournament.
    """
    reading = {**option_fields(LabelOptions), **option_fields(TextOptions)}
    names = ("model", "corpus", "task", "heldout", "general", *reading)
    described = place_data({name: getattr(options, name) for name in names}, out)
    base: dict[str, Any] = draft_study(described, options.settings)
    call = build(
        CompareCall,
        config=base,
        out=out,
        workers=options.workers,
        per_gpu=options.per_gpu,
        progress=options.progress,
        backend=options.backend,
    )
    context = RunContext(options.backend or Backend(), out, options.progress)
    gpus = len(visible_gpus())
    parallel = max(1, min(gpus, gpus if options.workers == "auto" else int(options.workers or 1)))
    unrecorded = ("out", "progress", "backend", "dry_run", "keep", "require", "workers", "per_gpu", *names)
    others = {name: str(getattr(options, name)) for name in option_fields(AutoOptions) if name not in unrecorded}
    stages = Stages(base, call, context)
    data = stages.fingerprint(None if options.instruct is None else str(options.instruct))
    return stages, _State.open(out / STATE, fingerprint([base, others]), data, parallel)


def _make_plan(options: AutoOptions, stages: Stages, parallel: int) -> Plan:
    instruct = None if options.instruct is None else str(options.instruct)
    facts, dev_items, dev_groups, drawn = stages.facts(options.minutes, instruct)
    usable, unwanted = facts.usable, "it is not among --methods"
    if options.methods:
        facts = replace(facts, usable=lambda name: usable(name) if name in options.methods else unwanted)
    entrants, skipped = choose_entrants(facts)
    known = {str(one.method["name"]) for one in entrants[1:]}
    known |= {one.label for one in skipped if " " not in one.label}  # the others are variants of lm
    if strange := next((name for name in options.methods if name not in known), None):
        raise unknown_name_error("method of a tournament:", strange, known)
    why = why_no_race(dev_items, dev_groups, drawn)
    print_message(why, options.progress and bool(why))
    stage = Stage(
        name="timing",
        entrants=entrants[:2] if why else entrants,  # the plan leaves out the others
        tokens=1,
        seeds=[search_seed(options.seed)],
        evaluate_on="dev" if why else "tune",
        monitored=True,
    )
    rates = facts.rates if options.test or not why else []
    timing = stages.time(stage, options.minutes)
    for change in [Change({}, ""), *timing.smaller]:
        prices = timing.prices(change.settings)
        try:
            plan = make_plan(
                [*timing.entrants, *entrants[2:]] if why else timing.entrants,
                [*skipped, *timing.skipped],
                prices,
                minutes=options.minutes,
                corpus_tokens=timing.adapting[CHEAPEST].corpus_tokens,
                dev_items=dev_items,
                dev_groups=dev_groups,
                drawn=drawn,
                most_tokens=options.tokens,
                parallel=parallel,
                extras=len(afterwards(entrants[1], facts.instruct)),
                searching=prices.scoring * len(rates),
            )
        except UserError as error:
            problem = error
            continue
        notes = [f"To fit into {options.minutes:g} minutes: {change.words}."] if change.words else []
        return replace(plan, rates=rates, settings=dict(change.settings), notes=[*notes, *plan.notes])
    texts = [word for name in ("corpus", "task") for word in text_words(f"--{name}", getattr(options, name))]
    quick = Next(["compare", "--model", options.model, *texts, "--quick", "--out", f"{options.out}-quick"])
    raise UserError(f"{problem} Linear probes answer sooner: {quick.command}")


def copy_model(source: Path, folder: Path) -> None:
    """Copy a model folder to the place of the model that is returned."""
    with atomic_folder(folder) as made:
        shutil.copytree(source, made, dirs_exist_ok=True, ignore=shutil.ignore_patterns("checkpoint*", ".*"))
