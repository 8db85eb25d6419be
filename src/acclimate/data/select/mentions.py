"""Sentences that mention entries of a list: the corpus levels of CrossNER (Liu et al., AAAI 2021)."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from acclimate.base.errors import UserError
from acclimate.base.files import read_lines
from acclimate.data.ngrams import split_words
from acclimate.data.operations import EXAMPLES, Context, Operation, register
from acclimate.data.pool import Documents
from acclimate.data.sentences import split_sentences

COMMON_ENTRIES = 10
"""Entries that the account lists, the most frequent first."""


class EntryFinder:
    """Finds entries of a list in texts as sequences of whole words; the longest of those that start at one word."""

    def __init__(self, entries: Iterable[str], ignore_case: bool) -> None:
        """Split the entries into words; empty ones are left out."""
        self._ignore_case = ignore_case
        self._by_first_word: dict[str, list[tuple[str, ...]]] = {}
        for entry in {tuple(self._split(entry)) for entry in entries} - {()}:
            self._by_first_word.setdefault(entry[0], []).append(entry)
        for known in self._by_first_word.values():
            known.sort(key=len, reverse=True)

    def __len__(self) -> int:
        return sum(map(len, self._by_first_word.values()))

    def _split(self, text: str) -> list[str]:
        text = unicodedata.normalize("NFKC", text)
        return split_words(text.casefold() if self._ignore_case else text)

    def find(self, text: str) -> list[str]:
        """Return the entries in a text, one for each mention."""
        words, found, place = self._split(text), list[str](), 0
        while place < len(words):
            known = self._by_first_word.get(words[place], ())
            entry = next((entry for entry in known if tuple(words[place : place + len(entry)]) == entry), None)
            if entry is not None:
                found.append(" ".join(entry))
            place += len(entry) if entry else 1
        return found


def read_entries(path: str) -> list[str]:
    """Return the lines of a file that are not blank.

    Raises:
        UserError: If it cannot be read as UTF-8, or has none.
    """
    try:
        lines = read_lines(Path(path).expanduser(), "utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"'{path}' cannot be read as UTF-8 text with one word or phrase per line.") from error
    if not (found := [line for line in lines if line.strip()]):
        raise UserError(f"'{path}' has no lines; write one word or phrase per line.")
    return found


@register(
    "mentions",
    paper="CrossNER, Liu et al., AAAI 2021",
    summary="sentences that mention entities or key words of a list",
)
@dataclass(frozen=True)
class Mentions(Operation):
    """Keeps the sentences that mention entries of a list, as documents by themselves.

    Attributes:
        words: File with one word or phrase per line, such as the entities of the domain.
        task_words: A second list, such as entities and names of types in the task.
        level: ``entity`` for sentences with entries of ``words``; ``task`` for those with entries of ``task_words``;
            ``integrated`` for both, task sentences ``times`` times; ``domain`` for all sentences, as a comparison.
        times: Number of times that sentences of the task level occur in the integrated level.
        least: Minimum number of mentions in a sentence.
        ignore_case: Whether to ignore case.
        unit: Unit that is kept: the ``sentence``, or the whole ``document`` that contains it.
    """

    main: ClassVar[str] = "words"
    files: ClassVar[tuple[str, ...]] = ("words", "task_words")
    words: str | None = None
    task_words: str | None = None
    level: Literal["entity", "task", "integrated", "domain"] = "entity"
    times: int = 1
    least: int = 1
    ignore_case: bool = True
    unit: Literal["sentence", "document"] = "sentence"

    def __post_init__(self) -> None:
        needed = {"entity": ("words",), "task": ("task_words",), "integrated": ("words", "task_words")}
        for name in needed.get(self.level, ()):
            if getattr(self, name) is None:
                raise UserError(f"Selection 'mentions': level={self.level} needs {name}, a file of words and phrases.")
        if self.times < 1 or self.least < 1:
            raise UserError("Selection 'mentions': times and least are at least 1.")

    def apply(self, documents: Documents, context: Context) -> Iterator[str]:
        """Search all sentences."""
        finders = {
            name: EntryFinder(read_entries(path), self.ignore_case)
            for name, path, level in (("words", self.words, "entity"), ("task_words", self.task_words, "task"))
            if path is not None and self.level in (level, "integrated")
        }
        found: dict[str, Counter[str]] = {name: Counter() for name in finders}
        read, kept, dropped = 0, Counter[str](), list[str]()
        for document in documents:
            parts: Sequence[str] = [document] if self.unit == "document" else split_sentences(document)
            for part in parts:
                read += 1
                mentions = {name: finder.find(part) for name, finder in finders.items()}
                levels = [name for name in finders if len(mentions[name]) >= self.least]
                for name in levels:
                    found[name].update(mentions[name])
                    kept[name] += 1
                copies = 1 if self.level == "domain" else 0
                copies += ("words" in levels) + ("task_words" in levels) * (
                    self.times if self.level == "integrated" else 1
                )
                if not copies and len(dropped) < EXAMPLES:
                    dropped.append(part)
                yield from [part] * copies
        context.notes.update(parts_read=read, parts_with_mentions=dict(kept), dropped=dropped)
        context.notes["entries"] = {
            name: {
                "listed": len(finder),
                "found": len(found[name]),
                "most_common": dict(found[name].most_common(COMMON_ENTRIES)),
            }
            for name, finder in finders.items()
        }
