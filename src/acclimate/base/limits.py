"""Limits of memory and time for what outsiders write: documents, and the chat templates of models."""

from __future__ import annotations

import contextlib
import json
import math
import multiprocessing
import resource
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acclimate.base.errors import UserError, first_line
from acclimate.base.waiting import Wait

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TEMPLATE_SECONDS, TEMPLATE_MEMORY, TEMPLATE_LENGTH = 10, 2**30, 2**24
"""Seconds of CPU and bytes of memory to render a conversation, and characters that a template may add to it."""


def memory_in_use() -> int:
    """Return the address space of this process in bytes; 0 where it is unknown, as outside Linux."""
    with contextlib.suppress(OSError, ValueError):
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    return 0


def limit_process(seconds: int, memory: int) -> None:
    """Limit this process to more seconds of CPU from now on, and to an address space in bytes (0 for no limit)."""
    spent = resource.getrusage(resource.RUSAGE_SELF)
    cpu = math.ceil(spent.ru_utime + spent.ru_stime) + seconds
    for kind, limit in [(resource.RLIMIT_CPU, cpu), *[(resource.RLIMIT_AS, memory)] * bool(memory)]:
        resource.setrlimit(kind, (limit, resource.RLIM_INFINITY))


class LimitedTemplate:
    """The chat template of a tokenizer, rendered in a process of its own: a template is a program."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._name = tokenizer.name_or_path
        self._connection, other = multiprocessing.Pipe()
        fork = multiprocessing.get_context("fork")
        self._process = fork.Process(target=self._serve, args=(tokenizer, other), daemon=True)
        self._process.start()
        other.close()

    def __enter__(self) -> LimitedTemplate:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._connection.close()

    def render(self, turns: list[dict[str, Any]], **options: Any) -> str:
        """Return a conversation as text.

        Args:
            turns: Its turns.
            options: Options of ``apply_chat_template``.

        Raises:
            UserError: If that exceeds the limits.
            ValueError: If the template does not accept the conversation.
        """
        request = json.dumps([turns, options]).encode()
        wait = Wait(f"the chat template of '{self._name}'", "it is slow", 60.0, say_after=30.0)
        try:
            self._connection.send_bytes(request)
            while not self._connection.poll(1.0):
                wait.pause(0)
            answer = json.loads(self._connection.recv_bytes())
        except (EOFError, OSError):
            answer = {}
        if "error" in answer:
            raise ValueError(answer["error"])
        if len(answer.get("text") or "") > TEMPLATE_LENGTH + len(request) or "text" not in answer:
            raise UserError(
                f"The chat template of '{self._name}' takes more than {TEMPLATE_SECONDS} s, 1 GB or 16 million "
                "characters for one conversation; set another as tokenizer.chat_template and save the tokenizer."
            )
        return str(answer["text"])

    def _serve(self, tokenizer: PreTrainedTokenizerBase, requests: Connection) -> None:
        self._connection.close()  # so that the end of the other process is seen
        memory = memory_in_use()
        while True:
            try:
                turns, options = json.loads(requests.recv_bytes())
            except EOFError:
                return
            limit_process(TEMPLATE_SECONDS, memory and memory + TEMPLATE_MEMORY)
            try:
                answer = {"text": str(tokenizer.apply_chat_template(turns, tokenize=False, **options))}
            except MemoryError:
                answer = {}
            except Exception as error:  # a template reports in its own way what it does not accept
                answer = {"error": first_line(error)}
            requests.send_bytes(json.dumps(answer).encode())
