"""Text that a language model writes about documents: prompts in files, checks of the answers, and their origin."""

from __future__ import annotations

import re
import sys
from abc import abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from acclimate.base.errors import UserError
from acclimate.base.files import find_file
from acclimate.base.progress import Progress
from acclimate.base.ranking import content_order
from acclimate.data.answer_parsing import clean_answer, cut_to_sentences, is_refusal, parse_list
from acclimate.data.contamination import MatchRules, TextIndex
from acclimate.data.documents import Corpus
from acclimate.data.ngrams import normalize_words
from acclimate.data.operations import EXAMPLES, Context, Transform
from acclimate.data.pool import Document, Documents, count_words
from acclimate.data.select.control import fill_tokens
from acclimate.data.select.duplicates import Duplicates, hash_document_ngrams
from acclimate.data.sentences import split_sentences
from acclimate.data.transform.generate import describe_origin, fill_prompt, hash_text
from acclimate.data.writers import Key, Request, Writer, WriterOptions, check_writer, missing_writer, open_writer
from acclimate.data.writers import Writing as WriterName

T = TypeVar("T")
BLOCK = 1024
"""Pieces of documents whose answers to a first prompt are in memory at once."""
MAX_ENTRY = 500
"""Maximum characters of an entry of a list; a longer one is no entry."""
NEAR = 0.8
"""Share of the character 5-grams of a text that the prompt has, from which it is a copy: other texts on the subject
have less than half of them in a prompt of 1,500 words. Also the Jaccard similarity of near duplicates."""


class Piece(NamedTuple):
    """A document, or a part of a long one, and the digest of the document."""

    text: str
    digest: str


class Listed(NamedTuple):
    """A piece of a document, and what the writer lists about it."""

    piece: Piece
    names: list[str]


class Asked(NamedTuple):
    """A prompt about a piece of a document.

    Attributes:
        piece: The piece.
        prompt: Name of the prompt.
        values: What replaces the other placeholders of the prompt.
        fields: Fields of the documents that are made of the answer.
        repeat: Number of equal prompts before, so that each gets another answer.
    """

    piece: Piece
    prompt: str
    values: Mapping[str, str] = {}
    fields: Mapping[str, Any] = {}
    repeat: int = 0


