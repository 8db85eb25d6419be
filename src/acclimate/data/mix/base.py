"""Interface and registry of mixes: rules that decide which share of the tokens comes from which source.

A new mix needs one file with ``@register``: every module of ``acclimate.data.mix`` is imported when the registry is
first read, and so is every entry point of the group ``acclimate.mixes`` of other packages.

A mix has no state. It is asked for weights with the whole history of the training, which is part of every checkpoint,
so a resumed run continues with the weights that the interrupted one would have had.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

import numpy as np

from acclimate.base.errors import UserError, shorten, unknown_name_error
from acclimate.base.registry import Part, Registry, build_dataclass

DOMAIN = "domain"
"""Name of the domain text among the sources."""
ADAPTIVE_STEPS = 50
"""Default number of optimizer steps between two proposals of a mix that depends on the training."""

Measure = Literal["train_loss", "heldout_loss", "reference_loss", "excess_loss", "gradients"]
"""Measurements of the training that a mix may read; each is a field of :class:`Round`."""


@dataclass(frozen=True, eq=False)
class Round:
    """Measurements of each source when a mix is asked for weights. Losses are in nats per predicted token.

    Attributes:
        step: Optimizer steps taken before.
        tokens: Tokens read of each source so far (sources,).
        train_loss: Mean language-model loss since the round before; NaN for a source that was not read (sources,).
        heldout_loss: Loss on text of each source that is not trained on, without dropout (sources,).
        reference_loss: The same of the reference model that the mix names (sources,).
        excess_loss: Mean over tokens of how far the loss exceeds the reference model's, at least 0 (sources,).
        gradients: Inner products of the gradients of the losses of two sources (sources, sources).
        gradient_norms: Norm of the gradient of each source (sources,); measured with ``gradients``.
        weights: The weights that the mix proposed in this round (sources,); None while it is being asked.
    """

    step: int
    tokens: np.ndarray
    train_loss: np.ndarray | None = None
    heldout_loss: np.ndarray | None = None
    reference_loss: np.ndarray | None = None
    excess_loss: np.ndarray | None = None
    gradients: np.ndarray | None = None
    gradient_norms: np.ndarray | None = None
    weights: np.ndarray | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that were measured, as plain values for JSON; None for NaN."""
        found = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        return {name: _plain(value) for name, value in found.items() if value is not None}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the round that :meth:`to_dict` wrote."""
        arrays = {name: np.array(value, dtype=float) for name, value in values.items() if name != "step"}
        return cls(step=int(values["step"]), **arrays)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [_plain(item) for item in value.tolist()]
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value


@dataclass(frozen=True, eq=False)
class History:
    """The training so far, as a mix sees it.

    Attributes:
        names: Names of the sources; the domain text, ``"domain"``, is the first.
        sizes: Tokens of the text of each source (sources,).
        steps: Optimizer steps of the whole training.
        progress: Share of the training that is done: of its steps, or of its time under a time budget.
        rounds: All rounds so far; the last is the one in which the mix is being asked.
        parents: Index of the text that each source is a part of (sources,), where the mix divides texts by the length
            of their documents; else the index of the source itself.
    """

    names: tuple[str, ...]
    sizes: np.ndarray
    steps: int
    progress: float
    rounds: tuple[Round, ...]
    parents: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=int))

    @property
    def now(self) -> Round:
        """The round in which the mix is being asked."""
        return self.rounds[-1]

    @property
    def step(self) -> int:
        """Optimizer steps taken."""
        return self.now.step

    @property
    def uniform(self) -> np.ndarray:
        """Equal weights (sources,)."""
        return np.full(len(self.names), 1 / len(self.names))

    @property
    def proportional(self) -> np.ndarray:
        """Weights in proportion to the tokens of the sources, as if their texts were one (sources,)."""
        return self.sizes / self.sizes.sum()

    @cached_property
    def weights(self) -> np.ndarray:
        """The weights proposed in earlier rounds, the last in force: (rounds - 1, sources)."""
        found = [one.weights for one in self.rounds[:-1] if one.weights is not None]
        return np.array(found).reshape(-1, len(self.names))

    def measured(self, name: Measure | Literal["gradient_norms", "tokens"]) -> np.ndarray:
        """Return a measurement of all rounds: (rounds, sources), or (rounds, sources, sources) for gradients.

        Raises:
            ValueError: If the mix does not read it.
        """
        found = [getattr(one, name) for one in self.rounds]
        if any(value is None for value in found):
            raise ValueError(f"'{name}' was not measured; name it in the property 'reads' of the mix")
        return np.array(found)

    def index(self, name: str) -> int:
        """Return the index of a source.

        Raises:
            UserError: If there is no such source.
        """
        if name not in self.names:
            raise unknown_name_error("source", name, self.names)
        return self.names.index(name)


@dataclass(frozen=True)
class Mix(Part, ABC):
    """A registered mix; subclasses are frozen dataclasses whose fields are the parameters.

    A mix that depends on nothing but the progress of the training is asked at its :attr:`moments`, before the training
    begins. One that depends on what is measured is an :class:`AdaptiveMix`.
    """

    classes: ClassVar[tuple[str, ...]] = ()
    """Names of the classes into which the mix divides the documents of each source, with :meth:`classify`."""

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """Make the mix from the parameters that a user gave.

        Raises:
            UserError: If a parameter is unknown, or a value does not fit.
        """
        return build_dataclass(cls, "mix", cls.name, settings)

    @property
    def reads(self) -> tuple[Measure, ...]:
        """Measurements that the mix needs before each proposal."""
        return ()

    @property
    def objectives(self) -> tuple[str, ...]:
        """Maskings, each as in ``--masking``, with which the mix weights each source; empty for the training's own.

        A source then is as many sources as there are objectives, named ``"NAME (OBJECTIVE)"``.
        """
        return ()

    @property
    def moments(self) -> tuple[float, ...]:
        """Shares of the training at which the mix is asked, ascending from 0."""
        return (0.0,)

    @property
    def shared_until(self) -> float:
        """Share of the training after which a checkpoint is kept, from which trainings with another end can start."""
        return 0.0

    def is_due(self, step: int, steps: int, progress: float, asked: int) -> bool:
        """Return whether the mix is to be asked after a step.

        Args:
            step: Optimizer steps taken.
            steps: Steps of the whole training.
            progress: Share of the training that is done.
            asked: Number of times that it was asked before.
        """
        return asked < len(self.moments) and progress >= self.moments[asked]

    def check(self, names: Sequence[str]) -> None:
        """Check that the mix suits sources with these names.

        Raises:
            UserError: If a parameter names another source, or the mix needs more sources.
        """

    def classify(self, lengths: np.ndarray) -> np.ndarray:
        """Return the index of the class of each document in :attr:`classes` (documents,), from its tokens."""
        raise NotImplementedError

    @abstractmethod
    def propose(self, history: History) -> np.ndarray:
        """Return the share of the tokens that each source gets from now on: nonnegative, with the sum 1 (sources,)."""


@dataclass(frozen=True)
class AdaptiveMix(Mix):
    """A mix that is asked again and again during the training.

    Its proposals apply from the step after the next one, whose texts are prepared already.

    Attributes:
        every: Optimizer steps between two proposals.
    """

    every: int = ADAPTIVE_STEPS

    def __post_init__(self) -> None:
        if self.every < 1:
            raise UserError(f"Mix '{self.name}': 'every' must be at least 1 step, not {self.every}.")

    @property
    def delay(self) -> int:
        """Number of proposals after the first that the mix needs before it can change the weights."""
        return 0

    def is_due(self, step: int, steps: int, progress: float, asked: int) -> bool:
        """Return whether the mix is to be asked after a step."""
        return step % self.every == 0


MIXES: Registry[Mix] = Registry("acclimate.mixes", "mix", "mixes")
register = MIXES.register


def read_mix(given: Any) -> Mix:
    """Return the mix that a user gave (:meth:`acclimate.base.registry.Registry.parse`).

    Raises:
        UserError: If a name or parameter is unknown, or a value does not fit.
    """
    if isinstance(given, Mix):
        return given
    cls, settings = MIXES.parse(given)
    return cls.from_settings(settings)


def ask(mix: Mix, history: History) -> np.ndarray:
    """Return the weights that a mix proposes (sources,).

    Raises:
        UserError: If they are not one nonnegative number per source with the sum 1.
    """
    found = np.asarray(mix.propose(history), dtype=float)
    fits = found.shape == (len(history.names),) and np.isfinite(found).all() and (found >= 0).all()
    if not fits or abs(found.sum() - 1) > 1e-6:
        raise UserError(
            f"Mix '{mix.name}' proposed the weights {shorten(found.tolist())} at step {history.step:,}; expected "
            f"{len(history.names)} nonnegative numbers with the sum 1."
        )
    return found / found.sum()
