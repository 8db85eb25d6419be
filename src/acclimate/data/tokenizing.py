"""Turns documents into rows of token ids, with a cache for later runs with the same corpus, tokenizer and settings.

Documents are encoded without special tokens and split here rather than by the tokenizer's truncation. Fast and slow
tokenizers therefore give the same rows, whatever their truncation side, and the last two rows of a document can be
balanced. A special token in the text of a document (``<s>`` is also HTML, papers about BERT mention ``[SEP]``) is
encoded as ordinary text, see :func:`read_as_text`. Where special tokens are added is set by :class:`Framing`.
"""

from __future__ import annotations

import copy
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import accumulate, groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from acclimate.base.errors import UserError, warn_once
from acclimate.base.files import atomic_folder
from acclimate.base.progress import Progress
from acclimate.data.documents import Corpus, CorpusReport
from acclimate.data.token_dataset import TokenDataset, TokenDatasetWriter

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MIN_TAIL_TOKENS = 8
SINGLE_SPACE = re.compile(r"\S(?= \S)")
BATCH_DOCUMENTS = 512
BATCH_CHARACTERS = 1_000_000
MAX_PIECE_CHARACTERS = 2_000_000
"""Longer documents are encoded in pieces, since a tokenizer needs some hundred bytes of memory per character."""
MAX_UNKNOWN_SHARE = 0.05
"""A warning is logged if more than this share of the tokens of a corpus is unknown."""
_VERSION = 1  # increment when the same corpus and settings give different rows


@dataclass(frozen=True)
class Framing:
    """Placement of special tokens, and whether documents share rows.

    Attributes:
        documents: ``"framed"`` adds the special tokens of the tokenizer to every row. ``"apart"`` adds them once to
            each document, at its beginning and its end, also if it fills several rows. ``"joined"`` does so too, and
            cuts the concatenation of all documents, in their order, into rows.
        end: Id of the token that ends a document that is ``"apart"`` or ``"joined"``. It follows the special tokens
            of the tokenizer, unless they contain it. None adds no such token.
        begins_rows: Whether the special tokens before a document that is ``"apart"`` begin each of its rows.
    """

    documents: Literal["framed", "apart", "joined"] = "framed"
    end: int | None = None
    begins_rows: bool = field(default=False, repr=False)


EVERY_ROW = Framing()


def tokenize(
    corpus: Corpus,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    *,
    framing: Framing = EVERY_ROW,
    cache: str | Path | None = None,
    max_tokens: int | None = None,
    progress: bool = True,
) -> TokenDataset:
    """Split every document into rows of at most ``max_length`` tokens, special tokens included.

    Every token of a document is in exactly one row, in order. All rows of a document but the last are full. A last row
    of fewer than 8 tokens would give almost no context to learn from, so it is balanced with the row before it.
    Documents without tokens give no row. Documents that are joined are split like a single one.

    Args:
        corpus: The documents.
        tokenizer: Any tokenizer of ``transformers``; it is not modified.
        max_length: Maximum tokens per row.
        framing: Placement of special tokens, and whether documents share rows.
        cache: Folder to cache rows in. Memory then stays constant, and rows are found again if the content of the
            corpus, the tokenizer and the settings are the same. None keeps the rows in memory.
        max_tokens: Stop after the row that reaches this number of tokens. The bytes and characters of a document that
            is cut there count in proportion to its tokens.
        progress: Whether to show a progress bar on stderr if it takes longer than two seconds.

    Returns:
        The rows. ``corpus.report`` is set even if they come from the cache.

    Raises:
        UserError: If the corpus has no usable document, ``max_length`` leaves no room besides the special tokens, or
            ``max_tokens`` is less than 1.
    """
    encoder = _Encoder(tokenizer, max_length, framing)
    if max_tokens is not None and max_tokens < 1:
        raise UserError(f"max_tokens must be at least 1, not {max_tokens}.")
    settings = f"{_VERSION} {corpus.fingerprint} {encoder.fingerprint()} {max_length} {max_tokens}"
    if framing != EVERY_ROW:
        settings += f" {framing}" + " begins rows" * framing.begins_rows
    key = blake2b(settings.encode(), digest_size=16).hexdigest()
    rows = cached_rows(cache, key, lambda folder: _write(corpus, encoder, folder, key, max_tokens, progress))
    corpus.report = CorpusReport(**rows.report)
    return rows


