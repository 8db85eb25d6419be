"""Conversations from JSON files, rendered with the chat template of a tokenizer; only the answers are learned.

A row of conversation holds the complement ``~id`` of every token that is read but not predicted: the prompts, and
what the template puts around them. Rows of text have no such token.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from acclimate.corpus.documents import MAX_REPORTED_PROBLEMS, CorpusReport
from acclimate.corpus.readers import BLANK, detect_format, read_json_rows
from acclimate.corpus.sources import FileSource, resolve_sources
from acclimate.corpus.token_dataset import TokenDataset, TokenDatasetWriter
from acclimate.corpus.tokenizing import cached_rows, fingerprint_tokenizer
from acclimate.errors import DamagedFileError, UserError, first_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Turns = list[dict[str, str]]
"""The turns of a conversation, each with a ``role`` and its ``content``."""
ROLES = {
    **{role: role for role in ("system", "user", "assistant")},
    "human": "user",
    "gpt": "assistant",
    "model": "assistant",
}
"""The role of a speaker, by the names that it has in files."""
_VERSION = 1  # increment when the same conversations and settings give different rows


class TemplateError(Exception):
    """A chat template does not show where answers are; the message is a predicate about the template."""


LAYOUTS = (
    "'messages' (role and content), 'conversations' (from and value), 'prompt' and 'response' (or 'completion'), or "
    "'instruction', 'input' and 'output'"
)


def read_turns(row: object) -> Turns:
    """Return the turns of a row of a file.

    Raises:
        ValueError: If it is not a conversation of texts with at least one answer.
    """
    if not isinstance(row, dict):
        raise ValueError(f"not an object but a {type(row).__name__}")
    turns = [_read_turn(turn) for turn in _list_turns(row)]
    if not any(turn["role"] == "assistant" and turn["content"].strip() for turn in turns):
        raise ValueError("no answer of the assistant")
    return turns


def _list_turns(row: dict[Any, Any]) -> list[Any]:
    for key in ("messages", "conversations"):
        if key in row:
            if not isinstance(row[key], list):
                raise ValueError(f"'{key}' is not a list but a {type(row[key]).__name__}")
            return row[key]
    start = [{"role": "system", "content": row["system"]}] if row.get("system") else []
    for ask, answers in (("prompt", ("response", "completion")), ("instruction", ("output", "response"))):
        answer = next((key for key in answers if key in row), None)
        if ask in row and answer is not None:
            question = row[ask]
            if row.get("input"):
                question = f"{question}\n\n{row['input']}"
            return [*start, {"role": "user", "content": question}, {"role": "assistant", "content": row[answer]}]
    raise ValueError(f"no {LAYOUTS}")


def _read_turn(turn: object) -> dict[str, str]:
    if not isinstance(turn, dict):
        raise ValueError(f"a turn is not an object but a {type(turn).__name__}")
    role, content = turn.get("role", turn.get("from")), turn.get("content", turn.get("value"))
    if not isinstance(content, str):
        raise ValueError(f"the content of a turn is not a text but a {type(content).__name__}")
    if str(role) not in ROLES:
        raise ValueError(f"the role {str(role)[:50]!r} is not one of {', '.join(ROLES)}")
    if any("\ud800" <= character <= "\udfff" for character in content):
        raise ValueError("half of a surrogate pair")
    return {"role": ROLES[str(role)], "content": content}


class Chats:
    """Conversations from JSON files, read lazily.

    Attributes:
        report: What the latest iteration has found so far; a document is a conversation.
    """

    def __init__(self, sources: str | Path | Sequence[str | Path]) -> None:
        """Resolve the files; nothing is read yet.

        Args:
            sources: One or several of: a ``.jsonl`` or ``.json`` file, also compressed; a folder; a glob.

        Raises:
            UserError: If a file does not exist or has another format.
        """
        self._files: list[FileSource] = []
        for source in resolve_sources(sources, "messages"):
            if not isinstance(source, FileSource) or detect_format(source.path) not in (".jsonl", ".json"):
                raise UserError(f"'{source.name}' holds no conversations: give JSON lines (.jsonl) with {LAYOUTS}.")
            self._files.append(source)
        self.report = CorpusReport([file.name for file in self._files])

    @property
    def fingerprint(self) -> str:
        """A hash of the files."""
        return blake2b("\n".join(file.fingerprint() for file in self._files).encode(), digest_size=16).hexdigest()

    def contents(self) -> list[dict[str, Any]]:
        """Return ``name``, ``bytes`` and ``hash`` of each file."""
        return [
            {"name": file.name, "bytes": file.size, "hash": file.fingerprint().split()[-1]} for file in self._files
        ]

    def __iter__(self) -> Iterator[Turns]:
        """Yield the conversations from the start; rows that cannot be used are counted.

        Raises:
            UserError: If a file cannot be opened.
        """
        self.report = CorpusReport([file.name for file in self._files])
        for file in self._files:
            try:
                for line, row in read_json_rows(file.path):
                    if row is BLANK:
                        self.report.empty += 1
                        continue
                    try:
                        if isinstance(row, Exception):
                            raise row
                        turns = read_turns(row)
                    except ValueError as error:
                        self.leave_out(f"{file.name}:{line}: {first_line(error)}")
                        continue
                    self._place = f"{file.name}:{line}"
                    self.report.documents += 1
                    yield turns
            except DamagedFileError as damage:
                self.leave_out(f"{file.name}:{damage.line}: {damage.reason}")
        self.report.complete = True

    def reject(self, reason: str) -> None:
        """Count the conversation that was yielded last as one that cannot be used."""
        self.report.documents -= 1
        self.leave_out(f"{self._place}: {reason}")

    def leave_out(self, problem: str) -> None:
        """Count a row that cannot be used."""
        self.report.broken += 1
        if len(self.report.problems) < MAX_REPORTED_PROBLEMS:
            self.report.problems.append(problem)


def tokenize_chats(
    chats: Chats, tokenizer: PreTrainedTokenizerBase, max_length: int, *, cache: str | Path | None = None
) -> TokenDataset:
    """Render conversations with the chat template of a tokenizer and turn each into a row.

    The answers of the assistant are predicted, with the token that ends each. A conversation of more than
    ``max_length`` tokens is truncated at its end.

    Args:
        chats: The conversations; their report is set.
        tokenizer: A fast tokenizer with a chat template.
        max_length: Maximum tokens per row.
        cache: Folder to cache rows in; None keeps the rows in memory.

    Returns:
        The rows. Their ``report`` is that of the conversations, with the number of those that were ``truncated``, and
        of those that were ``repeated`` in one row per answer, see :func:`find_answers`.

    Raises:
        UserError: If the tokenizer has no chat template, the template hides where answers begin, or no conversation
            can be used.
    """
    if not tokenizer.chat_template:
        raise UserError(
            "The tokenizer of this model has no chat template, so conversations cannot be written as it expects them. "
            "Use a model that was trained on conversations, set tokenizer.chat_template and save the tokenizer, or "
            "give the answers as text with --replay."
        )
    if not tokenizer.is_fast:
        raise UserError("Conversations need a fast tokenizer, which gives the position of each token in the text.")
    settings = [_VERSION, chats.fingerprint, fingerprint_tokenizer(tokenizer), tokenizer.chat_template, max_length]
    key = blake2b(json.dumps(settings).encode(), digest_size=16).hexdigest()
    rows = cached_rows(cache, key, lambda folder: _write(chats, tokenizer, max_length, folder, key))
    chats.report = CorpusReport(**{name: rows.report[name] for name in chats.report.as_dict()})
    return rows


def _write(
    chats: Chats, tokenizer: PreTrainedTokenizerBase, max_length: int, folder: Path | None, key: str
) -> TokenDataset | None:
    """Write the rows of conversations to a folder, or return them if the folder is None."""
    special = special_tokens(tokenizer)
    truncated = repeated = 0

    def render(turns: Turns, prompt: bool) -> str:
        return str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=prompt))

    with TokenDatasetWriter(folder, 0, signed=True) as writer:
        for number, turns in enumerate(chats):
            found = next((mark for mark in special for turn in turns if mark in turn["content"]), None)
            if found is not None:
                chats.reject(f"the text contains {found}, a special token of this model")
                continue
            try:
                texts = find_answers(render, turns, special)
            except TemplateError as error:
                raise UserError(
                    f"The chat template of '{tokenizer.name_or_path}' {error}, so the answers cannot be located; set "
                    "another as tokenizer.chat_template and save the tokenizer."
                ) from error
            except Exception as error:  # a template is a program, and reports in its own way what it does not accept
                chats.reject(f"the chat template does not accept it: {first_line(error)}")
                continue
            whole = [encode_answers(tokenizer, text, answers) for text, answers in texts]
            rows = [row[:max_length].tolist() for row in whole if (row[1:max_length] >= 0).any()]
            if not rows:
                chats.reject(f"it has no answer in its first {max_length} tokens")
                continue
            truncated += any(len(row) > max_length for row in whole)
            repeated += len(rows) > 1
            writer.add(rows, number)
        if not writer.rows:
            raise UserError(f"No conversation can be used ({chats.report.summary('conversation')}).")
        return writer.finish(key, {**chats.report.as_dict(), "truncated": truncated, "repeated": repeated})


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Return the texts of all special tokens, the longest first."""
    marked = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    return sorted(marked | set(tokenizer.all_special_tokens), key=lambda token: (-len(token), token))


