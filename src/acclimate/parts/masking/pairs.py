"""Corruptions for encoder-decoders: of a text they make a source to read and a target to predict."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from acclimate.base.errors import UserError
from acclimate.parts.masking.base import MASK_RATE, Strategy, Vocabulary, register

SENTINELS = ("<extra_id_{}>", "<unused{}>", "[unused{}]")
"""Tokens that stand for spans, by number, in the order of preference: of T5 and UL2, of Gemma, of BERT."""
_NAMES = ", ".join(name.format(0) for name in SENTINELS)
MAX_SENTINELS = 256
"""Maximum number of sentinels; a text with more spans has longer ones."""
SENTENCE_ENDS = ".!?…。！？।"
ATTEMPTS = 64
"""How many lengths of spans are drawn at a time."""


class Pair(NamedTuple):
    """What an encoder reads of a text, and what the decoder predicts.

    Attributes:
        source: Token ids (source tokens,).
        target: Token ids (target tokens,).
        spelled: Whether each token of the text is in the target (tokens,).
    """

    source: np.ndarray
    target: np.ndarray
    spelled: np.ndarray


class Corruption(Strategy):
    """A strategy for encoder-decoders alone: subclasses make pairs."""

    masks: ClassVar[bool] = False
    pairs: ClassVar[bool] = True

    @classmethod
    def build(cls, settings: Mapping[str, Any]) -> Self:
        """Make the strategy from its parameters.

        Raises:
            UserError: If a parameter is unknown, or a value does not fit.
        """
        if unused := sorted({"mask", "random"} & settings.keys()):
            raise UserError(f"{cls.name}: no tokens are masked one by one, so '{unused[0]}' means nothing; remove it.")
        return super().build(settings)

    def choose(
        self, ids: np.ndarray, text: np.ndarray, allowed: np.ndarray, vocabulary: Vocabulary, rng: np.random.Generator
    ) -> np.ndarray:
        """Refuse other models.

        Raises:
            UserError: Always.
        """
        raise UserError(f"'{self.name}' makes sources and targets for encoder-decoders; choose another masking.")

    @abstractmethod
    def pair(self, ids: np.ndarray, allowed: np.ndarray, vocabulary: Vocabulary, rng: np.random.Generator) -> Pair:
        """Return source and target of a text; see :meth:`Strategy.pair`."""


def body_of(allowed: np.ndarray) -> slice:
    """Return the place of a text between the special tokens around it, given which tokens are ordinary (tokens,)."""
    places = np.flatnonzero(allowed)
    return slice(places[0], places[-1] + 1) if len(places) else slice(len(allowed), len(allowed))


def split_evenly(total: int, parts: int, rng: np.random.Generator) -> np.ndarray:
    """Return the lengths (parts,) of random parts with at least one item each, all divisions being equally likely."""
    cuts = np.sort(rng.permutation(total - 1)[: parts - 1]) + 1
    return np.diff(np.concatenate([[0], cuts, [total]]))


def draw_spans(length: int, rate: float, mean: float, most: int, rng: np.random.Generator) -> np.ndarray:
    """Return which tokens of a text are in spans (length,), as ``random_spans_noise_mask`` of the code of T5 does.

    Their number is the rate times the length, rounded, and the number of spans is that divided by the mean. Text and
    spans alternate, and begin with text. A text of one token is a span.

    Args:
        length: Tokens of the text.
        rate: Share of the tokens in spans.
        mean: Mean tokens of a span.
        most: Maximum number of spans.
        rng: Random generator.
    """
    if length < 2 or not most:
        return np.full(length, bool(most))
    chosen = min(max(round(length * rate), 1), length - 1)
    spans = min(max(round(chosen / mean), 1), chosen, length - chosen, most)
    lengths = np.stack([split_evenly(length - chosen, spans, rng), split_evenly(chosen, spans, rng)], axis=1)
    return np.repeat(np.tile([False, True], spans), lengths.ravel())


def sentinels_of(vocabulary: Vocabulary) -> np.ndarray:
    """Return the ids of the sentinels of a vocabulary, in order; none if it has none of :data:`SENTINELS`."""
    if "sentinels" not in vocabulary.cache:
        found: list[int] = []
        for name in SENTINELS:
            while not found or len(found) < MAX_SENTINELS:
                token = _single(name.format(len(found)), vocabulary)
                if token is None:
                    break
                found.append(token)
            if found:
                break
        vocabulary.cache["sentinels"] = np.array(found, dtype=np.int64)
    known: np.ndarray = vocabulary.cache["sentinels"]
    return known


def _single(text: str, vocabulary: Vocabulary) -> int | None:
    """Return the id of a text that is one token, which is not that of unknown words; else None."""
    assert vocabulary.tokenizer is not None
    ids = vocabulary.tokenizer(text, add_special_tokens=False)["input_ids"]
    return int(ids[0]) if len(ids) == 1 and ids[0] != vocabulary.tokenizer.unk_token_id else None


def replace_spans(body: np.ndarray, chosen: np.ndarray, sentinels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a text with a sentinel for each span, and the spans, each after its sentinel.

    Args:
        body: Token ids (tokens,).
        chosen: Which tokens are in spans (tokens,).
        sentinels: An id for each span, in order.
    """
    starts = chosen & ~np.concatenate([[False], chosen[:-1]])
    read = body.copy()
    read[starts] = sentinels[: starts.sum()]
    first = np.flatnonzero(starts[chosen])
    return read[~chosen | starts], np.insert(body[chosen], first, sentinels[: len(first)])


