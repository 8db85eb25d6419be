"""Answers that cost time or money: each is asked for once, several at a time, and kept in a file before it is used."""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from acclimate.base.errors import check_stop, cut, printable
from acclimate.base.files import atomic_file, cache_folder
from acclimate.base.locks import Claim
from acclimate.base.records import fingerprint, read_kept
from acclimate.base.verbs import Next, given_words

T = TypeVar("T")
WINDOW = 10_000
"""Maximum answers that wait for one before them; they are in files, so each takes only some hundred bytes."""
CHARACTERS_PER_TOKEN, SHOWN_PROMPTS, SHOWN_CHARACTERS = 4, 3, 1000
"""For estimates of tokens, and what a dry run shows of prompts."""
POLL_SECONDS, DRAIN_SECONDS = 0.1, 10.0
"""Seconds between two looks at what another process does, and for what is under way when the work ends early."""


@dataclass
class CallPlan:
    """The calls that a command would make.

    Attributes:
        calls: Number of calls.
        from_cache: Number of answers that are in the cache.
        tokens_read: Estimated tokens of the prompts.
        tokens_written: Maximum tokens of the answers; 0 for functions.
        prompts: The first prompts.
    """

    calls: int = 0
    from_cache: int = 0
    tokens_read: int = 0
    tokens_written: int = 0
    prompts: list[str] = field(default_factory=list)

    def add(self, prompt: str, written: int = 0) -> None:
        """Count a call with a prompt and the maximum tokens of its answer."""
        self.calls += 1
        self.tokens_read += len(prompt) // CHARACTERS_PER_TOKEN + 1
        self.tokens_written += written
        if len(self.prompts) < SHOWN_PROMPTS:
            self.prompts.append(cut(prompt, SHOWN_CHARACTERS))

    def show(self) -> Iterator[Any]:
        """Yield what a dry run prints."""
        yield from (f"prompt: {printable(prompt)}" for prompt in self.prompts)
        yield (
            f"{self.calls:,} calls, about {self.tokens_read:,} tokens to read and at most {self.tokens_written:,} to "
            f"write; {self.from_cache:,} answers are in the cache. What depends on these answers is not counted."
        )
        yield Next(given_words("--dry-run"), "to run it")


_plan: ContextVar[CallPlan | None] = ContextVar("plan", default=None)


@contextmanager
def plan_calls() -> Iterator[CallPlan]:
    """Count the calls of the block, up to the first whose answers are used, instead of making them."""
    mark = _plan.set(plan := CallPlan())
    try:
        with suppress(PlannedError):
            yield plan
    finally:
        _plan.reset(mark)


class PlannedError(Exception):
    """The calls are counted, and their answers are not there."""


class AnswerStore:
    """Answers in the cache, a file each, with the claims of the processes that are about to answer.

    The claim of an answer is a link to the lock file of its process, so that it ends with the process
    (:mod:`acclimate.base.locks`) and costs next to nothing.
    """

    def __init__(self, identity: Any) -> None:
        """Set what determines the answers next to what they answer."""
        self._folder = cache_folder() / "answers" / fingerprint(identity)
        self._process = Claim(self._folder / f".{secrets.token_hex(8)}.lock")
        self._is_held, self._mutex = False, threading.Lock()
        weakref.finalize(self, self._process.release)
        self._others: dict[str, Claim] = {}

    def find(self, digest: str) -> list[Any] | None:
        """Return an answer; None if there is none."""
        found: list[Any] | None = read_kept(self._file(digest), list[Any])
        return found

    def is_empty(self) -> bool:
        """Return whether there is no answer."""
        return not any(self._folder.glob("*/*.json"))

    def keep(self, digest: str, values: Sequence[Any]) -> None:
        """Write an answer."""
        content = json.dumps(values).encode()
        with atomic_file(self._file(digest)) as file:
            file.write(content)

    def claim(self, digest: str) -> bool:
        """Return whether this process, and no other, is to answer."""
        lock = self._lock(digest)
        lock.parent.mkdir(parents=True, exist_ok=True)
        with self._mutex:
            if not self._is_held:
                for other in self._folder.glob(".*.lock"):  # of processes that were killed
                    if (left := Claim(other)).take():
                        left.release()
                self._is_held = self._process.take()
        with suppress(OSError):  # it exists, or the file system knows no links
            os.link(self._process.path, lock)
            self._others.pop(digest, None)
            return True
        return self._others.setdefault(digest, Claim(lock)).take()

    def release(self, digest: str) -> None:
        """End a claim of this process."""
        if (claim := self._others.pop(digest, None)) is not None:
            claim.release()
        else:
            self._lock(digest).unlink(missing_ok=True)

    def forget(self, digest: str) -> None:
        """Watch the claim of another process no longer."""
        self._others.pop(digest, None)

    def _file(self, digest: str) -> Path:
        return self._folder / digest[:2] / f"{digest}.json"

    def _lock(self, digest: str) -> Path:
        return self._folder / digest[:2] / f"{digest}.lock"


class Job(Generic[T]):
    """Items that one call asks for, by digest; its result has the answers, but None for those that are kept."""

    def __init__(self) -> None:
        self.items = dict[str, T]()
        self.future = Future[dict[str, list[Any] | None]]()
        self.is_started = False


