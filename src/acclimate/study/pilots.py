"""Plans, and the small studies that measure what they are made from."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from acclimate.errors import UserError
from acclimate.options import build, verb
from acclimate.options.planning import RatioOptions
from acclimate.options.studies import InitOptions
from acclimate.planning.plans import Plan, check_plan_folder
from acclimate.planning.ratio import make_ratio_plan
from acclimate.study.changes import change_values
from acclimate.study.compare import compare
from acclimate.study.draft import ONE_PASS, draft_study, write_study

STUDY, RUNS = "study.yaml", "runs"
STEP = 4
"""Factor between the tokens of one budget and the next."""
MIN_TOKENS = 1_000
"""Minimum tokens of the smallest run: fewer are hardly a step of training."""


def _plan_ratio(options: RatioOptions) -> Plan:
    """Find the share of domain text in a mixture with general text, from smaller runs.

    The plan is the largest share whose loss on general text stays within a tolerance of that of the base model, with
    the predicted losses and bootstrap intervals. Two laws are fitted: CMR (Gu et al., 2024) and D-CPT (Que et al.,
    2024). The intervals cover the scatter of the points, not a wrong form of the law.

    Returns:
        The plan: ``share`` with ``value``, ``low`` and ``high``; ``refused``, the reason if its interval is too wide;
        ``predicted`` losses; ``checks``, how well each law predicts the largest runs from the smaller ones.

    Raises:
        UserError: If the points cannot be read or are too few, or a run fails.
    """
    return _make(options, make_ratio_plan, ratio_study)


plan_ratio = verb(RatioOptions, _plan_ratio)


def _make(options: Any, make: Any, study: Any) -> Plan:
    """Make the runs if they are wanted, then the plan, and write it."""
    check_plan_folder(options.out)
    if options.run:
        if options.log:
            raise UserError("--run makes the points itself; remove --log, or --run.")
        if options.out is None:
            raise UserError("--run writes the runs; give a folder with --out.")
        folder = Path(options.out)
        folder.mkdir(parents=True, exist_ok=True)
        file = write_study(study(options), folder / STUDY)
        compare(file, folder / RUNS, progress=options.progress)
        options = dataclasses.replace(options, log=(folder / RUNS,))
    elif not options.log:
        raise UserError("Give measured points with --log, or let --run make the runs.")
    plan = make(options)
    if options.out is not None:
        plan.save(options.out)
    return plan


def _draft(options: Any, **more: Any) -> dict[str, Any]:
    """Return a study of the text and model of a plan, without methods."""
    if options.model is None:
        raise UserError("--run needs a model; give it with --model.")
    texts = {name: getattr(options, name) for name in ("corpus", "heldout", "general")}
    return draft_study(build(InitOptions, STUDY, model=options.model, advice=False, **texts, **more))


def ratio_study(options: RatioOptions) -> dict[str, Any]:
    """Return the study of a ratio plan: ``lm`` for each share of domain text and number of tokens.

    Raises:
        UserError: If something is missing, or the tokens are too few.
    """
    if not options.general or options.tokens is None:
        raise UserError("--run needs general text and the tokens of all runs: give --general and --tokens.")
    if not len(options.shares) >= 3 or not 0 < options.shares[0] <= options.shares[-1] <= 1:
        raise UserError("--shares needs at least three different shares above 0 and at most 1, such as 0.2,0.6,1.")
    fractions = [STEP**-power for power in range(options.budgets)]
    largest = options.tokens / (sum(fractions) * len(options.shares) * options.seeds)
    budgets = sorted(round(largest * fraction) for fraction in fractions)
    if budgets[0] < MIN_TOKENS:
        needed = round(options.tokens * MIN_TOKENS / max(1, budgets[0]))
        raise UserError(
            f"With --tokens {options.tokens:,} the smallest run has {budgets[0]:,} tokens, too few to train on: give "
            f"at least {needed:,}, or fewer --budgets or --shares."
        )
    methods = [
        {
            "name": "lm",
            "label": f"{share:g} of domain, {tokens} tokens",
            "adapt": {"tokens": tokens, "replay_share": round(1 - share, 6)},
        }
        for tokens in budgets
        for share in options.shares
    ]
    study = {
        **_draft(options),
        "title": "Runs for a plan of the share of domain text",
        "methods": ["none", *methods],
        "seeds": options.seeds,
        "adapt_seeds": options.seeds,
    }
    study["notes"] = [note for note in study["notes"] if note != ONE_PASS]
    return change_values(study, options.settings or {})
