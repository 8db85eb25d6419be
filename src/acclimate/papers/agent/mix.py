"""Weights from an agent: a policy that is learned from logged trainings, or a function of the user."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, get_args

import numpy as np
from pydantic import Field

from acclimate.api import (
    DOMAIN,
    USER_CODE_ERRORS,
    AdaptiveMix,
    History,
    Measure,
    UserError,
    first_line,
    hash_file,
    identify_function,
    load_function,
    read_json,
    register_mix,
    shorten,
    unknown_name_error,
    warn_once,
)

POLICY, LOG = "policy of the mix", "mix.json"
LEARNED: Measure = "heldout_loss"
"""What a learned policy observes, and what its reward is made of."""
FEWEST_ACTIONS = 20
"""Minimum logged actions whose outcome is known."""
DISCOUNT, TEMPERATURE, LARGEST_WEIGHT, PENALTY = 0.9, 0.5, 20.0, 1e-3
"""Factor of later rewards; standard deviations of the advantage per factor e of its weight; the largest weight; and
the penalty on squared coefficients of the policy."""
DIGITS = 6
"""Decimals of learned weights, so that the rounding of a fit does not change a training that is resumed."""


class Trajectory(NamedTuple):
    """Sources of a training; of its rounds the share that is done (rounds,), losses and weights (rounds, sources)."""

    names: tuple[str, ...]
    progress: np.ndarray
    losses: np.ndarray
    weights: np.ndarray


def is_target(names: Sequence[str]) -> np.ndarray:
    """Return which sources are the domain text or a part of it (sources,)."""
    return np.array([name == DOMAIN or name.startswith(f"{DOMAIN} (") for name in names])


def observe(names: Sequence[str], progress: float, losses: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the state of each source: (sources, features).

    They are the logarithm of its weight relative to equal weights, how far its loss has fallen since the first round
    and since the last one, and the progress of the training; and the same for the domain text alone. The arguments
    are those of a :class:`Trajectory` so far; the last round has no weights yet.
    """
    target = is_target(names).astype(float)
    weight = weights[-1] if len(weights) else np.full(len(names), 1 / len(names))
    now, first, last = losses[-1], losses[0], losses[max(0, len(losses) - 2)]
    own = np.stack([
        np.log(len(names) * np.maximum(weight, 1e-3)),
        10 * (1 - now / first),
        10 * (1 - now / last),
        np.full(len(names), progress),
        np.ones(len(names)),
    ], 1)  # fmt: skip
    return np.hstack([own[:, :4], target[:, None] * own])


def rewards_of(one: Trajectory, target: float) -> np.ndarray:
    """Return the reward of each action but the last (rounds - 1,): by which share of the first loss the loss falls.

    ``target`` is the weight of the domain text; the other sources share the rest.
    """
    own = is_target(one.names)
    share = np.where(own, target / max(1, own.sum()), (1 - target) / max(1, (~own).sum()))
    return np.asarray(-np.diff(one.losses, axis=0) / one.losses[0] @ share)


