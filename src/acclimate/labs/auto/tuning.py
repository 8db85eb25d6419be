"""The learning rate of fine-tuning in a tournament, which is chosen with the base model before the race.

Only the base model is trained, with a seed that nothing else uses, and scored on the items that the race reads. The
rate is the same for both sides of the claim, and a function of items and seeds that the claim does not read: given the
rate, the claim is the test that it would be had the rate been fixed before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from acclimate.base.errors import UserError
from acclimate.labs.auto.plan import Plan
from acclimate.labs.auto.race import Run, search_seed
from acclimate.labs.auto.stages import Stage, StageResult, Stages, with_rates
from acclimate.results.cells import joined

ORDER = (1, 0, 2)
"""Trials in the order in which equal scores are preferred: the default first, then the lower rate."""


def choose_rates(plan: Plan, stages: Stages, run: Callable[[Stage, Run], StageResult], seed: int) -> list[str]:
    """Try the learning rates of a plan, and set the best on each task for all later stages; return what was chosen.

    Args:
        plan: The plan.
        stages: Runs the stages.
        run: Runs a stage with a function, or reads its result.
        seed: First seed of the race.

    Raises:
        UserError: If the base model cannot be fine-tuned with any rate.
    """
    scores: dict[int, list[float]] = {}
    problem = UserError("There is no learning rate to try.")
    for number in ORDER:
        stage = Stage(
            name=f"search-{number + 1}",
            entrants=plan.entrants[:1],
            tokens=1,
            seeds=[search_seed(seed)],
            evaluate_on="tune" if plan.races else "dev",
            monitored=True,
        )
        trial = replace(stages, base=with_rates(stages.base, plan.rates[number]))
        try:
            (found,) = run(stage, trial.run).entrants.values()
        except UserError as error:  # such as a loss that is not finite at the highest rate
            problem = error
            continue
        scores[number] = [one.scoring.score(one.gold, one.a[0], one.metric) for one in found.predictions]
    if not scores:
        raise problem
    places = range(len(plan.rates[0]))
    best = [max(scores, key=lambda number: scores[number][place]) for place in places]  # of equals the first
    chosen = [plan.rates[number][place] for place, number in zip(places, best, strict=True)]
    stages.base = with_rates(stages.base, chosen)
    shown = joined([f"{rate:g}" for rate in chosen if rate is not None])
    return [f"Learning rate of fine-tuning, chosen with the base model on the items of the race: {shown}."]
