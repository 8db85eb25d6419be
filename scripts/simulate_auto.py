"""Simulate tournaments of `acclimate auto` in worlds with known gains, and write what they claim.

    python scripts/simulate_auto.py            # all scenarios, about an hour; then `make docs`
    python scripts/simulate_auto.py --worlds 50 --only "nothing helps"

The code is `acclimate auto`'s: its plan, race, claim and statistics. Only the execution of a stage is replaced:
instead of training, a world draws which items each model gets right. It knows the true gain of each entrant. Scores
vary with the items, with what adaptation does to them, and with the seeds of adaptations and fine-tunings.

Worlds that are finished are kept in `runs/auto-worlds`, so that the same command resumes.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtri
from scipy.stats import binomtest, norm

from acclimate.base.files import write_json
from acclimate.base.records import fingerprint
from acclimate.evaluation.scoring import SingleLabel
from acclimate.evaluation.significance import PairedPredictions, paired_difference
from acclimate.labs.auto.claim import ClaimResult, make_claim
from acclimate.labs.auto.plan import (
    BASE,
    CLAIM_SHARE,
    MOST_ENTRANTS,
    Facts,
    Plan,
    Price,
    Prices,
    Rung,
    afterwards,
    choose_entrants,
    make_plan,
    race_seconds,
)
from acclimate.labs.auto.race import REASONS, Race, claim_of, claim_stage, race_seeds, run_race
from acclimate.labs.auto.stages import Scored, Stage, StageResult
from acclimate.labs.auto.tuning import choose_rates
from acclimate.results.scores import LossRow
from acclimate.results.study import ReportTable, StudyResults

ROOT = Path(__file__).resolve().parents[1]
PAGE, KEPT = ROOT / "docs" / "results" / "auto", ROOT / "runs" / "auto-worlds"
MINUTES, DEV_ITEMS, CORPUS_TOKENS, CLASSES = 120.0, 800, 4_000_000, 3
ACCURACY = 0.72
"""Accuracy of the base model over all items and seeds."""
EASE, SHARED, OWN, NOISE = 1.0, 0.25, 0.35, 0.35
"""Standard deviations on the scale of the probit: of the ease of the items, of what any adaptation does to an item, of
what this one does to it besides, and of one training on one item."""
DOCUMENT = 0.4
"""The same of what an adaptation does to a document, where items have documents: the variance of a difference of means
is 2.1 times the variance of independent items."""
DIP_SHARE, DIP = 0.2, 0.03
"""Share of the entrants whose scores are in a dip after the first rung, and how much they lose there."""
SOON = 0.05
"""Share of the longest adaptation after which gains become logarithmic in the tokens, for an average entrant."""
TEXTS, TEXT_SD = {"tune": 64, "confirm": 200}, 0.08
"""General texts that the race and the claim measure on, and how much an adaptation differs between them."""
RATES, RATE = {1e-4: -0.005, 2e-4: 0.0, 4e-4: -0.005}, 0.25
"""Accuracy that each learning rate of a search adds, and the standard deviation of what it does to an item."""
COLLAPSE = 0.1
"""How much accuracy an adaptation loses that collapses."""


@dataclass(frozen=True)
class Scenario:
    """A family of worlds.

    Attributes:
        name: Name in the table.
        gains: Returns the true gains of so many entrants at the longest adaptation.
        adaptation: Standard deviation of the accuracy of one entrant over seeds of adaptation.
        finetuning: The same over seeds of fine-tuning.
        forgotten: True increase of the loss on general text; None for no general text.
        limit: Highest increase that is accepted.
        collapsing: Share of the adaptations that collapse; the others gain as much as leaves the mean as it is.
        worlds: Number of worlds on the page.
        copies: Whether the last entrant is the first one that may be dropped, under another name.
        rows: Number of items of a document, which are all in one half of dev.
        document: Standard deviation, on the scale of the probit, of what an adaptation does to a whole document, and
            of what a learning rate does to it.
        searches: Whether the learning rate is chosen with the base model before the race.
    """

    name: str
    gains: str
    adaptation: float = 0.006
    finetuning: float = 0.006
    forgotten: float | None = None
    limit: float | None = None
    collapsing: float = 0.0
    copies: bool = False
    rows: int = 1
    document: float = 0.0
    searches: bool = False
    worlds: int = 200

    def draw(self, rng: np.random.Generator, entrants: int) -> np.ndarray:
        """Draw the gains of the entrants."""
        if self.gains == "none":
            return np.zeros(entrants)
        if self.gains == "one":
            return 0.03 * (np.arange(entrants) == rng.integers(entrants))
        if self.gains == "all":
            return np.full(entrants, 0.06)
        return rng.normal(0.0, 0.015, entrants)


SCENARIOS = (
    Scenario("nothing helps", "none", worlds=800),
    Scenario("nothing helps, seeds vary more", "none", adaptation=0.015, finetuning=0.008, worlds=600),
    Scenario("one helps", "one"),
    Scenario("some help, some harm", "some"),
    Scenario("some help, seeds vary more", "some", adaptation=0.015, finetuning=0.008),
    Scenario("some help, two are copies", "some", copies=True),
    Scenario("nothing helps, one adaptation in ten collapses", "none", collapsing=0.1),
    Scenario("all help, and forget as much as is accepted", "all", forgotten=0.05, limit=0.05),
)

DOCUMENTS = Scenario("nothing helps, documents of ten items", "none", rows=10, document=DOCUMENT, worlds=1000)
"""Not on the page; without groups, 12.5 % (9.6 to 16.1) of 400 such worlds return a model that does not help."""
SEARCHED = replace(DOCUMENTS, name="nothing helps, documents of ten items, rate searched", searches=True)
"""The same with a search of the learning rate on the items of the race."""
UNLISTED = (DOCUMENTS, SEARCHED)
"""Scenarios that are not on the page."""


class Outcome(NamedTuple):
    """What a tournament did in a world.

    Attributes:
        race: The race.
        claim: The claim; None if no entrant was ahead of the base model.
        truth: True gain of the winner at the tokens of the claim.
        seconds: Seconds of race and claim together.
    """

    race: Race
    claim: ClaimResult | None
    truth: float
    seconds: float

    @property
    def gained(self) -> float:
        """True gain of the model that is returned."""
        return self.truth if self.claim is not None and self.claim.holds else 0.0


@dataclass
class World:
    """One world: items, true gains, and the chance in each training.

    Attributes:
        scenario: The scenario.
        number: Number of the world, which seeds all that is drawn.
        plan: The plan of the tournament.
        rate: Learning rate of fine-tuning; None without a search.
    """

    scenario: Scenario
    number: int
    plan: Plan
    seconds: float = 0.0
    rate: float | None = None
    _drawn: dict[tuple[Any, ...], np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Draw the gains and the speed of learning of the entrants."""
        trained = [one.label for one in self.plan.entrants if one.label != BASE]
        rng = self._rng("world")
        self.gains = dict(zip(trained, self.scenario.draw(rng, len(trained)), strict=True))
        self.speeds = dict(zip(trained, rng.lognormal(0, 0.5, len(trained)), strict=True))
        self.dips = {label for label in trained if rng.random() < DIP_SHARE}
        self.copies = (trained[1], trained[-1]) if self.scenario.copies else ()
        if self.copies:
            original, copy = self.copies
            self.gains[copy], self.speeds[copy] = self.gains[original], self.speeds[original]
            self.dips = self.dips - {copy} | ({copy} if original in self.dips else set())
        self.pace = rng.normal(1.0, 0.05)  # of this machine, compared with when it was timed

    def _rng(self, *key: Any) -> np.random.Generator:
        return np.random.default_rng(int(fingerprint([self.scenario.name, self.number, *key]), 16))

    def _normal(self, *key: Any, size: int | None = None) -> np.ndarray:
        if key not in self._drawn:
            self._drawn[key] = np.asarray(self._rng(*key).normal(size=size))
        return self._drawn[key]

    def gain(self, label: str, tokens: float) -> float:
        """Return the true gain of an entrant that is adapted with so many tokens."""
        if label == BASE:
            return 0.0
        share = share_of_base(label)
        trained = label.removesuffix(", half-way")
        # About as much again for each threefold of the tokens, as losses fall with the logarithm of the data.
        early = SOON * self.speeds[trained]
        learned = np.log1p(tokens / self.plan.tokens / early) / np.log1p(1 / early)
        found = share * self.gains[trained] * learned
        return float(found - share * DIP * self.is_in_dip(label, tokens))

    def is_in_dip(self, label: str, tokens: float) -> bool:
        """Return whether the adaptation ends in a dip."""
        return label.removesuffix(", half-way") in self.dips and tokens < 0.2 * self.plan.tokens

    def hits(self, label: str, tokens: float, seed: int, part: str) -> np.ndarray:
        """Return which items a model gets right, a boolean per item."""
        share = 0.0 if label == BASE else share_of_base(label)
        trained = label.removesuffix(", half-way")
        unit = _probits(self.scenario)
        adaptation, finetuning = unit * self.scenario.adaptation, unit * self.scenario.finetuning
        variance = (
            EASE**2
            + share**2 * (SHARED**2 + OWN**2 + adaptation**2 + self.scenario.document**2)
            + finetuning**2
            + NOISE**2
        )  # over items and seeds
        searched = self.rate is not None
        if searched:
            variance += RATE**2 + self.scenario.document**2
        items, own = DEV_ITEMS // 2, (self.rate,) if searched else ()
        accuracy = ACCURACY + self.gain(label, tokens) + RATES.get(self.rate or 0.0, 0.0)
        if label != BASE and (rate := self.scenario.collapsing):
            falls = self._rng("collapse", trained, tokens, seed).random() < rate
            accuracy += share * COLLAPSE * (-1.0 if falls else rate / (1 - rate))
        latent = ndtri(accuracy) * np.sqrt(variance)
        latent = latent + EASE * self._normal("ease", part, size=items)
        latent += share * SHARED * self._normal("shared", part, size=items)
        if searched:
            latent += RATE * self._normal("rate", self.rate, part, size=items)
            latent += self.scenario.document * self._of_documents("rate of document", self.rate, part)
        method = self.copies[0] if trained in self.copies else trained
        latent += share * OWN * self._normal("own", method, part, size=items)
        if self.scenario.document:
            latent += share * self.scenario.document * self._of_documents("document", method, part)
        # Adaptations of other lengths have seeds of their own: each has its own schedule from the first step on.
        latent += share * adaptation * self._normal("adaptation", trained, tokens, seed)
        latent += finetuning * self._normal("finetuning", label, tokens, seed, *own)
        latent += NOISE * self._rng("noise", label, tokens, seed, part, *own).normal(size=items)
        return latent > 0

    def _of_documents(self, *key: Any) -> np.ndarray:
        """Return a number for each document, at each of its items (items,)."""
        return np.repeat(self._normal(*key, size=DEV_ITEMS // 2 // self.scenario.rows), self.scenario.rows)

    def run(self, stage: Stage) -> StageResult:
        """Draw the result of a stage, and add its duration."""
        part = str(stage.evaluate_on)
        gold = self._rng("gold", part).integers(CLASSES, size=DEV_ITEMS // 2)
        rows = self.scenario.rows
        scoring = SingleLabel(groups=None if rows == 1 else tuple(place // rows for place in range(gold.size)))
        made = StageResult({}, scoring=self.plan.prices.scoring * self.pace, measuring=self.plan.prices.measuring)
        prices, trained = self.plan.prices, set()
        for entrant in stage.entrants:
            label = entrant.label
            predicted = []
            for seed in stage.seeds:
                right = self.hits(label, stage.tokens, seed, part)
                wrong = (
                    gold + self._rng("wrong", label, stage.tokens, seed, part).integers(1, CLASSES, gold.size)
                ) % 3
                predicted.append(np.where(right, gold, wrong))
            seconds = None if label == BASE else prices.adapting[entrant.trained].seconds(stage.tokens) * self.pace
            self.seconds += len(stage.seeds) * (prices.scoring + prices.measuring * (label != BASE)) * self.pace
            if seconds is not None and entrant.trained not in trained:
                trained.add(entrant.trained)
                self.seconds += len(stage.seeds) * seconds
            dip = label != BASE and self.is_in_dip(label, stage.tokens)
            general = self._general(label, stage.seeds, part)
            made.entrants[label] = Scored(
                predictions=[PairedPredictions(gold, predicted, None, "macro_f1", scoring)],
                seconds=seconds if entrant.merge is None else None,
                curves=[] if label == BASE else [[3.0, 3.4] if dip else [3.0, 2.8]],
                losses={} if general is None or label == BASE else {"general": _loss_row(label, *general)},
                general=None if general is None else (general[0], general[2]),
            )
        return made

    def _general(
        self, label: str, seeds: Sequence[int], part: str
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Return the loss on each general text after and before adaptation, and the tokens of each text."""
        if self.scenario.forgotten is None:
            return None
        count = TEXTS[part]
        before = np.tile(3.0 + 0.5 * self._normal("texts", part, size=count), (len(seeds), 1))
        after = before
        if label != BASE:
            share = share_of_base(label)
            own = self._normal("forgotten", label, part, size=count) * TEXT_SD
            shifts = [float(self._normal("forgotten", label, seed)) * 0.01 for seed in seeds]
            after = before + share * (self.scenario.forgotten / share + own + np.asarray(shifts)[:, None])
        return after, before[0], np.full(count, 100.0)

    def tournament(self, plan: Plan) -> Outcome:
        """Run race and claim in this world."""
        self.seconds = 0.0
        if plan.rates:
            trials: Any = _Trials({"domains": [{"tasks": ["task"]}]}, self)
            choose_rates(plan, trials, lambda stage, run: run(stage), 0)
            self.rate, self.seconds = rate_of(trials.base), 0.0
        race = run_race(plan, self.run, limit=self.scenario.limit, spent=lambda: self.seconds)
        if race.winner is None:
            return Outcome(race, None, 0.0, self.seconds)
        stage = claim_stage(plan, race.winner, race.tokens, race.prices, seed=0, test=False, spent=self.seconds)
        found = self.run(stage)
        claim = claim_of(
            stage,
            found,
            used_seeds=race_seeds(0),
            reads=1,
            limit=self.scenario.limit,
            collapses=race.collapses.get(race.winner.label),
        )
        return Outcome(race, claim, self.gain(race.winner.label, race.tokens), self.seconds)

    def copies_differ(self, race: Race) -> bool:
        """Return whether the race drops one copy for being worse than the other, or a claim would find a gain."""
        leaders = {row.stage: row.label for row in race.rows if row.decision == REASONS["leader"]}
        dropped = {row.label: leaders[row.stage] for row in race.rows if row.decision == REASONS["worse"]}
        one, other = self.copies
        if dropped.get(one) == other or dropped.get(other) == one:
            return True
        hits = {
            label: [self.hits(label, self.plan.tokens, seed, "confirm") for seed in (7, 8, 9)] for label in self.copies
        }
        gold = np.ones(DEV_ITEMS // 2, dtype=int)
        ours, theirs = ([right.astype(int) for right in hits[label]] for label in self.copies)
        pair = PairedPredictions(gold, ours, theirs, "accuracy", SingleLabel())
        return make_claim(one, [pair], seeds=(7, 8, 9), used_seeds=()).holds


@dataclass
class _Trials:
    """Runs the trials of the search of the learning rate in a world, instead of :class:`Stages`."""

    base: dict[str, Any]
    world: World

    def run(self, stage: Stage) -> StageResult:
        """Draw the result of a trial."""
        self.world.rate = rate_of(self.base)
        return self.world.run(stage)


def rate_of(study: Mapping[str, Any]) -> float:
    """Return the learning rate of the only task of a study."""
    return float(study["domains"][0]["tasks"][0]["learning_rate"])


def _loss_row(label: str, after: np.ndarray, before: np.ndarray, tokens: np.ndarray) -> LossRow:
    """Return the row of the loss that the race reads."""
    found = paired_difference(after, before, tokens)
    return LossRow(model="", domain="", text="general", method=label, nats=float(after.mean()), difference=found)


def share_of_base(label: str) -> float:
    """Return how much of an adaptation is in a model: half of it in the average with the base model."""
    return 0.5 if label.endswith(", half-way") else 1.0


def _probits(scenario: Scenario) -> float:
    """Return by how much the latent score of an item has to rise for the accuracy to rise by one."""
    z = ndtri(ACCURACY)
    return float(np.sqrt(EASE**2 + SHARED**2 + OWN**2 + NOISE**2) / norm.pdf(z))


def plan_tournament() -> Plan:
    """Return the plan of all tournaments: the entrants that fit an encoder, with speeds of a small one on a CPU."""
    facts = Facts(
        kind="masked", documents=100_000, train_rows=1_000, replayable=True, minutes=MINUTES, usable=lambda name: None
    )
    entrants, skipped = choose_entrants(facts)
    slower = np.linspace(1.0, 2.5, MOST_ENTRANTS)
    prices = Prices(
        scoring=20.0,
        measuring=5.0,
        adapting={
            one.label: Price(overhead=10.0, per_token=factor / 20_000)
            for one, factor in zip(entrants[1:], slower, strict=False)
        },
        timing=60.0,
    )
    return make_plan(
        entrants,
        skipped,
        prices,
        minutes=MINUTES,
        corpus_tokens=CORPUS_TOKENS,
        dev_items=DEV_ITEMS,
        extras=len(afterwards(entrants[1], None)),
    )


def plan_without_rungs(plan: Plan) -> Plan:
    """Return the plan that trains all entrants to the end, with as many tokens as the time for the race allows."""
    labels = [one.label for one in plan.entrants if one.label != BASE]

    def rungs(tokens: float) -> list[Rung]:
        return [Rung(tokens=int(tokens), width=len(labels))]

    low, high = 1.0, float(plan.tokens)
    while high - low > 1:
        middle = (low + high) / 2
        fits = race_seconds(labels, rungs(middle), plan.prices, plan.extras) <= (1 - CLAIM_SHARE) * plan.budget
        low, high = (middle, high) if fits else (low, middle)
    return replace(plan, rungs=rungs(low))


def simulate(scenario: Scenario, worlds: int, first: int = 0) -> Iterator[dict[str, Any]]:
    """Yield what happened in each world of a scenario."""
    plan = plan_tournament()
    if scenario.searches:
        plan = replace(plan, rates=[[rate] for rate in RATES])
    flat = None if scenario in UNLISTED else plan_without_rungs(plan)
    for number in range(first, first + worlds):
        world = World(scenario, number, plan)
        outcome = world.tournament(plan)
        other = World(scenario, number, plan).tournament(flat) if flat else outcome
        best = max(0.0, *(world.gain(label, plan.tokens) for label in world.gains))
        top = max(world.gains, key=lambda label: world.gains[label])
        found, claim = outcome.race, outcome.claim
        yield {
            "claims": claim is not None,
            "holds": claim is not None and claim.holds,
            "false": claim is not None and claim.holds and (outcome.truth <= 0 or scenario.limit is not None),
            "covered": None if claim is None else claim.gain.bound <= outcome.truth,
            "dev": None if claim is None else found.dev_gain,
            "shrunken": None if claim is None else found.shrunken,
            "true": None if claim is None else outcome.truth,
            "claimed": None if claim is None else claim.gain.estimate,
            "best": best,
            "gained": outcome.gained,
            "lost": best - outcome.truth,
            "flat": other.gained,
            "flat lost": best - other.truth,
            "dropped": any(row.label == top and row.decision == REASONS["worse"] for row in found.rows),
            "used": outcome.seconds / plan.budget,
            "copies": world.copies_differ(found) if scenario.copies else None,
        }


def summarize(scenario: Scenario, found: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the rows of a scenario in the two tables of the page; shares and gains in percent."""

    def mean(name: str) -> float | None:
        values = [float(one[name]) for one in found if one[name] is not None]
        return 100 * float(np.mean(values)) if values else None

    low, high = binomtest(sum(one["false"] for one in found), len(found)).proportion_ci(method="wilson")
    errors = {
        "worlds": scenario.name,
        "number": len(found),
        "with a claim, %": mean("claims"),
        "adapted model handed back, %": mean("holds"),
        "wrongly, %": mean("false"),
        "its interval": f"{100 * low:.1f} to {100 * high:.1f}",
        "true gain above the bound, %": mean("covered"),
        "gain on tune": mean("dev"),
        "shrunken gain": mean("shrunken"),
        "claimed gain": mean("claimed"),
        "true gain": mean("true"),
    }
    regret = {
        "worlds": scenario.name,
        "best true gain": mean("best"),
        "gain handed back": mean("gained"),
        "without rungs": mean("flat"),
        "lost by the choice": mean("lost"),
        "the same without rungs": mean("flat lost"),
        "best dropped by a test, %": mean("dropped"),
        "budget used, %": mean("used"),
        "most budget used, %": 100 * max(one["used"] for one in found),
        "copies differ, %": mean("copies"),
    }
    return errors, regret


def main() -> None:
    """Simulate the scenarios and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, help="Worlds per scenario; by default the number of the page.")
    parser.add_argument(
        "--only", choices=[one.name for one in (*SCENARIOS, *UNLISTED)], help="The only scenario to simulate."
    )
    parser.add_argument("--seconds", type=float, default=np.inf, help="Stop after this time.")
    given = parser.parse_args()
    end, found = time.monotonic() + given.seconds, {}
    unlisted = [one for one in UNLISTED if one.name == given.only]
    for scenario in unlisted or SCENARIOS:
        path = KEPT / f"{scenario.name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        found[scenario] = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        if given.only in (None, scenario.name) and time.monotonic() < end:
            with path.open("a") as file:
                wanted = given.worlds or scenario.worlds
                for row in simulate(scenario, wanted - len(found[scenario]), len(found[scenario])):
                    found[scenario].append(row)
                    file.write(json.dumps(row) + "\n")
                    file.flush()
                    if time.monotonic() > end:
                        break
        if found[scenario]:
            sys.stdout.writelines(json.dumps(row) + "\n" for row in summarize(scenario, found[scenario]))
    if not unlisted and all(len(rows) >= scenario.worlds for scenario, rows in found.items()):
        pairs = [summarize(scenario, rows) for scenario, rows in found.items()]
        tables = [
            ReportTable(title=title, columns=list(rows[0]), rows=[list(row.values()) for row in rows], digits=2)
            for title, rows in zip(("Claims", "Choices"), zip(*pairs, strict=True), strict=True)
        ]
        results = StudyResults(name="auto", title="Simulated tournaments", tables=tables)
        write_json(PAGE / "results.json", results.to_dict())


if __name__ == "__main__":
    main()
