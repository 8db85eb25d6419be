"""Laws of losses and scores with unknown exponents, fitted to a few measured points, with bootstrap intervals."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

HUBER = 1.345
"""Threshold of Huber's loss in standard deviations: 95 % efficiency for normal errors (Huber, 1981)."""
STARTS, POLISHED = 128, 3
"""Exponents that are drawn and fitted linearly, and how many of the best are refined."""
REFIT_TOLERANCE = 1e-5
"""Relative tolerance of fits to bootstrap samples, whose scatter is far larger."""
ROUNDS = 3
"""Rounds of reweighting for Huber's loss."""
Inputs = Mapping[str, np.ndarray]
"""Inputs of a law by name: arrays of (points,)."""


class Law(ABC):
    """A function of inputs that is linear in its coefficients once its exponents are known.

    Attributes:
        name: Name in options and reports.
        bounds: Lowest and highest value of each exponent, by name.
        coefficients: Names of the coefficients, one per column.
        nonnegative: Whether all coefficients are at least zero.
    """

    name: str
    bounds: dict[str, tuple[float, float]]
    coefficients: tuple[str, ...]
    nonnegative = True

    @abstractmethod
    def columns(self, exponents: np.ndarray, inputs: Inputs) -> np.ndarray:
        """Return the term of each coefficient (points, coefficients) for exponents in the order of ``bounds``."""

    @property
    def parameters(self) -> int:
        """Number of exponents and coefficients."""
        return len(self.bounds) + len(self.coefficients)


@dataclass(frozen=True)
class Fit:
    """A fitted law.

    Attributes:
        residuals: Measured minus fitted, (points,).
        draws: Fits to bootstrap samples, for intervals.
    """

    law: Law
    exponents: np.ndarray
    coefficients: np.ndarray
    residuals: np.ndarray
    draws: tuple[Fit, ...] = field(default=(), repr=False)

    def predict(self, inputs: Inputs) -> np.ndarray:
        """Return the value at new points (points,)."""
        return self.law.columns(self.exponents, inputs) @ self.coefficients

    def refit(self, inputs: Inputs, values: np.ndarray) -> Fit:
        """Return the least-squares fit to other values at the same or other points, next to this one."""
        return _refine(self.law, self.exponents, inputs, values, tolerance=REFIT_TOLERANCE)

    def describe(self) -> dict[str, float]:
        """Return exponents and coefficients by name, and the root mean square of the residuals."""
        named = dict(zip(self.law.bounds, self.exponents.tolist(), strict=True))
        named |= dict(zip(self.law.coefficients, self.coefficients.tolist(), strict=True))
        return {**named, "residual": float(np.sqrt(np.mean(self.residuals**2)))}


def fit_law(
    law: Law,
    inputs: Inputs,
    values: np.ndarray,
    *,
    runs: np.ndarray | None = None,
    seed: int = 0,
    resamples: int = 0,
) -> Fit:
    """Fit a law by least squares of Huber's loss.

    For given exponents the coefficients are a linear problem (variable projection; Golub and Pereyra, 1973). Exponents
    are drawn within their bounds, and the best draws are refined, since the loss has several minima.

    Args:
        law: The law.
        inputs: What the law reads at each point.
        values: What was measured at each point (points,).
        runs: The training that each point belongs to (points,), if several points are of one; see
            :func:`redraw`.
        seed: Random seed of the starts and the bootstrap.
        resamples: Number of bootstrap samples.

    Raises:
        ValueError: If there are not more points than parameters, or the values are too large to compute with.
    """
    if len(values) <= law.parameters:
        raise ValueError(f"the law '{law.name}' has {law.parameters} parameters and needs more points")
    rng = np.random.default_rng(seed)
    low, high = np.array(list(law.bounds.values())).T
    drawn = low + (high - low) * rng.random((STARTS, len(low)))
    ones = np.ones(len(values))
    errors = [np.sum(_residuals(law, exponents, inputs, values, ones)[0] ** 2) for exponents in drawn]
    starts = drawn[np.argsort(errors)[:POLISHED]]
    fits = [_refine(law, start, inputs, values) for start in starts]
    best = min(fits, key=lambda fit: np.sum(fit.residuals**2))
    for _ in range(ROUNDS):
        scale = 1.4826 * np.median(np.abs(best.residuals)) + 1e-12
        weights = np.sqrt(np.minimum(1, HUBER * scale / np.maximum(np.abs(best.residuals), 1e-300)))
        if weights.min() == 1:
            break
        best = _refine(law, best.exponents, inputs, values, weights)
    drawn_values = redraw(best, inputs, values, rng, resamples, runs)
    return replace(best, draws=tuple(best.refit(inputs, one) for one in drawn_values))


