"""What a way to mask gets and gives, and what all of ours share: choose tokens, then corrupt what was chosen.

The ways to mask that have a name.

Every module in ``acclimate.masking`` is imported when the list is first read, and so is every entry point of the group
``acclimate.masking`` in other packages: one file with ``@register`` is all that a new strategy needs.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from transformers import PreTrainedTokenizerBase

from acclimate.errors import UserError
from acclimate.masking.words import SubwordTable
from acclimate.registry import Registry, build_dataclass, hash_user_code

IGNORE_INDEX = -100
"""The label of a position that no loss reads."""
MASK_RATE = 0.15
"""Share of the tokens that are chosen for prediction (Devlin et al., 2019)."""


@dataclass(frozen=True)
class Vocabulary:
    """What masking has to know of a tokenizer.

    Attributes:
        mask_id: The mask token.
        ordinary: Every id that is not a special token, the ids that may stand in at random: a random padding token
            would shift RoBERTa's positions.
        tokenizer: The tokenizer itself, for what asks about words.
        kept: What strategies have made of the vocabulary, by a key of their own, so that they make it once.
    """

    mask_id: int
    ordinary: np.ndarray
    tokenizer: PreTrainedTokenizerBase | None = field(default=None, compare=False, repr=False)
    kept: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def pieces(self) -> SubwordTable:
        """What each id spells, and whether it begins a word; read when it is first asked for.

        Raises:
            UserError: If the tokenizer marks words in a way that is not known here.
        """
        if self.tokenizer is None:
            raise ValueError("this vocabulary was made without its tokenizer, so it does not know words")
        return SubwordTable.of(self.tokenizer)


class Masking(Protocol):
    """A way to choose and corrupt tokens."""

    def __call__(
        self, ids: np.ndarray, text: np.ndarray, allowed: np.ndarray, vocabulary: Vocabulary, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Corrupt token ids.

        Args:
            ids: Original token ids (rows, tokens), whole texts with their special tokens; they are not changed.
            text: Number of the text of each token, -1 at padding (rows, tokens); the numbers rise in reading order,
                and the tokens of a text stand next to each other in one row.
            allowed: True where a token may be chosen: neither padding nor special (rows, tokens).
            vocabulary: The mask token, the ordinary ids, and the words.
            rng: Source of chance.

        Returns:
            The corrupted ids, and the labels: the original id where chosen, else :data:`IGNORE_INDEX`; (rows, tokens).
        """
        ...


