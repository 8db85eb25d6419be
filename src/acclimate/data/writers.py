"""Text that models write: behind an endpoint, in this process, or in a Python function of the user.

A writer is given as ``http://HOST:PORT/v1`` (several, separated by commas, share the work), as ``model:PATH`` or as a
function (:func:`acclimate.base.registry.load_function`), with options of :class:`WriterOptions` after a blank or as
``{"by": ..., "model": ...}``.
"""

from __future__ import annotations

import dataclasses
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import AfterValidator

from acclimate.base.errors import USER_CODE_ERRORS, UserError, first_line, shorten
from acclimate.base.records import fingerprint
from acclimate.base.registry import build_dataclass, identify_function, load_function, split_entry
from acclimate.data.answers import CHARACTERS_PER_TOKEN, AnswerStore, Asking
from acclimate.data.endpoints import Endpoint, RejectedError, read_addresses

Writing = str | Mapping[str, Any] | Callable[..., Any]
"""A writer as a user gives it."""
SECRET = re.compile(
    r"\bsk-[\w-]{16,}|\bAIza[\w-]{30,}|(?=[a-z\d]*[A-Z])(?=[A-Z\d]*[a-z])(?=[A-Za-z]*\d)[A-Za-z\d]{30,}"
)


def _check_key(key: str | int | float) -> str | int | float:
    """Return an identifier that does not look like the key of a service.

    Raises:
        UserError: If it does.
    """
    if isinstance(key, str) and SECRET.search(key):
        raise UserError(
            "key identifies results and is stored with them; this one looks like the key of a service. Set an "
            "environment variable to that, and give its name as key_env=NAME; else give a shorter identifier."
        )
    return key


Key = Annotated[str | int | float, AfterValidator(_check_key)]
"""Identifier of the results of a function instead of its code, such as the version of a model."""
SERVER, LOCAL = ("http://", "https://"), "model:"
CONCURRENCY, LOCAL_ROWS, MOST_REJECTED = 8, 64, 10
"""Calls under way at an endpoint by default, prompts that a model reads together, and requests that an endpoint may
reject before it has answered any."""
THOUGHT = re.compile(r"\s*<think>.*?(</think>|\Z)\s*", re.DOTALL)
Ended = Literal["finished", "truncated", "refused", "empty", "rejected"]


