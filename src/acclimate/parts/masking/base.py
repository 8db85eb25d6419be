"""Interface, base class and registry of masking strategies, and the default strategy.

A new strategy needs one file with ``@register``: every module of ``acclimate.parts.masking`` is imported when the
registry is first read, and so is every entry point of the group ``acclimate.masking`` of other packages.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from transformers import PreTrainedTokenizerBase

from acclimate.base.errors import UserError
from acclimate.base.registry import Part, Registry, build_dataclass
from acclimate.data.fields import MASK_RATE
from acclimate.models.kinds import IGNORE_INDEX
from acclimate.parts.masking.words import SubwordTable


@dataclass(frozen=True)
class Vocabulary:
    """Properties of a tokenizer that masking needs.

    Attributes:
        mask_id: Id of the mask token.
        ordinary: All ids except special tokens, from which random replacements are drawn. A random padding token
            would shift the position ids of RoBERTa.
        tokenizer: The tokenizer, for strategies that use words.
        cache: What strategies have computed from the vocabulary, by a key of their choice.
    """

    mask_id: int
    ordinary: np.ndarray
    tokenizer: PreTrainedTokenizerBase | None = field(default=None, compare=False, repr=False)
    cache: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def subwords(self) -> SubwordTable:
        """The surface forms and word boundaries of the ids.

        Raises:
            UserError: If the tokenizer is not fast, or marks words in an unsupported way.
            ValueError: If the vocabulary was made without its tokenizer.
        """
        if self.tokenizer is None:
            raise ValueError("this vocabulary was made without its tokenizer, so its words are unknown")
        return SubwordTable.of(self.tokenizer)


def make_vocabulary(tokenizer: PreTrainedTokenizerBase) -> Vocabulary:
    """Return what masking needs to know about a tokenizer."""
    ordinary = np.setdiff1d(np.arange(len(tokenizer)), np.array(tokenizer.all_special_ids))
    mask = tokenizer.mask_token_id
    return Vocabulary(mask if isinstance(mask, int) else -1, ordinary, tokenizer)


class Masking(Protocol):
    """A function that chooses tokens and replaces them."""

    def __call__(
        self, ids: np.ndarray, text: np.ndarray, allowed: np.ndarray, vocabulary: Vocabulary, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Choose tokens and replace them.

        Args:
            ids: Original token ids (rows, tokens), whole texts with their special tokens; not modified.
            text: Number of the text of each token, -1 at padding (rows, tokens). The numbers increase in reading
                order, and the tokens of a text are contiguous in one row.
            allowed: Whether each token may be chosen: neither padding nor special (rows, tokens).
            vocabulary: The vocabulary.
            rng: Random generator.

        Returns:
            The corrupted ids, and the labels: the original id of a chosen token, else :data:`IGNORE_INDEX`. Both have
            the shape (rows, tokens).
        """
        ...


