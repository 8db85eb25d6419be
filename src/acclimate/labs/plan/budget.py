"""`acclimate plan budget`: spend a budget on labels alone, or adapt first and label with what is left."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from acclimate.base.errors import UserError
from acclimate.data.documents import format_count
from acclimate.labs.plan.laws import Fit, PowerLaw, fit_law, interval
from acclimate.labs.plan.logs import Row, read_rows, select_rows, take_number
from acclimate.labs.plan.options import BudgetOptions
from acclimate.labs.plan.plans import FAR, Estimate, Plan, describe_far, in_words, is_too_wide
from acclimate.results.scores import NO_DIFFERENCE

REQUIRED = ("labels", "score", "adapted")
ARMS = {False: "annotate", True: "adapt"}
"""The two ways to spend a budget, by whether the model is adapted."""
ADAPTATIONS = 3
"""Minimum number of adaptations: with fewer, the variance between adaptations cannot be estimated well enough."""
LEVELS = 4
"""Minimum number of different numbers of labels for each of them: the curve has three parameters."""
EXPONENTS = (-3.0, -0.02)
BEYOND = 4
"""Budgets are considered up to this multiple of the largest number of labels."""
GRID = 400
TRUE, FALSE = ("1", "1.0", "true", "yes"), ("0", "0.0", "false", "no")
ROUNDING = 1e-6
"""Differences of less than this share of the largest score are rounding of the fit."""


@dataclass(frozen=True)
class Spending:
    """Labels and scores that a budget buys.

    Attributes:
        price: Price of one labelled example.
        cost: Cost of the adaptation.
        most: Examples that there are to label.
        unit: The unit of labels in the fitted curves.
        rounding: Differences in score up to this are none.
    """

    price: float
    cost: float
    most: float
    unit: float
    rounding: float = 0.0

    def labels(self, budget: np.ndarray, adapted: bool) -> np.ndarray:
        """Return the number of labels that a budget pays for (budgets,); zero where the adaptation costs more."""
        left = np.maximum(budget - self.cost * adapted, 0)
        return np.minimum(left / self.price, self.most)

    def score(self, fit: Fit, budget: np.ndarray, adapted: bool) -> np.ndarray:
        """Return the score that a budget buys (budgets,); minus infinity where it buys no label."""
        labels = self.labels(budget, adapted)
        scores = fit.predict({"x": np.maximum(labels, 1e-9) / self.unit})
        return np.where(labels > 0, scores, -np.inf)


def make_budget_plan(options: BudgetOptions) -> Plan:
    """Fit a learning curve for the base model and for the adapted one, and compare what a budget buys of each.

    Raises:
        UserError: If the points cannot be read or are too few, or prices are missing.
    """
    if options.price is None:
        raise UserError("The price of a labelled example is needed: give it with --price.")
    rows = _choose_rows(options)
    cost = _find_cost(rows, options)
    labels = {arm: np.array([take_number(row, "labels", 1) for row in own]) for arm, own in rows.items()}
    scores = {arm: np.array([take_number(row, "score") for row in own]) for arm, own in rows.items()}
    unit = float(np.exp(np.log(np.concatenate([*labels.values()])).mean()))
    law = PowerLaw(*EXPONENTS)
    runs = np.array([str(row.get("adaptation") or "") for row in rows[True]])
    fits = {
        arm: fit_law(
            law,
            {"x": labels[arm] / unit},
            scores[arm],
            runs=runs if arm else None,
            seed=options.seed,
            resamples=options.resamples,
        )
        for arm in rows
    }
    rounding = ROUNDING * max(float(np.abs(own).max()) for own in scores.values())
    spending = Spending(options.price, cost, float(options.max_labels or np.inf), unit, rounding)
    most = max(float(own.max()) for own in labels.values())
    fewest = min(float(own.min()) for own in labels.values())
    if spending.most < fewest:
        raise UserError(
            f"--max-labels {spending.most:,.0f} is less than the {fewest:,.0f} labels of the smallest run."
        )
    low = cost + options.price * fewest
    high = cost + options.price * min(BEYOND * most, spending.most)
    switch = _find_switch(fits, spending, low, max(high, low * 1.01))
    until = None
    if switch.value is not None and switch.value < high:
        until = _first_sign(lambda budget: -_gain(fits, spending, budget) - 1e-9, switch.value * 1.001, high)
    adaptations = len(set(runs))
    decides = adaptations >= ADAPTATIONS and not _lack_scatter(scores, fits, rounding)
    refused = _refuse(scores, fits, np.array([fewest, most]) / unit, rounding, adaptations)
    refused = refused or is_too_wide(switch, low, high, logarithmic=True)
    decisions = [_decide(budget, fits, spending, decides) for budget in options.budget]
    notes = [note for one in decisions for note in describe_far(max(one["labels"].values()) / most, "most labels")]
    table = [_table_row(_decide(float(budget), fits, spending, decides)) for budget in np.geomspace(low, high, 8)]
    adapting = [row["budget"] for row in table if row["decision"] == ARMS[True]]
    beyond = [row["budget"] for row in table if adapting and row["budget"] > adapting[-1]]
    values: dict[str, Any] = {
        "price": options.price,
        "cost": cost,
        "max_labels": options.max_labels,
        "points": {ARMS[arm]: len(own) for arm, own in rows.items()},
        "adaptations": adaptations,
        "metric": next((row.get("metric") for row in rows[False]), None),
        "range": [low, high],
        "switch": switch.as_dict(),
        "until": until,
        "refused": refused,
        "shown": any(row["decision"] in ARMS.values() for row in (*decisions, *table) if _is_compared(row)),
        "adapt_from": min(adapting, default=None),
        "adapt_to": adapting[-1] if beyond else None,
        "budgets": decisions,
        "fits": {ARMS[arm]: fit.describe() for arm, fit in fits.items()},
        "unit_labels": unit,
        "notes": notes,
    }
    draw = _figure(labels, scores, fits, spending, values)
    return Plan("budget", values, _describe(values), "Predicted scores by budget", table, draw)


def _lack_scatter(scores: Mapping[bool, np.ndarray], fits: Mapping[bool, Fit], rounding: float) -> bool:
    """Return whether scores that are not all equal lie exactly on the curves, so that intervals would be empty."""
    return bool(np.ptp(np.concatenate([*scores.values()]))) and all(
        fit.describe()["residual"] <= rounding for fit in fits.values()
    )


def _refuse(
    scores: Mapping[bool, np.ndarray], fits: Mapping[bool, Fit], ends: np.ndarray, rounding: float, adaptations: int
) -> str:
    """Return why the scores say nothing about the switch-over; empty if they do.

    Scores that fall with more labels count if they do so beyond their scatter, between the ``ends`` of the labels.
    """
    if _lack_scatter(scores, fits, rounding):
        return (
            "the scores lie exactly on the curves, which says nothing about their scatter: give the score of each run."
        )
    for adapted, fit in fits.items():
        first, last = fit.predict({"x": ends})
        if not np.isfinite([first, last]).all() or first - last > max(rounding, 2 * fit.describe()["residual"]):
            return (
                f"the scores to {ARMS[adapted]} fall with more labels, so the curve is not a learning curve. Higher "
                "scores must be better: give errors as negative numbers."
            )
    if adaptations >= ADAPTATIONS:
        return ""
    return (
        f"the scores come from {format_count(adaptations, 'adaptation')}, so the variance between adaptations is "
        f"unknown. Measure at least {ADAPTATIONS} (--run --seeds {ADAPTATIONS}), and name them in the column "
        "'adaptation'."
    )


def _is_compared(row: Mapping[str, Any]) -> bool:
    """Return whether a budget pays for labels with and without adapting."""
    return row["labels after adapting"] > 0 if "labels after adapting" in row else row["difference"] is not None


def _choose_rows(options: BudgetOptions) -> dict[bool, list[Row]]:
    rows = read_rows(options.log, "scores", REQUIRED)
    task = None if options.run else options.task
    wanted = (("model", options.base, "--base"), ("domain", options.domain, "--domain"), ("task", task, "--task"))
    for name, value, flag in wanted:
        rows = select_rows(rows, name, value, flag)
    arms: dict[bool, list[Row]] = {False: [], True: []}
    for row in rows:
        given = str(row["adapted"]).strip().lower()
        if given not in (*TRUE, *FALSE):
            raise UserError(f"The column 'adapted' holds '{row['adapted']}'; give 1 for an adapted model, else 0.")
        arms[given in TRUE].append(row)
    arms[True] = select_rows(arms[True], "method", options.method, "--method")
    for adapted, own in arms.items():
        levels = len({row["labels"] for row in own})
        if levels < LEVELS or len(own) < LEVELS:
            what = "of the adapted model" if adapted else "of the base model"
            raise UserError(
                f"A plan needs scores {what} with at least {LEVELS} numbers of labels; there are {levels}. Add "
                "points, or use --run."
            )
    return arms


def _find_cost(rows: Mapping[bool, list[Row]], options: BudgetOptions) -> float:
    if (options.cost is None) == (options.hour_price is None):
        raise UserError("Give the cost of the adaptation: either --cost, or --hour-price for the measured time.")
    if options.cost is not None:
        return options.cost
    seconds = [take_number(row, "seconds", 0) for row in rows[True] if row.get("seconds") not in (None, "")]
    if not seconds:
        raise UserError("The points have no time of the adaptation (column 'seconds'); give its cost with --cost.")
    return float(np.mean(seconds)) / 3600 * float(options.hour_price or 0)


def _find_switch(fits: Mapping[bool, Fit], spending: Spending, low: float, high: float) -> Estimate:
    """Return the budget from which on adapting is better, with its interval; None if it never is up to ``high``."""
    value = find_switch(fits, spending, low, high)
    pairs = zip(fits[False].draws, fits[True].draws, strict=True)
    drawn = [find_switch({False: one, True: other}, spending, low, high) for one, other in pairs]
    return Estimate(value, *interval(np.array([high if one is None else one for one in drawn])))


def find_switch(fits: Mapping[bool, Fit], spending: Spending, low: float, high: float) -> float | None:
    """Return the smallest budget in a range at which adapting is not worse; None if it is worse in all of it."""
    return _first_sign(lambda budget: _gain(fits, spending, budget), low, high)


def _gain(fits: Mapping[bool, Fit], spending: Spending, budget: Any) -> np.ndarray:
    """Return how much better adapting is (budgets,)."""
    budgets = np.atleast_1d(np.asarray(budget, dtype=float))
    return spending.score(fits[True], budgets, True) - spending.score(fits[False], budgets, False)


def _first_sign(function: Callable[[Any], np.ndarray], low: float, high: float) -> float | None:
    """Return the smallest number in a range at which a function is not negative; None if there is none."""
    from scipy.optimize import brentq

    grid = np.geomspace(low, high, GRID)
    found = np.flatnonzero(function(grid) >= 0)
    if not len(found):
        return None
    if found[0] == 0:
        return float(low)
    left, right = grid[found[0] - 1], grid[found[0]]
    return float(brentq(lambda budget: float(function(budget)[0]), left, right, xtol=1e-12 * right, rtol=1e-12))


def _decide(budget: float, fits: Mapping[bool, Fit], spending: Spending, decides: bool) -> dict[str, Any]:
    """Return what a budget buys each way: labels, scores, their difference, and the decision.

    Nothing ``decides`` between the two where the variance between adaptations is unknown.
    """
    budgets = np.array([budget])
    scores, drawn = {}, {}
    for adapted, fit in fits.items():
        scores[adapted] = float(spending.score(fit, budgets, adapted)[0])
        drawn[adapted] = np.array([spending.score(draw, budgets, adapted)[0] for draw in fit.draws])
    labels = {ARMS[adapted]: int(spending.labels(budgets, adapted)[0]) for adapted in fits}
    found: dict[str, Any] = {"budget": budget, "labels": labels}
    for adapted, score in scores.items():
        known = np.isfinite(score)
        found[ARMS[adapted]] = Estimate(score, *interval(drawn[adapted])).as_dict() if known else None
    if found["adapt"] is None or found["annotate"] is None:
        return {**found, "difference": None, "decision": "annotate" if found["annotate"] else "too small"}
    difference = Estimate(scores[True] - scores[False], *interval(drawn[True] - drawn[False]))
    least = spending.rounding
    decision = "adapt" if difference.low > least else "annotate" if difference.high < -least else NO_DIFFERENCE
    decision = decision if decides else NO_DIFFERENCE
    return {**found, "difference": difference.as_dict(), "decision": decision}


def _table_row(made: Mapping[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {"budget": made["budget"]}
    for arm, name in (("annotate", "alone"), ("adapt", "after adapting")):
        row[f"labels {name}"] = made["labels"][arm]
        found = made[arm] or dict.fromkeys(("value", "low", "high"))
        row |= {f"score {name}{end}": found[key] for end, key in (("", "value"), (", low", "low"), (", high", "high"))}
    return {**row, "decision": made["decision"]}


def _describe(values: Mapping[str, Any]) -> list[str]:
    switch, (low, high), last = values["switch"], values["range"], values["adapt_to"]
    until = "" if last is None else f" up to {last:,.2f}, beyond which that is not shown to be better"
    end = "on" if last is None else f"to {last:,.2f}"
    if values["refused"]:
        lines = [f"No switch-over budget is given: {values['refused']}"]
    elif not values["shown"]:
        lines = [
            f"No difference is shown: for no budget from {low:,.2f} to {high:,.2f} does the interval of the gain from "
            "adapting first exclude zero."
        ]
    elif switch["value"] is None or values["adapt_from"] is None:
        lines = [f"Spend the budget on labels: up to {high:,.2f}, adapting first is not shown to be better."]
    elif switch["value"] == low:
        lines = [f"Adapt first: from a budget of {values['adapt_from']:,.2f} {end}, that is predicted to be better."]
    else:
        lines = [f"Below {in_words(switch, 2)}, spend the budget on labels; above it, adapt first{until}."]
    if values["until"] is not None and values["shown"] and not values["refused"]:
        lines.append(f"From {values['until']:,.2f} on, labels alone are predicted to be as good again.")
    for made in values["budgets"]:
        counts = made["labels"]
        if made["difference"] is None:
            lines.append(f"With {made['budget']:,.2f}: {made['decision']}, as adapting costs {values['cost']:,.2f}.")
            continue
        lines.append(
            f"With {made['budget']:,.2f}: {counts['annotate']:,} labels, or {counts['adapt']:,} after adapting; "
            f"adapting changes the score by {in_words(made['difference'])}: {made['decision']}."
        )
    lines.append(
        f"A label costs {values['price']:,.2f}, the adaptation {values['cost']:,.2f}. Learning curves fitted to "
        f"{values['points']['annotate']} scores of the base model and {values['points']['adapt']} of "
        f"{format_count(values['adaptations'], 'adaptation')}."
    )
    return [*lines, *values["notes"]]


def _figure(
    labels: Mapping[bool, np.ndarray],
    scores: Mapping[bool, np.ndarray],
    fits: Mapping[bool, Fit],
    spending: Spending,
    values: Mapping[str, Any],
) -> Callable[[Any], None]:
    """Return a function that draws the scores by labels and by budget into a figure."""

    def draw(figure: Any) -> None:
        left, right = figure.subplots(1, 2)
        low, high = values["range"]
        budgets = np.geomspace(low, high, 100)
        for adapted, fit in fits.items():
            colour, name = f"C{int(adapted)}", "adapted" if adapted else "labels only"
            smallest, largest = labels[adapted].min(), labels[adapted].max()
            grid = np.geomspace(smallest, min(BEYOND, FAR) * largest, 100)
            left.plot(labels[adapted], scores[adapted], "o", color=colour, ms=4)
            left.plot(grid, fit.predict({"x": grid / spending.unit}), color=colour, lw=1)
            found = spending.score(fit, budgets, adapted)
            drawn = np.array([spending.score(one, budgets, adapted) for one in fit.draws])
            shown = np.isfinite(found) & np.isfinite(drawn).all(0) & (spending.labels(budgets, adapted) >= smallest)
            right.plot(budgets[shown], found[shown], color=colour, lw=1.5, label=name)
            bands = np.percentile(drawn[:, shown], [2.5, 97.5], axis=0)
            right.fill_between(budgets[shown], *bands, color=colour, alpha=0.2, lw=0)
        if values["switch"]["value"] is not None and not values["refused"]:
            right.axvline(values["switch"]["value"], color="0.2", lw=0.8, ls="--")
        left.set(xscale="log", xlabel="labelled examples", ylabel=str(values["metric"] or "score"))
        right.set(xscale="log", xlabel="budget", ylabel=str(values["metric"] or "score"))
        for axes in (left, right):
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
        right.legend(frameon=False, fontsize=8)

    return draw