@dataclass(frozen=True)
class Strategy(ABC):
    """A way to mask that has a name: it chooses tokens, and the base class corrupts them.

    Subclasses are frozen dataclasses; their fields are the parameters.

    Attributes:
        rate: Share of tokens that are chosen.
        mask: Share of the chosen that become the mask token.
        random: Share of the chosen that become a random ordinary token; the rest stay as they are.
    """

    name: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    files: ClassVar[tuple[str, ...]] = ()
    """Parameters that are paths of files; what the files hold decides, not where they are."""

    rate: float = MASK_RATE
    mask: float = 0.8
    random: float = 0.1

    def __post_init__(self) -> None:
        """Check the shares.

        Raises:
            UserError: If one is out of range, or a file is missing.
        """
        if not 0 < self.rate < 1:
            raise UserError(f"mask-rate must be between 0 and 1, not {self.rate}.")
        if not (self.mask >= 0 and self.random >= 0 and self.mask + self.random <= 1 + 1e-9):  # NaN is none
            raise UserError(
                f"masking: 'mask' ({self.mask:g}) and 'random' ({self.random:g}) are shares of the chosen tokens; "
                "both must be 0 or more, and at most 1 together."
            )
        for name in self.files:
            path = getattr(self, name)
            if not path or not Path(path).is_file():
                given = f"there is no {name} '{path}'" if path else f"'{self.name}' wants '{name}'"
                raise UserError(f"masking: {given}; give a text file with an entry a line.")

    @classmethod
    def build(cls, rate: float, settings: Mapping[str, Any]) -> Self:
        """Make the strategy from what a user gave; strings are converted to the type of the parameter.

        Raises:
            UserError: If a parameter is unknown, or a value does not fit.
        """
        return dataclasses.replace(build_dataclass(cls, "masking", cls.name, settings, hidden=("rate",)), rate=rate)

    @abstractmethod
    def choose(
        self, ids: np.ndarray, text: np.ndarray, allowed: np.ndarray, vocabulary: Vocabulary, rng: np.random.Generator
    ) -> np.ndarray:
        """Choose tokens, and say which share their fate; for the arguments see :class:`Masking`.

        Returns:
            For each chosen token the place, counted through all rows, of the token whose fate it shares (its own, or
            that of the first of its word or span); -1 where not chosen (rows, tokens).
        """

    def __call__(
        self, ids: np.ndarray, text: np.ndarray, allowed: np.ndarray, vocabulary: Vocabulary, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Choose tokens and corrupt them; see :class:`Masking`."""
        leader = self.choose(ids, text, allowed, vocabulary, rng)
        chosen = leader >= 0
        labels = np.where(chosen, ids, IGNORE_INDEX)
        # Each word or span has the draw of its first token; what is chosen token by token has the plain draws.
        fate = rng.random(ids.shape).ravel()[leader]
        corrupted = np.where(chosen & (fate < self.mask), vocabulary.mask_id, ids)
        replaced = chosen & (fate >= self.mask) & (fate < self.mask + self.random)
        corrupted[replaced] = rng.choice(vocabulary.ordinary, int(replaced.sum()))
        return corrupted, labels

    def identity(self) -> dict[str, Any]:
        """Return everything that decides what is masked, as plain values; files, and code of your own, by content."""
        values = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        for name in self.files:
            values[name] = sha256(Path(values[name]).read_bytes()).hexdigest()[:16]
        code = hash_user_code(type(self))
        return {"name": self.name, **values, **({"code": code} if code else {})}


DEFAULT_STRATEGY = "random"
REGISTRY: Registry[Strategy] = Registry("acclimate.masking", "masking", "ways to mask")
register, names, lookup = REGISTRY.register, REGISTRY.names, REGISTRY.lookup


def file_parameters() -> set[str]:
    """Return the parameters, of any strategy, that are paths of files."""
    return {parameter for name in names() for parameter in lookup(name).files}


def get(name: str, rate: float = MASK_RATE, /, **settings: Any) -> Strategy:
    """Make a strategy with its parameters.

    Args:
        name: Its name.
        rate: Share of tokens that are chosen.
        settings: Its other parameters; strings are converted to the type of the parameter.

    Raises:
        UserError: If the strategy or a parameter is unknown, or a value does not fit.
    """
    if "rate" in settings:
        raise UserError("Give the share of tokens that are masked as mask-rate, not as a parameter of the masking.")
    return lookup(name).build(rate, settings)


def resolve(masking: str | Strategy | None, rate: float, settings: Mapping[str, Any] | None = None) -> Strategy:
    """Return the strategy that a user named, or the default one.

    Args:
        masking: A name, a strategy with its parameters and its own rate, or None for random masking.
        rate: Share of tokens that are chosen, where a name is given.
        settings: Parameters, where a name is given.

    Raises:
        UserError: If it is not known, or parameters are given twice or do not fit.
    """
    if isinstance(masking, Strategy):
        if settings:
            raise UserError("Give parameters in the masking or in masking-settings, not in both.")
        return masking
    return get(masking or DEFAULT_STRATEGY, rate, **(settings or {}))


def identify(
    masking: str | Strategy | None, rate: float, settings: Mapping[str, Any] | None = None
) -> dict[str, Any] | None:
    """Return what decides what is masked, as plain values; None for the default at that rate, however it is named.

    Raises:
        UserError: As :func:`resolve`; also if a file is missing.
    """
    chosen = resolve(masking, rate, settings)
    return None if chosen == get(DEFAULT_STRATEGY, rate) else chosen.identity()
