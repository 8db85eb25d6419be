"""Tags of words and the entities that they mark, in the schemes IO, IOB1, IOB2 and BIOES (also BILOU and BMES)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

OUTSIDE = "O"
TAG = re.compile(r"(?:O|[BIESLUM](?:-(?:.*\S)?)?)", re.IGNORECASE)
"""Pattern of a tag with a prefix."""
OTHER_TAGS = (
    re.compile(r"(?P<prefix>[BIESLUM])(?P<mark>[^\w\s]|_)(?P<type>.*\S)", re.IGNORECASE),
    re.compile(r"(?P<type>\S.*)(?P<mark>[^\w\s]|_)(?P<prefix>[BIESLUM])", re.IGNORECASE),
)
"""Patterns of tags with another separator (``B_PER``), or with the prefix at the end (``PER-B``)."""
UNTYPED = "entity"
"""Type of entities whose tags are only B and I."""
BEGINS, ENDS = frozenset("BSU"), frozenset("ESLU")
"""Prefixes of tags with which an entity begins, and after which it cannot continue."""


def is_tag(text: str) -> bool:
    """Return whether a text can be a tag with a prefix, with any separator."""
    return bool(TAG.fullmatch(text) or OTHER_TAGS[0].fullmatch(text))


def standard_tags(tags: Collection[str]) -> dict[str, str]:
    """Return tags that have another separator, or the prefix at the end, in the usual form (``B-PER``).

    Args:
        tags: All tags of a task but O.

    Returns:
        The usual form by tag; empty if the tags have it, or have no prefixes.

    Raises:
        ValueError: If only some tags have such a form, or it is not certain; the message is a tag and what is wrong.
    """
    if not tags or any(TAG.fullmatch(tag) for tag in tags):
        return {}
    for pattern in OTHER_TAGS:
        found = {tag: match for tag in tags if (match := pattern.fullmatch(tag))}
        for mark in {match["mark"] for match in found.values()}:
            parts = {tag: (m["prefix"], m["type"]) for tag, m in found.items() if m["mark"] == mark}
            prefixes = {prefix for prefix, _ in parts.values()}
            first, later = (
                {name for prefix, name in parts.values() if (prefix.upper() in BEGINS) == is_first}
                for is_first in (True, False)
            )
            certain, whole = bool(first & later), len(parts) == len(tags)
            if certain and not whole:
                odd = next(tag for tag in tags if tag not in parts)
                raise ValueError(f"'{odd:.40}' has no prefix, but others have one, such as '{next(iter(parts)):.40}'")
            if whole and prefixes == {"B", "I"} and not certain:
                raise ValueError(f"'{next(iter(parts)):.40}' has no '-' after its prefix, or no prefix")
            if whole and (certain or (len(parts) > 1 and len(prefixes & {"B", "I", "S"}) == len(prefixes) == 1)):
                return {tag: f"{prefix}-{name}" for tag, (prefix, name) in parts.items()}
    return {}


class Marked(NamedTuple):
    """An entity: its first word, the word after its last, and its type."""

    first: int
    stop: int
    type: str


@dataclass(frozen=True)
class Reading:
    """What the tags of a task show.

    Attributes:
        scheme: Name of the scheme.
        broken: Number of entities whose tags do not follow the scheme.
        example: The first such entity: the number of its sentence, from 0, and of its word.
    """

    scheme: str
    broken: int = 0
    example: tuple[int, int] | None = None


@cache
def split_tag(tag: str, prefixed: bool = True) -> tuple[str, str]:
    """Return prefix and type of a tag; both are empty outside of entities.

    Args:
        tag: The tag, such as ``"B-Disease"``.
        prefixed: Whether the tags have prefixes; otherwise ``"Disease"`` has the prefix I.
    """
    tag = tag.strip()
    if tag.upper() == OUTSIDE or not tag:
        return "", ""
    if not prefixed:
        return "I", tag
    prefix, _, name = tag.partition("-")
    return prefix.upper(), name.strip() or UNTYPED


def read_entities(tags: Iterable[tuple[str, str]]) -> list[Marked]:
    """Return the entities that tags mark, in any scheme, as conlleval reads them.

    An entity begins with B, S or U, after the end of another, and where the type changes. So each word with a type
    belongs to an entity, even if the transition to it is broken (``O I-Disease``).

    Args:
        tags: Prefix and type of each word.
    """
    found: list[Marked] = []
    previous = ("", "")
    for place, (prefix, name) in enumerate(tags):
        if name:
            begins = prefix in BEGINS or name != previous[1] or previous[0] in ENDS
            found.append(Marked(place, place + 1, name) if begins else found.pop()._replace(stop=place + 1))
        previous = (prefix, name)
    return found


def find_scheme(sentences: Sequence[Sequence[tuple[str, str]]]) -> Reading:
    """Return the scheme of tags, and how many entities break it.

    Without B, S and U the scheme is IO: adjacent entities of a type cannot be distinguished. With E, L, S, U or M it
    is BIOES. Otherwise it is the one of IOB1 and IOB2 that fewer entities break, and IOB2 if both are equal.

    Args:
        sentences: Prefix and type of each word of each sentence.
    """
    prefixes = {prefix for tags in sentences for prefix, _ in tags}
    if not prefixes & BEGINS:
        return Reading("IO")
    if prefixes & {"E", "S", "L", "U", "M"}:
        return _count_broken("BIOES", sentences)
    second, first = (_count_broken(name, sentences) for name in ("IOB2", "IOB1"))
    return first if first.broken < second.broken else second


def _count_broken(scheme: str, sentences: Sequence[Sequence[tuple[str, str]]]) -> Reading:
    broken, example = 0, None
    for number, tags in enumerate(sentences):
        for first, stop, name in read_entities(tags):
            follows = first > 0 and tags[first - 1][1] == name
            if scheme == "IOB1":
                wrong = (tags[first][0] == "B") != follows
            elif scheme == "IOB2":
                wrong = tags[first][0] != "B"
            else:
                single = stop - first == 1
                allowed = "SU" if single else "B"
                wrong = tags[first][0] not in allowed or (not single and tags[stop - 1][0] not in "EL")
            if wrong:
                broken, example = broken + 1, example or (number, first)
    return Reading(scheme, broken, example)
