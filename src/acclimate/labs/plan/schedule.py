"""`acclimate plan schedule`: the loss at the end of a training with another learning-rate schedule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from acclimate.base.errors import UserError, unknown_name_error
from acclimate.base.registry import parse_number
from acclimate.data.documents import format_count
from acclimate.engine import schedules
from acclimate.labs.plan.laws import Inputs, Law, fit_law, interval
from acclimate.labs.plan.logs import Row, read_rows, take_number
from acclimate.labs.plan.options import ScheduleOptions
from acclimate.labs.plan.plans import Estimate, Plan, describe_far, in_words, is_degenerate, is_too_wide

LOSSES = ("heldout", "general", "eval_loss", "loss")
"""Columns of a log that hold a loss, in the order in which they are preferred."""
MAX_STEPS = 10**7
TRAININGS = 4
"""Minimum number of trainings for a recommendation: fewer do not show how much trainings vary."""
WARMUP = 0.1
"""Default share of a training over which the rate rises."""


class DynamicsLaw(Law):
    """The loss during continued pre-training (Wang et al., 2025), for one base model.

    With the area S1 of the learning rate since the start, and its annealing S2,

        L = L0 + A (P + S1)^-alpha - C S2 + (B - D) (1 - (1 + E S1)^-beta).

    P is the area of the pre-training; the annealing of the pre-training is a part of L0. B - D is the shift to the new
    text: it lowers the loss on the domain and raises it on general text. Areas are in units of the largest one.
    """

    name = "dynamics"
    bounds = {"log10 P": (-2.0, 2.0), "alpha": (0.05, 2.0), "log10 E": (-1.0, 3.0), "beta": (0.05, 2.0)}
    coefficients = ("L0", "A", "C", "B", "D")

    def columns(self, exponents: np.ndarray, inputs: Inputs) -> np.ndarray:
        """Return the terms (points, coefficients)."""
        before, alpha, speed, beta = exponents
        area, shift = inputs["area"], 1 - (1 + 10**speed * inputs["area"]) ** -beta
        return np.stack([np.ones_like(area), (10**before + area) ** -alpha, -inputs["annealing"], shift, -shift], 1)


def measure_areas(rates: np.ndarray, decay: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the area S1 and the annealing S2 after each step (steps,).

    S1(t) = sum_{i<=t} rate_i and S2(t) = sum_{i<=t} sum_{k<=i} (rate_{k-1} - rate_k) decay^(i-k), which is zero at the
    first step.

    Args:
        rates: Learning rate of each step (steps,).
        decay: Factor per step at which the effect of a change fades.
    """
    from scipy.signal import lfilter

    falls = -np.diff(rates, prepend=rates[:1])
    return np.cumsum(rates), np.cumsum(lfilter([1.0], [1.0, -decay], falls))


@dataclass(frozen=True)
class Schedule:
    """A learning-rate schedule.

    Attributes:
        shape: ``"linear"``, ``"cosine"``, ``"constant"`` or ``"wsd"`` (constant, then a linear fall).
        steps: Number of steps.
        peak: Highest learning rate.
        warmup: Share of the steps over which the rate rises.
        decay: Share of the steps over which it falls, of ``wsd``.
    """

    shape: str
    steps: int
    peak: float
    warmup: float = WARMUP
    decay: float = schedules.DECAY

    def __post_init__(self) -> None:
        self.shares()

    def shares(self) -> schedules.Schedule:
        """Return the shares of the peak rate, as ``acclimate adapt`` trains with them."""
        return schedules.Schedule(self.shape, self.decay, self.warmup)

    @property
    def option(self) -> str:
        """The value of ``--schedule`` of ``acclimate adapt``."""
        return f"{self.shape} decay={self.decay:g}" if self.shape == "wsd" else self.shape

    @property
    def name(self) -> str:
        """The schedule in words, as the option takes it."""
        shape, *more = self.option.split()
        return " ".join([f"{shape} steps={self.steps} peak={self.peak:g} warmup={self.warmup:g}", *more])

    def rates(self) -> np.ndarray:
        """Return the learning rate of each step (steps,)."""
        return np.asarray(self.peak * self.shares().factor(np.arange(self.steps) / self.steps, self.steps))

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """Read a schedule such as ``linear steps=2000 peak=3e-4``.

        Raises:
            UserError: If the shape is unknown, or a value is wrong or missing.
        """
        shape, *settings = text.split() or [""]
        if shape not in schedules.SHAPES:
            raise unknown_name_error("schedule", shape, schedules.SHAPES)
        given: dict[str, Any] = {}
        for setting in settings:
            name, sign, value = setting.partition("=")
            limits = {"steps": (1, MAX_STEPS), "peak": (1e-12, 1e3), "warmup": (0, 0.999), "decay": (1e-3, 1)}
            if not sign or name not in limits:
                raise UserError(f"The schedule '{text}' has '{setting}'; give steps=, peak=, warmup= or decay=.")
            number, (low, high) = parse_number(value), limits[name]
            if isinstance(number, str | bool) or not low <= number <= high or (name == "steps" and number % 1):
                raise UserError(f"The schedule '{text}': {name} must be a number from {low:g} to {high:g}.")
            given[name] = int(number) if name == "steps" else float(number)
        if lacking := [name for name in ("steps", "peak") if name not in given]:
            raise UserError(f"The schedule '{text}' needs {' and '.join(f'{name}=' for name in lacking)}.")
        return cls(shape, **given)