def redraw(
    fit: Fit,
    inputs: Inputs,
    values: np.ndarray,
    rng: np.random.Generator,
    resamples: int,
    runs: np.ndarray | None = None,
) -> np.ndarray:
    """Return bootstrap samples of measured values, shape (resamples, points).

    They are the fitted values with residuals drawn at random, enlarged by the degrees of freedom and, as these are
    few, by the ratio of the quantiles of Student's t and the normal distribution. The points are kept, because few
    designs can spare one.

    The points of one training are not independent, so with ``runs`` each also gets a normal deviation of its own.
    Its variance comes from the means of the trainings around the law, next to which the law is fitted again with its
    exponents kept: the law could absorb a part of it otherwise.
    """
    residuals, freedom, shifts = fit.residuals, len(values) - fit.law.parameters, np.zeros((resamples, len(values)))
    if runs is not None and len(names := np.unique(runs)) > 1:
        member = (runs[:, None] == names).astype(float)
        columns = fit.law.columns(fit.exponents, inputs)
        design = np.hstack([columns / (np.sqrt((columns**2).mean(0)) + 1e-300), member])
        found = np.linalg.lstsq(design, residuals, rcond=1e-10)[0]
        effects = found[columns.shape[1] :]
        residuals, freedom = residuals - design @ found, max(1, freedom - len(names) + 1)
        deviation = float(effects.std(ddof=1)) * _widening(len(names) - 1)
        shifts = rng.normal(0, deviation, (resamples, len(names))) @ member.T
    spread = residuals * np.sqrt(len(values) / freedom) * _widening(freedom)
    return values - fit.residuals + shifts + rng.choice(spread, (resamples, len(values)))


def _widening(freedom: int) -> float:
    from scipy import stats

    return float(stats.t.ppf(0.975, freedom) / stats.norm.ppf(0.975))


def _refine(
    law: Law,
    start: np.ndarray,
    inputs: Inputs,
    values: np.ndarray,
    weights: np.ndarray | None = None,
    tolerance: float = 1e-8,
) -> Fit:
    """Return the least-squares fit next to exponents, with a weight per residual."""
    from scipy.optimize import least_squares

    weight = np.ones(len(values)) if weights is None else weights
    low, high = np.array(list(law.bounds.values())).T
    found = least_squares(
        lambda exponents: _residuals(law, exponents, inputs, values, weight)[0],
        np.clip(start, low + 1e-9 * (high - low), high - 1e-9 * (high - low)),
        bounds=(low, high),
        x_scale=high - low,
        max_nfev=60,
        ftol=tolerance,
        xtol=tolerance,
        gtol=tolerance,
    )
    _, coefficients = _residuals(law, found.x, inputs, values, weight)
    return Fit(law, found.x, coefficients, values - law.columns(found.x, inputs) @ coefficients)