@dataclass(frozen=True, kw_only=True)
class WriterOptions:
    """Options of parts that name a writer.

    Attributes:
        model: Name of the model at the endpoint.
        max_tokens: Maximum new tokens of an answer.
        temperature: Temperature of sampling; 0 takes the most likely token.
        seed: Random seed of sampling.
        plain: Whether the model continues the prompt as it is, without a chat template.
        extra: Further fields of each call as JSON, such as ``{"top_p": 0.9}``; null removes one.
        concurrency: Calls under way at once: 8 at an endpoint, 1 of a function.
        retries: Maximum further calls for a request that fails, after growing pauses.
        timeout: Maximum seconds of a call.
        max_calls: Calls, further ones for a request that fails included, after which a run ends; the same command
            continues from there.
        max_total_tokens: Tokens, read and written, after which it ends.
        max_minutes: Minutes after which it ends.
        key_env: Name of the environment variable that holds the key of the service.
    """

    unidentified: ClassVar[tuple[str, ...]] = (
        *("concurrency", "retries", "timeout", "max_calls", "max_total_tokens", "max_minutes", "key_env"),
    )
    """Options that do not change answers."""
    model: str | None = None
    max_tokens: int = 512
    temperature: float = 0.0
    seed: int = 0
    plain: bool = False
    extra: str | None = None
    concurrency: int | None = None
    retries: int = 6
    timeout: float = 300.0
    max_calls: int | None = None
    max_total_tokens: int | None = None
    max_minutes: float | None = None
    key_env: str | None = None

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            UserError: If one is out of range, or ``key_env`` is a key.
        """
        if self.key_env is not None and not re.fullmatch(r"[A-Z_][A-Z0-9_]*", self.key_env):
            raise UserError("key_env is the name of an environment variable, in capitals, and never a key itself.")
        least = {"max_tokens": 1, "concurrency": 1, "retries": 0, "max_calls": 1, "max_total_tokens": 1}
        for name, most in least.items():
            if (value := getattr(self, name)) is not None and value < most:
                raise UserError(f"{name} of a writer must be at least {most}, not {value}.")
        if self.temperature < 0 or self.timeout <= 0 or (self.max_minutes or 1) <= 0:
            raise UserError("A writer needs a temperature of at least 0, and timeout and max_minutes above 0.")
        self._extra()

    def _extra(self) -> dict[str, Any]:
        try:
            found = json.loads(self.extra or "{}")
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise UserError(f"extra is a JSON object such as '{{\"top_p\": 0.9}}', not {shorten(self.extra)}.")
        return found


@dataclass(frozen=True, kw_only=True)
class PromptOptions(WriterOptions):
    """Options of parts whose writer reads a prompt of the user.

    Attributes:
        prompt: What an endpoint or a model reads; ``{text}`` is the document.
        system: System message before the prompt.
    """

    prompt: str | None = None
    system: str = ""


@dataclass(frozen=True)
class Request:
    """What a writer is asked; None stands for the value of the options.

    Attributes:
        prompt: The message of the user, or the text to continue.
        system: System message.
        max_tokens: Maximum new tokens.
        temperature: Temperature of sampling.
        seed: Random seed of sampling.
        stop: Strings at which the answer ends; they are not part of it.
    """

    prompt: str
    system: str = ""
    max_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()


class Answer(NamedTuple):
    """What a writer answered.

    Attributes:
        text: The text; empty if it is refused or rejected.
        ended: Why it ended: ``finished``; ``truncated`` at the maximum of new tokens; ``refused`` by a filter of the
            service; ``empty``; or ``rejected``, a request that the server or model does not read, such as one that is
            too long.
        tokens_read: Tokens of the prompt; 0 if unknown.
        tokens_written: Tokens of the answer; 0 if unknown.
        cached: Whether it was in the cache.
    """

    text: str
    ended: Ended
    tokens_read: int = 0
    tokens_written: int = 0
    cached: bool = False


def is_model(given: Any) -> bool:
    """Return whether a writer is an endpoint or a model, which read a prompt, not a function."""
    name = given.get("by") if isinstance(given, Mapping) else given
    return isinstance(name, str) and name.startswith((*SERVER, LOCAL))


def parse_writer(given: Any, options: WriterOptions | None = None, what: str = "writer") -> tuple[Any, PromptOptions]:
    """Return what writes, and its options.

    Args:
        given: The writer.
        options: Options of the part, which those that are given with the writer replace.
        what: What it is for, for messages.

    Raises:
        UserError: If an address or an option is wrong.
    """
    names = [one.name for one in dataclasses.fields(PromptOptions)]
    settings = {name: getattr(options, name) for name in names if hasattr(options, name)}
    if isinstance(given, Mapping):
        settings |= {str(name): value for name, value in given.items() if name != "by"}
        given = given.get("by")
    if is_model(given):
        given, _, rest = given.partition(" ")
        if given.startswith(SERVER):
            read_addresses(given)
        settings |= split_entry(f"writer {rest}", what)[1]
    return given, build_dataclass(PromptOptions, what, "model", settings)


def missing_writer(part: str) -> UserError:
    """Return the error of a part that was given no writer."""
    return UserError(
        f"{part} needs a writer: give by=http://HOST:PORT/v1 model=NAME, by=model:PATH or by=FILE.py:FUNCTION."
    )


def check_writer(given: Any, options: WriterOptions | None = None, what: str = "writer") -> None:
    """Check a writer that a user gave, without loading it; whether a function exists is found when it is used.

    Raises:
        UserError: If an address or an option is wrong, or an endpoint lacks the name of a model.
    """
    by, found = parse_writer(given, options, what)
    if is_model(by) and by.startswith(SERVER) and not found.model:
        raise UserError(f"The {what} is an endpoint, which needs the name of its model: give model=NAME.")


def identify_writer(given: Any, what: str, key: object = None) -> str:
    """Return what determines the answers of a writer: the model, not where it is; or the code of a function."""
    by, options = parse_writer(given, None, what)
    if not is_model(by):
        return identify_function(by, what, key)
    values = {name: value for name, value in vars(options).items() if name not in options.unidentified}
    return f"{_name(by)} {fingerprint([_content(by), values, key])}"


def _name(by: str) -> str:
    return "endpoint" if by.startswith(SERVER) else by.rstrip("/").rpartition("/")[2].removeprefix(LOCAL)


def _content(by: str) -> str:
    from acclimate.models.checkpoints import model_fingerprint  # imports torch

    return "" if by.startswith(SERVER) else model_fingerprint(by.removeprefix(LOCAL))


class Budget:
    """Calls, tokens and minutes that a run may spend."""

    def __init__(self, options: WriterOptions) -> None:
        """Start the clock."""
        self._options, self._start, self._mutex = options, time.monotonic(), threading.Lock()
        self.calls = self.tokens = self._rejected = 0

    def take(self, failed: str = "") -> None:
        """Count a call, before which another one failed.

        Raises:
            BudgetSpentError: If the budget is spent.
        """
        minutes, most = (time.monotonic() - self._start) / 60, self._options
        with self._mutex:
            for name, spent in (
                ("max_calls", self.calls),
                ("max_total_tokens", self.tokens),
                ("max_minutes", minutes),
            ):
                if (limit := getattr(most, name)) is not None and spent >= limit:
                    raise BudgetSpentError(f"{name}={limit:g}", f", the last of which failed: {failed}" * bool(failed))
            self.calls += 1

    def take_several(self, most: int) -> int:
        """Count up to so many calls, and return how many the budget has.

        Raises:
            BudgetSpentError: If it has none.
        """
        self.take()
        limit = self._options.max_calls
        with self._mutex:
            more = most - 1 if limit is None else min(most - 1, limit - self.calls)
            self.calls += more
        return more + 1

    def explain(self, error: BudgetSpentError, what: str, done: int, total: int | None) -> UserError:
        """Return the error of a budget that is spent, after a number of answers of a total."""
        left = "" if total is None else f"; at most {total - done:,} of {total:,} requests are left"
        option, failed = error.args
        return UserError(
            f"The budget {option} of the {what} is spent after {self.calls:,} calls{failed}{left}. The answers "
            "so far are in the cache, so the same command continues from here."
        )

    def spend(self, tokens: int) -> None:
        """Count tokens."""
        with self._mutex:
            self.tokens += tokens

    def reject(self) -> int:
        """Count a rejected request, and return how many there are."""
        with self._mutex:
            self._rejected += 1
            return self._rejected


class BudgetSpentError(Exception):
    """A budget is spent; the arguments are its option, and words on the last call if that failed."""


class Writer:
    """Writes answers to requests, each of which is asked once; see :func:`open_writer`."""

    def __init__(self, by: Any, options: PromptOptions, what: str, key: Key | None) -> None:
        """Set what writes; nothing is loaded or called yet."""
        self._what, self._options = what, options
        self._model: Any = None
        self._counts = dict.fromkeys(("from_cache", "tokens_read", "tokens_written"), 0)
        self._counts |= dict.fromkeys(("refused", "truncated", "empty", "rejected", "repeated"), 0)
        self._seen, self._budget, self._said = set[bytes](), Budget(options), ""
        self._by, self._endpoint, self._start = by, None, time.monotonic()
        workers, size = options.concurrency or 1, 1
        if not is_model(by):
            self.name, identity = _function_name(by, what, key), identify_function(by, what, key)
            ask, self._function = self._ask_function, load_function(by, what)
        elif by.startswith(SERVER):
            self.name, identity = str(options.model), f"endpoint {options.model} {options.extra} {key}"
            ask, workers = self._ask_endpoint, options.concurrency or CONCURRENCY
        else:
            self.name, identity = _name(by), f"model {_content(by)}"
            ask, workers, size = self._ask_model, 1, LOCAL_ROWS
        self._store = AnswerStore(["text", identity, options.plain])
        self._asking = Asking(self._store, self._identify, ask, workers, size, describe_request)
        if is_model(by) and by.startswith(SERVER):
            self._endpoint = Endpoint(by, options.key_env, options.timeout, options.retries, self._asking.ended)

    def write(self, requests: Iterable[Request | str], total: int | None = None) -> Iterator[Answer]:
        """Yield the answer to each request, in their order; requests are read as they are needed.

        Args:
            requests: The requests, or prompts.
            total: Their number, if it is known, for messages.

        Raises:
            UserError: If the model cannot be loaded, the endpoint does not answer, the function fails, or a budget is
                spent. What was answered is in the cache.
        """
        done = rejected = 0
        filled = (self._fill(one) for one in requests)
        try:
            for values, cached in self._asking.map(filled):
                text, ended, read, written = values
                answer = Answer(text, ended, read, written, cached)
                self._count(answer)
                rejected += answer.ended == "rejected"
                yield answer
                done += 1
        except BudgetSpentError as error:
            raise self._budget.explain(error, self._what, done, total) from None
        if self._endpoint is not None and done and rejected == done:
            raise UserError(f"The endpoint rejects every request of the {self._what}: {self._said}.")

    def account(self) -> dict[str, Any]:
        """Return what the account of an operation says: who wrote, how often it was called, and what went wrong."""
        own = {} if not is_model(self._by) else {"temperature": self._options.temperature, "seed": self._options.seed}
        retries = {} if self._endpoint is None else {"retries": self._endpoint.retries}
        return {"generator": self.name, **own, "calls": self._budget.calls, **self._counts, **retries}

    def rate(self) -> str:
        """Return how fast it writes, for progress."""
        seconds = max(time.monotonic() - self._start, 1e-9)
        written = self._counts["tokens_written"]
        tokens = f", {written / seconds:,.0f} tokens" if written else ""
        return f"{self._budget.calls / seconds:.1f} calls{tokens} per s"

    def _fill(self, request: Request | str) -> Request:
        """Return a request with the values of the options."""
        given, usual = Request(request) if isinstance(request, str) else request, self._options
        return Request(
            given.prompt,
            given.system or usual.system,
            usual.max_tokens if given.max_tokens is None else given.max_tokens,
            usual.temperature if given.temperature is None else given.temperature,
            usual.seed if given.seed is None else given.seed,
            given.stop,
        )

    def _identify(self, request: Request) -> str:
        content = dataclasses.astuple(request) if is_model(self._by) else (request.prompt, request.system)
        return blake2b(repr(content).encode("utf-8", "backslashreplace"), digest_size=16).hexdigest()

    def _count(self, answer: Answer) -> None:
        counts = self._counts
        counts["from_cache"] += answer.cached
        counts["tokens_read"] += answer.tokens_read * (not answer.cached)
        counts["tokens_written"] += answer.tokens_written * (not answer.cached)
        if answer.ended in counts:
            counts[answer.ended] += 1
        if answer.text:
            mark = blake2b(answer.text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
            counts["repeated"] += mark in self._seen
            self._seen.add(mark)

    def _ask_function(self, requests: Sequence[Request]) -> list[tuple[list[Any], bool]]:
        (request,) = requests
        self._budget.take()
        returned = call_function(self._function, self._what, self.name, describe_request(request)[0])
        if not isinstance(returned, str | None):
            raise UserError(f"The {self._what} '{self.name}' must return a text or None, not {shorten(returned)}.")
        return [([returned or "", "finished" if (returned or "").strip() else "empty", 0, 0], True)]

    def _ask_endpoint(self, requests: Sequence[Request]) -> list[tuple[list[Any], bool]]:
        (request,) = requests
        self._budget.take()
        assert self._endpoint is not None
        turns = [{"role": "system", "content": request.system}] * bool(request.system)
        turns += [{"role": "user", "content": request.prompt}]
        own = {"prompt": request.prompt} if self._options.plain else {"messages": turns}
        body = {"model": self._options.model, **own, "max_tokens": request.max_tokens, "seed": request.seed}
        body |= {"temperature": request.temperature, "stop": list(request.stop) or None} | self._options._extra()
        body = {name: value for name, value in body.items() if value is not None}
        path = "/completions" if self._options.plain else "/chat/completions"
        try:
            text, ended, read, written = self._endpoint.post(path, body, read_completion, self._budget.take)
        except RejectedError as error:
            self._said = str(error)
            if self._budget.reject() >= MOST_REJECTED and not self._budget.tokens and self._store.is_empty():
                raise UserError(f"The endpoint rejects every request of the {self._what}: {error}.") from None
            return [(["", "rejected", 0, 0], False)]
        read = read or len(request.prompt) // CHARACTERS_PER_TOKEN
        written = written or len(text) // CHARACTERS_PER_TOKEN
        self._budget.spend(read + written)
        return [([text, ended, read, written], True)]

    def _ask_model(self, requests: Sequence[Request]) -> list[tuple[list[Any], bool]]:
        from acclimate.data.local_models import LocalModel

        if self._model is None:
            self._model = LocalModel(self._by.removeprefix(LOCAL), self._options.plain)
        taken = self._budget.take_several(len(requests))
        made = self._model.write(requests[:taken])
        self._budget.spend(sum(read + written for _, _, read, written in made))
        return [(list(one), one[1] != "rejected") for one in made]


def describe_request(request: Request) -> tuple[str, int]:
    """Return the prompt, and the maximum tokens of the answer."""
    return f"{request.system}\n\n{request.prompt}" if request.system else request.prompt, request.max_tokens or 0


def read_completion(body: Any) -> tuple[str, Ended, int, int]:
    """Return text, end, and tokens read and written of the answer of a server.

    Raises:
        ValueError, LookupError, TypeError, AttributeError: If it has another form.
    """
    choice, usage = body["choices"][0], body.get("usage") or {}
    message = choice.get("message") or {}
    text = message.get("content") if "message" in choice else choice["text"]
    if not isinstance(text, str | None):
        raise TypeError
    text = THOUGHT.sub("", text or "", count=1) if (text or "").lstrip().startswith("<think>") else text or ""
    reason = choice.get("finish_reason")
    ended: Ended = "truncated" if reason == "length" else "finished" if text.strip() else "empty"
    if message.get("refusal") or reason == "content_filter":
        text, ended = "", "refused"
    return text, ended, int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0)


def call_function(function: Callable[..., Any], what: str, name: str, text: str, read: Any = None) -> Any:
    """Call a function of the user, and read what it returns.

    Raises:
        UserError: If it fails, or returns something else.
    """
    try:
        found = function(text) if read is None else read(function(text))
        json.dumps(found)  # as it is kept
        return found
    except UserError:
        raise
    except USER_CODE_ERRORS as error:
        raise UserError(
            f"The {what} '{name}' failed for {shorten(text)}: {type(error).__name__}: "
            f"{first_line(error).removesuffix('.')}. What it made before is in the cache, so the same command "
            "continues from here."
        ) from error


def _function_name(given: Any, what: str, key: Key | None) -> str:
    return identify_function(given, what, key).split()[0].rpartition(".")[2]


def open_writer(
    by: Writing, options: WriterOptions | None = None, *, what: str = "writer", key: Key | None = None, **given: Any
) -> Writer:
    """Return what writes answers to requests.

    Args:
        by: The writer: a function, ``http://HOST:PORT/v1`` or ``model:PATH``, see the module.
        options: Options of the part that names it.
        what: What it is for, for messages.
        key: Identifier in the cache, such as the version of a model behind an endpoint.
        given: Further options, by name.

    Raises:
        UserError: If there is no such function, or an address or an option is wrong.
    """
    if given:
        _, known = parse_writer(None, options, what)
        options = build_dataclass(PromptOptions, what, "model", {**vars(known), **given})
    check_writer(by, options, what)
    by, found = parse_writer(by, options, what)
    return Writer(by, found, what, key)