def check_known(ids: np.ndarray, tokenizer: PreTrainedTokenizerBase) -> None:
    """Check that a vocabulary fits a text; warn if it lacks much of it.

    Args:
        ids: The token ids of the text (tokens,).
        tokenizer: The tokenizer that they were made with.

    Raises:
        UserError: If all tokens are unknown or special.
    """
    ordinary = int((~np.isin(ids, tokenizer.all_special_ids)).sum())
    if not ordinary:
        raise UserError(
            "The vocabulary of the model has no token of this text, so there is nothing to learn from; use a model "
            "for this language and script."
        )
    unknown = tokenizer.unk_token_id
    places = np.flatnonzero(ids == (unknown if isinstance(unknown, int) else -1))
    share = len(places) / (len(places) + ordinary)
    if share > MAX_UNKNOWN_SHARE:
        near = ids[max(0, places[0] - 4) : places[0] + 5].tolist()
        warn_once(
            f"{share:.0%} of the tokens of the text are not in the vocabulary of the model, which cannot distinguish "
            f"them: '{tokenizer.decode(near)}', for example. A model for this language and script would learn more."
        )


def cached_rows(
    cache: str | Path | None, key: str, write: Callable[[Path | None], TokenDataset | None]
) -> TokenDataset:
    """Return the rows of a key from a cache, where they are written first if need be.

    Args:
        cache: The folder of the cache; None keeps the rows in memory.
        key: A hash of what the rows are made from.
        write: Writes the rows to a folder and returns None, or returns them if the folder is None.
    """
    if cache is None:
        rows = write(None)
        assert rows is not None
        return rows
    folder = Path(cache) / f"rows-{key}"
    found = _load_cached(folder)
    if found is not None:
        return found
    try:
        with atomic_folder(folder) as temporary:
            write(temporary)
    except OSError:
        # Another process may have written the same rows first.
        if _load_cached(folder) is None:
            raise
    return TokenDataset.load(folder)


def _load_cached(folder: Path) -> TokenDataset | None:
    """Load cached rows; return None if there are none, or if they are damaged and have to be made again."""
    if not folder.exists():
        return None
    try:
        return TokenDataset.load(folder)
    except (OSError, ValueError, KeyError, TypeError):
        shutil.rmtree(folder, ignore_errors=True)
        return None


def _write(
    corpus: Corpus, encoder: _Encoder, folder: Path | None, key: str, max_tokens: int | None, progress: bool
) -> TokenDataset | None:
    documents = iter(corpus)
    with (
        TokenDatasetWriter(folder, encoder.largest_id) as writer,
        Progress("Tokenizing", max_tokens, unit="tokens", enabled=progress) as bar,
    ):
        for owners, (bytes, characters), rows in _cut_into_rows(_encode_documents(documents, encoder), encoder):
            whole = sum(map(len, rows)) - len(rows) * encoder.specials
            left = None if max_tokens is None else max_tokens - writer.tokens
            taken = rows if left is None else _take_rows(rows, left)
            body = sum(map(len, taken)) - len(taken) * encoder.specials
            writer.add(taken, owners[: len(taken)])
            writer.bytes += bytes * body // whole
            writer.characters += characters * body // whole
            bar.update(writer.tokens)
            if max_tokens is not None and writer.tokens >= max_tokens:
                break
        else:
            writer.dropped = encoder.framed_tokens - (writer.tokens - writer.rows * encoder.specials)
        if not writer.rows:
            raise UserError(
                f"This tokenizer finds no token in any document of the corpus ({corpus.report.summary()})."
            )
        return writer.finish(key, corpus.report.as_dict())


def _take_rows(rows: list[list[int]], tokens: int) -> list[list[int]]:
    """Return the first rows that together reach a number of tokens."""
    total = 0
    for count, row in enumerate(rows, start=1):
        total += len(row)
        if total >= tokens:
            return rows[:count]
    return rows


