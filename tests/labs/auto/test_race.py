"""Times in the race: prices after a rung, and the seeds that a claim can afford."""

from __future__ import annotations

from acclimate.labs.auto.plan import BASE, CLAIM_SEEDS, MOST_CLAIM_SEEDS, Entrant, Plan, Price, Prices, Rung
from acclimate.labs.auto.race import _corrected, claim_seeds, claim_stage
from acclimate.labs.auto.stages import Scored, StageResult
from tests.cases import each

PRICES = Prices(
    scoring=10.0,
    measuring=5.0,
    adapting={"mlm": Price(overhead=2.0, per_token=0.001), "lm": Price(overhead=3.0, per_token=0.002)},
)


def test_prices_are_corrected_by_trainings_that_were_timed():
    found = {BASE: Scored([]), "mlm": Scored([], seconds=12.0), "lm": Scored([]), "merged": Scored([], seconds=99.0)}
    made = _corrected(PRICES, StageResult(found, scoring=20.0), 1_000)
    assert made.adapting == {"mlm": Price(overhead=2.0, per_token=0.01), "lm": PRICES.adapting["lm"]}
    assert (made.scoring, made.measuring) == (20.0, 5.0)


@each(("parallel", "merged"), [(1, False), (3, False), (2, True)])
def test_a_claim_has_the_seeds_for_which_there_is_time_while_other_processes_wait(parallel, merged):
    entrants = [Entrant(label=BASE, reason="", method={}), Entrant(label="mlm", reason="", method={})]
    if merged:
        entrants.append(Entrant(label="merged", reason="", method={}, merge={"of": "mlm"}))
    rest = {"race_seconds": 0.0, "claim_seconds": 0.0, "parallel": parallel}
    score = 10.0 + 5.0 * merged  # a merge takes about as long as a measurement
    model = 2.0 + 0.001 * 4_000 + 5.0 + score
    for seeds in range(CLAIM_SEEDS + 1, MOST_CLAIM_SEEDS + 1):
        needed = seeds * (model + score) + 5.0 + (parallel - 1) * model
        for more, expected in ((1e-6, seeds), (-1e-6, seeds - 1)):
            plan = Plan(
                entrants=entrants,
                skipped=[],
                prices=PRICES,
                rungs=[Rung(tokens=4_000, width=2)],
                budget=100.0 + needed + more,
                **rest,
            )
            stage = claim_stage(plan, entrants[-1], 4_000, PRICES, seed=7, test=True, spent=100.0)
            assert stage.seeds == claim_seeds(7, expected), (seeds, more)
