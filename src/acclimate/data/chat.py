"""Conversations from JSON files, rendered with the chat template of a tokenizer; only the answers are learned.

A row of conversation holds the complement ``~id`` of every token that is read but not predicted: the prompts, and
what the template puts around them. Rows of text have no such token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from acclimate.base.errors import DamagedFileError, UserError, first_line
from acclimate.base.limits import LimitedTemplate
from acclimate.data.csv_reader import CHAT_COLUMNS
from acclimate.data.documents import CorpusReport
from acclimate.data.opening import detect_format
from acclimate.data.readers import BLANK, LostRest, read_json_rows
from acclimate.data.sources import FileSource, resolve_sources
from acclimate.data.token_dataset import TokenDataset, TokenDatasetWriter
from acclimate.data.tokenizing import cached_rows, fingerprint_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Turns = list[dict[str, Any]]
"""The turns of a conversation, each with a ``role``, its ``content``, and what else the chat template may use."""
ROLES = {
    **{role: role for role in ("system", "user", "assistant", "tool")},
    "human": "user",
    "gpt": "assistant",
    "model": "assistant",
    "observation": "tool",
}
"""The role of a speaker, by the names that it has in files."""
SYSTEM = ("system", "system_prompt")
OFF = ("0", "0.0", "false")
"""How a row is marked as not to be learned, as a value or as text."""
LEARNED = ("weight", "train", "trainable", "training", "loss", "loss_mask")
"""Keys of a turn, or of a row, by which exports say whether it is learned (1 or true) or only read (0 or false)."""
REASONING = ("reasoning_content", "reasoning", "thinking")
"""Keys of the reasoning of a turn; it is given to the template by the name that the template knows."""
EMPTY_REASONING = re.compile(r"\s*<(think|thinking|thought|reasoning)>\s*</\1>\s*")
OPEN_REASONING = re.compile(r"<(think|thinking|thought|reasoning)>\s*$")


@dataclass(frozen=True)
class Conversation:
    """The turns of a conversation.

    Attributes:
        turns: The turns.
        tools: Descriptions of the tools that the assistant can use.
        not_learned: Indices of answers that are only read.
        unused: Keys of the row that are not used.
    """

    turns: Turns
    tools: list[Any] = field(default_factory=list)
    not_learned: frozenset[int] = frozenset()
    unused: tuple[str, ...] = ()


_VERSION = 3  # increment when the same conversations and settings give different rows


class TemplateError(Exception):
    """A chat template does not show where answers are; the message is a predicate about the template."""


LAYOUTS = (
    "'messages' (role and content), 'conversations' (from and value), 'prompt' and 'response' (or 'completion'), or "
    "'instruction', 'input' and 'output'"
)


def read_conversation(row: object) -> Conversation:
    """Return the conversation of a row of a file.

    Raises:
        ValueError: If it is not a conversation of texts with at least one answer that is learned.
    """
    if not isinstance(row, dict):
        raise ValueError(f"not an object but a {type(row).__name__}")
    # A label is one of preferences.
    if any(str(row.get(key)).strip().lower() in OFF for key in LEARNED) or row.get("label") is False:
        raise ValueError("the row is marked as not to be learned")
    listed, used = _list_turns(row)
    read = [_read_turn(turn) for turn in listed]
    turns = [turn for turn, _ in read]
    tools = _read_tools(row.get("tools"))
    if name := next((name for name in SYSTEM if row.get(name)), None):
        system, _ = _read_turn({"role": "system", "content": row[name]})
        if turns[:1] == [system]:
            pass
        elif turns and turns[0]["role"] == "system":
            raise ValueError(f"'{name}' differs from the system prompt in the first turn")
        else:
            turns.insert(0, system)
            read.insert(0, (system, False))
    answers = [n for n, turn in enumerate(turns) if turn["role"] == "assistant" and _says_something(turn)]
    if not answers:
        raise ValueError("no answer of the assistant")
    not_learned = frozenset(number for number, (_, is_learned) in enumerate(read) if not is_learned)
    if not_learned.issuperset(answers):
        raise ValueError("no answer of the assistant is to be learned")
    for text in _texts_of([turns, tools]):
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise ValueError("half of a surrogate pair")
    read_keys = (*used, name, "tools", *(key for key in (*LEARNED, "label") if row.get(key) in (1, True)))
    unused = [str(key) for key, value in row.items() if key not in read_keys and not _is_empty(value)]
    return Conversation(turns, tools, not_learned, tuple(unused))


def _says_something(turn: Mapping[str, Any]) -> bool:
    return bool(turn["content"].strip() or turn.get("tool_calls"))


def _is_empty(value: object) -> bool:
    """Return whether a key has no value; files with one schema for all rows have every key in every row."""
    return value is None or value in ("", [], {})


def _list_turns(row: dict[Any, Any]) -> tuple[list[Any], tuple[str, ...]]:
    """Return the turns of a row as they are, and the keys that they are from."""
    for key in CHAT_COLUMNS:
        if key in row:
            if not isinstance(row[key], list):
                raise ValueError(f"'{key}' is not a list but a {type(row[key]).__name__}")
            return row[key], (key,)
    for ask, answers in (("prompt", ("response", "completion")), ("instruction", ("output", "response"))):
        answer = next((key for key in answers if key in row), None)
        if ask in row and answer is not None:
            question = row[ask]
            if row.get("input"):
                question = f"{question}\n\n{row['input']}"
            turns = []
            history = row.get("history") or []
            for pair in history if isinstance(history, list) else [history]:
                if not isinstance(pair, list) or len(pair) != 2:
                    raise ValueError("'history' is not a list of pairs of a question and an answer")
                turns += [{"role": "user", "content": pair[0]}, {"role": "assistant", "content": pair[1]}]
            last = [{"role": "user", "content": question}, {"role": "assistant", "content": row[answer]}]
            return [*turns, *last], (ask, answer, "input", "history")
    raise ValueError(f"no {LAYOUTS}")


def _read_turn(turn: object) -> tuple[dict[str, Any], bool]:
    """Return a turn with its role and content by their usual names, and whether it is learned if it is an answer."""
    if not isinstance(turn, dict):
        raise ValueError(f"a turn is not an object but a {type(turn).__name__}")
    role, content = turn.get("role", turn.get("from")), turn.get("content", turn.get("value"))
    if content is None and turn.get("tool_calls"):
        content = ""
    if not isinstance(content, str):
        raise ValueError(f"the content of a turn is not a text but a {type(content).__name__}")
    if str(role) not in ROLES:
        raise ValueError(f"the role {str(role)[:50]!r} is not one of {', '.join(ROLES)}")
    is_learned = True
    for key in LEARNED if ROLES[str(role)] == "assistant" else ():
        if turn.get(key) not in (None, 0, 1):
            raise ValueError(f"'{key}' of a turn is {str(turn[key])[:50]!r}, which is neither 0 nor 1")
        is_learned = is_learned and turn.get(key) in (None, 1)
    names = ("role", "from", "content" if "content" in turn else "value", *LEARNED)
    others = {str(key): value for key, value in turn.items() if key not in names and not _is_empty(value)}
    return {"role": ROLES[str(role)], "content": content, **others}, is_learned


def _read_tools(value: object) -> list[Any]:
    """Return descriptions of tools, which may be written as JSON."""
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else None
        except (ValueError, RecursionError) as error:
            raise ValueError("'tools' is not JSON") from error
    if _is_empty(value):
        return []
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
        raise ValueError("'tools' is not a list of objects")
    return value


def _texts_of(value: Any) -> Iterator[str]:
    """Yield all strings in a value, also keys."""
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, str):
            yield found
        elif isinstance(found, dict):
            waiting += [*found, *found.values()]
        elif isinstance(found, list):
            waiting += found


class Chats:
    """Conversations from JSON files, read lazily.

    Attributes:
        report: Statistics of the latest iteration so far; a document is a conversation.
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

    def __iter__(self) -> Iterator[Conversation]:
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
                        conversation = read_conversation(row)
                    except ValueError as error:
                        self.report.leave_out(f"{file.name}:{line}", first_line(error))
                        continue
                    self._place = f"{file.name}:{line}"
                    self.report.documents += 1
                    self.count_unused(conversation.unused)
                    yield conversation
            except DamagedFileError as damage:
                self.report.leave_out(f"{file.name}:{damage.line}", LostRest(damage.reason))
        self.report.complete = True

    def count_unused(self, keys: Iterable[str]) -> None:
        """Count keys of a conversation that are not used, each once."""
        for key in dict.fromkeys(keys):
            self.report.unused[key] = self.report.unused.get(key, 0) + 1

    def reject(self, reason: str) -> None:
        """Count the conversation that was yielded last as one that cannot be used."""
        self.report.documents -= 1
        self.report.leave_out(self._place, reason)


