"""Entity tasks: sentences or longer texts, the words in them, and the entities that a model learns to mark."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import regex

from acclimate.base.errors import UserError, warn_once
from acclimate.data.rows import LeftOut, RowError, check_characters, short_place
from acclimate.evaluation.entities import EntityScoring
from acclimate.evaluation.scoring import Scoring
from acclimate.tasks.drawing import spread_groups
from acclimate.tasks.examples import Example, Examples
from acclimate.tasks.kinds.entities.schemes import (
    OUTSIDE,
    TAG,
    Reading,
    find_scheme,
    read_entities,
    split_tag,
    standard_tags,
)
from acclimate.tasks.readers import SPLITS, fold_text

WORD = regex.compile(
    r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]\p{M}*|[\p{L}\p{N}\p{M}_]+|\S"
)
"""Pattern of the words of a text without tokens: runs of letters and digits, and other characters one by one."""

log = logging.getLogger(__name__)


class Entity(NamedTuple):
    """An entity: ``text[start:end]`` of its sentence, and its type."""

    start: int
    end: int
    type: str


@dataclass(frozen=True, slots=True)
class Sentence(Example):
    """A sentence, or a longer text, with its words and entities; both are sorted and do not overlap."""

    text: str
    words: tuple[tuple[int, int], ...]
    """Start and end of each word in the text; a word without characters has equal ones."""
    entities: tuple[Entity, ...]

    @property
    def texts(self) -> tuple[str, ...]:
        """The sentence; words without a text are joined by blanks."""
        return (self.text,)

    @staticmethod
    def strata(examples: Sequence[Sentence]) -> list[list[str]]:
        """Return the types of the entities."""
        return [sorted({entity.type for entity in example.entities}) for example in examples]

    def surface(self, start: int, end: int) -> str:
        """Return the text of an entity, without differences of case and blanks."""
        return fold_text(self.text[start:end])


@dataclass(frozen=True, repr=False)
class EntityTask(Examples[Sentence]):
    """An entity task: three splits of sentences.

    The types are those of train in alphabetical order, and then those that occur only in dev or test.
    """

    task_kind: ClassVar[str] = "entities"
    default_length: ClassVar[int] = 128
    """Default maximum tokens per window; a longer sentence is read in several."""
    items: ClassVar[str] = "sentences"
    drawn_by: ClassVar[str] = "every type in proportion"
    scored_by: ClassVar[type[Scoring]] = EntityScoring
    no_negative: ClassVar[str] = "marks entities"  # words outside of entities are the negative class already

    _: KW_ONLY
    scheme: str = "spans"
    """The scheme of the tags: IO, IOB1, IOB2 or BIOES; ``"spans"`` where the file has the positions of entities."""

    @cached_property
    def known(self) -> frozenset[tuple[str, str]]:
        """Text and type of each entity of train."""
        return frozenset((row.surface(start, end), name) for row in self.train for start, end, name in row.entities)

    def numbered(self, sentence: Sentence, entities: Sequence[Entity]) -> list[list[int]]:
        """Return entities of a sentence in the form that the scoring reads."""
        return [
            [start, end, self.labels.index(name), int((sentence.surface(start, end), name) in self.known)]
            for start, end, name in entities
        ]

    def gold(self, split: str) -> list[list[list[int]]]:
        """Return the entities of each sentence of a split in the form that the scoring reads."""
        return [self.numbered(sentence, sentence.entities) for sentence in getattr(self, split)]

    def _scoring_fields(self, split: str) -> dict[str, Any]:
        has_unseen = any(not entity[3] for found in self.gold(split) for entity in found)
        return {"classes": len(self.labels), "has_unseen": has_unseen}

    def few_shot(self, count: int, seed: int) -> list[Sentence]:
        """Draw train sentences until each type has ``count`` entities, or all of a type that has fewer.

        A sentence is drawn if it has an entity of a type that still lacks some (as in Yang and Katiyar, EMNLP 2020),
        so a type can have more. Sentences without entities are not drawn.

        Raises:
            UserError: If ``count`` is below one.
        """
        self._check_few_shot(count)
        order = list(range(len(self.train)))
        random.Random(f"{seed}").shuffle(order)
        order = spread_groups(self.train, order)
        found: Counter[str] = Counter()
        kept = []
        frequency = Counter(entity.type for sentence in self.train for entity in sentence.entities)
        for name in sorted(frequency, key=lambda name: (frequency[name], name)):  # the rarest type first
            for place in order:
                types = [entity.type for entity in self.train[place].entities]
                if found[name] < count and name in types and place not in kept:
                    kept.append(place)
                    found.update(types)
        return [self.train[place] for place in sorted(kept)]


@dataclass(frozen=True, slots=True)
class RawSentence:
    """A sentence as a file has it: words with tags, or a text with the spans of its entities."""

    where: str
    words: Sequence[str] = ()
    tags: Sequence[str] = ()
    text: str | None = None
    spans: Sequence[Entity] = ()
    shown: Sequence[str | None] = ()
    """The text of each span in the file, if it is there."""
    group: str | None = None


def build_task(
    name: str,
    raw: Mapping[str, Sequence[RawSentence]],
    path: Path | None = None,
    split_seed: int = 0,
    group_name: str = "document",
    left: LeftOut | None = None,
) -> EntityTask:
    """Check the sentences of all splits, find the scheme of their tags, and draw missing splits from train.

    Args:
        name: Name of the task.
        raw: The sentences of each split that exists.
        path: Where the task is, if it is a file or folder.
        split_seed: Random seed of splits that are drawn.
        group_name: What a group of sentences is.
        left: Takes the sentences that cannot be used.

    Raises:
        UserError: If too many sentences cannot be used, or train has no entities.
    """
    given = {split: list(raw.get(split, ())) for split in SPLITS}
    kept = {split: [row for row in rows if row.words or (row.text or "").strip()] for split, rows in given.items()}
    if empty := sum(map(len, given.values())) - sum(map(len, kept.values())):
        log.warning("Rows of the task '%s' that are not used, since they have no words: %d.", name, empty)
    left = left or LeftOut(name)
    for split in ("train", *(["test"] if "test" in raw else [])):
        if not kept[split]:
            left.report(kept)
        if not kept[split]:
            raise UserError(f"The task '{name}' has no {split} sentences.")
    sentences, scheme = read_sentences(name, kept, left)
    types = {split: {e.type for sentence in rows for e in sentence.entities} for split, rows in sentences.items()}
    if not types["train"]:
        raise UserError(
            f"No train sentence of the task '{name}' has an entity, so there is nothing to learn. If it has classes "
            "instead, export them as CSV or JSON lines with a text and a label."
        )
    later = sorted((types["dev"] | types["test"]) - types["train"])
    if later:
        log.warning("Types of the task '%s' that train does not have cannot be learned: %s.", name, ", ".join(later))
    labels = [*sorted(types["train"]), *later]
    own = {"labels": labels, "path": path, "scheme": scheme}
    return EntityTask.divided(name, sentences, split_seed, group_name=group_name, **own)


def read_sentences(
    name: str, rows: dict[str, list[RawSentence]], left: LeftOut
) -> tuple[dict[str, list[Sentence]], str]:
    """Return the sentences of each split, with the positions of their words and entities, and the scheme of the tags.

    Args:
        name: Name of the task.
        rows: The sentences of each split; some of train.
        left: Takes the sentences that cannot be used.

    Raises:
        UserError: If too many sentences cannot be used, or the tags cannot be read.
    """
    scheme, prefixed = "spans", True
    if rows["train"][0].text is None:
        rows = _with_standard_tags(name, rows)
        found, prefixed = _read_scheme(name, [row for part in rows.values() for row in part])
        scheme = found.scheme
    both = {
        split: left.read(split, part, lambda row: (row, read_sentence(row, prefixed))) for split, part in rows.items()
    }
    sentences = {split: [sentence for _, sentence in made] for split, made in both.items()}
    left.report(sentences)
    _warn_about_overlaps(name, {split: [row for row, _ in made] for split, made in both.items()}, sentences)
    return sentences, scheme


def _with_standard_tags(name: str, rows: dict[str, list[RawSentence]]) -> dict[str, list[RawSentence]]:
    """Return sentences with tags such as ``B-PER``, where a file has ``B_PER`` or ``PER-B``."""
    tags = {tag.strip(): row for part in rows.values() for row in part for tag in row.tags}
    try:
        usual = standard_tags([tag for tag in tags if tag.upper() not in ("", OUTSIDE)])
    except ValueError as error:
        tag = str(error).split("'")[1]
        where = next((row.where for found, row in tags.items() if found.startswith(tag)), name)
        raise UserError(f"{where}: the tag {error}; write tags such as B-PER, I-PER and O.") from error
    if not usual:
        return rows
    first = next(iter(usual))
    warn_once(f"The tags of the task '{name}' are read as '{usual[first]}' where the file has '{first}'.")
    return {
        split: [replace(row, tags=[usual.get(tag.strip(), tag) for tag in row.tags]) for row in part]
        for split, part in rows.items()
    }


def _read_scheme(name: str, rows: Sequence[RawSentence]) -> tuple[Reading, bool]:
    """Return the scheme of the tags of all splits, and whether they have prefixes; report what is unusual."""
    tags = dict.fromkeys(tag.strip() for row in rows for tag in row.tags)
    bare = [tag for tag in tags if tag and not TAG.fullmatch(tag)]
    if bare and any("-" in tag and TAG.fullmatch(tag) for tag in tags):
        where = next(row.where for row in rows if bare[0] in (tag.strip() for tag in row.tags))
        raise UserError(
            f"{where}: the tag '{bare[0]:.40}' has no prefix (B-, I-, ...), but other tags have one; correct it."
        )
    found = find_scheme([[split_tag(tag, not bare) for tag in row.tags] for row in rows])
    if found.example:
        number, word = found.example
        row = rows[number]
        first = [f"{row.words[place]}/{row.tags[place]}" for place in range(max(0, word - 1), word + 1)]
        warn_once(
            f"The tags of the task '{name}' are in the scheme {found.scheme}, which {found.broken:,} entities break, "
            f"such as '{' '.join(first)}' ({row.where}); an entity begins there."
        )
    elif found.scheme == "IO":
        warn_once(
            f"The tags of the task '{name}' are in the scheme IO: adjacent entities of the same type cannot be "
            "distinguished and are one."
        )
    elif found.scheme != "IOB2":
        warn_once(f"The tags of the task '{name}' are in the scheme {found.scheme}; models learn IOB2.")
    return found, not bare


def read_sentence(row: RawSentence, prefixed: bool = True) -> Sentence:
    """Return a sentence with the positions of its words and entities.

    Raises:
        RowError: If its text has characters that cannot be read, or an entity is outside of it.
    """
    if row.text is not None:
        text = row.text
        words = tuple(match.span() for match in WORD.finditer(text))
        entities = _outermost([_trim(row, span) for span in row.spans])
    else:
        text = " ".join(row.words)
        starts = [0]
        for word in row.words:
            starts.append(starts[-1] + len(word) + 1)
        words = tuple((start, start + len(word)) for start, word in zip(starts, row.words, strict=False))
        marked = read_entities([split_tag(tag, prefixed) for tag in row.tags])
        entities = [Entity(words[first][0], words[stop - 1][1], name) for first, stop, name in marked]
        if nothing := next((entity for entity in entities if not text[entity.start : entity.end].strip()), None):
            what = f"the words of an entity ('{nothing.type}') are empty; tag them O"
            raise RowError(row.where, "with an entity that cannot be used", what)
    check_characters(row.where, text)
    return Sentence(text, words, tuple(entities), group=row.group, row=short_place(row.where))


def _trim(row: RawSentence, span: Entity) -> Entity:
    """Return a span without blanks at its ends."""
    text = row.text or ""
    start, end, name = span
    if not 0 <= start < end <= len(text):
        what = f"the entity '{name}' from {start} to {end} is not in the text of {len(text)} characters"
        raise RowError(row.where, "with an entity that cannot be used", what)
    inside = text[start:end]
    if not inside.strip():
        what = f"the entity '{name}' from {start} to {end} holds only blanks"
        raise RowError(row.where, "with an entity that cannot be used", what)
    return Entity(start + len(inside) - len(inside.lstrip()), end - len(inside) + len(inside.rstrip()), name)


def _outermost(spans: Sequence[Entity]) -> list[Entity]:
    """Return the longest of spans that overlap, in the order of the text; of equal ones the first in the file."""
    kept: list[Entity] = []
    for span in sorted(spans, key=lambda span: (span.start - span.end, span.start)):
        if all(span.end <= other.start or other.end <= span.start for other in kept):
            kept.append(span)
    return sorted(kept)


def _warn_about_overlaps(
    name: str, raw: Mapping[str, Sequence[RawSentence]], sentences: Mapping[str, Sequence[Sentence]]
) -> None:
    left_out = sum(
        len(set(row.spans)) - len(sentence.entities)
        for split in raw
        for row, sentence in zip(raw[split], sentences[split], strict=True)
        if row.text is not None
    )
    if left_out:
        log.warning(
            "Overlapping entities of the task '%s' that are not used, since a word has one tag: %d. The longest is.",
            name,
            left_out,
        )
