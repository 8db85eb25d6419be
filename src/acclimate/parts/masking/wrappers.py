"""Maskings that wrap other maskings: a count-matched random control, mixtures, and static masking."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from acclimate.base.errors import UserError
from acclimate.base.registry import parse_number
from acclimate.models.kinds import IGNORE_INDEX
from acclimate.parts.masking.base import Masking, RandomMasking, Strategy, Vocabulary, get, lookup, register
from acclimate.parts.masking.rewriting import positions_by_text
from acclimate.parts.masking.token_importance_store import hash_text
from acclimate.parts.masking.whole_word import WholeWordMasking


@register("random-same-count", summary="as many tokens of each text as another strategy, at random: a control")
@dataclass(frozen=True)
class RandomSameCount(Strategy):
    """Chooses as many tokens of each text as another strategy does, at random, and replaces them in the same way.

    A comparison with plain random masking confounds which tokens are masked with how many; this control does not. Make
    it with :meth:`matching`. By name, ``of`` is the name of the other strategy, and all other parameters are passed to
    it.

    Attributes:
        of: The other strategy.
    """

    of: Masking = field(default_factory=WholeWordMasking)

    @classmethod
    def matching(cls, other: Masking) -> RandomSameCount:
        """Return the control of another masking, with its replacement shares, or the default ones if it has none."""
        if isinstance(other, Strategy):
            return cls(other.rate, other.mask, other.random, other)
        return cls(of=other)

    @classmethod
    def build(cls, settings: Mapping[str, Any]) -> Self:
        """Make the control from ``of``, the name of the other strategy, and its parameters.

        Raises:
            UserError: If a parameter is unknown, or a value does not fit.
        """
        parameters = dict(settings)
        other = get(str(parameters.pop("of", WholeWordMasking.name)), **parameters)
        return cls(other.rate, other.mask, other.random, other)

    def choose(
        self, ids: np.ndarray, text: np.ndarray, allowed: np.ndarray, vocabulary: Vocabulary, rng: np.random.Generator
    ) -> np.ndarray:
        """Choose tokens."""
        if isinstance(self.of, Strategy):
            chosen_by_other = self.of.choose(ids, text, allowed, vocabulary, rng) >= 0
        else:
            chosen_by_other = self.of(ids, text, allowed, vocabulary, rng)[1] != IGNORE_INDEX
        positions = np.flatnonzero(allowed)
        number = text.ravel()[positions]
        counts = np.bincount(number, chosen_by_other.ravel()[positions], minlength=1)
        order = np.lexsort((rng.random(len(positions)), number))
        # Positions are sorted by text, so the rank within a text is the distance from its first token.
        rank = np.arange(len(positions)) - np.searchsorted(number, number)
        leader = np.full(ids.shape, -1)
        chosen = positions[order[rank < counts[number]]]
        leader.ravel()[chosen] = chosen
        return leader

    def identity(self) -> dict[str, Any]:
        """Return what determines the masking; an unregistered other masking is represented by its ``repr``."""
        other = self.of.identity() if isinstance(self.of, Strategy) else repr(self.of)
        return {"name": self.name, "rate": self.rate, "mask": self.mask, "random": self.random, "of": other}


@register("mixture", summary="each text by one of several strategies, drawn with given weights")
@dataclass(frozen=True)
class MixtureMasking(Strategy):
    """Draws one of several strategies for each text, and lets it choose the tokens.

    All tokens are replaced with the shares of the mixture itself. By name, ``of`` holds the strategies and their
    weights, as in ``random=0.4,span=0.3,lexicon-first=0.3``. Any other parameter is given to each of the strategies
    that has it, or as ``span.p`` to one of them; ``span.rate`` is the share of tokens that this one chooses.

    Attributes:
        of: Weights and strategies.
    """

    of: tuple[tuple[float, Strategy], ...] = ((1.0, RandomMasking()), (1.0, WholeWordMasking()))

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.of or not all(0 < weight < np.inf for weight, _ in self.of):
            shown = ", ".join(f"{part.name}={weight:g}" for weight, part in self.of)
            raise UserError(f"mixture: 'of' needs strategies with weights above 0, not '{shown}'.")

    @classmethod
    def build(cls, settings: Mapping[str, Any]) -> Self:
        """Make the mixture from ``of`` and the parameters of its strategies.

        Raises:
            UserError: If a strategy or a parameter is unknown, or a value is invalid.
        """
        given = dict(settings)
        rate = RandomMasking.build({"rate": given.pop("rate")}).rate
        weights = _read_weights(given.pop("of", f"{RandomMasking.name}=1,{WholeWordMasking.name}=1"))
        if "mixture" in weights:
            raise UserError("mixture: a mixture cannot be part of a mixture; give its strategies.")
        parts, unused = [], set(given)
        for name, weight in weights.items():
            fields = {field.name for field in dataclasses.fields(lookup(name))}
            mine = {key: given[key] for key in given.keys() & fields - {"rate"}}
            own = {key.removeprefix(f"{name}."): key for key in given if key.startswith(f"{name}.")}
            own = {short: key for short, key in own.items() if short not in ("mask", "random")}
            unused -= {*mine, *own.values()}
            mine |= {short: given[key] for short, key in own.items()}
            share = parse_number(mine.pop("rate", rate))
            if not isinstance(share, int | float):
                raise UserError(f"mixture: '{name}.rate' must be a number between 0 and 1, not '{share}'.")
            parts.append((weight, get(name, share, **mine)))
        if unused:
            raise UserError(f"mixture: none of {', '.join(weights)} has a parameter '{min(unused)}'; remove it.")
        return cls(rate, parts[0][1].mask, parts[0][1].random, tuple(parts))

    def choose(
        self, ids: np.ndarray, text: np.ndarray, allowed: np.ndarray, vocabulary: Vocabulary, rng: np.random.Generator
    ) -> np.ndarray:
        """Draw a strategy for each text, and let it choose."""
        weights = np.array([weight for weight, _ in self.of])
        drawn = rng.choice(len(weights), size=text.max(initial=-1) + 2, p=weights / weights.sum())  # the last: padding
        leader = np.full(ids.shape, -1)
        for number, (_, part) in enumerate(self.of):
            leader = np.maximum(leader, part.choose(ids, text, allowed & (drawn[text] == number), vocabulary, rng))
        return leader

    def identity(self) -> dict[str, Any]:
        """Return what determines the masking."""
        parts = [[weight, part.identity()] for weight, part in self.of]
        return {"name": self.name, "rate": self.rate, "mask": self.mask, "random": self.random, "of": parts}


def _read_weights(value: Any) -> dict[str, float]:
    """Return weights by name of a strategy, from a mapping or a text such as ``random=0.4,span=0.6``."""
    pairs = (
        list(value.items())
        if isinstance(value, Mapping)
        else [
            (name.strip(), weight)
            for name, _, weight in (part.partition("=") for part in str(value).split(",") if part.strip())
        ]
    )
    found: dict[str, float] = {}
    for name, weight in pairs:
        number = parse_number(weight)
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise UserError(f"mixture: '{name}' needs a weight, as in {name}=0.5, not '{weight}'.")
        if name in found:
            raise UserError(f"mixture: '{name}' is duplicated; give it once.")
        found[name] = float(number)
    if not found:
        raise UserError("mixture: 'of' needs strategies with weights, such as random=0.5,span=0.5.")
    return found


@dataclass(frozen=True)
class StaticMasking:
    """Masks a text the same way every time: the random draws depend only on the seed and the content of the text.

    Attributes:
        of: The masking to apply.
        seed: Random seed.
    """

    of: Masking
    seed: int = 0

    def __call__(
        self, ids: np.ndarray, text: np.ndarray, allowed: np.ndarray, vocabulary: Vocabulary, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Mask each text separately; see :class:`acclimate.parts.masking.Masking`."""
        flat, free = ids.ravel(), allowed.ravel()
        corrupted, labels = flat.copy(), np.full(flat.shape, IGNORE_INDEX, dtype=flat.dtype)
        for positions in positions_by_text(text):
            row = flat[None, positions]
            text_rng = np.random.default_rng([self.seed, hash_text(row[0])])
            masked_row, label_row = self.of(row, np.zeros_like(row), free[None, positions], vocabulary, text_rng)
            corrupted[positions], labels[positions] = masked_row[0], label_row[0]
        return corrupted.reshape(ids.shape), labels.reshape(ids.shape)
