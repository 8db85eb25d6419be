"""Documents that are read by position, from a temporary file, and the number of tokens of each."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, overload

import numpy as np
import regex

from acclimate.base.files import cache_folder
from acclimate.base.progress import Progress

BATCH = 256
"""Documents whose tokens are counted at once."""
_ASCII_WORD = re.compile(r"[A-Za-z0-9]+|[^ \t\n\r\f\vA-Za-z0-9]")
_WORD = regex.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]|[\p{L}\p{N}\p{M}]+|[^\s\p{L}\p{N}\p{M}]")


def count_words(texts: Sequence[str]) -> list[int]:
    """Return the number of words and punctuation marks of each text; a Chinese or Japanese character is a word."""
    return [len((_ASCII_WORD if text.isascii() else _WORD).findall(text)) for text in texts]


class Document(NamedTuple):
    """A document with further fields, such as a label or the document that it was made from."""

    text: str
    fields: Mapping[str, Any] = {}


class Documents(Sequence[str]):
    """Documents in a temporary file, read by position; memory holds 48 bytes for each.

    Attributes:
        tokens: Number of tokens of each document (documents,).
        source: Index of the source of each document (documents,).
        sources: Names of the sources.
    """

    def __init__(
        self, file: Any, places: np.ndarray, tokens: np.ndarray, source: np.ndarray, sources: Sequence[str]
    ) -> None:
        """Make a view of documents in a file.

        ``places`` has the first byte, the size of the text and the size of the fields of each (documents, 3).
        """
        self._file, self._places = file, places
        self.tokens, self.source, self.sources = tokens, source, tuple(sources)

    @classmethod
    def of(
        cls,
        texts: Iterable[tuple[str | Document, int]],
        sources: Sequence[str],
        count: Callable[[Sequence[str]], Sequence[int]] = count_words,
        *,
        progress: bool = False,
    ) -> Documents:
        """Copy documents to a temporary file.

        Args:
            texts: The documents, each with the index of its source.
            sources: Names of the sources.
            count: Returns the number of tokens of each of several texts.
            progress: Whether to show a progress bar.
        """
        folder = cache_folder() / "corpora"
        folder.mkdir(parents=True, exist_ok=True)
        file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (it is closed with the last view of it)
        sizes, tokens, source = list[tuple[int, int]](), list[int](), list[int]()
        with Progress("Reading documents", None, unit="documents", enabled=progress) as bar:
            pairs = iter(texts)
            while batch := list(islice(pairs, BATCH)):
                documents = [one if isinstance(one, Document) else Document(one) for one, _ in batch]
                tokens += count([text for text, _ in documents])
                source += [number for _, number in batch]
                for text, fields in documents:
                    size = file.write(text.encode("utf-8", "surrogatepass"))
                    sizes.append((size, file.write(json.dumps(fields).encode()) if fields else 0))
                bar.update(len(sizes))
        file.flush()
        both = np.array(sizes, dtype=np.int64).reshape(-1, 2)
        places = np.column_stack([np.cumsum(both.sum(axis=1)) - both.sum(axis=1), both])
        return cls(file, places, np.array(tokens, np.int64), np.array(source, np.int32), sources)

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        """Read one document, or several into memory."""
        if isinstance(index, slice):
            return [self._read(place) for place in self._places[index].tolist()]
        return self._read(self._places[index].tolist())

    def _read(self, place: Sequence[int]) -> str:
        # Processes that share the file share its position, too, which this does not move.
        return os.pread(self._file.fileno(), place[1], place[0]).decode("utf-8", "surrogatepass")

    def __iter__(self) -> Iterator[str]:
        """Read the documents one after the other."""
        return (self._read(place) for place in self._places.tolist())

    def with_fields(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Read the documents one after the other, each with its fields."""
        for place in self._places.tolist():
            fields = os.pread(self._file.fileno(), place[2], place[0] + place[1]) if place[2] else b"{}"
            yield self._read(place), json.loads(fields)

    def take(self, positions: Sequence[int] | np.ndarray) -> Documents:
        """Return the documents at some positions, in that order; a position may occur several times."""
        chosen = np.asarray(positions, dtype=np.int64)
        return Documents(self._file, self._places[chosen], self.tokens[chosen], self.source[chosen], self.sources)

    def are_in(self, others: Documents) -> np.ndarray:
        """Return whether each document is among others that were taken from the same file (documents,)."""
        return np.isin(self._places[:, 0], others._places[:, 0])
