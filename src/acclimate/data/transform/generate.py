"""Documents that functions of the user make, such as calls of a large language model, with a cache per input."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from acclimate.base.errors import USER_CODE_ERRORS, UserError, first_line, shorten
from acclimate.base.files import cache_folder, translate_disk_errors
from acclimate.base.progress import Progress
from acclimate.base.records import fingerprint
from acclimate.base.registry import identify_function, load_function
from acclimate.data.documents import hash_document
from acclimate.data.operations import EXAMPLES, TRANSFORMS, Context, Transform
from acclimate.data.pool import Document, Documents

Function = str | Callable[..., Any]
"""A function of the user, or its name, see :func:`acclimate.base.registry.load_function`."""
Key = str | int | float
"""Identifier of the results of a function instead of its code, such as the version of a model."""


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


class CachedFunction:
    """A function of the user from a text to values, which calls it once for each text.

    What it returned is kept in a file of the cache, a line per text, so that neither an interruption nor a change of
    other documents or parameters repeats the calls.

    Attributes:
        name: Name of the function.
        calls: Number of texts for which it was called.
        cached: Number of texts whose values were in the cache.
    """

    def __init__(
        self, given: Function, key: Key | None, read: Callable[[Any], list[Any]], what: str = "generator"
    ) -> None:
        """Load the function, and index the cache.

        Args:
            given: The function.
            key: Identifier that is used instead of its code.
            read: Returns the values, as they can be written to JSON, of what the function returned.
            what: Description of the function, for messages.

        Raises:
            UserError: If there is no such function.
        """
        self._function, self._read, self._what = load_function(given, what), read, what
        identity = identify_function(given, what, key)
        self.name, self.calls, self.cached = identity.split()[0].rpartition(".")[2], 0, 0
        self._path = cache_folder() / "generated" / f"{fingerprint([read.__name__, identity])}.jsonl"
        self._places = dict(_index(self._path))

    def __call__(self, text: str) -> list[Any]:
        """Return the values for a text.

        Raises:
            UserError: If the function fails, or returns something else.
        """
        digest = hash_text(text)
        if (place := self._places.get(digest)) is not None:
            self.cached += 1
            with self._path.open("rb") as file:
                file.seek(place)
                return list(json.loads(file.readline())["values"])
        self.calls += 1
        try:
            values = self._read(self._function(text))
            line = json.dumps({"of": digest, "values": values}).encode() + b"\n"
        except UserError:
            raise
        except USER_CODE_ERRORS as error:
            raise UserError(
                f"The {self._what} '{self.name}' failed for {shorten(text)}: {type(error).__name__}: "
                f"{first_line(error).removesuffix('.')}. What it made before is in the cache, so the same command "
                "continues from here."
            ) from error
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with translate_disk_errors(self._path), self._path.open("ab") as file:
            self._places[digest] = file.tell()
            file.write(line)
        return values

    def account(self) -> dict[str, Any]:
        """Return what an account says of the function."""
        return {"generator": self.name, "calls": self.calls, "from_cache": self.cached}


def _index(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the digest and the first byte of each line of a cache; a line that a killed process cut is completed."""
    if not path.is_file():
        return
    place, line = 0, b"\n"
    with path.open("rb") as file:
        for line in file:
            with suppress(ValueError, KeyError, TypeError):
                if isinstance((found := json.loads(line))["values"], list):
                    yield str(found["of"]), place
            place += len(line)
    if not line.endswith(b"\n"):
        with path.open("ab") as end:
            end.write(b"\n")


@TRANSFORMS.register("generate", summary="the documents that a Python function makes of each document")
@dataclass(frozen=True)
class Generate(Transform):
    """Writes the documents that a function returns for each document, such as the answers of a large language model.

    The function gets the text of a document and returns a text, a mapping with a ``text`` and further fields, several
    of these, or None. What was made has the fields ``made_by``, the name of the function, and ``made_from``, the
    digest of the document. Results are cached per document: after an interruption or a change of the corpus only new
    documents are generated.

    Attributes:
        by: The function: ``FILE.py:FUNCTION``, or the name of a function of a file given with ``--plugin``; in Python
            the function itself.
        key: Identifier of the function in the cache and in the field ``made_with``, such as the name and version of
            the model that it calls; by default its code, so that a change of the file generates again. Objects other
            than text and numbers that a function in Python captures do not count: give a key where they differ.
        keep: Whether each document itself stays, before what is made of it.
    """

    main: ClassVar[str] = "by"
    functions: ClassVar[tuple[str, ...]] = ("by",)
    by: Function | None = None
    key: Key | None = None
    keep: bool = False

    def __post_init__(self) -> None:
        if self.by is None:
            raise UserError("Transform 'generate' needs a function: give by=FILE.py:FUNCTION.")

    def apply(self, documents: Documents, context: Context) -> Iterable[Document]:
        """Call the function for each document."""
        assert self.by is not None
        generate = CachedFunction(self.by, self.key, read_documents)
        made_with = {} if self.key is None else {"made_with": self.key}
        empty = list[str]()
        with Progress("Generating", len(documents), unit="documents", enabled=context.progress) as bar:
            for number, (text, own) in enumerate(documents.with_fields()):
                if self.keep:
                    yield Document(text, own)
                made = generate(text)
                source = {"made_by": generate.name, **made_with, "made_from": hash_text(text)}
                yield from (Document(one, {**fields, **source}) for one, fields in made)
                if not made:
                    empty.append(text if len(empty) < EXAMPLES else "")
                bar.update(number + 1)
        context.notes.update(generate.account(), without_result=len(empty), dropped=empty[:EXAMPLES])