@dataclass(frozen=True)
class Strategy(Part, ABC):
    """A registered masking strategy: subclasses choose tokens, this class replaces them.

    Subclasses are frozen dataclasses whose fields are the parameters.

    Attributes:
        rate: Share of the tokens to choose.
        mask: Share of the chosen tokens to replace with the mask token.
        random: Share of the chosen tokens to replace with a random token; the others are not changed.
    """

    masks: ClassVar[bool] = True
    """Whether it suits masked models."""
    rearranges: ClassVar[bool] = False
    """Whether it also suits causal models, whose texts it changes with :meth:`rearrange`."""
    pairs: ClassVar[bool] = False
    """Whether it suits encoder-decoders, for which it makes pairs with :meth:`pair`."""

    rate: float = MASK_RATE
    mask: float = 0.8
    random: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.rate < 1:
            raise UserError(f"mask-rate must be between 0 and 1, not {self.rate}.")
        if not (self.mask >= 0 and self.random >= 0 and self.mask + self.random <= 1 + 1e-9):  # also false for NaN
            raise UserError(
                f"masking: 'mask' ({self.mask:g}) and 'random' ({self.random:g}) are shares of the chosen tokens: "
                "each must be 0 or more, and their sum at most 1."
            )
        for name in self.files:
            path = getattr(self, name)
            if not path or not Path(path).is_file():
                problem = f"there is no file '{path}' ({name})" if path else f"'{self.name}' needs '{name}'"
                raise UserError(f"masking: {problem}; give a text file with one entry per line.")

    @classmethod
    def build(cls, settings: Mapping[str, Any]) -> Self:
        """Make the strategy from its parameters and rate; strings are converted to the type of the field.

        Raises:
            UserError: If a parameter is unknown, or a value does not fit.
        """
        return build_dataclass(cls, "masking", cls.name, settings)

    @property
    def growth(self) -> float:
        """About how many tokens a pair has per token of its text."""
        return 1.0

    @abstractmethod
    def choose(
        self, ids: np.ndarray, text: np.ndarray, allowed: np.ndarray, vocabulary: Vocabulary, rng: np.random.Generator
    ) -> np.ndarray:
        """Choose tokens, and group those that are replaced alike; for the arguments see :class:`Masking`.

        Returns:
            The leader of each chosen token: the flat position of the token whose random draw decides how it is
            replaced. It is its own position, or the position of the first token of its word or span. -1 for tokens
            that are not chosen; (rows, tokens).
        """

    def rearrange(
        self, ids: np.ndarray, allowed: np.ndarray, vocabulary: Vocabulary, rng: np.random.Generator
    ) -> np.ndarray:
        """Return the row that a causal model reads instead of a text.

        Args:
            ids: Token ids of the text with its special tokens (tokens,).
            allowed: Whether each token is ordinary (tokens,).
            vocabulary: The vocabulary.
            rng: Random generator.

        Returns:
            Token ids, at most as many; the complement ``~id`` of a token that is read but not predicted.
        """
        raise NotImplementedError

    def pair(self, ids: np.ndarray, allowed: np.ndarray, vocabulary: Vocabulary, rng: np.random.Generator) -> Any:
        """Return the source and the target of a text for an encoder-decoder.

        Args:
            ids: Token ids of the text with its special tokens (tokens,).
            allowed: Whether each token is ordinary (tokens,).
            vocabulary: The vocabulary.
            rng: Random generator.

        Returns:
            A :class:`acclimate.parts.masking.pairs.Pair`.
        """
        raise NotImplementedError

    def __call__(
        self, ids: np.ndarray, text: np.ndarray, allowed: np.ndarray, vocabulary: Vocabulary, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Choose tokens and replace them; see :class:`Masking`."""
        leader = self.choose(ids, text, allowed, vocabulary, rng)
        chosen = leader >= 0
        labels = np.where(chosen, ids, IGNORE_INDEX)
        draw = rng.random(ids.shape).ravel()[leader]
        corrupted = np.where(chosen & (draw < self.mask), vocabulary.mask_id, ids)
        replaced = chosen & (draw >= self.mask) & (draw < self.mask + self.random)
        corrupted[replaced] = rng.choice(vocabulary.ordinary, int(replaced.sum()))
        return corrupted, labels


REGISTRY: Registry[Strategy] = Registry("acclimate.masking", "masking", "masking strategies")
register, names, lookup = REGISTRY.register, REGISTRY.names, REGISTRY.lookup


@register("random", paper="Devlin et al., NAACL 2019", summary="each token independently, with the same probability")
@dataclass(frozen=True)
class RandomMasking(Strategy):
    """Chooses each token independently with probability ``rate`` (Devlin et al., 2019)."""

    def choose(
        self, ids: np.ndarray, text: np.ndarray, allowed: np.ndarray, vocabulary: Vocabulary, rng: np.random.Generator
    ) -> np.ndarray:
        """Choose tokens."""
        chosen = allowed & (rng.random(ids.shape) < self.rate)
        return np.where(chosen, np.arange(ids.size).reshape(ids.shape), -1)


def resolve(masking: Any, rate: float = MASK_RATE) -> Strategy:
    """Return the strategy that a user gave.

    Args:
        masking: ``"NAME"``, ``"NAME parameter=value ..."`` or ``{name: parameters}``; a strategy; or None for random
            masking.
        rate: Share of the tokens to choose, for a masking that is given without its ``rate``.

    Raises:
        UserError: If the name or a parameter is unknown, or a value does not fit.
    """
    if isinstance(masking, Strategy):
        return masking
    cls, settings = REGISTRY.parse(RandomMasking.name if masking is None else masking)
    own = not cls.masks and rate == MASK_RATE  # the default rate of masked models is not that of other corruptions
    return cls.build(settings if own else {"rate": rate, **settings})


def get(name: str, rate: float = MASK_RATE, /, **settings: Any) -> Strategy:
    """Return the strategy with a name and parameters, as :func:`resolve`."""
    return resolve({name: settings}, rate)