def check_chat_tokenizer(tokenizer: PreTrainedTokenizerBase) -> None:
    """Check that conversations can be written for a tokenizer.

    Raises:
        UserError: If it has no chat template, or is not fast.
    """
    if not tokenizer.chat_template:
        raise UserError(
            "The tokenizer of this model has no chat template, so conversations cannot be written as it expects them. "
            "Use a model that was trained on conversations, set tokenizer.chat_template and save the tokenizer, or "
            "give the answers as text with --replay."
        )
    if not tokenizer.is_fast:
        raise UserError("Conversations need a fast tokenizer, which gives the position of each token in the text.")


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
        The rows. Their ``report`` is the report of the conversations, with the number that were ``truncated`` and the
        number that were ``repeated`` in one row per answer, see :func:`find_answers`.

    Raises:
        UserError: If the tokenizer has no chat template, the template hides where answers begin, or no conversation
            can be used.
    """
    check_chat_tokenizer(tokenizer)
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

    template = tokenizer.chat_template
    words = set(re.findall(r"\w+", template if isinstance(template, str) else " ".join(template.values())))
    reasoning = next((name for name in REASONING if name in words), None)
    with TokenDatasetWriter(folder, 0, signed=True) as writer, LimitedTemplate(tokenizer) as limited:
        for number, chat in enumerate(chats):
            turns = [_name_reasoning(turn, reasoning) for turn in chat.turns]
            found = next((mark for mark in special for text in _texts_of([turns, chat.tools]) if mark in text), None)
            if found is not None:
                chats.reject(f"the text contains {found}, a special token of this model")
                continue

            def render(turns: Turns, prompt: bool, tools: list[Any] = chat.tools) -> str:
                return limited.render(turns, add_generation_prompt=prompt, tools=tools or None)

            try:
                texts = find_answers(render, turns, special, chat.not_learned)
            except TemplateError as error:
                raise UserError(
                    f"The chat template of '{tokenizer.name_or_path}' {error}, so the answers cannot be located; set "
                    "another as tokenizer.chat_template and save the tokenizer."
                ) from error
            except ValueError as error:
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
            unknown = [f"{key} of a turn" for turn in turns for key in turn if key not in {*words, "role", "content"}]
            chats.count_unused([*unknown, *(["tools"] if chat.tools and "tools" not in words else [])])
        if not writer.rows:
            raise UserError(f"No conversation can be used ({chats.report.summary('conversation')}).")
        return writer.finish(key, {**chats.report.as_dict(), "truncated": truncated, "repeated": repeated})


def _name_reasoning(turn: dict[str, Any], name: str | None) -> dict[str, Any]:
    """Return a turn whose reasoning has the name that the template knows; None if it knows none."""
    given = next((key for key in REASONING if key in turn), None)
    if name is None or given is None or name in turn:
        return turn
    return {name if key == given else key: value for key, value in turn.items()}


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Return the texts of all special tokens, the longest first."""
    marked = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    return sorted(marked | set(tokenizer.all_special_tokens), key=lambda token: (-len(token), token))