def _cut_into_rows(
    encoded: Iterable[tuple[str, list[int], bool]], encoder: _Encoder
) -> Iterator[tuple[list[int], tuple[int, int], list[list[int]]]]:
    """Yield rows, the document of the first token of each, and the bytes and characters that they cover together.

    Tokens that do not fill a row are carried over to the next piece, so the rows are the same as if the whole document
    was cut at once, or all documents if they are joined.
    """
    bytes, characters = 0, 0
    left: list[int] = []
    owners: list[int] = []
    for index, text, ids, last in encoder.frame(encoded):
        left += ids
        owners += [index] * len(ids)
        bytes += len(text.encode("utf-8"))
        characters += len(text)
        # The last two rows may have to be balanced, so they wait for the end of the document.
        size = len(left) if last else max(0, len(left) - 1 - encoder.room) // encoder.room * encoder.room
        if size:
            share = (bytes * size // len(left), characters * size // len(left))
            rows = encoder.rows(left[:size], last)
            starts = accumulate((len(row) - encoder.specials for row in rows[:-1]), initial=0)
            yield [owners[start] for start in starts], share, rows
            bytes, characters = bytes - share[0], characters - share[1]
        left, owners = left[size:], owners[size:]
        if last:
            bytes, characters = 0, 0


def _encode_documents(documents: Iterable[str], encoder: _Encoder) -> Iterator[tuple[str, list[int], bool]]:
    """Yield each document, a very long one in pieces: the text, its ids, and whether it ends the document."""
    for batch in batch_documents(documents):
        if all(len(text) <= MAX_PIECE_CHARACTERS for text in batch):
            for text, ids in zip(batch, encoder.encode(batch), strict=True):
                yield text, ids, True
            continue
        for text in batch:
            *pieces, end = split_long_text(text)
            for number, piece in enumerate(pieces):
                yield piece, encoder.encode_piece(piece, first=number == 0), False
            yield end, encoder.encode_piece(end, first=not pieces), True


def split_long_text(text: str) -> list[str]:
    """Split a very long text into pieces, if possible before a single space, where tokenizers split as well."""
    pieces, start = [], 0
    while len(text) - start > MAX_PIECE_CHARACTERS:
        end = start + MAX_PIECE_CHARACTERS
        found = SINGLE_SPACE.search(text, end - min(MAX_PIECE_CHARACTERS // 2, 10_000), end)
        end = found.start() + 1 if found else end
        pieces.append(text[start:end])
        start = end
    return [*pieces, text[start:]]


def batch_documents(documents: Iterable[str]) -> Iterator[list[str]]:
    """Group documents into batches of at most 512 documents and about a million characters."""
    batch: list[str] = []
    size = 0
    for text in documents:
        batch.append(text)
        size += len(text)
        if len(batch) >= BATCH_DOCUMENTS or size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def read_as_text(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Return a copy of a tokenizer that reads special tokens in a text as ordinary text, also after it was saved.

    Only tokens that have a role (:attr:`special_tokens_map`) or that the tokenizer puts around a text are read as
    text. Other added tokens stay tokens, though they may be marked as special, because they are words of a domain.
    A slow tokenizer cannot distinguish the two, so one that has other added tokens reads all of them as tokens.
    """
    reader = copy.deepcopy(tokenizer)
    around = reader.convert_ids_to_tokens(reader("")["input_ids"])
    roles = {*tokenizer.special_tokens_map.values(), *around}
    backend = getattr(reader, "backend_tokenizer", None)
    reader.split_special_tokens = backend is not None or roles >= tokenizer.added_tokens_encoder.keys()
    reader.init_kwargs["split_special_tokens"] = reader.split_special_tokens
    added = tokenizer.added_tokens_decoder.values()
    if backend is not None and any(token.special != (token.content in roles) for token in added):
        content = json.loads(backend.to_str())
        for token in content["added_tokens"]:
            token["special"] = token["content"] in roles
        reader._tokenizer = type(backend).from_str(json.dumps(content))
        reader.extra_special_tokens = [token for token in tokenizer.extra_special_tokens if str(token) in roles]
    return reader


class DecodedDocuments:
    """The documents of token rows, decoded on the fly at every iteration.

    The rows of a document are joined before decoding, since long documents may be split within a word.
    """

    def __init__(self, rows: Any, tokenizer: PreTrainedTokenizerBase) -> None:
        self._rows, self._tokenizer = rows, tokenizer

    def __iter__(self) -> Iterator[str]:
        documents = getattr(self._rows, "document", range(len(self._rows)))
        for _, indices in groupby(range(len(self._rows)), key=documents.__getitem__):
            ids = np.concatenate([self._rows[index] for index in indices]).tolist()
            yield self._tokenizer.decode(ids, skip_special_tokens=True)  # type: ignore[misc]


def encode(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[list[int]]:
    """Return the ids of texts, without truncation and special tokens; see :func:`read_as_text`."""
    return _encode(read_as_text(tokenizer), texts)


def _encode(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], special: bool = False) -> list[list[int]]:
    encoding = tokenizer(
        list(texts),
        add_special_tokens=special,
        truncation=False,
        padding=False,
        return_attention_mask=False,
        return_token_type_ids=False,
        verbose=False,
    )
    return encoding["input_ids"]


def fingerprint_tokenizer(tokenizer: PreTrainedTokenizerBase) -> str:
    """Hash what determines the ids of a text, its truncation and its special tokens.

    Raises:
        UserError: If the tokenizer does not put its special tokens around a text.
    """
    cut = [tokenizer.model_max_length, tokenizer.truncation_side]
    content = [_Encoder(tokenizer, sys.maxsize).fingerprint(), cut, tokenizer.special_tokens_map]
    return blake2b(json.dumps(content, sort_keys=True, default=str).encode(), digest_size=16).hexdigest()


class _Encoder:
    """A tokenizer, and the special tokens that are added to a row and to a document.

    Attributes:
        prefix: Special tokens of the tokenizer before a text.
        suffix: Those after a text.
        specials: Number of special tokens per row.
        room: Maximum other tokens per row.
        framed_tokens: Number of tokens that :meth:`frame` has yielded.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, max_length: int, framing: Framing = EVERY_ROW) -> None:
        self._tokenizer, self._joined = read_as_text(tokenizer), framing.documents == "joined"
        self.prefix, self.suffix = self._find_special_tokens()
        ending = [] if framing.end is None or framing.end in self.suffix else [framing.end]
        self._row: tuple[list[int], list[int]] = ([], [])
        self._document: tuple[list[int], list[int]] = ([], [])
        if framing.documents == "framed":
            self._row = (self.prefix, self.suffix)
        else:
            self._document = (self.prefix, [*self.suffix, *ending])
        if framing.begins_rows:
            self._row, self._document = (self.prefix, []), ([], self._document[1])
        self.specials = sum(map(len, self._row))
        self.room = max_length - self.specials
        self.framed_tokens = 0
        # Before each text, as SentencePiece does; the tokenizer may also ignore spaces.
        self._adds_space = self.encode(["a a"])[0] == 2 * self.encode(["a"])[0]
        if self.room < 1:
            raise UserError(
                f"max_length is {max_length}: it must be greater than the {self.specials} special tokens per row."
            )
        self.largest_id = max((*self._tokenizer.get_vocab().values(), *self._document[1]), default=0)

    def encode(self, texts: Sequence[str], *, special: bool = False) -> list[list[int]]:
        return _encode(self._tokenizer, texts, special)

    def encode_piece(self, text: str, *, first: bool) -> list[int]:
        """Return the ids of a piece of a document; pieces after the first usually begin with a space."""
        return self.encode([text.removeprefix(" ") if self._adds_space and not first else text])[0]

    def frame(self, encoded: Iterable[tuple[str, list[int], bool]]) -> Iterator[tuple[int, str, list[int], bool]]:
        """Add the special tokens of documents.

        Args:
            encoded: The text and the ids of each document or piece of it, and whether it ends the document.

        Yields:
            The index of the document, the text, the ids, and whether the next ids start a new row.
        """
        index, begun = 0, False
        for text, ids, last in encoded:
            before, after = self._document
            framed = [*(before if ids and not begun else ()), *ids, *(after if last and (begun or ids) else ())]
            self.framed_tokens += len(framed)
            yield index, text, framed, last and not self._joined
            index, begun = (index + 1, False) if last else (index, begun or bool(ids))
        if self._joined:
            yield index, "", [], True

    def rows(self, ids: list[int], last: bool = True) -> list[list[int]]:
        """Split ids into rows and put the special tokens around each.

        Args:
            ids: The ids of a document, or of a part of it.
            last: Whether the document ends with them; the last two rows may then be balanced.
        """
        cuts = [*range(0, len(ids), self.room), len(ids)]
        if last and len(cuts) > 2 and cuts[-1] - cuts[-2] + self.specials < MIN_TAIL_TOKENS:
            cuts[-2] = (cuts[-3] + cuts[-1] + 1) // 2
        before, after = self._row
        return [[*before, *ids[a:b], *after] for a, b in pairwise(cuts)]

    def _find_special_tokens(self) -> tuple[list[int], list[int]]:
        """Find the special tokens before and after a text by encoding it with and without them."""
        for probe in ("a", "1", "the"):
            bare, full = self.encode([probe])[0], self.encode([probe], special=True)[0]
            for start in range(len(full) - len(bare) + 1):
                if bare and full[start : start + len(bare)] == bare:
                    return full[:start], full[start + len(bare) :]
        raise UserError(
            f"The tokenizer {type(self._tokenizer).__name__} does not put its special tokens before and after a text; "
            "use a tokenizer that does."
        )

    def fingerprint(self) -> str:
        """Hash what determines the ids of a text."""
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is not None:
            content = json.loads(backend.to_str())
            content.pop("truncation", None)
            content.pop("padding", None)
        else:
            settings = {
                k: v for k, v in self._tokenizer.init_kwargs.items() if not k.endswith(("_file", "name_or_path"))
            }
            content = [type(self._tokenizer).__name__, self._tokenizer.get_vocab(), settings]
        state = blake2b(
            json.dumps(content, sort_keys=True, default=str).encode("utf-8", "surrogatepass"), digest_size=16
        )
        state.update(repr((self.prefix, self.suffix)).encode())
        return state.hexdigest()