def learn_policy(trajectories: Sequence[Trajectory], target: float) -> np.ndarray:
    """Return the coefficients of a softmax policy (features,) that imitates actions, the better ones more.

    It is advantage-weighted regression (Peng et al., 2019): the advantage of an action is the discounted sum of the
    rewards from it on, minus what a linear regression on the state expects, and the policy is fitted by the
    cross-entropy with the logged actions, weighted by an exponential of the advantage.
    """
    from scipy.optimize import minimize
    from scipy.special import log_softmax

    states, actions, returns = list[np.ndarray](), list[np.ndarray](), list[float]()
    for one in trajectories:
        total, found = 0.0, list[float]()
        for reward in rewards_of(one, target)[::-1]:
            total = reward + DISCOUNT * total
            found.append(total)
        returns += found[::-1]
        for number in range(len(found)):
            states.append(observe(one.names, one.progress[number], one.losses[: number + 1], one.weights[:number]))
            actions.append(one.weights[number])
    means = np.array([[1.0, *state.mean(0), *state.max(0)] for state in states])
    left = np.array(returns) - means @ np.linalg.lstsq(means, np.array(returns), rcond=1e-6)[0]
    weight = np.minimum(LARGEST_WEIGHT, np.exp(left / (TEMPERATURE * left.std() + 1e-12)))
    weight /= weight.sum()

    def loss(coefficients: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = PENALTY * float(coefficients @ coefficients), 2 * PENALTY * coefficients
        for one, state, action in zip(weight, states, actions, strict=True):
            logs = log_softmax(state @ coefficients)
            value -= one * float(action @ logs)
            slope = slope - one * (action - np.exp(logs)) @ state
        return value, slope

    return np.asarray(minimize(loss, np.zeros(states[0].shape[1]), jac=True, method="L-BFGS-B").x)


def find_logs(folder: str) -> list[Path]:
    """Return the logs in a folder, or the file itself."""
    path = Path(folder).expanduser()
    return sorted(path.rglob(LOG)) if path.is_dir() else [path]


def read_trajectories(folder: str) -> list[Trajectory]:
    """Return the trainings that are logged in a folder; those without held-out losses are left out, and counted.

    Raises:
        UserError: If there is no folder, a log is damaged, or too few actions are logged.
    """
    found, left = list[Trajectory](), 0
    for file in find_logs(folder):
        if not file.is_file():
            raise UserError(f"Mix 'agent': there is no '{folder}'; give logs=FOLDER, with the {LOG} of trainings.")
        try:
            log = read_json(file)
            if "sources" not in log:  # of a checkpoint
                continue
            names, rounds = (
                tuple(log["sources"]),
                [one for one in log["rounds"] if LEARNED in one and "weights" in one],
            )
            steps = np.array([one["step"] for one in rounds], dtype=float)
            losses, weights = (np.array([one[name] for one in rounds], dtype=float) for name in (LEARNED, "weights"))
            fits = losses.shape == weights.shape == (len(steps), len(names)) and len(names) > 1 < len(steps)
        except (LookupError, TypeError, ValueError) as error:
            raise UserError(f"Mix 'agent': the log '{file}' is damaged; remove it.") from error
        if not (fits and np.isfinite([losses, weights]).all() and losses.min() > 0):
            left += 1
            continue
        found.append(Trajectory(names, steps / max(1, 2 * steps[-1] - steps[-2]), losses, weights))
    if left:
        warn_once(f"Mix 'agent': {left:,} of the logs in '{folder}' have no two rounds of held-out losses; left out.")
    if (actions := sum(len(one.losses) - 1 for one in found)) < FEWEST_ACTIONS:
        raise UserError(
            f"Mix 'agent': '{folder}' holds {actions} logged actions with held-out losses after them, and at least "
            f"{FEWEST_ACTIONS} are needed. Train more with --mix 'agent explore=SEED', with several seeds."
        )
    return found


@register_mix(
    "agent",
    paper="Yang et al., 2025 (Data Mixing Agent)",
    summary="what a policy decides from the weights and losses so far, learned from logs or a function of the user",
)
@dataclass(frozen=True)
class Agent(AdaptiveMix):
    """Asks an agent for the weights (Data Mixing Agent, Yang et al., 2025).

    With ``explore`` the weights of each round are random: such trainings are the trajectories that an agent learns
    from. With ``logs`` the agent is a policy that is learned from them, offline, before the training: see
    :func:`learn_policy` and :func:`observe`. It has the same coefficients for all sources, so it can be applied to
    others, and to another number of them. With ``policy`` it is a function of the user.

    The state of a function is a dictionary of plain values: ``names`` and ``sizes`` (tokens) of the sources, ``step``,
    ``steps``, ``progress`` between 0 and 1, and ``rounds``, with the fields of :class:`Round` as far as they were
    measured; the weights of all but the last round are the actions before. The action is one nonnegative number per
    source, in the order of ``names`` or by name; they are divided by their sum.

    Departures from the paper: the policy is linear in the state, where the paper trains a transformer; it imitates
    actions weighted by their advantage, where the paper imitates first and then trains by conservative Q-learning; and
    the reward is the fall of held-out losses, not of scores on benchmarks.

    Attributes:
        policy: The function, or FILE.py:FUNCTION.
        observe: What is measured for the state, separated by commas.
        logs: Folder with the ``mix.json`` of trainings, in any depth, or one such file: a policy is learned from them.
        explore: Random seed: the weights of each round are the mean of those before and of random ones.
        target: With ``logs``: weight of the domain text in the reward; that of the other sources together is the rest.
        key: What identifies the function instead of its code, such as the version of a model that it calls.
    """

    policy: Any = None
    observe: str = "train_loss"
    logs: str | None = None
    explore: Annotated[int, Field(ge=0)] | None = None
    target: Annotated[float, Field(ge=0, le=1)] = 0.5
    key: str = ""

    files: ClassVar[tuple[str, ...]] = ("policy", "logs")
    main: ClassVar[str] = "policy"

    def __post_init__(self) -> None:
        """Load the function, or read the logs.

        Raises:
            UserError: If there are none or both, or something is to be measured that does not exist.
        """
        super().__post_init__()
        if sum(one is not None for one in (self.policy, self.logs, self.explore)) != 1:
            raise UserError(
                "Mix 'agent' needs one of policy=FILE.py:FUNCTION, or in Python a function; logs=FOLDER, to learn "
                "from; and explore=SEED."
            )
        for name, kind in (("target", "logs"), ("observe", "policy"), ("key", "policy")):
            if getattr(self, kind) is None and getattr(self, name) != getattr(type(self), name):
                raise UserError(f"Mix 'agent' reads {name} only with {kind}; leave it out, or give {kind}.")
        if self.logs is not None:
            _ = self._trajectories  # reads them
        if self.policy is not None:
            load_function(self.policy, POLICY)
        for name in self.reads:
            if name not in get_args(Measure):
                raise unknown_name_error("measurement of a mix", name, get_args(Measure))

    @property
    def reads(self) -> tuple[Measure, ...]:
        """What the state contains."""
        if self.policy is None:
            return (LEARNED,)
        return tuple(name.strip() for name in self.observe.split(",") if name.strip())  # type: ignore[misc]

    def propose(self, history: History) -> np.ndarray:
        """Return the action of the agent."""
        if self.policy is not None:
            return self._ask(history)
        if self.explore is not None:
            drawn = np.random.default_rng([self.explore, len(history.rounds)]).dirichlet(np.ones(len(history.names)))
            return np.asarray((drawn + history.weights[-1]) / 2 if len(history.weights) else drawn)
        state = observe(history.names, history.progress, history.measured(LEARNED), history.weights)
        scores = state @ self._learned
        found = np.exp(scores - scores.max()).round(DIGITS)
        return np.asarray(found / found.sum())

    def _ask(self, history: History) -> np.ndarray:
        """Return the action of the function.

        Raises:
            UserError: If the function fails, or the action is not one nonnegative number per source, not all 0.
        """
        state = {
            "names": list(history.names),
            "sizes": history.sizes.tolist(),
            "step": history.step,
            "steps": history.steps,
            "progress": history.progress,
            "rounds": [one.to_dict() for one in history.rounds],
        }
        try:
            action = load_function(self.policy, POLICY)(state)
        except USER_CODE_ERRORS as error:
            raise UserError(
                f"The agent of the mix failed at step {history.step:,}: {type(error).__name__}: {first_line(error)}."
            ) from error
        if isinstance(action, Mapping):
            for name in action:
                history.index(str(name))
            action = [action.get(name, 0.0) for name in history.names]
        try:
            found = np.asarray(action, dtype=float)
        except (TypeError, ValueError):
            found = np.full(1, np.nan)
        if found.shape != (len(history.names),) or not np.isfinite(found).all() or found.min() < 0 or not found.sum():
            raise UserError(
                f"The agent of the mix returned {shorten(action)} at step {history.step:,}; expected "
                f"{len(history.names)} nonnegative numbers, not all 0."
            )
        return found / found.sum()

    def identity(self) -> dict[str, Any]:
        """Return everything that determines the mix; a function by its name and its code, or by the key."""
        found = super().identity()
        if self.policy is not None:
            found["policy"] = identify_function(self.policy, POLICY, self.key or None)
        return found | ({"logs": [hash_file(file) for file in find_logs(self.logs)]} if self.logs is not None else {})

    @functools.cached_property
    def _trajectories(self) -> list[Trajectory]:
        return read_trajectories(str(self.logs))

    @functools.cached_property
    def _learned(self) -> np.ndarray:
        return learn_policy(self._trajectories, self.target)