class Asking(Generic[T]):
    """Asks for the answers that are not in the cache.

    Attributes:
        ended: Set when the work ends, so that calls under way do not try again.
    """

    def __init__(
        self,
        store: AnswerStore,
        identify: Callable[[T], str],
        ask: Callable[[Sequence[T]], Sequence[tuple[list[Any], bool]]],
        workers: int = 1,
        size: int = 1,
        describe: Callable[[T], tuple[str, int]] = lambda item: (str(item), 0),
    ) -> None:
        """Set how to ask.

        Args:
            store: Where answers are kept.
            identify: Returns a digest of all that determines the answer to an item.
            ask: Returns the answers to some items, or to the first of them, as values for JSON, each with whether it
                is kept.
            workers: Number of calls under way; a single one is made in the thread of the caller.
            size: Number of items per call.
            describe: Returns prompt and maximum tokens of the answer, for a dry run.
        """
        self._describe = describe
        self.ended = threading.Event()
        self._store, self._identify, self._ask, self._workers, self._size = store, identify, ask, workers, size
        self._failure: BaseException | None = None

    def map(self, items: Iterable[T]) -> Iterator[tuple[list[Any], bool]]:
        """Yield the answer to each item in order, with whether it was in the cache; items are read as needed.

        Raises:
            BaseException: What a call raised, without waiting for the items before it.
        """
        if (plan := _plan.get()) is not None:
            self._count(items, plan)
            raise PlannedError
        self.ended.clear()
        self._failure = None
        self._jobs, self._free = SimpleQueue[Job[T] | None](), threading.Semaphore(2 * self._workers)
        self._threads = [
            threading.Thread(target=self._serve, daemon=True) for _ in range(self._workers) if self._workers > 1
        ]
        for thread in self._threads:
            thread.start()
        waiting: deque[tuple[str, Job[T] | None, bool]] = deque()
        running, filling = dict[str, Job[T]](), Job[T]()
        try:
            for item in items:
                digest = self._identify(item)
                job = running.get(digest)
                is_new = job is None and self._store.find(digest) is None
                if is_new:
                    job = running[digest] = filling
                    filling.items[digest] = item
                waiting.append((digest, job, is_new))
                if len(filling.items) >= self._size:
                    self._start(filling)
                    filling = Job()
                while waiting and (len(waiting) >= WINDOW or (job := waiting[0][1]) is None or job.future.done()):
                    filling = Job() if filling is waiting[0][1] else filling
                    yield self._take(*waiting.popleft(), running)
            while waiting:
                yield self._take(*waiting.popleft(), running)
        finally:
            self.ended.set()
            for _ in self._threads:
                self._jobs.put(None)
            end = time.monotonic() + DRAIN_SECONDS
            for thread in self._threads:
                thread.join(max(0.0, end - time.monotonic()))

    def _count(self, items: Iterable[T], plan: CallPlan) -> None:
        """Add the calls for items to a plan."""
        seen = set[str]()
        for item in items:
            digest = self._identify(item)
            if digest in seen or self._store.find(digest) is not None:
                plan.from_cache += 1
                continue
            seen.add(digest)
            plan.add(*self._describe(item))

    def _start(self, job: Job[T]) -> None:
        job.is_started = True
        if not self._threads:
            job.future.set_result(self._answer(job.items))
            return
        while not self._free.acquire(timeout=POLL_SECONDS):
            self._check()
        self._check()
        self._jobs.put(job)

    def _take(
        self, digest: str, job: Job[T] | None, is_new: bool, running: dict[str, Job[T]]
    ) -> tuple[list[Any], bool]:
        """Return an answer as soon as it is there."""
        made: dict[str, list[Any] | None] = {}
        if job is not None:
            running.pop(digest, None)
            if not job.is_started:
                self._start(job)
            while not job.future.done():
                with suppress(TimeoutError):
                    job.future.result(timeout=POLL_SECONDS)
                self._check()
            made = job.future.result()
        found = self._store.find(digest) if (own := made.get(digest)) is None else own
        assert found is not None, "an answer has disappeared from the cache"
        return found, not is_new or digest not in made

    def _check(self) -> None:
        check_stop()
        if self._failure is not None:
            raise self._failure

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None and not self.ended.is_set():
            try:
                job.future.set_result(self._answer(job.items))
            except BaseException as error:  # raised in the thread of the caller
                self._failure = self._failure or error
            finally:
                self._free.release()

    def _answer(self, items: dict[str, T]) -> dict[str, list[Any] | None]:
        """Ask for items, but wait for those that another process asks for; return what was asked for."""
        left, asked = dict(items), dict[str, list[Any] | None]()
        while left and not self.ended.is_set():
            held = [digest for digest in left if self._store.claim(digest)]
            try:
                mine = [digest for digest in held if self._store.find(digest) is None]
                made = self._ask([left[one] for one in mine]) if mine else ()
                for digest, (values, is_kept) in zip(mine, made, strict=False):
                    if is_kept:
                        self._store.keep(digest, values)
                    asked[digest] = None if is_kept else values
            finally:
                for digest in held:
                    self._store.release(digest)
            left = {one: left[one] for one in left if one not in asked and self._store.find(one) is None}
            if left and not self.ended.wait(POLL_SECONDS):
                check_stop()
        for digest in items:
            self._store.forget(digest)
        return asked
