"""`acclimate plan ratio`: the share of domain text in a mixture with general text, from runs that are smaller."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from acclimate.base.errors import UserError
from acclimate.labs.plan.laws import DomainLaw, Fit, Law, MixtureLaw, PowerLaw, RepeatedLaw, fit_law, interval, redraw
from acclimate.labs.plan.logs import Row, read_rows, select_rows, take_number
from acclimate.labs.plan.options import RatioOptions
from acclimate.labs.plan.plans import Estimate, Plan, describe_far, in_words, is_degenerate, is_too_wide

REQUIRED = ("share", "tokens", "domain_loss", "general_loss")
SHARES, BUDGETS = 3, 3
"""Minimum number of different shares, and of different numbers of tokens."""
SAME_BUDGET = 1.1
"""Numbers of tokens that differ by less than this factor are one budget: runs stop at whole steps."""
GRID = 401
"""Shares at which losses are predicted."""
LAWS = {"cmr": "CMR", "dcpt": "D-CPT", "cross-domain": "cross-domain D-CPT"}
BEYOND = 4
"""Default tokens of the planned training, in multiples of the largest run."""
SIMULATIONS = 49
"""Simulated measurements that a law is tested with: it is ruled out if none fits as badly, a p-value of 0.02."""
RISES, DEPENDS = 0.01, 0.05
"""p-values below which losses rise where they should not, and below which they depend on the share."""
Fits = dict[str, Fit]
"""The fits of one law, by text."""


@dataclass(frozen=True)
class Points:
    """Measured runs of one base model.

    Attributes:
        inputs: What the laws read, by name, for the domain loss: arrays of (points,).
        losses: The loss on ``domain`` and ``general`` text (points,).
        budgets: Number of the budget of each point, from the smallest (points,).
        tokens: Tokens of each point (points,).
        unit: The unit of ``inputs["tokens"]``, in tokens.
        base: Loss of the base model on ``domain`` and ``general`` text; None where it is unknown.
        planned: Inputs of the domain and the model that is planned for, instead of the inputs of the points.
    """

    inputs: dict[str, np.ndarray]
    losses: dict[str, np.ndarray]
    budgets: np.ndarray
    tokens: np.ndarray
    unit: float
    base: dict[str, float | None]
    planned: dict[str, float]

    def at(self, text: str, keep: np.ndarray | slice = slice(None)) -> dict[str, np.ndarray]:
        """Return what a law of the loss on a text reads at some of the points."""
        inputs = {name: values[keep] for name, values in self.inputs.items()}
        return inputs if text == "domain" else {**inputs, "share": 1 - inputs["share"]}

    def new(self, text: str, shares: np.ndarray, tokens: np.ndarray) -> dict[str, np.ndarray]:
        """Return what a law of the loss on a text reads at new shares of domain text and tokens, both (n,)."""
        more = {name: np.full(len(shares), value) for name, value in self.planned.items()}
        own = shares if text == "domain" else 1 - shares
        return {"share": own, "domain_share": shares, "tokens": tokens / self.unit, **more}

    def parameters(self, law: Law) -> int:
        """Return the number of parameters of a law, or of the one of repeated domain text if that has more."""
        return max(law.parameters, RepeatedLaw().parameters if "unique" in self.inputs else 0)

    def fit(self, law: Law, text: str, seed: int, keep: np.ndarray | slice = slice(None)) -> Fit:
        """Return the fit of a law to the loss on a text at some points; repeated domain text has a law of its own."""
        own = RepeatedLaw() if text == "domain" and "unique" in self.inputs else law
        return fit_law(own, self.at(text, keep), self.losses[text][keep], seed=seed)


def make_ratio_plan(options: RatioOptions) -> Plan:
    """Fit the laws to measured runs, and find the share.

    Raises:
        UserError: If the points cannot be read, are too few, or lack the loss of the base model.
    """
    points = read_points(options)
    target = _target_of(options, points.tokens)
    candidates = {law.name: law for law in _candidates(options.law, points)}
    all_fits: dict[str, Fits] = {
        name: {text: points.fit(law, text, options.seed) for text in points.losses} for name, law in candidates.items()
    }
    smaller = {name: _fit_smaller(law, points, options.seed) for name, law in candidates.items()}
    checks = {name: _check(fits, points, points.losses) for name, fits in smaller.items()}
    plausible, ruled_out = _rule_out(all_fits, points, options.seed)
    law = _choose(plausible, checks)
    draws = _draw(law, {name: (all_fits[name], smaller[name]) for name in plausible}, points, options)
    base = points.base["general"] if options.base_loss is None else options.base_loss
    if base is None:
        raise UserError(
            "The loss of the base model on general text is unknown: add a row with tokens 0 and its losses, or give "
            "--base-loss."
        )
    cap = base + options.tolerance
    measured = points.inputs["domain_share"]
    grid = np.linspace(measured.min(), measured.max(), GRID)
    limited = options.domain_tokens is not None
    once = limited and not options.repeat
    tokens = (options.domain_tokens or target) / grid if once else np.full(GRID, target)
    new = {text: points.new(text, grid, tokens) for text in points.losses}
    predictions = {
        text: _Prediction(all_fits[law][text].predict(read), np.stack([draw[text].predict(read) for draw in draws]))
        for text, read in new.items()
    }
    found, where = _find_share(grid, predictions, cap, limited)
    others = {
        name: grid[
            max(0, _find_place(grid, {text: all_fits[name][text].predict(new[text]) for text in new}, cap, limited))
        ]
        for name in plausible
        if name != law
    }
    refused = (
        _find_unmatched(points, float(grid[where]))
        or _find_degenerate(points, predictions)
        or _find_scatter(all_fits[law]["general"], options.tolerance)
        or ("no law fits the measured losses on general text. Measure more runs." if ruled_out == "all" else "")
        or _find_disagreement(law, found, others, float(grid[1] - grid[0]))
        or is_too_wide(found, float(grid[0]), float(grid[-1]))
    )
    notes = [*describe_far(float(tokens[where]) / points.tokens.max(), "tokens of the largest run")]
    if found.value is None:
        notes.append(
            f"Even with {grid[0]:.2f} of domain text, the smallest share measured, general text is predicted to lose "
            "more than the tolerance: measure smaller shares, or allow more."
        )
    elif found.value == grid[-1]:
        notes.append(f"No limit was found up to {grid[-1]:.2f} of domain text, the largest share measured.")
    check = checks[law]
    if check and check["general"] > options.tolerance:
        notes.append("The law missed the largest runs by more than the tolerance: do not rely on this plan.")
    values: dict[str, Any] = {
        "law": law,
        "laws": {name: name in plausible for name in candidates},
        "points": len(measured),
        "target_tokens": round(float(tokens[where])),
        "epochs": float(grid[where]) / points.planned["unique"] if options.repeat else None,
        "tolerance": options.tolerance,
        "base": {**points.base, "general": base},
        "share": found.as_dict(),
        "refused": refused,
        "predicted": {text: made.at(where).as_dict() for text, made in predictions.items()},
        "checks": checks,
        "fits": {text: fit.describe() for text, fit in all_fits[law].items()},
        "critical": _critical_ratios(points, cap, target, options.seed),
        "unit_tokens": points.unit,
        "notes": notes,
    }
    rows = [
        {
            "domain share": float(grid[index]),
            **({"tokens": round(float(tokens[index]))} if once else {}),
            **{
                f"{text} loss{end}": getattr(made.at(index), key)
                for text, made in predictions.items()
                for end, key in (("", "value"), (", low", "low"), (", high", "high"))
            },
        }
        for index in np.linspace(0, GRID - 1, 11).astype(int)
    ]
    draw = _figure(points, all_fits[law], predictions, grid, cap, values)
    return Plan("ratio", values, _describe(values, options), "Predicted losses by share of domain text", rows, draw)


def _target_of(options: RatioOptions, tokens: np.ndarray) -> float:
    return float(options.target_tokens or BEYOND * tokens.max())


def read_points(options: RatioOptions) -> Points:
    """Read the measured runs that a plan is made from.

    Raises:
        UserError: If they cannot be read, or are too few.
    """
    rows = select_rows(read_rows(options.log, "losses", REQUIRED), "model", options.base, "--base")
    cross = options.law == "cross-domain"
    chosen = select_rows(rows, "domain", options.domain, "--domain")
    base = _base_losses(chosen)
    used = rows if cross else chosen
    runs = [row for row in used if take_number(row, "tokens", 0) > 0]
    share = np.array([take_number(row, "share", 0, 1) for row in runs])
    tokens = np.array([take_number(row, "tokens", 0) for row in runs])
    losses = {text: np.array([take_number(row, f"{text}_loss", 0) for row in runs]) for text in ("domain", "general")}
    order = np.argsort(tokens, kind="stable")
    budgets = np.zeros(len(runs), dtype=int)
    budgets[order] = np.cumsum(np.diff(np.log(tokens[order]), prepend=np.log(tokens[order][:1])) > np.log(SAME_BUDGET))
    if len(set(share.round(2))) < SHARES or len(set(budgets)) < BUDGETS:
        raise UserError(
            f"A plan needs runs with at least {SHARES} shares of domain text and {BUDGETS} numbers of tokens; these "
            f"{len(runs)} runs have {len(set(share.round(2)))} and {len(set(budgets))}. Add runs, or use --run."
        )
    unit = float(np.exp(np.log(tokens).mean()))
    inputs = {"share": share, "domain_share": share, "tokens": tokens / unit}
    planned: dict[str, float] = {}
    sizes = {row.get("parameters") for row in runs}
    if len(sizes) > 1:
        parameters = np.array([take_number(row, "parameters", 1) for row in runs])
        if options.parameters is None:
            raise UserError("The runs are of models of several sizes: give the size to plan for with --parameters.")
        size = float(np.exp(np.log(parameters).mean()))
        inputs["parameters"], planned["parameters"] = parameters / size, options.parameters / size
    if cross:
        traits = {name: _domain_traits(name, rows) for name in {str(row.get("domain")) for row in runs}}
        if options.domain is None or len(traits) < SHARES:
            raise UserError(
                "The cross-domain law needs runs of at least 3 domains, and the one to plan for: --domain."
            )
        for name in ("first", "drop"):
            inputs[name] = np.array([traits[str(row.get("domain"))][name] for row in runs])
            planned[name] = traits[options.domain][name]
    if options.repeat:
        if options.domain_tokens is None or len(sizes) > 1 or cross:
            raise UserError("--repeat needs --domain-tokens, and runs of one domain and one size of the model.")
        if lacking := sum("epochs" not in row for row in runs):
            raise UserError(
                f"--repeat needs the column epochs, how often each run read its domain text; {lacking} of {len(runs)} "
                "runs lack it. Add it, or use --run."
            )
        inputs["unique"] = np.maximum(1e-6, share) / np.maximum(1e-3, [take_number(row, "epochs", 0) for row in runs])
        planned["unique"] = options.domain_tokens / _target_of(options, tokens)
    return Points(inputs, losses, budgets, tokens, unit, base, planned)


def _base_losses(rows: list[Row]) -> dict[str, float | None]:
    base = [row for row in rows if take_number(row, "tokens", 0) == 0]
    return {
        text: float(np.mean([take_number(row, f"{text}_loss", 0) for row in base])) if base else None
        for text in ("domain", "general")
    }


def _domain_traits(name: str, rows: list[Row]) -> dict[str, float]:
    """Return the loss of the base model on a domain, and how much it falls with the fewest tokens."""
    own = [row for row in rows if str(row.get("domain")) == name]
    first = _base_losses(own)["domain"]
    if first is None:
        raise UserError(f"The cross-domain law needs the loss of the base model: add a row with tokens 0 of '{name}'.")
    fewest = min(take_number(row, "tokens", 0) for row in own if float(row["tokens"]) > 0)
    early = [row for row in own if 0 < float(row["tokens"]) <= SAME_BUDGET * fewest]
    return {"first": first, "drop": max(0.0, first - min(take_number(row, "domain_loss", 0) for row in early))}


def _candidates(name: str, points: Points) -> list[Law]:
    """Return the laws to choose from: those that have fewer parameters than there are points."""
    sizes = "parameters" in points.inputs
    if name == "cmr" and sizes:
        raise UserError("The CMR law has no term for the size of the model; choose --law dcpt, or one size.")
    wanted: list[Law] = [] if sizes or name not in ("auto", "cmr") else [MixtureLaw()]
    if name != "cmr":
        wanted.append(DomainLaw(sizes=sizes, domains=name == "cross-domain"))
    fitting = [law for law in wanted if points.parameters(law) < len(points.tokens)]
    if not fitting:
        needed = min(map(points.parameters, wanted)) + 1
        raise UserError(f"The law needs at least {needed} runs; there are {len(points.tokens)}. Add runs.")
    return fitting


def _fit_smaller(law: Law, points: Points, seed: int) -> Fits | None:
    """Return the fits without the largest budget, for :func:`_check`; None if too few points are left."""
    kept = points.budgets < points.budgets.max()
    if kept.sum() <= points.parameters(law) or len(set(points.budgets)) <= 2:
        return None
    return {text: points.fit(law, text, seed, kept) for text in points.losses}


def _check(fits: Fits | None, points: Points, losses: Mapping[str, np.ndarray]) -> dict[str, float] | None:
    """Return how far predictions for the largest budget are off if only smaller ones are fitted, in nats.

    Args:
        fits: Fits without the largest budget; None if there are none.
        points: The measured runs.
        losses: Losses at these points, by text.
    """
    if fits is None:
        return None
    last = points.budgets == points.budgets.max()
    found = {}
    for text, fit in fits.items():
        missed = fit.predict(points.at(text, last)) - losses[text][last]
        found[text] = float(np.sqrt(np.mean(missed**2)))
    times = points.tokens[last].mean() / points.tokens[~last].max()
    return {**found, "rms": float(np.hypot(found["domain"], found["general"])), "times": float(times)}


def _rule_out(fits: Mapping[str, Fits], points: Points, seed: int) -> tuple[list[str], str]:
    """Return the laws that the losses on general text do not rule out, and which were ruled out: "", "some" or "all".

    A law is ruled out if another one fits these losses better by more than it would if the law were true: the test of
    Cox (1961) for laws that are not nested, with measurements simulated from the law (Williams, 1970). D-CPT, whose
    terms fall with tokens, is ruled out in this way where general text is forgotten.
    """
    inputs, losses = points.at("general"), points.losses["general"]
    plausible = []
    for name, own in fits.items():
        null = own["general"]
        drawn = redraw(null, inputs, losses, np.random.default_rng(seed), SIMULATIONS)
        rivals = [other["general"] for label, other in fits.items() if label != name]
        if all(
            any(_ratio(null.refit(inputs, one), rival.refit(inputs, one)) >= _ratio(null, rival) for one in drawn)
            for rival in rivals
        ):
            plausible.append(name)
    return plausible or list(fits), "" if len(plausible) == len(fits) else "some" if plausible else "all"


def _ratio(one: Fit, other: Fit) -> float:
    return float((np.sum(one.residuals**2) + 1e-30) / (np.sum(other.residuals**2) + 1e-30))


def _choose(names: list[str], checks: Mapping[str, dict[str, float] | None]) -> str:
    """Return the law that predicts the largest runs best on general text, which decides the share."""
    return min(names, key=lambda name: (checks[name] or {"general": np.inf})["general"])


def _draw(law: str, laws: Mapping[str, tuple[Fits, Fits | None]], points: Points, options: RatioOptions) -> list[Fits]:
    """Return fits to bootstrap samples, in each of which the law is chosen again.

    Args:
        law: The chosen law.
        laws: The fits of each law that is not ruled out, to all points and without the largest budget.
        points: The measured runs.
        options: Number of samples, and seed.
    """
    own, _ = laws[law]
    samples = {
        text: redraw(fit, points.at(text), points.losses[text], np.random.default_rng(options.seed), options.resamples)
        for text, fit in own.items()
    }
    kept = points.budgets < points.budgets.max()
    made = []
    for number in range(options.resamples):
        losses = {text: drawn[number] for text, drawn in samples.items()}
        chosen = law
        if len(laws) > 1:
            again = {
                name: smaller
                and {text: fit.refit(points.at(text, kept), losses[text][kept]) for text, fit in smaller.items()}
                for name, (_, smaller) in laws.items()
            }
            chosen = _choose(list(laws), {name: _check(fits, points, losses) for name, fits in again.items()})
        made.append({text: fit.refit(points.at(text), losses[text]) for text, fit in laws[chosen][0].items()})
    return made


def _find_degenerate(points: Points, predictions: Mapping[str, _Prediction]) -> str:
    """Return why the measured losses say nothing about a share, or the predicted ones are no losses; empty if not."""
    for text, made in predictions.items():
        if why := is_degenerate(points.losses[text], made.values, f"{text} text"):
            return why
    if {"first", "parameters", "unique"} & points.inputs.keys():
        return ""
    least, most = (float(end(points.inputs["domain_share"])) for end in (np.min, np.max))
    more_share = np.array([0, most - least, most**2 - least**2, 0, 0])  # at the geometric mean of the tokens
    domain, general = (_Trend.of(points, text) for text in ("domain", "general"))
    if domain.chance_of_no_rise(np.array([0, 0, 0, 1, most])) < RISES:
        return (
            "the loss on domain text rises with tokens, so these trainings harm the model. Lower the learning rate "
            "and measure again."
        )
    advice = "Check that the columns share, domain_loss and general_loss are not swapped."
    if domain.chance_of_no_rise(more_share) < RISES:
        return f"the loss on domain text rises with its share, so there is nothing to weigh. {advice}"
    if general.chance_of_no_rise(-more_share) < RISES:
        return f"the loss on general text falls with the share of domain text, so there is nothing to weigh. {advice}"
    if domain.chance_of_no_share > DEPENDS:
        return "the loss on domain text does not depend on its share beyond the scatter. Measure more runs."
    return ""


@dataclass(frozen=True)
class _Trend:
    """A regression of losses on the share of domain text, its square, the logarithm of the tokens, and a product."""

    design: np.ndarray
    losses: np.ndarray

    @classmethod
    def of(cls, points: Points, text: str) -> _Trend:
        """Return the regression of the losses on a text."""
        share, grown = points.inputs["domain_share"], np.log(points.inputs["tokens"])
        return cls(np.stack([np.ones_like(share), share, share**2, grown, share * grown], 1), points.losses[text])

    @property
    def freedom(self) -> int:
        """Degrees of freedom; nothing is shown without any."""
        return len(self.losses) - self.design.shape[1]

    def squares(self, columns: slice | list[int] = slice(None)) -> float:
        """Return the sum of the squared residuals with some of the columns."""
        used = self.design[:, columns]
        return float(np.sum((self.losses - used @ np.linalg.lstsq(used, self.losses, rcond=None)[0]) ** 2))

    def chance_of_no_rise(self, direction: np.ndarray) -> float:
        """Return the p-value of the losses not rising in a direction of the columns; 1 if that cannot be tested."""
        from scipy import stats

        if self.freedom < 1:
            return 1.0
        rise = float(direction @ np.linalg.lstsq(self.design, self.losses, rcond=None)[0])
        spread = float(direction @ np.linalg.pinv(self.design.T @ self.design) @ direction)
        return float(stats.t.sf(rise / (math.sqrt(self.squares() / self.freedom * spread) + 1e-30), self.freedom))

    @property
    def chance_of_no_share(self) -> float:
        """The p-value of the losses not depending on the share; 0 if that cannot be tested."""
        from scipy import stats

        if self.freedom < 1:
            return 0.0
        gained = (self.squares([0, 3]) - self.squares()) / 3
        return float(stats.f.sf(gained / (self.squares() / self.freedom + 1e-30), 3, self.freedom))


def _find_scatter(fit: Fit, tolerance: float) -> str:
    """Return that losses scatter around their law by more than the tolerance; empty if not."""
    scatter = math.sqrt(float(np.sum(fit.residuals**2)) / (len(fit.residuals) - fit.law.parameters))
    if scatter <= tolerance:
        return ""
    return (
        f"the losses on general text scatter by {scatter:.3g} nats, more than the tolerance of {tolerance:g}. Measure "
        "them on more text, or allow more."
    )


def _find_unmatched(points: Points, share: float) -> str:
    """Return that a training would repeat its domain text more often than the runs did; empty if it would not."""
    if "unique" not in points.inputs:
        return ""
    planned = share / points.planned["unique"]
    measured = np.max(points.inputs["domain_share"] / points.inputs["unique"])
    if planned <= SAME_BUDGET * max(1.0, measured):
        return ""
    return (
        f"the training would read its domain text {planned:.1f} times, the runs read theirs at most {measured:.1f} "
        "times. Measure runs that read as small a part of the domain text as they are short, as --run --repeat does "
        "with a corpus of --domain-tokens."
    )


def _find_disagreement(law: str, found: Estimate, others: Mapping[str, float], step: float) -> str:
    """Return that another law that fits as well gives a share outside the interval; empty if none does."""
    for name, share in others.items():
        if not found.low - step <= share <= found.high + step:
            value = found.low if found.value is None else found.value
            return (
                f"the {LAWS[law]} law and the {LAWS[name]} law both fit the runs, and give shares of {value:.2f} and "
                f"{share:.2f}. Measure larger runs, which distinguish them."
            )
    return ""


@dataclass(frozen=True)
class _Prediction:
    """A loss at each share of a grid (grid,), and the same for each bootstrap sample (samples, grid)."""

    values: np.ndarray
    draws: np.ndarray

    def at(self, index: int) -> Estimate:
        """Return the loss at one place of the grid, with its interval."""
        return Estimate(float(self.values[index]), *interval(self.draws[:, index]))


def _find_share(
    grid: np.ndarray, predictions: Mapping[str, _Prediction], cap: float, limited: bool
) -> tuple[Estimate, int]:
    """Return the share with its interval, and its place in the grid.

    See :func:`_find_place`; a share that is not found counts as the smallest measured one in the interval.
    """
    values = {text: made.values for text, made in predictions.items()}
    place = _find_place(grid, values, cap, limited)
    drawn = [
        max(0, _find_place(grid, {text: made.draws[number] for text, made in predictions.items()}, cap, limited))
        for number in range(len(predictions["general"].draws))
    ]
    value = None if place < 0 else float(grid[place])
    return Estimate(value, *interval(grid[drawn])), max(0, place)


def _find_place(grid: np.ndarray, losses: Mapping[str, np.ndarray], cap: float, limited: bool) -> int:
    """Return the place of the share in a grid, for predicted losses by text (grid,); -1 if there is none.

    It is the largest share up to which the general loss is at most ``cap``; if domain text is ``limited``, so that
    less of it means a longer training, the one of these with the lowest domain loss. A law may fall again near a share
    of one, where r^eta is steep: shares beyond the first one above the cap do not count.
    """
    above = np.flatnonzero(losses["general"] > cap)
    last = int(above[0]) - 1 if len(above) else len(grid) - 1
    return int(np.argmin(losses["domain"][: last + 1])) if limited and last >= 0 else last


def _critical_ratios(points: Points, cap: float, target: float, seed: int) -> dict[str, Any]:
    """Return the critical ratio of each budget, and extrapolate it, as the CMR paper does.

    For each budget the general loss is a power law in the share, which is solved for the cap; these ratios follow
    R(T) = eta0 + eta1 T^s. ``target`` is None unless four budgets have a ratio inside the measured shares.
    """
    share, inside = points.inputs["domain_share"], []
    for budget in sorted(set(points.budgets)):
        own = points.budgets == budget
        law = PowerLaw(0.2, 6.0)
        if own.sum() <= law.parameters:
            continue
        grid = np.linspace(share[own].min(), share[own].max(), GRID)
        predicted = fit_law(law, {"x": share[own]}, points.losses["general"][own], seed=seed).predict({"x": grid})
        within = np.flatnonzero(predicted <= cap)
        if len(within) and within[-1] < GRID - 1:
            inside.append((float(points.tokens[own].mean()), float(grid[within[-1]])))
    found: dict[str, Any] = {"budgets": [{"tokens": tokens, "share": ratio} for tokens, ratio in inside]}
    if len(inside) < 4:
        return {**found, "target": None}
    tokens, ratios = np.array(inside).T
    fit = fit_law(PowerLaw(-2.0, 1.0), {"x": tokens / points.unit}, ratios, seed=seed)
    return {**found, "target": float(np.clip(fit.predict({"x": np.array([target / points.unit])})[0], 0, 1))}


def _describe(values: Mapping[str, Any], options: RatioOptions) -> list[str]:
    share, target, base = values["share"], values["target_tokens"], values["base"]["general"]
    limit = f"within {options.tolerance:g} nats of the base model ({base:.3f}) after {target:,} tokens"
    if values["refused"]:
        lines = [f"No share is recommended: {values['refused']}"]
    elif share["value"] is None:
        lines = [f"No measured share keeps the loss on general text {limit}."]
    else:
        goal = "with the lowest domain loss, of those" if options.domain_tokens else "the largest"
        lines = [f"Domain share: {in_words(share, 2)}, {goal} whose loss on general text stays {limit}."]
        losses = "; ".join(f"{text} {in_words(found)}" for text, found in values["predicted"].items())
        lines.append(f"Predicted loss in nats: {losses}.")
        if values["epochs"] is not None:
            lines.append(f"Domain text is read {values['epochs']:.1f} times.")
    lines.append(f"{LAWS[values['law']]} law, fitted to {values['points']} runs.")
    if check := values["checks"][values["law"]]:
        lines.append(
            f"Fitted without the largest budget, it misses those runs, {check['times']:.1f} times larger, by "
            f"{check['domain']:.3f} nats on domain and {check['general']:.3f} on general text (root mean square)."
        )
    if values["critical"]["target"] is not None:
        lines.append(f"Extrapolating the critical ratio of each budget instead: {values['critical']['target']:.2f}.")
    return [*lines, *values["notes"]]


def _figure(
    points: Points,
    fits: Mapping[str, Fit],
    predictions: Mapping[str, _Prediction],
    grid: np.ndarray,
    cap: float,
    values: Mapping[str, Any],
) -> Callable[[Any], None]:
    """Return a function that draws measured and predicted losses by share into a figure."""

    def draw(figure: Any) -> None:
        for axes, (text, made) in zip(figure.subplots(1, 2), predictions.items(), strict=True):
            for number, budget in enumerate(sorted(set(points.budgets))):
                own, colour = points.budgets == budget, f"C{number % 10}"
                tokens = points.tokens[own].mean()
                axes.plot(points.inputs["domain_share"][own], points.losses[text][own], "o", color=colour, ms=4)
                curve = fits[text].predict(points.new(text, grid, np.full(len(grid), tokens)))
                axes.plot(grid, curve, color=colour, lw=1, label=f"{tokens:,.3g} tokens")
            bands = np.percentile(made.draws, [2.5, 97.5], axis=0)
            axes.fill_between(grid, *bands, color="0.7", alpha=0.5, lw=0)
            axes.plot(grid, made.values, color="0.2", lw=1.5, label="planned")
            if text == "general":
                axes.axhline(cap, color="0.2", lw=0.8, ls=":")
            if values["share"]["value"] is not None and not values["refused"]:
                axes.axvline(values["share"]["value"], color="0.2", lw=0.8, ls="--")
            axes.set(xlabel="share of domain text", ylabel=f"loss on {text} text, nats per token")
        axes.legend(frameon=False, fontsize=7)

    return draw
