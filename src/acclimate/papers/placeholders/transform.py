"""Text whose domain-specific words are placeholders (the de-domaining of AMD2G, Liu et al., 2024)."""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from acclimate.api import (
    EXAMPLES,
    WORD_PATTERN,
    Documents,
    OperationContext,
    Transform,
    UserError,
    read_entries,
    read_stop_words,
    register_transform,
)

PRIOR = 0.1
"""Words of the prior, as a share of the words of the smaller text."""
COMMON_WORDS = 20
"""Words that the account lists, the most frequent first."""


def normalize_word(word: str) -> str:
    """Return the form in which words are counted and compared."""
    return word.lower() if word.isascii() else unicodedata.normalize("NFKC", word).casefold()


def count_normalized(texts: Iterable[str]) -> Counter[str]:
    """Return how often each normalized word occurs."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(normalize_word(word) for word in WORD_PATTERN.findall(text))
    return counts


def log_odds(own: Mapping[str, int], others: Mapping[str, int]) -> dict[str, tuple[float, float]]:
    """Compare how often words occur in two texts (Monroe et al., Political Analysis 2008, Eqs. 16, 19 and 22).

    The log-odds ratio has an informative Dirichlet prior, whose words are as frequent as in both texts together. Its
    size is a share of the smaller text (:data:`PRIOR`): a prior of fixed size would be lost in a long text, where the
    variance of a word that only one side has would then hide it.

    Args:
        own: Counts of the first text.
        others: Counts of the second.

    Returns:
        For each word of the first text the log-odds ratio, above 0 if the first text has more of it, and its z-score.
    """
    sizes = sum(own.values()), sum(others.values())
    size, found = PRIOR * min(sizes), {}
    for word, count in own.items():
        other = others.get(word, 0)
        prior = size * (count + other) / sum(sizes)
        one, two = count + prior, other + prior
        rest, rest_of_others = sizes[0] + size - one, sizes[1] + size - two
        if min(two, rest, rest_of_others) < 1e-9:  # one of the texts has no other words
            found[word] = (0.0, 0.0)
            continue
        ratio = math.log(one / rest) - math.log(two / rest_of_others)
        found[word] = ratio, ratio / math.sqrt(1 / one + 1 / two)
    return found


@register_transform(
    "placeholders",
    paper="AMD2G, Liu et al., 2024; log-odds ratio, Monroe et al., 2008",
    summary="text whose domain-specific words are replaced by a placeholder",
)
@dataclass(frozen=True)
class Placeholders(Transform):
    """Replaces words that are specific to a domain, so that a model learns what several domains have in common.

    A word is specific if it is much more frequent in the domain than in other text, beyond chance. A run of such words
    becomes one placeholder. Adapt to the pooled text of several domains first, then to that of the target as it is.

    Attributes:
        against: What a domain is compared with: the ``general`` text, or the other ``sources`` (files or datasets) of
            the corpus, each of which is a domain then.
        ratio: Minimum ratio of the odds of a word in the domain and elsewhere.
        z: Minimum z-score of the logarithm of this ratio.
        least: Minimum occurrences of a word in the domain.
        words: File with one word per line to replace, instead of a comparison. The paper has such a list for each
            domain, from a large language model and lexicons.
        stop_words: Words that are never replaced: ``english``, ``none``, a file, or the name of a language.
        placeholder: The placeholder. Add it to the tokenizer as a token if it should be one.
    """

    main: ClassVar[str] = "against"
    files: ClassVar[tuple[str, ...]] = ("words", "stop_words")
    against: Literal["general", "sources"] = "general"
    ratio: float = 4.0
    z: float = 3.0
    least: int = 3
    words: str | None = None
    stop_words: str = "english"
    placeholder: str = "[DOMAIN]"

    def __post_init__(self) -> None:
        """Check the parameters.

        Raises:
            UserError: If one is out of range.
        """
        if self.ratio < 1 or self.z < 0 or self.least < 1:
            raise UserError("Transform 'placeholders': ratio and least are at least 1, and z at least 0.")
        if not self.placeholder.strip():
            raise UserError("Transform 'placeholders': the placeholder is empty; give a word such as [DOMAIN].")

    @property
    def reads(self) -> tuple[str, ...]:
        """General text, if the domain is compared with it."""
        return ("general",) if self.words is None and self.against == "general" else ()

    def apply(self, documents: Documents, context: OperationContext) -> Iterator[str]:
        """Count the words, then replace those that are specific."""
        specific = self._find_specific(documents, context)
        words = places = emptied = 0
        dropped, replaced = list[str](), {name: Counter[str]() for name in specific}
        for text, number in zip(documents, documents.source.tolist(), strict=True):
            name = documents.sources[number] if len(specific) > 1 else next(iter(specific))
            words += len(WORD_PATTERN.findall(text))
            masked, found, count = self._replace(text, specific[name])
            places += count
            replaced[name].update(found)
            if found and not WORD_PATTERN.search(masked.replace(self.placeholder, " ")):
                emptied += 1
                dropped += [text] if len(dropped) < EXAMPLES else []
            else:
                yield masked
        context.notes.update(
            domain_words={name: len(found) for name, found in specific.items()},
            words=words,
            replaced=sum(found.total() for found in replaced.values()),
            placeholders=places,
            most_common={name: dict(found.most_common(COMMON_WORDS)) for name, found in replaced.items()},
            only_placeholders=emptied,
            dropped=dropped,
        )

    def _find_specific(self, documents: Documents, context: OperationContext) -> dict[str, frozenset[str]]:
        """Return the specific words of each domain; the key of a single one is empty.

        Raises:
            UserError: If there is nothing to compare with.
        """
        if self.words is not None:
            return {"": frozenset(map(normalize_word, read_entries(self.words)))}
        if self.against == "general":
            counts = {"": count_normalized(documents)}
            general = count_normalized(context.general or ())
            if not general:
                raise UserError("Transform 'placeholders': the general text has no words to compare with.")
            pairs = {"": (counts[""], general)}
        else:
            if len(set(documents.source.tolist())) < 2:
                raise UserError(
                    "Transform 'placeholders': against=sources compares the files of a corpus, and this has one; give "
                    "the files of several domains, before any operation that makes new documents, or general text."
                )
            counts = {name: Counter[str]() for name in documents.sources}
            for text, number in zip(documents, documents.source.tolist(), strict=True):
                counts[documents.sources[number]].update(count_normalized([text]))
            total = sum(counts.values(), Counter[str]())
            pairs = {name: (own, total - own) for name, own in counts.items()}
        common = frozenset(map(normalize_word, read_stop_words(self.stop_words)))
        return {
            name: frozenset(
                word
                for word, (ratio, z) in log_odds(own, others).items()
                if own[word] >= self.least and ratio >= math.log(self.ratio) and z >= self.z and word not in common
            )
            for name, (own, others) in pairs.items()
        }

    def _replace(self, text: str, specific: frozenset[str]) -> tuple[str, list[str], int]:
        """Return a text with placeholders, the words that they replace, and the number of placeholders."""
        parts, found, count, end = list[str](), list[str](), 0, 0
        for match in WORD_PATTERN.finditer(text):
            if (word := normalize_word(match.group())) not in specific:
                continue
            between = text[end : match.start()]
            if not found or between not in ("", " ", "-", "'", "’"):  # else the run continues
                parts += [between, self.placeholder]
                count += 1
            found.append(word)
            end = match.end()
        return "".join([*parts, text[end:]]), found, count
