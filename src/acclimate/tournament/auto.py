"""``acclimate auto``: plan, race, claim, and the model that is handed back."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from acclimate.errors import UserError
from acclimate.files import atomic_folder, read_json_object, write_json
from acclimate.merging.merge import find_folder
from acclimate.methods import lookup
from acclimate.options import build, option_fields, verb
from acclimate.options.auto import AutoOptions
from acclimate.options.numbers import MAX_SEED
from acclimate.options.reading import LabelOptions
from acclimate.progress import print_message
from acclimate.records import fingerprint
from acclimate.study.backend import Backend
from acclimate.study.compare import check_study_folder
from acclimate.study.draft import draft_study
from acclimate.study.in_memory import CompareCall, place_data
from acclimate.study.jobs.base import RunContext
from acclimate.study.workers import visible_gpus
from acclimate.tournament.claim import ClaimResult, GeneralLosses, make_claim
from acclimate.tournament.plan import (
    BASE,
    CHEAPEST,
    CLAIM_SEEDS,
    CLAIM_SHARE,
    FEWEST_DEV_ITEMS,
    MOST_CLAIM_SEEDS,
    RACE_SEEDS,
    Entrant,
    Plan,
    Prices,
    afterwards,
    choose_entrants,
    claim_seconds,
    make_plan,
    race_seconds,
    reprice,
)
from acclimate.tournament.racing import Decision, RungResult, decide, item_scores, shrunken_gain
from acclimate.tournament.report import AutoResult, RaceRow, describe_plan
from acclimate.tournament.stages import Scored, Stage, StageResult, Stages

STATE, RESULT, PAGE, MODEL = "tournament.json", "results.json", "report.html", "model"
CLAIM = "claim"
FORGETFUL: Any = "forgetful"
"""Reason to drop an entrant that certainly lost more general text than the limit, whatever its score."""
Run = Callable[[Stage], StageResult]
REASONS = {
    "leader": "leads",
    "kept": "goes on",
    "always": "always goes on",
    "dip": "goes on: its loss has not recovered from the rise at the start",
    "worse": "dropped: worse than the leader",
    "budget": "dropped: no time for it",
    "forgetful": "dropped: loses more general text than the limit",
}
AT_THE_END = {"leader": "leads", "worse": "worse than the leader", "forgetful": "loses more than the limit"}
"""The same in the last rung, which drops no one."""


@dataclass
class Race:
    """What a race has found.

    Attributes:
        rows: One row per rung and entrant.
        winner: The entrant with the highest score within the limit; None if none is ahead of the base model.
        dev_gain: Its score minus that of the base model on the tune items.
        shrunken: The same, shrunken for the choice.
        tokens: Tokens of the last rung that was run.
        prices: Prices, corrected by what the rungs took.
        entrants: Number of entrants with a score, besides the base model.
        notes: What happened, in sentences.
    """

    rows: list[RaceRow]
    winner: Entrant | None
    dev_gain: float | None
    shrunken: float | None
    tokens: int
    prices: Prices
    entrants: int
    notes: list[str] = field(default_factory=list)


def race_seeds(seed: int) -> list[int]:
    """Return the seeds of the race."""
    return [(seed + number) % (MAX_SEED + 1) for number in range(RACE_SEEDS)]


def claim_seeds(seed: int, count: int) -> list[int]:
    """Return the seeds of the claim, of which the race uses none."""
    return [(seed + RACE_SEEDS + number) % (MAX_SEED + 1) for number in range(count)]


def run_race(
    plan: Plan,
    run: Run,
    *,
    seed: int = 0,
    limit: float | None = None,
    instruct: str | None = None,
    spent: Callable[[], float] = lambda: 0.0,
    say: Callable[[str], None] = lambda line: None,
) -> Race:
    """Race the entrants of a plan.

    Args:
        plan: The plan.
        run: Runs a stage.
        seed: First seed.
        limit: Largest increase of the loss on general text of a winner; None for any.
        instruct: The instruction-tuned model for chat vectors.
        spent: Returns the seconds of the budget that have been spent.
        say: Shows a line of progress.
    """
    base, *alive = plan.entrants
    race = Race([], None, None, None, plan.tokens, plan.prices, 0)
    gains: dict[str, np.ndarray] = {}
    known: dict[str, Entrant] = {}
    found, decisions = StageResult({}), list[Decision]()
    for number, rung in enumerate(plan.rungs):
        is_last = number == len(plan.rungs) - 1
        extras = [one for entrant in alive for one in afterwards(entrant, instruct)] if is_last else []
        stage = Stage(
            name=f"rung-{number + 1}",
            entrants=[base, *alive, *extras],
            tokens=rung.tokens,
            seeds=race_seeds(seed),
            evaluate_on="tune",
            monitored=True,
        )
        say(f"Rung {number + 1} of {len(plan.rungs)}: {rung.tokens:,} tokens, {', '.join(one.label for one in alive)}")
        found, race.tokens = run(stage), rung.tokens
        known |= {one.label: one for one in stage.entrants}
        scores = {label: item_scores(scored.predictions) for label, scored in found.entrants.items()}
        gains |= {label: own - scores[BASE] for label, own in scores.items() if label != BASE}
        race.prices = _corrected(race.prices, found, rung.tokens)
        alive = [one for one in alive if one.label in found.entrants]
        room = None
        if not is_last:
            room = _room(plan, race.prices, number + 1, [one.label for one in alive], spent())
        forgetful = {label for label, scored in found.entrants.items() if _is_above(scored, limit)}
        results = [
            RungResult(label, scores[label], [curve for curve in scored.curves if curve])
            for label, scored in found.entrants.items()
            if label not in forgetful
        ]
        decisions = decide(
            results,
            always={BASE, CHEAPEST},
            decisions=max(1, len(plan.rungs) - 1),
            room=None if room is None else room + 1,
        )
        decisions += [
            Decision(label, float(scores[label].mean()), 0.0, 1.0, "always" if label == CHEAPEST else FORGETFUL)
            for label in forgetful
        ]
        race.rows += _rows(stage, decisions, found, scores, AT_THE_END if is_last else REASONS)
        goes_on = {one.name for one in decisions if one.goes_on and one.reason != FORGETFUL}
        alive = [one for one in alive if one.label in goes_on]
        if room is not None and (room < min(2, len(alive)) or not alive):
            race.notes.append(
                f"The race ended after adaptations of {rung.tokens:,} tokens: "
                + ("there was no time for longer ones." if alive else "no entrant was left.")
            )
            break
    race.entrants = len(gains)
    _crown(race, gains, known, found, limit)
    return race


def _is_above(scored: Scored, limit: float | None) -> bool:
    """Return whether the interval of the increase of the loss on general text is above the limit."""
    row = scored.losses.get("general")
    return limit is not None and row is not None and row.difference is not None and row.difference.low > limit


def _crown(
    race: Race, gains: Mapping[str, np.ndarray], known: Mapping[str, Entrant], last: StageResult, limit: float | None
) -> None:
    """Set the winner of a race: the highest score in the last rung, above the base model and within the limit."""
    ahead = [(float(gains[label].mean()), label) for label in last.entrants if label != BASE]
    inside = []
    for gain, label in ahead:
        row = last.entrants[label].losses.get("general")
        lost = row.difference.difference if row is not None and row.difference is not None else None
        if limit is not None and lost is not None and lost > limit:
            race.notes.append(f"{label} lost {lost:.3f} nats per token of general text, more than {limit:g}.")
            continue
        inside.append((gain, label))
    if not inside:
        return
    gain, label = max(inside, key=lambda one: one[0])
    order = list(gains)
    race.dev_gain = gain
    race.shrunken = shrunken_gain([gains[one] for one in order], order.index(label))
    if gain > 0:
        race.winner = known[label]


def _corrected(prices: Prices, found: StageResult, tokens: int) -> Prices:
    """Return the prices, corrected by what a rung took."""
    for label, scored in found.entrants.items():
        if scored.seconds is not None and label in prices.adapting:
            prices = reprice(prices, label, tokens, scored.seconds)
    return replace(
        prices,
        scoring=prices.scoring if found.scoring is None else found.scoring,
        measuring=prices.measuring if found.measuring is None else found.measuring,
    )


def _room(plan: Plan, prices: Prices, number: int, labels: Sequence[str], spent: float) -> int:
    """Return for how many trained entrants there is time in a rung, besides what is kept for the claim."""
    left = (1 - CLAIM_SHARE) * plan.budget - spent
    rung, extras = plan.rungs[number], plan.extras * (number == len(plan.rungs) - 1)
    for width in range(min(rung.width, len(labels)), 0, -1):
        if race_seconds(labels, [replace(rung, width=width)], prices, extras) <= left:
            return width
    return 0


def _rows(
    stage: Stage,
    decisions: Sequence[Decision],
    found: StageResult,
    scores: Mapping[str, np.ndarray],
    words: Mapping[str, str],
) -> list[RaceRow]:
    """Return a row for each entrant of a rung; ``words`` has the reasons of decisions in words."""
    rows = []
    for one in decisions:
        scored = found.entrants[one.name]
        losses = {text: row.difference.difference for text, row in scored.losses.items() if row.difference}
        rows.append(
            RaceRow(
                stage=stage.name,
                tokens=stage.tokens,
                label=one.name,
                score=one.score,
                gain=None if one.name == BASE else float((scores[one.name] - scores[BASE]).mean()),
                p=one.p,
                decision=words.get(one.reason, ""),
                domain=losses.get("domain"),
                general=losses.get("general"),
            )
        )
    failed = [
        RaceRow(stage=stage.name, tokens=stage.tokens, label=label, decision=f"failed: {why}")
        for label, why in found.failed.items()
    ]
    return rows + failed


def claim_stage(
    plan: Plan, winner: Entrant, tokens: int, prices: Prices, *, seed: int, test: bool, spent: float
) -> Stage:
    """Return the stage of the claim, with as many fresh seeds as there is time for.

    Args:
        plan: The plan.
        winner: The winner of the race.
        tokens: Tokens per adaptation.
        prices: Prices, corrected by what the rungs took.
        seed: First seed of the race.
        test: Whether the claim is made on the test splits.
        spent: Seconds of the budget that have been spent.
    """
    left, extra = plan.budget - spent, 0.0
    if winner.merge is not None:  # merging takes about as long as measuring
        extra = prices.measuring
    prices = replace(prices, scoring=prices.scoring + extra)
    affordable = max(
        (n for n in range(1, MOST_CLAIM_SEEDS + 1) if claim_seconds([winner.trained], tokens, prices, n) <= left),
        default=0,
    )
    return Stage(
        name=CLAIM,
        entrants=[plan.entrants[0], winner],
        tokens=tokens,
        seeds=claim_seeds(seed, max(CLAIM_SEEDS, affordable)),
        evaluate_on=None if test else "confirm" if plan.races else "dev",
    )


def claim_of(
    stage: Stage, found: StageResult, *, used_seeds: Sequence[int], reads: int, limit: float | None
) -> ClaimResult:
    """Return the claim about the winner from its stage.

    Raises:
        UserError: If the winner could not be trained again.
    """
    winner = stage.entrants[-1].label
    if winner in found.failed:
        raise UserError(f"The winner '{winner}' could not be trained again: {found.failed[winner]}")
    ours, theirs = found.entrants[winner], found.entrants[BASE]
    pairs = [one._replace(b=other.a) for one, other in zip(ours.predictions, theirs.predictions, strict=True)]
    general = None
    if ours.general is not None and theirs.general is not None:
        general = GeneralLosses(ours.general[0], theirs.general[0][0], theirs.general[1], limit)
    return make_claim(winner, pairs, seeds=stage.seeds, used_seeds=used_seeds, reads=reads, general=general)


@dataclass
class _State:
    """What a tournament has decided, in a file, so that the same command resumes it.

    Attributes:
        path: The file.
        plan: The plan; None until it is made.
        stages: Stages that were decided, by name.
        ends: Seconds that had been spent when a stage ended, by name.
        parallel: Jobs that run at the same time.
    """

    path: Path
    options: str
    plan: Plan | None = None
    stages: dict[str, Stage] = field(default_factory=dict)
    ends: dict[str, float] = field(default_factory=dict)
    parallel: int = 1
    _spent: float = 0.0
    _since: float = field(default_factory=time.monotonic)

    @classmethod
    def open(cls, path: Path, options: str, parallel: int) -> _State:
        """Read the file, if there is one.

        Raises:
            UserError: If it is of a tournament with other options.
        """
        state, found = cls(path, options, parallel=parallel), read_json_object(path)
        if path.exists() and (found is None or found.get("options") != options):
            raise UserError(
                f"'{path.parent}' holds a tournament with other options; give another output directory, or delete it."
            )
        if found:
            state.plan = Plan.from_dict(found["plan"]) if found.get("plan") else None
            state.stages = {name: Stage.from_dict(one) for name, one in found["stages"].items()}
            state.ends = dict(found.get("ends", {}))
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
        found = run(stage)
        if stage.name in self.ends:
            self.start(self.ends[stage.name])
        else:
            self.ends[stage.name] = self.spent()
            self.save()
        return found

    def save(self) -> None:
        """Write the file."""
        plan = None if self.plan is None else self.plan.to_dict()
        stages = {name: stage.to_dict() for name, stage in self.stages.items()}
        write_json(self.path, {"options": self.options, "plan": plan, "stages": stages, "ends": self.ends})


def _auto(options: AutoOptions) -> AutoResult:
    """Race adaptations of a model to your text under a budget, and hand back the best one, or the base model.

    Entrants with default settings are adapted, fine-tuned and scored on half of the dev split, in rungs with more and
    more tokens; those that are worse leave. The winner and the base model are then trained again with fresh seeds and
    compared once, on items that chose nothing. Only if the gain is above zero, and what is lost on general text within
    the limit, is the adapted model handed back. That nothing helps is a result, too.

    Every training is a job whose result is stored, so that the same call resumes after an interruption.

    Returns:
        The result. ``result.model`` is the folder of the model that is handed back; ``out`` also has the report, the
        results, and a study file for each stage.

    Raises:
        UserError: If the model, text or task cannot be used, or the time is too short.
    """
    if options.forget_at_most is not None and not options.general:
        raise UserError("--forget-at-most limits the loss on general text: give --general as well.")
    out = check_auto_folder(options.out)
    stages, state = open_tournament(options, out)
    if state.plan is None:
        state.plan = _make_plan(options, stages, state.parallel)
        out.mkdir(parents=True, exist_ok=True)
        state.save()
    plan = state.plan
    print_message("\n".join(describe_plan(plan)), options.progress)
    state.start()
    result = AutoResult(
        plan=plan,
        minutes=options.minutes,
        folder=out,
        limit=options.forget_at_most,
        metrics=stages.metrics,
        base=str(options.model),
    )
    if options.dry_run:
        return result
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
    result.take(race.rows, race.winner, race.dev_gain, race.shrunken, race.entrants, race.notes)
    scored: Scored | None = None
    if race.winner is not None:
        stage = state.decide(
            claim_stage(
                plan,
                race.winner,
                race.tokens,
                race.prices,
                seed=options.seed,
                test=options.test,
                spent=state.spent(),
            )
        )
        print_message(
            f"Claim: {race.winner.label} against the base model, {len(stage.seeds)} fresh seeds", options.progress
        )
        reads = stages.count_reads(stage, f"{state.options} {out.absolute()}")
        found = state.run(stage, stages.run)
        used = race_seeds(options.seed) if plan.races else []
        result.claim = claim_of(stage, found, used_seeds=used, reads=reads, limit=options.forget_at_most)
        result.claim_seeds = list(stage.seeds)
        scored = found.entrants[race.winner.label]
        stages.write_report(found)
    holds = result.claim is not None and result.claim.holds
    source = scored.folder if holds and scored is not None and scored.folder else find_folder(str(options.model))
    hand_back(source, out / MODEL)
    result.model = out / MODEL
    result.seconds = plan.prices.timing + state.spent() / state.parallel
    write_json(out / RESULT, result.to_dict())
    result.report(out / PAGE)
    return result


auto = verb(AutoOptions, _auto)


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
    names = ("model", "corpus", "task", "heldout", "general", "encoding", *option_fields(LabelOptions))
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
    unrecorded = ("out", "progress", "backend", "dry_run", "workers", "per_gpu", *names)
    others = {name: str(getattr(options, name)) for name in option_fields(AutoOptions) if name not in unrecorded}
    return Stages(base, call, context), _State.open(out / STATE, fingerprint([base, others]), parallel)


def _make_plan(options: AutoOptions, stages: Stages, parallel: int) -> Plan:
    facts, dev_items = stages.facts(options.minutes, None if options.instruct is None else str(options.instruct))
    for name in options.methods:
        lookup(name)
    usable, unwanted = facts.usable, "it is not among --methods"
    if options.methods:
        facts = replace(facts, usable=lambda name: usable(name) if name in options.methods else unwanted)
    entrants, skipped = choose_entrants(facts)
    stage = Stage(
        name="timing",
        entrants=entrants,
        tokens=1,
        seeds=race_seeds(options.seed)[:1],
        evaluate_on="tune" if dev_items >= FEWEST_DEV_ITEMS else "dev",
        monitored=True,
    )
    prices, entrants, failed, tokens, advice = stages.time(stage, options.minutes)
    plan = make_plan(
        entrants,
        [*skipped, *failed],
        prices,
        minutes=options.minutes,
        corpus_tokens=tokens,
        dev_items=dev_items,
        most_tokens=options.tokens,
        parallel=parallel,
        extras=len(afterwards(entrants[1], facts.instruct)),
    )
    return replace(plan, notes=[*([f"Before training: {advice}"] if advice else []), *plan.notes])


def hand_back(source: Path, folder: Path) -> None:
    """Copy a model folder to the place of the model that is handed back."""
    with atomic_folder(folder) as made:
        shutil.copytree(source, made, dirs_exist_ok=True, ignore=shutil.ignore_patterns("checkpoint*", ".*"))