def _residuals(
    law: Law, exponents: np.ndarray, inputs: Inputs, values: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the weighted residuals (points,) with the best coefficients, and these."""
    from scipy.optimize import nnls

    columns = law.columns(exponents, inputs) * weights[:, None]
    scales = np.sqrt(np.einsum("ij,ij->j", columns, columns)) + 1e-300
    if law.nonnegative:
        coefficients = nnls(columns / scales, values * weights)[0]
    else:
        coefficients = np.linalg.lstsq(columns / scales, values * weights, rcond=1e-12)[0]
    return values * weights - (columns / scales) @ coefficients, coefficients / scales


def interval(values: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """Return the percentile interval of bootstrap values (resamples,)."""
    low, high = np.percentile(values, [50 - 50 * level, 50 + 50 * level])
    return float(low), float(high)


class DomainLaw(Law):
    """The D-CPT law (Que et al., 2024, Eq. 9): L = E + B r^eta / D^beta + C / (r + eps)^gamma.

    ``share`` is the share r of the text whose loss it is, ``tokens`` the tokens D in a unit of about their geometric
    mean. With ``parameters``, A / N^alpha is added for the size N of the model in the same way; with ``first`` and
    ``drop``, the cross-domain form adds F / K^mu, K = 1 / first + w drop: the loss of the base model on the domain,
    and how much it falls with the fewest tokens (paper: K = w1 / k1 + w2 k2; F takes w1).
    """

    def __init__(self, *, sizes: bool = False, domains: bool = False) -> None:
        """Choose the terms for several sizes of models, and for several domains."""
        self.name = "cross-domain" if domains else "dcpt"
        self.sizes, self.domains = sizes, domains
        self.bounds = {"eta": (0.02, 2.0), "beta": (0.02, 1.5), "eps": (0.005, 1.0), "gamma": (0.02, 3.0)}
        self.coefficients = ("E", "B", "C")
        if sizes:
            self.bounds["alpha"], self.coefficients = (0.02, 1.5), (*self.coefficients, "A")
        if domains:
            self.bounds |= {"mu": (0.05, 4.0), "w": (0.0, 5.0)}
            self.coefficients = (*self.coefficients, "F")

    def columns(self, exponents: np.ndarray, inputs: Inputs) -> np.ndarray:
        """Return the terms (points, coefficients)."""
        eta, beta, eps, gamma, *more = exponents
        share, tokens = inputs["share"], inputs["tokens"]
        terms = [np.ones_like(share), share**eta * tokens**-beta, (share + eps) ** -gamma]
        if self.sizes:
            terms.append(inputs["parameters"] ** -more.pop(0))
        if self.domains:
            mu, w = more
            terms.append((1 / inputs["first"] + w * inputs["drop"]) ** -mu)
        return np.stack(terms, 1)


class MixtureLaw(Law):
    """Power laws in the share and in the tokens at once, as in the CMR scaling law (Gu et al., 2024).

    The paper fits a power law in the domain share R for each number of tokens T, and one in T for each R. With common
    exponents both hold exactly where L = b + a R^s + (c + d R^s) g(T), with g(T) = (T^u - 1) / u, which is ln T for
    u = 0.
    """

    name = "cmr"
    bounds = {"s": (0.2, 6.0), "u": (-2.0, 1.0)}
    coefficients = ("b", "a", "c", "d")
    nonnegative = False

    def columns(self, exponents: np.ndarray, inputs: Inputs) -> np.ndarray:
        """Return the terms (points, coefficients)."""
        s, u = exponents
        powered, tokens = inputs["domain_share"] ** s, np.log(inputs["tokens"])
        grown = tokens if abs(u) < 1e-9 else np.expm1(u * tokens) / u
        return np.stack([np.ones_like(grown), powered, grown, powered * grown], 1)


class RepeatedLaw(Law):
    """The loss on domain text that is read more than once: L = E + B / D^beta + F (epochs - 1)^eta.

    D counts tokens by their value: text that is read again loses it exponentially (Muennighoff et al., 2023), with
    ``decay`` epochs as the constant, and general text has the value ``worth``. The last term is the harm of many
    repetitions. ``share`` is the share of domain text, and ``unique`` the tokens of different domain text, both per
    token of the training; ``tokens`` has a unit of about the geometric mean.
    """

    name = "repeated"
    bounds = {"beta": (0.02, 1.5), "decay": (0.2, 100.0), "worth": (0.0, 1.0), "eta": (0.5, 3.0)}
    coefficients = ("E", "B", "F")

    def columns(self, exponents: np.ndarray, inputs: Inputs) -> np.ndarray:
        """Return the terms (points, coefficients)."""
        beta, decay, worth, eta = exponents
        share, unique = inputs["share"], inputs["unique"]
        again = np.maximum(0, share - unique)
        value = share - again - unique * decay * np.expm1(-again / (unique * decay)) + worth * (1 - share)
        value = np.maximum(1e-6, value)  # without domain text, and if general text has no value
        return np.stack([np.ones_like(share), (value * inputs["tokens"]) ** -beta, (again / unique) ** eta], 1)


class PowerLaw(Law):
    """A power law with an offset, y = a + b x^p, in the input ``x``."""

    name = "power law"
    coefficients = ("a", "b")
    nonnegative = False

    def __init__(self, low: float, high: float) -> None:
        """Set the bounds of the exponent p."""
        self.bounds = {"p": (low, high)}

    def columns(self, exponents: np.ndarray, inputs: Inputs) -> np.ndarray:
        """Return the terms (points, coefficients)."""
        return np.stack([np.ones_like(inputs["x"]), inputs["x"] ** exponents[0]], 1)