def pair_spans(
    ids: np.ndarray,
    place: slice,
    chosen: np.ndarray,
    sentinels: np.ndarray,
    mode: np.ndarray | tuple[()] = (),
) -> Pair:
    """Return the pair of a text in which sentinels replace spans.

    Args:
        ids: Token ids with special tokens (tokens,).
        place: Where the text is between its special tokens, of which those after it also end the target.
        chosen: Which of its tokens are in spans.
        sentinels: The ids that may replace spans.
        mode: Token ids at the beginning of the source.
    """
    body, end = ids[place], ids[place.stop :]
    read, spans = replace_spans(body, chosen, sentinels)
    spelled = np.zeros(len(ids), dtype=bool)
    spelled[place] = chosen
    source = np.concatenate([ids[: place.start], np.asarray(mode, dtype=ids.dtype), read, end])
    target = np.concatenate([spans, end])
    return Pair(source, target if len(target) else ids[-1:], spelled)


def free_sentinels(body: np.ndarray, vocabulary: Vocabulary) -> np.ndarray:
    """Return the sentinels that do not occur in a text, in order.

    Raises:
        UserError: If the vocabulary has none.
    """
    every = sentinels_of(vocabulary)
    if not len(every):
        raise UserError(f"The tokenizer has no sentinels ({_NAMES}); use the masking 'infilling'.")
    return every[~np.isin(every, body)]


@register(
    "sentinels",
    paper="Raffel et al., JMLR 2020 (T5)",
    summary="encoder-decoders: a sentinel for each random span, and as target the spans after their sentinels",
)
@dataclass(frozen=True)
class SpanCorruption(Corruption):
    """Replaces random spans of tokens by sentinels such as ``<extra_id_0>`` (T5, Raffel et al., JMLR 2020).

    ``rate`` of the tokens are in spans of ``mean`` tokens on average, drawn as in the code of T5. The target consists
    of the spans, each after its sentinel, and the end token. A sentinel that occurs in a text is not used for it.

    Attributes:
        mean: Mean tokens of a span.
    """

    mean: float = 3.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.mean < np.inf:
            raise UserError(f"sentinels: 'mean' is a number of tokens of at least 1, not {self.mean}.")

    @property
    def growth(self) -> float:
        """Tokens of source and target per token of a text."""
        return 1 + 2 * self.rate / self.mean

    def pair(self, ids: np.ndarray, allowed: np.ndarray, vocabulary: Vocabulary, rng: np.random.Generator) -> Pair:
        """Return source and target of a text."""
        place = body_of(allowed)
        body = ids[place]
        free = free_sentinels(body, vocabulary)
        return pair_spans(ids, place, draw_spans(len(body), self.rate, self.mean, len(free), rng), free)