class Pieces:
    """The documents in some order, long ones in pieces of whole sentences; they can be read several times."""

    def __init__(self, documents: Sequence[str], order: Iterable[int], words: int) -> None:
        """Set the positions of the documents, and the maximum number of words of a piece.

        A sentence with more words is a piece of its own.
        """
        self._documents, self._order, self._words = documents, list(order), words

    def __iter__(self) -> Iterator[Piece]:
        """Read the documents."""
        for place in self._order:
            text = self._documents[place]
            digest, total = hash_text(text), count_words([text])[0]
            sentences = [text] if total <= self._words else split_sentences(text)
            most, own, size = total / max(1, -(-total // self._words)), list[str](), 0
            for sentence, count in zip(sentences, count_words(sentences), strict=True):
                if own and (size >= most or size + count > self._words):
                    yield Piece(" ".join(own), digest)
                    own, size = [], 0
                own.append(sentence)
                size += count
            if own:
                yield Piece(" ".join(own), digest)


@dataclass(frozen=True)
class Recipe(WriterOptions, Transform):
    """A transform whose documents a language model writes.

    Each text that is made has the fields ``made_by``, the name of the writer, ``made_from``, the digest of the
    document, and ``prompt``, the name and digest of the prompt. Refusals, empty answers, and texts that match a dev or
    test text of the task that is given are dropped and counted.

    Attributes:
        by: The writer, as ``by`` of ``generate``.
        key: What identifies a function, as ``key`` of ``generate``.
        prompts: A folder with files that replace those of the recipe by name, such as ``pairs.txt``; for a recipe with
            one prompt also the file.
        words: Maximum words of a document per prompt; longer ones are read in pieces of whole sentences.
    """

    main: ClassVar[str] = "by"
    functions: ClassVar[tuple[str, ...]] = ("by",)
    files: ClassVar[tuple[str, ...]] = ("prompts",)
    placeholders: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Names of the prompts, each with the placeholders that it must have."""
    by: WriterName | None = None
    key: Key | None = None
    prompts: str | None = None
    words: int = 1500

    def __post_init__(self) -> None:
        """Check the parameters, and read the prompts.

        Raises:
            UserError: If there is no writer, a number is out of range, or a prompt cannot be used.
        """
        super().__post_init__()
        if self.by is None:
            raise missing_writer(f"Transform '{self.name}'")
        check_writer(self.by, self, "writer")
        if self.words < 1:
            raise UserError(f"Transform '{self.name}': words is at least 1, not {self.words}.")
        self.templates  # noqa: B018

    @cached_property
    def templates(self) -> dict[str, str]:
        """The prompts by name.

        Raises:
            UserError: If a file cannot be read, or lacks a placeholder.
        """
        folder = Path(str(sys.modules[type(self).__module__].__file__)).parent / "prompts"
        files = {name: folder / f"{name}.txt" for name in self.placeholders}
        if self.prompts is not None:
            given = Path(self.prompts).expanduser()
            own = {name: file for name in files if (file := given / f"{name}.txt").is_file()}
            if not own and given.is_file() and len(files) == 1:
                own = dict.fromkeys(files, given)
            if not own:
                names = " or ".join(f"{name}.txt" for name in files)
                raise UserError(f"Transform '{self.name}': '{given}' is no folder with {names}; give one as prompts.")
            files |= own
        found = {}
        for name, file in files.items():
            try:
                found[name] = file.read_text(encoding="utf-8-sig").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise UserError(f"The prompt '{file}' cannot be read as UTF-8 text: {error}") from error
            if lacking := [one for one in self.placeholders[name] if f"{{{one}}}" not in found[name]]:
                raise UserError(f"The prompt '{file}' lacks the placeholder {{{lacking[0]}}}.")
        return found

    def identity(self) -> dict[str, Any]:
        """Return everything that determines the recipe; prompts by their content."""
        is_file = self.prompts is not None and find_file(self.prompts) is not None  # which has its hash already
        return super().identity() | ({} if is_file else {"prompts": self.templates})

    @property
    def reads(self) -> tuple[str, ...]:
        """Dev and test texts, if a task is given."""
        return ("evaluated",)

    @abstractmethod
    def write(self, session: Session, pieces: Pieces) -> Generator[Document]:
        """Yield what the model writes about the documents."""

    def apply(self, documents: Documents, context: Context) -> Iterator[Document]:
        """Write, and take notes of the prompts and the answers."""
        session = Session(self, context)
        yield from self.write(session, Pieces(documents, range(len(documents)), self.words))
        context.notes.update(session.account())


@dataclass(frozen=True)
class Sized(Transform):
    """A transform with a size, so that texts of several recipes can be compared at equal tokens.

    Attributes:
        tokens: Number of tokens to write.
        like: A file that a transform wrote: as many tokens as it has, instead of ``tokens``.
    """

    files: ClassVar[tuple[str, ...]] = ("like",)
    tokens: int | None = None
    like: str | None = None

    def __post_init__(self) -> None:
        if self.tokens is not None and (self.tokens < 1 or self.like is not None):
            raise UserError(f"Transform '{self.name}': tokens is at least 1, and goes without like.")

    def limit(self, context: Context) -> int | None:
        """Return the number of tokens to write; None for no limit."""
        if self.like is None:
            return self.tokens
        return sum(sum(context.count(texts)) for texts in batched(Corpus(self.like, dedup=False), BLOCK))


@dataclass(frozen=True)
class TextRecipe(Sized, Recipe):
    """A recipe for text to read. Near copies of the prompt, the document, or earlier texts are dropped, too."""

    files: ClassVar[tuple[str, ...]] = ("prompts", "like")
    temperature: float = 0.7
    max_tokens: int = 1024

    def __post_init__(self) -> None:
        Sized.__post_init__(self)
        Recipe.__post_init__(self)

    def apply(self, documents: Documents, context: Context) -> Iterator[Document]:
        """Write until there are enough tokens, without near duplicates."""
        limit, session = self.limit(context), Session(self, context)
        order = range(len(documents)) if limit is None else content_order(documents, self.seed).tolist()
        stream = self.write(session, Pieces(documents, order, self.words))
        kept, before, quiet = Documents.of([], (), context.count), -1, replace(context, notes={})
        while len(kept) > before and (limit is None or kept.tokens.sum() < limit):
            before = len(kept)
            more = _take(stream, None if limit is None else limit - int(kept.tokens.sum()), context)
            earlier = (Document(*pair) for pair in kept.with_fields())
            made = Documents.of(((one, 0) for one in chain(earlier, more)), (self.name,), context.count)
            kept = Duplicates(NEAR).apply(made, quiet) if len(made) else made
            session.unused["repeated"] += len(made) - len(kept)
            if limit is None:
                break
        stream.close()
        if limit is not None and len(kept):
            kept = kept.take(fill_tokens(np.arange(len(kept)), kept.tokens, limit))
        yield from (Document(*pair) for pair in kept.with_fields())
        context.notes.update(session.account(), wanted_tokens=limit)


def _take(stream: Iterator[Document], tokens: int | None, context: Context) -> Iterator[Document]:
    """Yield documents until they have a number of tokens."""
    for one in stream:
        yield one
        if tokens is not None and (tokens := tokens - context.count([one.text])[0]) <= 0:
            return


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield lists of so many items; the last may be shorter."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


class Session:
    """What a recipe asks the writer, and what becomes of the answers.

    Attributes:
        writer: What writes.
        used: Number of texts that were made.
        unused: Number of answers and texts that were dropped, by reason.
    """

    def __init__(self, recipe: Recipe, context: Context, writer: Writer | None = None) -> None:
        """Open the writer, unless it is that of another session."""
        assert recipe.by is not None
        self.writer = writer or open_writer(recipe.by, recipe, key=recipe.key)
        self._recipe, self._progress, self.used, self.unused = recipe, context.progress, 0, Counter[str]()
        self._seen, self._examples = set[str](), list[str]()
        self._evaluated = TextIndex(context.evaluated, MatchRules()) if context.evaluated else None
        self._digests = {name: hash_text(text)[:12] for name, text in recipe.templates.items()}
        instructions = {name: re.sub(r"\{\w+\}", " ", text) for name, text in recipe.templates.items()}
        self._instructions = {name: hash_document_ngrams(text) for name, text in instructions.items()}

    def answers(self, asked: Iterable[Asked]) -> Iterator[tuple[Asked, str, bool]]:
        """Yield the answers that are neither refused nor empty, each with its prompt and whether it was cut off."""
        waiting = deque[Asked]()

        def requests() -> Iterator[Request]:
            for one in asked:
                waiting.append(one)
                yield Request(self._fill(one), seed=self._recipe.seed + one.repeat)

        with Progress("Writing", None, unit="answers", enabled=self._progress) as bar:
            for number, answer in enumerate(self.writer.write(requests()), 1):
                one, text = waiting.popleft(), clean_answer(answer.text)
                bar.update(number)
                if is_refusal(text):
                    self.drop("refused", text)
                elif text:
                    yield one, text, answer.ended == "truncated"
                elif answer.text.strip():
                    self.drop("only thoughts", answer.text)

    def _fill(self, one: Asked) -> str:
        """Return the prompt; another one where the same was asked before, since equal prompts have equal answers."""
        prompt = fill_prompt(self._recipe.templates[one.prompt], {"text": one.piece.text, **one.values})
        if not one.repeat:
            return prompt
        return f"{prompt}\n\nThis is version {one.repeat + 1}: word it differently from the others."

    def lists(self, asked: Iterable[Asked], most: int, *, least: int = 1, commas: bool = False) -> list[Listed]:
        """Return the first entries of the list in each answer, with its piece; answers with too few are counted."""
        found = list[Listed]()
        for one, answer, is_cut in self.answers(asked):
            names = parse_list(answer, commas=commas)
            is_cut = is_cut and len(names) > 1  # half an only entry still names something
            names = self.whole(names, answer, is_cut, str)
            names = [name for name in names if len(name) <= MAX_ENTRY]
            if len(names) < least:
                self.drop("unreadable", answer)
            else:
                found.append(Listed(one.piece, names[:most]))
        return found

    def whole(self, found: list[T], answer: str, is_cut: bool, text: Callable[[T], str]) -> list[T]:
        """Return what was found in an answer without a last entry that was cut off, which is counted."""
        if is_cut and found and answer.endswith(text(found[-1])):
            self.drop("cut off", text(found[-1]))
            return found[:-1]
        return found

    def texts(self, asked: Iterable[Asked]) -> Iterator[Document]:
        """Yield the answers as documents, up to their last whole sentence: no near copy of the prompt, none twice."""
        for one, answer, is_cut in self.answers(asked):
            text = cut_to_sentences(answer) if is_cut else answer
            if self._is_copy(text, one):
                self.drop("copied", text)
            elif self.is_new(text):
                yield self.document(text, one)

    def _is_copy(self, text: str, one: Asked) -> bool:
        """Return whether a text has the instructions in it, or is nearly all in the prompt, with its document."""
        ngrams, own = hash_document_ngrams(text), self._instructions[one.prompt]
        pairs = [(own, ngrams), (ngrams, hash_document_ngrams(self._fill(one)))]
        pairs = [(part, whole) for part, whole in pairs if len(part)]
        return any(len(np.intersect1d(part, whole, assume_unique=True)) >= NEAR * len(part) for part, whole in pairs)

    def is_new(self, *texts: str) -> bool:
        """Return whether texts neither were made before nor match one of a dev or test split; else count them."""
        joined = "\n".join(texts)
        digest = hash_text(" ".join(normalize_words(joined)) or joined)
        if digest in self._seen:
            return self.drop("repeated", joined)
        self._seen.add(digest)
        return not self._evaluated or not any(map(self._evaluated.find, texts)) or self.drop("contaminated", joined)

    def drop(self, reason: str, text: str) -> bool:
        """Count what is not used; return False."""
        self.unused[reason] += 1
        self._examples += [text] if len(self._examples) < EXAMPLES else []
        return False

    def document(self, text: str, one: Asked, **fields: Any) -> Document:
        """Return a document with its origin."""
        self.used += 1
        origin = describe_origin(self.writer.name, self._recipe.key, one.piece.digest)
        prompt = f"{self._recipe.name}/{one.prompt} {self._digests[one.prompt]}"
        return Document(text, {**one.fields, **fields, **origin, "prompt": prompt})

    def account(self) -> dict[str, Any]:
        """Return what an account says of the writer, the prompts, and what was not used."""
        counts = {reason: self.unused[reason] for reason in sorted(self.unused) if self.unused[reason]}
        return {**self.writer.account(), "prompts": self._digests, "unused": counts, "dropped": self._examples}
