"""Plans, and the small studies that measure what they are made from."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from acclimate.base.errors import UserError
from acclimate.base.options import build, values, verb
from acclimate.base.verbs import Next
from acclimate.data.reading import TextOptions, default_task_name, reading_words, text_words
from acclimate.data.task_kinds import open_task
from acclimate.labs.plan.budget import LEVELS, make_budget_plan
from acclimate.labs.plan.options import BudgetOptions, MixtureOptions, RatioOptions, ScheduleOptions
from acclimate.labs.plan.plans import Plan, check_plan_folder, show_plan
from acclimate.labs.plan.ratio import make_ratio_plan
from acclimate.labs.plan.schedule import Schedule, make_schedule_plan
from acclimate.study.changes import change_values
from acclimate.study.compare import compare
from acclimate.study.draft import ONE_PASS, draft_study, write_study
from acclimate.study.options import InitOptions

STUDY, RUNS = "study.yaml", "runs"
STEP = 4
"""Factor between the tokens of one budget and the next."""
MIN_TOKENS = 1_000
"""Minimum tokens of the smallest run: fewer are hardly a step of training."""


@verb(RatioOptions)
def plan_ratio(options: RatioOptions) -> Plan:
    """Find the share of domain text in a mixture with general text, from smaller runs.

    The plan is the largest share whose loss on general text stays within a tolerance of the base model's, with
    the predicted losses and bootstrap intervals. Two laws are fitted: CMR (Gu et al., 2024) and D-CPT (Que et al.,
    2024). The intervals cover the scatter of the points, not a wrong form of the law.

    Returns:
        The plan: ``share`` with ``value``, ``low`` and ``high``; ``refused``, the reason if its interval is too wide;
        ``predicted`` losses; ``checks``, how well each law predicts the largest runs from the smaller ones.

    Raises:
        UserError: If the points cannot be read or are too few, or a run fails.
    """
    return _make(options, make_ratio_plan, ratio_study)


def show_ratio(plan: Plan, options: RatioOptions) -> Iterator[Any]:
    """Yield what ``acclimate plan ratio`` prints."""
    yield from show_plan(plan, options)
    if plan["refused"] or plan["share"]["value"] is None:
        return
    words = _text_of(options)
    if (replay := round(1 - plan["share"]["value"], 3)) > 0:
        texts = text_words("--replay", options.general or None, "GENERAL", column=options.text_column)
        words += [f"{word}={2 * replay / len(texts):g}" if place % 2 else word for place, word in enumerate(texts)]
    yield Next(["adapt", *words, "--tokens", plan["target_tokens"], "--out", "adapted"], "to train with it")


def _text_of(options: RatioOptions | MixtureOptions | BudgetOptions) -> list[str]:
    """Return the model and the domain text, and how it is read, as words of a command line."""
    text = text_words("--corpus", options.corpus or None, column=options.text_column)
    return ["--model", options.model or "MODEL", *text, *reading_words(options)]


@verb(MixtureOptions)
def plan_mixture(options: MixtureOptions) -> Plan:
    """Rank mixtures of several texts without training on any of them.

    The model is adapted to each text alone, with LoRA. The model of a mixture is simulated by the weighted sum of what
    these adaptations have changed, and measured on held-out text (OP-Mix, Hu et al., 2026).

    Returns:
        The plan: ``weights`` of the best mixture by text; ``gain``, how its loss differs from the loss with equal
        weights, with ``low`` and ``high``; ``refused``, the reason if it is not shown to be better.

    Raises:
        UserError: If something is missing, a text is too short, or an adaptation fails.
    """
    from acclimate.labs.plan.mixture import make_mixture_plan  # imports torch

    check_plan_folder(options.out)
    return _write(options, make_mixture_plan)


def show_mixture(plan: Plan, options: MixtureOptions) -> Iterator[Any]:
    """Yield what ``acclimate plan mixture`` prints."""
    yield from show_plan(plan, options)
    if plan["refused"]:
        return
    words = _text_of(options)
    for name, text in (options.sources or {}).items():
        words += ["--source", f"{name}={text_words('', text, column=options.text_column)[1]}"]
    mix = " ".join(["fixed", *(f"{name}={share:g}" for name, share in plan["weights"].items())])
    yield Next(["adapt", *words, "--mix", mix, "--out", "adapted"], "to train with it")


@verb(BudgetOptions)
def plan_budget(options: BudgetOptions) -> Plan:
    """Decide whether to spend a budget on labels alone, or to adapt the model and label with what is left.

    A power law is fitted to the scores by number of labels, for the base model and the adapted one (Bai et al., 2021).
    The switch-over is the smallest budget at which adapting is better.

    Returns:
        The plan: ``switch`` with ``value``, ``low`` and ``high``; ``refused``, the reason if its interval is too wide;
        and for each of ``budgets`` the labels, scores, their difference and the ``decision``.

    Raises:
        UserError: If the points cannot be read or are too few, prices are missing, or a run fails.
    """
    return _make(options, make_budget_plan, budget_study)


def show_budget(plan: Plan, options: BudgetOptions) -> Iterator[Any]:
    """Yield what ``acclimate plan budget`` prints."""
    yield from show_plan(plan, options)
    if plan["refused"]:
        return
    words = [*_text_of(options), "--task", options.task or "TASK"]
    yield Next(["compare", *words, "--out", "runs/compare"], "with all labels, to see whether it helps")


@verb(ScheduleOptions)
def plan_schedule(options: ScheduleOptions) -> Plan:
    """Predict the loss at the end of trainings with other learning-rate schedules, from the curves of some.

    The law separates the area under the schedule, its annealing, and the shift to the new text (Wang et al., 2025).

    Returns:
        The plan: ``schedules`` with the predicted loss of each and its interval; ``best``, the name of the lowest;
        ``refused``, the reason if the predicted loss is too uncertain, or all trainings have one schedule.

    Raises:
        UserError: If the curves cannot be read or have too few points.
    """
    check_plan_folder(options.out)
    if not options.log:
        raise UserError("Give the logs of at least one training with --log: its model folder, or log.jsonl.")
    return _write(options, make_schedule_plan)


def show_schedule(plan: Plan, options: ScheduleOptions) -> Iterator[Any]:
    """Yield what ``acclimate plan schedule`` prints."""
    yield from show_plan(plan, options)
    if plan["refused"]:
        return
    best = Schedule.parse(plan["best"])
    words = ["--steps", best.steps, "--learning-rate", f"{best.peak:g}", "--warmup", f"{best.warmup:g}"]
    words += ["--schedule", best.option] if best.shape != "linear" else []
    yield Next(["adapt", "--model", "MODEL", "--corpus", "TEXT", *words, "--out", "adapted"])


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
    return _write(options, make)


def _write(options: Any, make: Any) -> Plan:
    """Make a plan, and write it if there is a folder for it."""
    plan: Plan = make(options)
    if options.out is not None:
        plan.save(options.out)
    return plan


def _draft(options: Any, **more: Any) -> dict[str, Any]:
    """Return a study of the text and model of a plan, without methods."""
    if options.model is None:
        raise UserError("--run needs a model; give it with --model.")
    texts: dict[str, Any] = {name: getattr(options, name, ()) for name in ("corpus", "heldout", "general")}
    texts |= values(options, TextOptions)
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
    if options.repeat and not (options.domain_tokens and options.target_tokens):
        raise UserError("--repeat needs --domain-tokens and --target-tokens, to know how often the text is read.")
    parts = {tokens: tokens / options.target_tokens for tokens in budgets} if options.repeat else {}
    methods = [
        {
            "name": "lm",
            "label": f"{share:g} of domain, {tokens} tokens",
            "adapt": {"tokens": tokens, "replay": round(1 - share, 6)},
            **({"select": {"random": {"share": parts[tokens]}}} if parts.get(tokens, 1) < 1 else {}),
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


def budget_study(options: BudgetOptions) -> dict[str, Any]:
    """Return the study of a budget plan: the base model and ``lm``, fine-tuned with several numbers of labels.

    Raises:
        UserError: If something is missing, or the task has fewer labels.
    """
    if options.task is None:
        raise UserError("--run needs a labelled task; give it with --task.")
    if len(options.labels) < LEVELS:
        raise UserError(f"--labels needs at least {LEVELS} different numbers, such as 50,100,200,400.")
    rows = len(open_task(options.task, options, text_column=None).train)
    labels = [level for level in options.labels if level <= rows]
    if len(labels) < LEVELS:
        raise UserError(
            f"'{options.task}' has {rows:,} rows to train on: give at least {LEVELS} numbers up to that with --labels."
        )
    study = _draft(options, task=options.task, tokens=options.tokens, seeds=options.seeds)
    (domain,) = study["domains"]
    (task,) = domain["tasks"]
    task = task if isinstance(task, dict) else {"path": task}
    name = task.get("name", default_task_name(task["path"]))
    domain["tasks"] = [{**task, "name": f"{name}-{level}", "limit_train": level} for level in labels]
    study |= {"title": "Runs for a plan of a budget", "methods": ["none", options.method or "lm"]}
    return change_values(study, options.settings or {})
