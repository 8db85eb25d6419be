"""``acclimate plan``: the share of domain text, the schedule, and how to spend a budget, before any large training."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from acclimate.base.options import values
from acclimate.base.terminal import echo
from acclimate.cli.app import describe_text, planning, print_next, print_tables
from acclimate.cli.options import command
from acclimate.labs.plan.options import BudgetOptions, RatioOptions, ScheduleOptions


@command(
    planning,
    RatioOptions,
    name="ratio",
    example="acclimate plan ratio --run --model roberta-base --corpus reviews/ --general wiki.txt --tokens 2000000 "
    "--out plan/",
)
def ratio(options: RatioOptions) -> None:
    """Find the largest share of domain text that keeps the loss on general text within a tolerance."""
    from acclimate.labs.plan.pilots import plan_ratio

    plan = plan_ratio(**values(options))
    if _print_plan(plan, options) or plan["refused"] or plan["share"]["value"] is None:
        return
    words = ["--model", options.model or "MODEL", *describe_text("--corpus", options.corpus or None)]
    if (replay := round(1 - plan["share"]["value"], 3)) > 0:
        words += [*describe_text("--replay", options.general or None, "GENERAL"), "--replay-share", replay]
    print_next(
        ["acclimate", "adapt", *words, "--tokens", plan["target_tokens"], "--out", "adapted"], "to train with it"
    )


@command(
    planning,
    BudgetOptions,
    name="budget",
    example="acclimate plan budget --log scores.csv --price 0.5 --cost 20 --budget 300 --out plan/",
)
def budget(options: BudgetOptions) -> None:
    """Decide between labels alone, and adapting first and labelling with what is left of a budget."""
    from acclimate.labs.plan.pilots import plan_budget

    plan = plan_budget(**values(options))
    if _print_plan(plan, options) or plan["refused"]:
        return
    task = options.task if options.run else "TASK"
    words = ["--model", options.model or "MODEL", *describe_text("--corpus", options.corpus or None), "--task", task]
    print_next(["acclimate", "compare", *words, "--out", "runs/compare"], "with all labels, to see whether it helps")


@command(
    planning,
    ScheduleOptions,
    name="schedule",
    example="acclimate plan schedule --log short/ --log shorter/ --schedule 'linear steps=20000 peak=1e-4'",
)
def schedule(options: ScheduleOptions) -> None:
    """Predict the loss of trainings with other learning-rate schedules from the logs of some."""
    from acclimate.labs.plan.pilots import plan_schedule
    from acclimate.labs.plan.schedule import Schedule

    plan = plan_schedule(**values(options))
    if _print_plan(plan, options) or plan["refused"]:
        return
    best = Schedule.parse(plan["best"])
    words = ["--steps", best.steps, "--learning-rate", f"{best.peak:g}", "--warmup", f"{best.warmup:g}"]
    if best.shape == "linear":
        print_next(["acclimate", "adapt", "--model", "MODEL", "--corpus", "TEXT", *words, "--out", "adapted"])


def _print_plan(plan: Any, options: Any) -> bool:
    """Print a plan as JSON, or as a table with its lines; return whether it was JSON."""
    if options.as_json:
        echo(json.dumps(dict(plan), indent=2, default=str))
        return True
    print_tables(_tables(plan))
    for line in plan.describe():
        echo(line)
    if options.out is not None:
        echo(f"All figures: {options.out}")
    return False


def _tables(plan: Any) -> Sequence[Any]:
    """Return the table of a plan, with the interval of a number next to it."""
    from acclimate.results.display import titled_table

    rows = plan.to_pandas().to_dict("records")
    table = titled_table(plan.as_results().tables[0].title)
    names = [name for name in rows[0] if not name.endswith((", low", ", high"))]
    for name in names:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*(_cell(row, name) for name in names))
    return [table]


def _cell(row: Mapping[str, Any], name: str) -> str:
    value = row[name]
    if not isinstance(value, float):
        return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
    if math.isnan(value):
        return ""
    bounds = [f"{row[f'{name}, {end}']:,.3f}" for end in ("low", "high") if f"{name}, {end}" in row]
    return f"{value:,.3f}" + (f" [{', '.join(bounds)}]" if bounds else "")
