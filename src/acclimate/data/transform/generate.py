"""Documents that language models or functions of the user make, with a cache per input."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from acclimate.base.errors import UserError, shorten
from acclimate.base.progress import Progress
from acclimate.base.registry import identify_function, load_function
from acclimate.data.answers import AnswerStore, Asking
from acclimate.data.documents import hash_document
from acclimate.data.operations import EXAMPLES, TRANSFORMS, Context, Transform
from acclimate.data.pool import Document, Documents
from acclimate.data.writers import (
    Budget,
    BudgetSpentError,
    Key,
    PromptOptions,
    Request,
    Writer,
    WriterOptions,
    Writing,
    call_function,
    check_writer,
    is_model,
    missing_writer,
    parse_writer,
)


def hash_text(text: str) -> str:
    """Return the digest that identifies a document."""
    return hash_document(text.encode("utf-8", "surrogatepass")).hex()


def read_documents(returned: Any) -> list[list[Any]]:
    """Return the texts and further fields of what a function returned: a document or several, or None for none.

    Raises:
        TypeError: If it is something else, or a document is neither text nor a mapping with a ``text``.
    """
    found = list[list[Any]]()
    several = [] if returned is None else [returned] if isinstance(returned, str | Mapping | Document) else returned
    if not isinstance(several, Iterable):
        raise TypeError(f"it must return a document, several, or None, not {shorten(returned)}")
    for one in several:
        text, fields = one if isinstance(one, Document) else (one, {})
        if isinstance(one, Mapping):
            text, fields = one.get("text"), {name: value for name, value in one.items() if name != "text"}
        if not isinstance(text, str):
            raise TypeError(f"a document is text, or a mapping with a text, not {shorten(one)}")
        if text.strip():
            found.append([text, fields])
    return found


def read_score(returned: Any) -> list[float]:
    """Return the score that a function returned.

    Raises:
        ValueError: If it is not a finite number.
    """
    if not math.isfinite(score := float(returned)):
        raise ValueError(f"a score is a finite number, not {score}")
    return [score]


def read_rating(returned: Any) -> list[float | None]:
    """Return the score that a rater returned; None if it gives none.

    Raises:
        ValueError: If it is not a finite number.
    """
    return [None] if returned is None else [*read_score(returned)]


def read_number(answer: str) -> float | None:
    """Return the first number in the answer of a model; None if there is none."""
    found = re.search(r"-?\d+(?:\.\d+)?", answer)
    return None if found is None else float(found[0])


class CachedFunction:
    """A writer from a text to values, such as a function of the user, which is called once for each text.

    What a function returned, or a model answered, is in the cache before it is used, so that neither an interruption
    nor a change of other documents or parameters repeats the calls.

    Attributes:
        name: Name of the function or model.
    """

    def __init__(
        self,
        given: Writing,
        key: Key | None,
        read: Callable[[Any], list[Any]],
        what: str = "generator",
        options: WriterOptions | None = None,
        prompt: str | None = None,
        parse: Callable[[str], Any] = str,
        split: Callable[[str], Mapping[str, str]] = lambda text: {"text": text},
    ) -> None:
        """Load the function, or prepare the calls of a model.

        Args:
            given: The function, endpoint or model, see :mod:`acclimate.data.writers`.
            key: Identifier that is used instead of the code of a function.
            read: Returns the values, as they can be written to JSON, of what the function returned.
            what: Description of it, for messages.
            options: Options of the part that names it.
            prompt: Prompt of a model if the user gives none.
            parse: Returns of the answer of a model what a function would return.
            split: Returns what the names in the prompt stand for, of a text.

        Raises:
            UserError: If there is no such function, or an option is wrong.
        """
        self._read, self._what, self._parse, self._split, self._cached = read, what, parse, split, 0
        check_writer(given, options, what)
        by, found = parse_writer(given, options, what)
        self._writer: Writer | None = None
        if is_model(by):
            self._prompt = found.prompt or prompt or ""
            if not re.search(r"\{\w+\}", self._prompt):
                raise UserError(f"The {what} is a model, which needs a prompt: give prompt='... {{text}} ...'.")
            self._writer = Writer(by, found, what, key)
            self.name = self._writer.name
            return
        self._budget = Budget(found)
        self._function, identity = load_function(by, what), identify_function(by, what, key)
        self.name = identity.split()[0].rpartition(".")[2]
        store = AnswerStore([read.__name__, identity])
        self._asking = Asking(store, hash_text, self._ask, found.concurrency or 1)

    def __call__(self, text: str) -> list[Any]:
        """Return the values for a text.

        Raises:
            UserError: If the function fails, or returns something else.
        """
        (values,) = self.map([text])
        return values

    def map(self, texts: Iterable[str], total: int | None = None) -> Iterator[list[Any]]:
        """Yield the values for each text, in their order; several calls may be under way.

        Args:
            texts: The texts, which are read as they are needed.
            total: Their number, if it is known, for messages.

        Raises:
            UserError: If a call fails, or returns something else.
        """
        if self._writer is not None:
            for answer in self._writer.write((self._request(text) for text in texts), total):
                yield call_function(self._parse, self._what, self.name, answer.text, self._read)
            return
        done = 0
        try:
            for values, is_cached in self._asking.map(texts):
                self._cached += is_cached
                yield values
                done += 1
        except BudgetSpentError as error:
            raise self._budget.explain(error, self._what, done, total) from None

    def _request(self, text: str) -> Request:
        return Request(fill_prompt(self._prompt, self._split(text)))

    def _ask(self, texts: Sequence[str]) -> list[tuple[list[Any], bool]]:
        (text,) = texts
        self._budget.take()
        return [(call_function(self._function, self._what, self.name, text, self._read), True)]

    def rate(self) -> str:
        """Return how fast a model answers, for progress."""
        return "" if self._writer is None else self._writer.rate()

    def account(self) -> dict[str, Any]:
        """Return what an account says of the function or model."""
        if self._writer is not None:
            return self._writer.account()
        return {"generator": self.name, "calls": self._budget.calls, "from_cache": self._cached}


def describe_origin(writer: str, key: Key | None, source: str) -> dict[str, Any]:
    """Return the fields of a document that say which writer, with which key, made it of which document."""
    return {"made_by": writer, **({} if key is None else {"made_with": key}), "made_from": source}


def fill_prompt(template: str, fields: Mapping[str, str]) -> str:
    """Return a prompt with the value of each ``{name}`` of the fields; other braces stay."""
    return re.sub(r"\{(\w+)\}", lambda found: fields.get(found[1], found[0]), template)


@TRANSFORMS.register(
    "generate", summary="the documents that a language model or a Python function makes of each document"
)
@dataclass(frozen=True)
class Generate(PromptOptions, Transform):
    """Writes the documents that a language model or a function makes of each document.

    A model answers the prompt. A function gets the text of a document and returns a text, a mapping with a ``text``
    and further fields, several of these, or None. What was made has the fields ``made_by``, the name of the model or
    function, and ``made_from``, the digest of the document. Results are cached per document: after an interruption or
    a change of the corpus only new documents are generated.

    Attributes:
        by: The writer: an endpoint, ``http://HOST:PORT/v1``, several separated by commas; ``model:PATH``, a model of
            this machine; or a function, ``FILE.py:FUNCTION`` or the name of one of a file given with ``--plugin``, in
            Python the function itself.
        key: Identifier of the function in the cache and in the field ``made_with``, such as the name and version of
            the model that it calls; by default its code, so that a change of the file generates again. Objects other
            than text and numbers that a function in Python captures do not count: give a key where they differ.
        keep: Whether each document itself stays, before what is made of it.
    """

    main: ClassVar[str] = "by"
    functions: ClassVar[tuple[str, ...]] = ("by",)
    by: Writing | None = None
    key: Key | None = None
    keep: bool = False

    def __post_init__(self) -> None:
        if self.by is None:
            raise missing_writer("Transform 'generate'")
        super().__post_init__()
        check_writer(self.by, self, "generator")

    def apply(self, documents: Documents, context: Context) -> Iterable[Document]:
        """Call the function for each document."""
        assert self.by is not None
        generate = CachedFunction(self.by, self.key, read_documents, options=self)
        empty = list[str]()
        pairs = zip(documents.with_fields(), generate.map(documents, len(documents)), strict=True)
        with Progress("Generating", len(documents), unit="documents", enabled=context.progress) as bar:
            for number, ((text, own), made) in enumerate(pairs):
                if self.keep:
                    yield Document(text, own)
                source = describe_origin(generate.name, self.key, hash_text(text))
                yield from (Document(one, {**fields, **source}) for one, fields in made)
                if not made:
                    empty.append(text if len(empty) < EXAMPLES else "")
                bar.update(number + 1, generate.rate())
        context.notes.update(generate.account(), without_result=len(empty), dropped=empty[:EXAMPLES])
