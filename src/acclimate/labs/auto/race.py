"""The race of the entrants of a plan, and the claim about its winner."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from acclimate.base.bounds import MAX_SEED
from acclimate.base.errors import UserError
from acclimate.labs.auto.claim import ClaimResult, Collapses, GeneralLosses, make_claim
from acclimate.labs.auto.plan import (
    BASE,
    CHEAPEST,
    CLAIM_SEEDS,
    CLAIM_SHARE,
    MOST_CLAIM_SEEDS,
    RACE_SEEDS,
    Entrant,
    Plan,
    Prices,
    afterwards,
    claim_seconds,
    idle_seconds,
    race_seconds,
    reprice,
)
from acclimate.labs.auto.racing import Decision, RungResult, decide, item_scores, shrunken_gain
from acclimate.labs.auto.report import RaceRow
from acclimate.labs.auto.stages import Scored, Stage, StageResult

CLAIM = "claim"
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
COLLAPSE, CERTAIN = 0.05, 3.0
"""A training has collapsed if its score is by so much below the base model's, and by so many standard errors."""
AT_THE_END = {"leader": "leads", "worse": "worse than the leader", "forgetful": "loses more than the limit"}
"""The same in the last rung, which drops no one."""


@dataclass
class Race:
    """Results of a race.

    Attributes:
        rows: One row per rung and entrant.
        winner: The entrant with the highest score within the limit; None if none is ahead of the base model.
        dev_gain: Its score minus the base model's on the tune items.
        shrunken: The same, shrunken for the choice.
        tokens: Tokens of the last rung that was run.
        prices: Prices, corrected by what the rungs took.
        entrants: Number of entrants with a score, besides the base model.
        collapses: Trainings of each entrant in all rungs, and those that collapsed.
        notes: What happened, in sentences.
    """

    rows: list[RaceRow]
    winner: Entrant | None
    dev_gain: float | None
    shrunken: float | None
    tokens: int
    prices: Prices
    entrants: int
    collapses: dict[str, Collapses] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def race_seeds(seed: int) -> list[int]:
    """Return the seeds of the race."""
    return [(seed + number) % (MAX_SEED + 1) for number in range(RACE_SEEDS)]


def claim_seeds(seed: int, count: int) -> list[int]:
    """Return the seeds of the claim, of which the race uses none."""
    return [(seed + RACE_SEEDS + number) % (MAX_SEED + 1) for number in range(count)]


def search_seed(seed: int) -> int:
    """Return the seed of the search of the learning rate, which neither the race nor the claim uses."""
    return (seed + RACE_SEEDS + MOST_CLAIM_SEEDS) % (MAX_SEED + 1)


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
        for label, own in scores.items():
            if label != BASE:
                race.collapses[label] = _count_collapses(own - scores[BASE].mean(0), race.collapses.get(label))
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
            Decision(label, float(scores[label].mean()), 0.0, 1.0, "always" if label == CHEAPEST else "forgetful")
            for label in forgetful
        ]
        race.rows += _rows(stage, decisions, found, scores, AT_THE_END if is_last else REASONS)
        goes_on = {one.name for one in decisions if one.goes_on}
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


def _count_collapses(gains: np.ndarray, before: Collapses | None) -> Collapses:
    """Count the trainings of a rung that collapsed, with the ones of the rungs before.

    Args:
        gains: Item scores minus the mean ones of the base model, shape (seeds, items).
        before: The count of the rungs before; None for none.
    """
    known = before or Collapses()
    errors = gains.std(1, ddof=1) / np.sqrt(gains.shape[1]) if gains.shape[1] > 1 else np.inf
    losses = -gains.mean(1)
    fallen = losses[(losses > COLLAPSE) & (losses > CERTAIN * errors)]
    return Collapses(known.trainings + len(gains), known.collapsed + len(fallen), known.lost + float(fallen.sum()))


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
        needed = race_seconds(labels, [replace(rung, width=width)], prices, extras)
        if needed + idle_seconds(labels, rung.tokens, prices, plan.parallel) <= left:
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
    left -= idle_seconds([winner.trained], tokens, prices, plan.parallel)
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
    stage: Stage,
    found: StageResult,
    *,
    used_seeds: Sequence[int],
    reads: int,
    limit: float | None,
    collapses: Collapses | None = None,
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
    return make_claim(
        winner,
        pairs,
        seeds=stage.seeds,
        used_seeds=used_seeds,
        reads=reads,
        general=general,
        collapses=collapses or Collapses(),
    )