def find_answers(
    render: Callable[[Turns, bool], str],
    turns: Turns,
    special: Sequence[str],
    not_learned: Collection[int] = (),
) -> list[tuple[str, list[tuple[int, int]]]]:
    """Render a conversation up to its last answer, and find the answers in it.

    An answer is what the template appends to the prompt for it. White space after a special token at its end, as
    after the end of a turn in ChatML, is not part of it, since generation stops before. Nor is an empty block of
    reasoning at its start, which some templates write where a turn has no reasoning: it would teach not to reason.

    Some templates change earlier turns when later ones follow, for example to remove the reasoning from all answers
    but the last. Their conversations are rendered once for each such answer, as the model will see them.

    Args:
        render: Returns turns as text, optionally followed by the prompt for an answer.
        turns: The conversation.
        special: The special tokens of the tokenizer.
        not_learned: Indices of answers that are only read.

    Returns:
        One or more texts, each with the start and end of the answers in it that are learned, in characters.

    Raises:
        TemplateError: If the template does not put an answer after the prompt for it.
    """
    texts: list[tuple[str, list[tuple[int, int]]]] = []
    for number, turn in enumerate(turns):
        if turn["role"] != "assistant" or number in not_learned:
            continue
        prompt, answered = render(turns[:number], True), render(turns[: number + 1], False)
        if not answered.startswith(prompt):
            raise TemplateError("does not continue its prompt for an answer with the answer")
        end = max((answered.rfind(mark) + len(mark) for mark in special if mark in answered[len(prompt) :]), default=0)
        is_end = end > len(prompt) and not answered[end:].strip()
        opened = OPEN_REASONING.search(prompt)
        empty = EMPTY_REASONING.match(answered, opened.start() if opened else len(prompt))
        answer = (empty.end() if empty else len(prompt), end if is_end else len(answered))
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
