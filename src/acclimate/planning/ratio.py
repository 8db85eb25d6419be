"""`acclimate plan ratio`: the share of domain text in a mixture with general text, from runs that are smaller."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from acclimate.errors import UserError
from acclimate.options.planning import RatioOptions
from acclimate.planning.laws import DomainLaw, Fit, Law, MixtureLaw, PowerLaw, fit_law, interval
from acclimate.planning.logs import Row, read_rows, select_rows, take_number
from acclimate.planning.plans import Estimate, Plan, describe_far, in_words, is_too_wide

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
        planned: Inputs of the domain and the model that is planned for, in place of those of the points.
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


def make_ratio_plan(options: RatioOptions) -> Plan:
    """Fit the laws to measured runs, and find the share.

    Raises:
        UserError: If the points cannot be read, are too few, or lack the loss of the base model.
    """
    points = read_points(options)
    target = float(options.target_tokens or BEYOND * points.tokens.max())
    laws = _candidates(options.law, points)
    checks = {law.name: _check(law, points, options.seed) for law in laws}
    law = min(laws, key=lambda one: (checks[one.name] or {"rms": np.inf})["rms"])
    fits = {
        text: fit_law(law, points.at(text), losses, seed=options.seed, resamples=options.resamples)
        for text, losses in points.losses.items()
    }
    base = points.base["general"] if options.base_loss is None else options.base_loss
    if base is None:
        raise UserError(
            "The loss of the base model on general text is unknown: add a row with tokens 0 and its losses, or give "
            "--base-loss."
        )
    cap = base + options.tolerance
    measured = points.inputs["domain_share"]
    grid = np.linspace(measured.min(), measured.max(), GRID)
    tokens = np.full(GRID, target) if options.domain_tokens is None else options.domain_tokens / grid
    predictions = {text: _predict(fit, points.new(text, grid, tokens)) for text, fit in fits.items()}
    found, where = _find_share(grid, predictions, cap, options.domain_tokens is not None)
    notes = [*describe_far(float(tokens[where]) / points.tokens.max(), "tokens of the largest run")]
    if found.value is None:
        notes.append(
            f"Even with {grid[0]:.2f} of domain text, the smallest share measured, general text is predicted to lose "
            "more than the tolerance: measure smaller shares, or allow more."
        )
    elif found.value == grid[-1]:
        notes.append(f"No limit was found up to {grid[-1]:.2f} of domain text, the largest share measured.")
    check = checks[law.name]
    if check and check["general"] > options.tolerance:
        notes.append("The law missed the largest runs by more than the tolerance: do not rely on this plan.")
    values: dict[str, Any] = {
        "law": law.name,
        "points": len(measured),
        "target_tokens": round(float(tokens[where])),
        "tolerance": options.tolerance,
        "base": {**points.base, "general": base},
        "share": found.as_dict(),
        "refused": is_too_wide(found, float(grid[0]), float(grid[-1])),
        "predicted": {text: made.at(where).as_dict() for text, made in predictions.items()},
        "checks": checks,
        "fits": {text: fit.describe() for text, fit in fits.items()},
        "critical": _critical_ratios(points, cap, target, options.seed),
        "unit_tokens": points.unit,
        "notes": notes,
    }
    rows = [
        {
            "domain share": float(grid[index]),
            **({} if options.domain_tokens is None else {"tokens": round(float(tokens[index]))}),
            **{
                f"{text} loss{end}": getattr(made.at(index), key)
                for text, made in predictions.items()
                for end, key in (("", "value"), (", low", "low"), (", high", "high"))
            },
        }
        for index in np.linspace(0, GRID - 1, 11).astype(int)
    ]
    draw = _figure(points, fits, predictions, grid, cap, values)
    return Plan("ratio", values, _describe(values, options), "Predicted losses by share of domain text", rows, draw)


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
    return Points(inputs, losses, budgets, tokens, unit, base, planned)


def _base_losses(rows: list[Row]) -> dict[str, float | None]:
    """Return the mean losses of the rows without training."""
    base = [row for row in rows if take_number(row, "tokens", 0) == 0]
    return {
        text: float(np.mean([take_number(row, f"{text}_loss", 0) for row in base])) if base else None
        for text in ("domain", "general")
    }


def _domain_traits(name: str, rows: list[Row]) -> dict[str, float]:
    """Return the loss of the base model on a domain, and how much it falls with the fewest tokens.

    Raises:
        UserError: If the base model was not measured on the domain.
    """
    own = [row for row in rows if str(row.get("domain")) == name]
    first = _base_losses(own)["domain"]
    if first is None:
        raise UserError(f"The cross-domain law needs the loss of the base model: add a row with tokens 0 of '{name}'.")
    fewest = min(take_number(row, "tokens", 0) for row in own if float(row["tokens"]) > 0)
    early = [row for row in own if 0 < float(row["tokens"]) <= SAME_BUDGET * fewest]
    return {"first": first, "drop": max(0.0, first - min(take_number(row, "domain_loss", 0) for row in early))}


def _candidates(name: str, points: Points) -> list[Law]:
    """Return the laws to choose from: those that have fewer parameters than there are points.

    Raises:
        UserError: If there is none, or several sizes of models need another law.
    """
    sizes = "parameters" in points.inputs
    if name == "cmr" and sizes:
        raise UserError("The CMR law has no term for the size of the model; choose --law dcpt, or one size.")
    wanted: list[Law] = [] if sizes or name not in ("auto", "cmr") else [MixtureLaw()]
    if name != "cmr":
        wanted.append(DomainLaw(sizes=sizes, domains=name == "cross-domain"))
    fitting = [law for law in wanted if law.parameters < len(points.tokens)]
    if not fitting:
        needed = min(law.parameters for law in wanted) + 1
        raise UserError(f"The law needs at least {needed} runs; there are {len(points.tokens)}. Add runs.")
    return fitting


def _check(law: Law, points: Points, seed: int) -> dict[str, float] | None:
    """Return how far predictions for the largest budget are off if only smaller ones are fitted, in nats.

    None if too few points are left.
    """
    last = points.budgets == points.budgets.max()
    if (~last).sum() <= law.parameters or len(set(points.budgets)) <= 2:
        return None
    found = {}
    for text, losses in points.losses.items():
        fit = fit_law(law, points.at(text, ~last), losses[~last], seed=seed)
        found[text] = float(np.sqrt(np.mean((fit.predict(points.at(text, last)) - losses[last]) ** 2)))
    times = points.tokens[last].mean() / points.tokens[~last].max()
    return {**found, "rms": float(np.hypot(found["domain"], found["general"])), "times": float(times)}


@dataclass(frozen=True)
class _Prediction:
    """A loss at each share of a grid (grid,), and the same for each bootstrap sample (samples, grid)."""

    values: np.ndarray
    draws: np.ndarray

    def at(self, index: int) -> Estimate:
        """Return the loss at one place of the grid, with its interval."""
        return Estimate(float(self.values[index]), *interval(self.draws[:, index]))


def _predict(fit: Fit, inputs: Mapping[str, np.ndarray]) -> _Prediction:
    return _Prediction(fit.predict(inputs), np.stack([draw.predict(inputs) for draw in fit.draws]))


def _find_share(
    grid: np.ndarray, predictions: Mapping[str, _Prediction], cap: float, limited: bool
) -> tuple[Estimate, int]:
    """Return the share with its interval, and its place in the grid.

    It is the largest share up to which the general loss is at most ``cap``; if domain text is ``limited``, so that
    less of it means a longer training, the one of these with the lowest domain loss. A law may fall again near a share
    of one, where r^eta is steep: shares beyond the first one above the cap do not count.
    """

    def find(domain: np.ndarray, general: np.ndarray) -> int:
        above = np.flatnonzero(general > cap)
        last = int(above[0]) - 1 if len(above) else len(grid) - 1
        return int(np.argmin(domain[: last + 1])) if limited and last >= 0 else last

    place = find(predictions["domain"].values, predictions["general"].values)
    pairs = zip(predictions["domain"].draws, predictions["general"].draws, strict=True)
    drawn = grid[[max(0, find(*pair)) for pair in pairs]]
    value = None if place < 0 else float(grid[place])
    return Estimate(value, *interval(drawn)), max(0, place)


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
