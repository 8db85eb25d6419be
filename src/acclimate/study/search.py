"""Searching on dev: trying combinations of settings round by round, and choosing the best of each search."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from acclimate.study.cells import Cell, chain
from acclimate.study.choices import Choice, Place, assembled
from acclimate.study.distilling import add_distillations
from acclimate.study.rounds import Hunt, Round, rounds

if TYPE_CHECKING:
    from acclimate.study.plan import Ground, Plan
    from acclimate.study.summary import Outcome

log = logging.getLogger(__name__)
Compute = Callable[["Plan"], dict[str, "Outcome"]]
"""Computes the cells of a plan, or looks them up; returns what became of each."""


@dataclass
class Found:
    """What a search found.

    Attributes:
        choices: The chosen settings.
        rows: One for each search, for the results.
        outcomes: What became of the cells.
        decided: Whether every search came to a choice.
        forgiven: Cells without a result, themselves or for want of what they need, where another combination could be
            chosen.
    """

    choices: dict[Place, Choice] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    decided: bool = True
    forgiven: set[str] = field(default_factory=set)


def search(ground: Ground, compute: Compute, *, guess: bool = False) -> Found:
    """Try what a study wants to be tried.

    No cell of a search has a test split to read: see :func:`acclimate.tasks.splits.replace_test_with_dev`.

    Args:
        ground: What the study names.
        compute: What computes the cells of a round.
        guess: Go on with the first combination where no choice can be made yet, to see what the later rounds would be.
    """
    found = Found()
    if ground.config.search is None:
        return found
    for made in rounds(ground, found.choices):
        found.outcomes |= compute(made.plan)
        for hunt in made.hunts:
            _decide(hunt, made, found, guess)
        if not (found.decided or guess):
            break
    return found


def final_plan(ground: Ground, found: Found) -> Plan:
    """Lay out the study with what a search found; without cells if it could not choose everything."""
    if not found.decided:
        return ground.fresh()
    if found.rows:
        plan = assembled(ground, found.choices)
    else:
        plan = ground.fresh()
        ground.lay_out(plan, ground.config)
    add_distillations(plan, ground.config, ground.parts, ground.identities, found.choices)
    return plan


@dataclass(frozen=True)
class _Judged:
    """A trial with its score; the state is ``"done"``, ``"failed"`` or ``"missing"``."""

    choice: Choice
    state: str
    values: list[float]
    ece: float | None = None
    errors: tuple[str, ...] = ()

    @property
    def score(self) -> float:
        return float(np.mean(self.values))


def _decide(hunt: Hunt, made: Round, found: Found, guess: bool) -> None:
    cells, outcomes = made.plan.cells, found.outcomes
    judged = [_judge(trial.choice, trial.keys, cells, outcomes, hunt.metric) for trial in hunt.trials]
    best = choose(judged, hunt.tolerance)
    failed = [trial for trial, one in zip(hunt.trials, judged, strict=True) if one.state == "failed"]
    if best is None:
        found.decided = False
    else:
        links = {link.key for trial in failed for key in trial.keys for link in chain(cells[key], cells)}
        found.forgiven |= {key for key in links if outcomes[key].result is None}
        for one in judged:
            if one.state == "failed":
                log.warning("Search: %s failed and is not compared: %s", one.choice.text, one.errors[0])
    taken = hunt.trials[0].choice if best is None and guess else best.choice if best else None
    if taken is not None:
        found.choices |= dict.fromkeys(hunt.places, taken)
    found.rows.append(_row(hunt, made, judged, best))


def _judge(
    choice: Choice, keys: Sequence[str], cells: Mapping[str, Cell], outcomes: Mapping[str, Outcome], metric: str
) -> _Judged:
    results = [outcomes[key].result for key in keys]
    bad = [key for key in keys if outcomes[key].result is None]
    if bad:
        links = [outcomes[link.key] for key in bad for link in chain(cells[key], cells)]
        failed = [link.error for link in links if link.state == "failed"]  # not what it blocked
        return _Judged(choice, "failed" if failed else "missing", [], errors=tuple(failed))
    metrics = [result["metrics"] for result in results if result is not None]
    eces = [float(entry["ece"]) for entry in metrics if "ece" in entry]
    ece = float(np.mean(eces)) if len(eces) == len(metrics) else None
    return _Judged(choice, "done", [float(entry[metric]) for entry in metrics], ece)


def choose(judged: Sequence[_Judged], tolerance: float) -> _Judged | None:
    """Return the best of some trials; None if one is still missing, or all failed.

    Of those whose mean score is at most ``tolerance`` below the best, it is the one with the lowest expected
    calibration error; where there is none, as with questions, the one with the highest score; of equals, the first.
    """
    done = [one for one in judged if one.state == "done"]
    if not done or any(one.state == "missing" for one in judged):
        return None
    best = max(one.score for one in done)
    near = [one for one in done if one.score >= best - tolerance - 1e-12]
    return min(near, key=lambda one: (0.0 if one.ece is None else one.ece, -one.score))


def _row(hunt: Hunt, made: Round, judged: Sequence[_Judged], best: _Judged | None) -> dict[str, Any]:
    model, domain, task, _ = hunt.places[0]
    return {
        "stage": hunt.stage,
        "model": model,
        "domain": domain,
        "task": task,
        "methods": [place[3] for place in hunt.places],
        "metric": hunt.metric,
        "tolerance": hunt.tolerance,
        "seeds": sorted({made.plan.cells[key].labels["seed"] for key in hunt.trials[0].keys}),
        "possible": hunt.possible,
        "tried": len(judged),
        "chosen": None if best is None else best.choice.settings,
        "trials": [
            {
                "settings": one.choice.settings,
                "state": one.state,
                **({"score": one.score, "values": one.values, "ece": one.ece} if one.state == "done" else {}),
                "chosen": one is best,
            }
            for one in judged
        ],
    }