@register(
    "infilling",
    paper="Lewis et al., ACL 2020 (BART)",
    summary="encoder-decoders: a mask token for each random span, shuffled sentences, and as target the whole text",
)
@dataclass(frozen=True)
class Infilling(Corruption):
    """Shuffles sentences and replaces random spans of tokens by one mask token each (BART, Lewis et al., ACL 2020).

    The lengths of spans are from a Poisson distribution, until ``rate`` of the tokens are in spans; the last is cut. A
    span of length 0 inserts a mask token. Spans do not touch each other. Sentences end at tokens such as ``.`` and
    ``?``. The target is the whole text. The code of BART counts words instead of tokens.

    Attributes:
        rate: Share of the tokens in spans.
        mean: Mean length of a span.
        shuffle: Whether sentences are shuffled.
    """

    rate: float = 0.3
    mean: float = 3.0
    shuffle: bool = True

    @property
    def growth(self) -> float:
        """Tokens of source and target per token of a text."""
        return 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.mean < np.inf:
            raise UserError(f"infilling: 'mean' is a number of tokens above 0, not {self.mean}.")

    def pair(self, ids: np.ndarray, allowed: np.ndarray, vocabulary: Vocabulary, rng: np.random.Generator) -> Pair:
        """Return source and target of a text."""
        if vocabulary.mask_id < 0:
            raise UserError("The tokenizer has no mask token; use the masking 'sentinels'.")
        place = body_of(allowed)
        body = ids[place]
        spelled = np.zeros(len(ids), dtype=bool)
        spelled[place] = True
        if self.shuffle:
            body = body[shuffle_sentences(np.isin(body, sentence_ends(vocabulary)), rng)]
        if len(body):
            chosen, inserted = self.draw(len(body), rng)
            body, _ = replace_spans(body, chosen, np.full(len(body), vocabulary.mask_id))
            body = np.insert(body, rng.integers(0, len(body) + 1, inserted), vocabulary.mask_id)
        return Pair(np.concatenate([ids[: place.start], body, ids[place.stop :]]), ids, spelled)

    def draw(self, length: int, rng: np.random.Generator) -> tuple[np.ndarray, int]:
        """Return which tokens of a text are in spans (length,), and the number of spans of length 0."""
        budget = int(np.ceil(length * self.rate))
        drawn = np.zeros(0, dtype=np.int64)
        while drawn.sum() < budget:
            drawn = np.append(drawn, rng.poisson(self.mean, ATTEMPTS))
        total = drawn.cumsum()
        last = int(np.searchsorted(total, budget))
        drawn, total = drawn[: last + 1], total[: last + 1]
        drawn[last] -= total[last] - budget
        lengths, kept = drawn[drawn > 0], length - budget
        if len(lengths) > kept + 1:  # no room between so many spans
            lengths = np.append(lengths[:kept], lengths[kept:].sum())
        spans = len(lengths)
        bars = np.sort(rng.permutation(kept + 1)[:spans])  # the number of kept tokens before each span
        gaps = np.diff(np.concatenate([[0], bars, [kept]]))
        parts = np.insert(gaps, np.arange(1, spans + 1), lengths)
        chosen = np.repeat(np.arange(len(parts)) % 2 == 1, parts)
        return chosen, min(len(drawn) - int((drawn > 0).sum()), budget - spans)


def shuffle_sentences(ends: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the places of the tokens of a text in the order of shuffled sentences (tokens,).

    Args:
        ends: Whether each token is one of those that end a sentence (tokens,); several in a row end one.
        rng: Random generator.
    """
    last = ends & ~np.append(ends[1:], False)
    number = np.cumsum(last) - last
    rank = rng.permutation(number[-1] + 1 if len(number) else 0)
    return np.argsort(rank[number], kind="stable")


def sentence_ends(vocabulary: Vocabulary) -> np.ndarray:
    """Return the ids of tokens that end sentences."""
    if "ends" not in vocabulary.cache:
        assert vocabulary.tokenizer is not None
        texts = [before + mark for mark in SENTENCE_ENDS for before in ("a", "a ")]
        last = {vocabulary.tokenizer(text, add_special_tokens=False)["input_ids"][-1] for text in texts}
        whole = np.array(sorted(last - set(vocabulary.tokenizer.all_special_ids)), dtype=np.int64)
        vocabulary.cache["ends"] = whole
    found: np.ndarray = vocabulary.cache["ends"]
    return found


def default_corruption(vocabulary: Vocabulary, rate: float = MASK_RATE) -> Strategy:
    """Return the corruption that suits a vocabulary: with sentinels that of T5, with a mask token that of BART.

    Args:
        vocabulary: The vocabulary.
        rate: The share of the tokens in spans; that of BART is its own unless another one is given.

    Raises:
        UserError: If it has neither.
    """
    if len(sentinels_of(vocabulary)):
        return SpanCorruption(rate)
    if vocabulary.mask_id >= 0:
        return Infilling() if rate == MASK_RATE else Infilling(rate)
    raise UserError(
        f"The tokenizer has neither sentinels ({_NAMES}) nor a mask token, so no corruption of texts suits the model. "
        "Add such tokens to tokenizer and model."
    )