@dataclass(frozen=True)
class Curve:
    """A measured training.

    Attributes:
        rates: Learning rate of each step (steps,).
        steps: Steps after which the loss was measured (points,).
        losses: These losses (points,).
    """

    rates: np.ndarray
    steps: np.ndarray
    losses: np.ndarray


def make_schedule_plan(options: ScheduleOptions) -> Plan:
    """Fit the law to measured curves, and predict the final loss of schedules.

    Raises:
        UserError: If the curves cannot be read or have too few points, or a schedule is wrong.
    """
    wanted = [Schedule.parse(text) for text in options.schedule]
    curves, loss = read_curves(options)
    peak, steps = max(float(curve.rates.max()) for curve in curves), max(len(curve.rates) for curve in curves)
    if not wanted:
        wanted = [Schedule("linear", times * steps, share * peak) for times in (1, 2, 4) for share in (1, 0.5)]
    areas = [measure_areas(curve.rates, options.decay) for curve in curves]
    unit = max(float(area[-1]) for area, _ in areas)

    def at(area: np.ndarray, annealing: np.ndarray, places: np.ndarray) -> dict[str, np.ndarray]:
        """Return what the law reads after some steps; nothing has happened after step zero."""
        taken = np.maximum(places - 1, 0)
        return {
            "area": np.where(places > 0, area[taken], 0) / unit,
            "annealing": np.where(places > 0, annealing[taken], 0) / unit,
        }

    read = [at(*found, curve.steps) for found, curve in zip(areas, curves, strict=True)]
    inputs = {name: np.concatenate([one[name] for one in read]) for name in ("area", "annealing")}
    losses = np.concatenate([curve.losses for curve in curves])
    law = DynamicsLaw()
    if len(losses) <= law.parameters + 1:
        raise UserError(
            f"The law has {law.parameters} parameters; the {len(losses)} measured losses are too few. Measure more "
            "often (--heldout-every), or give more logs."
        )
    runs = np.repeat(np.arange(len(curves)), [len(curve.losses) for curve in curves])
    fit = fit_law(law, inputs, losses, runs=runs, seed=options.seed, resamples=options.resamples)
    rows: list[dict[str, Any]] = []
    ends, drawn = list[Estimate](), list[np.ndarray]()
    for schedule in wanted:
        area, annealing = measure_areas(schedule.rates(), options.decay)
        end = at(area, annealing, np.array([schedule.steps]))
        drawn.append(np.array([float(draw.predict(end)[0]) for draw in fit.draws]))
        ends.append(Estimate(float(fit.predict(end)[0]), *interval(drawn[-1])))
        rows.append({"schedule": schedule.name, "area": float(area[-1]), "annealing": float(annealing[-1])})
    first, *others = np.argsort([float(end.value or 0) for end in ends])
    refused = _refuse(curves, losses, ends, ends[first])
    rival = interval(drawn[others[0]] - drawn[first]) if others else (1.0, 1.0)
    notes = [*describe_far(max(row["area"] for row in rows) / unit, "area under the measured learning rate")]
    values: dict[str, Any] = {
        "loss": loss,
        "points": len(losses),
        "runs": len(curves),
        "decay": options.decay,
        "schedules": [row | end.as_dict() for row, end in zip(rows, ends, strict=True)],
        "best": wanted[first].name,
        "difference": None if not others else {"low": rival[0], "high": rival[1]},
        "refused": refused,
        "fit": fit.describe(),
        "unit_area": unit,
        "notes": notes,
    }
    table = [
        {"schedule": row["schedule"], "loss": end.value, "loss, low": end.low, "loss, high": end.high}
        for row, end in zip(rows, ends, strict=True)
    ]

    def draw(figure: Any) -> None:
        left, right = figure.subplots(1, 2)
        for number, (curve, one) in enumerate(zip(curves, read, strict=True)):
            left.plot(curve.steps, curve.losses, "o", color=f"C{number}", ms=4)
            left.plot(curve.steps, fit.predict(one), color=f"C{number}", lw=1)
        left.set(xlabel="step", ylabel=f"{loss}, nats per token")
        for number, end in enumerate(ends):
            right.plot([number] * 2, [end.low, end.high], color="0.2", lw=1)
            right.plot([number], [end.value], "o", color="0.2", ms=4)
        right.set_xticks(range(len(ends)), [schedule.name for schedule in wanted], rotation=90, fontsize=6)

    lines = _describe(values, ends[first], wanted[others[0]].name if others else "")
    return Plan("schedule", values, lines, "Predicted loss at the end", table, draw)