def find_answers(
    render: Callable[[Turns, bool], str], turns: Turns, special: Sequence[str]
) -> list[tuple[str, list[tuple[int, int]]]]:
    """Render a conversation up to its last answer, and find the answers in it.

    An answer is what the template appends to the prompt for it. White space after a special token at its end, as
    after the end of a turn in ChatML, is not part of it, since generation stops before.

    Some templates change earlier turns when later ones follow, for example to remove the reasoning from all answers
    but the last. Their conversations are rendered once for each such answer, as the model will see them.

    Args:
        render: Returns turns as text, optionally followed by the prompt for an answer.
        turns: The conversation.
        special: The special tokens of the tokenizer.

    Returns:
        One or more texts, each with the start and end of the answers in it that are learned, in characters.

    Raises:
        TemplateError: If the template does not put an answer after the prompt for it.
    """
    texts: list[tuple[str, list[tuple[int, int]]]] = []
    for number, turn in enumerate(turns):
        if turn["role"] != "assistant":
            continue
        prompt, answered = render(turns[:number], True), render(turns[: number + 1], False)
        if not answered.startswith(prompt):
            raise TemplateError("does not continue its prompt for an answer with the answer")
        end = max((answered.rfind(mark) + len(mark) for mark in special if mark in answered[len(prompt) :]), default=0)
        is_end = end > len(prompt) and not answered[end:].strip()
        answer = (len(prompt), end if is_end else len(answered))
        if texts and prompt.startswith(texts[-1][0]):
            texts[-1] = (answered, [*texts[-1][1], answer])
        else:
            texts.append((answered, [answer]))
    return texts


def encode_answers(tokenizer: PreTrainedTokenizerBase, text: str, answers: Sequence[tuple[int, int]]) -> np.ndarray:
    """Return the ids of a rendered conversation, int32 of shape (tokens,); complements outside the answers.

    A token belongs to an answer if it has at least one character of it.
    """
    encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    ids = np.asarray(encoding["input_ids"], dtype=np.int32)
    place = np.asarray(encoding["offset_mapping"], dtype=np.int64).reshape(-1, 2)
    learned = np.zeros(len(ids), dtype=bool)
    for start, end in answers:
        learned |= (place[:, 1] > start) & (place[:, 0] < end)
    return np.where(learned, ids, ~ids)


def plain_ids(row: np.ndarray) -> np.ndarray:
    """Return the ids of a row, which may hold the complements of those that are not predicted."""
    return np.where(row < 0, ~row, row)