def _refuse(curves: list[Curve], losses: np.ndarray, ends: list[Estimate], best: Estimate) -> str:
    """Return why no schedule is recommended; empty if one is.

    Args:
        curves: The measured trainings.
        losses: All measured losses (points,).
        ends: The predicted loss of each schedule.
        best: The lowest of these.
    """
    if _have_one_shape(curves):
        return (
            "all trainings have one schedule, so the effects of its area and of its annealing cannot be separated. "
            "Add a training with another number of steps or another shape."
        )
    if len(curves) < TRAININGS:
        return (
            f"the losses come from {format_count(len(curves), 'training')}, so the variance between trainings is "
            f"unknown. Give the logs of at least {TRAININGS}."
        )
    if why := is_degenerate(losses, np.array([float(end.value or 0) for end in ends]), "this text"):
        return why
    why = is_too_wide(best, best.low, best.low + float(np.ptp(losses)))
    return f"the predicted loss cannot be trusted, {why}" if why else ""


def read_curves(options: ScheduleOptions) -> tuple[list[Curve], str]:
    """Return the measured trainings, and the name of the loss.

    Raises:
        UserError: If the logs cannot be read, or have no learning rates or losses.
    """
    rows = read_rows(options.log, "curves", ("step",))
    runs: dict[str, list[Row]] = {}
    for row in rows:
        runs.setdefault(str(row.get("run", "1")), []).append(row)
    names = {name for row in rows for name, value in row.items() if value not in (None, "")}
    loss = options.loss or next((name for name in LOSSES if name in names), None)
    if loss is None or loss not in names:
        raise UserError(
            f"The logs have no column {loss or ', '.join(LOSSES)}; choose one with --loss: {sorted(names)}."
        )
    if "learning_rate" not in names:
        raise UserError("The logs have no column learning_rate; the law needs the schedule of each training.")
    return [_read_curve(name, own, loss) for name, own in runs.items()], loss


def _read_curve(name: str, rows: list[Row], loss: str) -> Curve:
    rated = sorted(
        (int(take_number(row, "step", 0, MAX_STEPS)), take_number(row, "learning_rate", 0))
        for row in rows
        if row.get("learning_rate") not in (None, "")
    )
    measured = [
        (int(take_number(row, "step", 0, MAX_STEPS)), take_number(row, loss, 0))
        for row in rows
        if row.get(loss) not in (None, "")
    ]
    if not rated or not measured or max(rated)[0] < 1 or not any(rate for _, rate in rated):
        raise UserError(
            f"The run '{name}' has no learning rates above zero, or no {loss}; remove it, or choose another --loss."
        )
    if len(rated) > 1 and rated[0][0] > 0 and rated[0][1] < rated[1][1]:
        rated = [(0, 0.0), *rated]  # the warm-up began before the first line
    last = max(rated[-1][0], *(step for step, _ in measured), 1)
    at, values = zip(*rated, strict=True)
    steps, losses = zip(*sorted(measured), strict=True)
    return Curve(np.interp(np.arange(1, last + 1), at, values), np.array(steps), np.array(losses))


def _have_one_shape(curves: list[Curve]) -> bool:
    """Return whether all trainings have the same schedule but for its peak, so that area and annealing go together."""
    return len({tuple(np.round(curve.rates / curve.rates.max(), 2)) for curve in curves}) == 1


def _describe(values: Mapping[str, Any], best: Estimate, rival: str) -> list[str]:
    known = f"{format_count(values['runs'], 'training')}, {values['points']} losses ({values['loss']})"
    lines = []
    if values["refused"]:
        lines.append(f"No schedule is recommended: {values['refused']}")
    elif rival and values["difference"]["low"] <= 0:
        lines.append(f"No difference is shown between {values['best']} and {rival}.")
    else:
        lines.append(f"Lowest loss: {values['best']}.")
    lines.append(f"Predicted loss of {values['best']} in nats, the mean over trainings: {in_words(best.as_dict())}.")
    if values["runs"] < TRAININGS:
        lines.append("The intervals leave out the variance between trainings.")
    return [*lines, f"Law of learning dynamics, fitted to {known}.", *values["notes"]]
