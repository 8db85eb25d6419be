"""A client for servers of language models: the chat completions that Ollama, vLLM, llama.cpp and services offer."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, NoReturn, cast
from urllib.parse import urlsplit

from acclimate.base.errors import UserError, cut, first_line

CONNECT_SECONDS, FIRST_DELAY, LONGEST_DELAY, LONGEST_PAUSE = 10.0, 1.0, 60.0, 3600.0
"""Seconds to connect, and between two tries: of the first pause, of the longest, and of one that a server asks for."""
MAX_BYTES = 2**26
"""Maximum size of an answer."""
LOOPBACK = ("all://localhost", "all://127.0.0.1", "all://[::1]")
"""Addresses of this machine, which are never called through a proxy."""
RETRIED = (408, 409, 425, 429)
REJECTED = (400, 413, 422)
"""Status codes that may be gone at the next try, as from 500 on, and those that concern one request."""


class RejectedError(Exception):
    """The server does not answer a request, such as one that is too long."""


class FailedCallError(Exception):
    """A call failed; the next may not."""

    def __init__(self, message: str, pause: float = 0.0) -> None:
        super().__init__(message)
        self.pause = pause


def read_addresses(given: str) -> list[str]:
    """Return the addresses of servers, which commas separate.

    Raises:
        UserError: If one is no HTTP address, or has a password or a query, which would be stored.
    """
    found = []
    for one in given.split(","):
        try:
            parts = urlsplit(one.strip())
            is_complete = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            is_complete = False
        if (
            not is_complete
            or parts.username is not None
            or parts.password is not None
            or parts.query
            or parts.fragment
        ):
            raise UserError(
                "An endpoint is an address such as http://localhost:8000/v1, without password or query; name the "
                "environment variable that holds a key with key_env=NAME."
            )
        found.append(re.sub(r"(/chat)?(/completions)?/*$", "", one.strip()))
    return found


@dataclass
class _Server:
    """One of the addresses.

    Attributes:
        address: The address.
        running: Number of calls under way.
        answered: Whether it has ever answered.
        until: Time before which no call is made.
    """

    address: str
    running: int = 0
    answered: bool = False
    until: float = field(default=0.0)


class Endpoint:
    """Servers of one model that share the calls.

    Attributes:
        retries: Number of calls that were made again.
    """

    def __init__(
        self, addresses: str, key_env: str | None, timeout: float, retries: int, ended: threading.Event
    ) -> None:
        """Set where the servers are; nothing is called yet.

        Args:
            addresses: The addresses, separated by commas.
            key_env: Environment variable that holds the key.
            timeout: Maximum seconds of a call.
            retries: Maximum number of further calls for one request.
            ended: When set, no call is made again.

        Raises:
            UserError: If an address is wrong, or the variable is not set.
        """
        self._servers = [_Server(address) for address in read_addresses(addresses)]
        self._key = os.environ.get(key_env or "", "").strip()
        if key_env and not self._key:
            raise UserError(
                f"The environment variable {key_env}, which key_env names, is not set; set it to the key of the "
                "service on each machine that calls it."
            )
        if not (self._key.isascii() and self._key.isprintable()):
            raise UserError(f"The environment variable {key_env} has characters that are in no key; set it again.")
        self._timeout, self._most, self._ended, self.retries = timeout, retries, ended, 0
        self._mutex, self._client = threading.Lock(), cast(Any, None)

    def post(
        self,
        path: str,
        body: Mapping[str, Any],
        read: Callable[[Any], Any],
        again: Callable[[str], None] = lambda failed: None,
    ) -> Any:
        """Send a request to the server with the fewest, again if that fails, and return what its answer says.

        Args:
            path: Path below the address.
            body: The request.
            read: Returns what is wanted of the answer; its errors mean that it has another form.
            again: Called before each further call with the failure of the last; it may raise.

        Raises:
            RejectedError: If the server does not accept the request.
            UserError: If no server answers, or they accept no request of this kind.
        """
        for number in itertools.count():
            server = self._choose()
            try:
                found = self._call(f"{server.address}{path}", body, read)
                server.answered = True
                return found
            except FailedCallError as error:
                delay = min(LONGEST_DELAY, FIRST_DELAY * 2**number) * random.uniform(0.5, 1.0)
                with self._mutex:
                    if error.pause or len(self._servers) > 1:  # a broken one of several is left alone for a while
                        server.until = time.monotonic() + (error.pause or delay)
                unreachable = not any(one.answered for one in self._servers) and isinstance(error, _UnreachableError)
                if number >= (len(self._servers) - 1 if unreachable else self._most) or self._ended.is_set():
                    raise UserError(
                        f"{server.address} {self._hide(str(error))}; "
                        + ("start the server, or correct the address" if unreachable else f"tried {number + 1} times")
                        + ". The answers so far are in the cache, so the same command continues from here."
                    ) from None
                again(f"{server.address} {self._hide(str(error))}")
                with self._mutex:
                    self.retries += 1
                self._ended.wait(0.0 if error.pause or len(self._servers) > 1 else delay)
            finally:
                with self._mutex:
                    server.running -= 1
        raise AssertionError

    def _choose(self) -> _Server:
        """Return the server with the fewest calls among those that may be called, as soon as there is one."""
        while True:
            with self._mutex:
                now = time.monotonic()  # of equal ones, that which failed least recently
                server = min(self._servers, key=lambda one: (max(0.0, one.until - now), one.running, one.until))
                if (pause := server.until - now) <= 0 or self._ended.is_set():
                    server.running += 1
                    return server
            self._ended.wait(pause)

    def _connect(self) -> Any:
        """Return the client, which keeps connections open."""
        import httpx2

        with self._mutex:
            if self._client is None:
                headers = {"Content-Type": "application/json"}
                self._client = httpx2.Client(
                    headers=headers | ({"Authorization": f"Bearer {self._key}"} if self._key else {}),
                    timeout=httpx2.Timeout(self._timeout, connect=min(CONNECT_SECONDS, self._timeout)),
                    limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None),
                    mounts=dict.fromkeys(LOOPBACK),
                )
            return self._client

    def _call(self, address: str, body: Mapping[str, Any], read: Callable[[Any], Any]) -> Any:
        import httpx2

        client = self._connect()
        end, content = time.monotonic() + self._timeout, bytearray()
        try:
            with client.stream("POST", address, content=json.dumps(body).encode()) as answer:
                for part in answer.iter_bytes():
                    content += part
                    if time.monotonic() > end:
                        raise FailedCallError(f"did not finish within {self._timeout:g} s")
                    if len(content) > MAX_BYTES:
                        raise FailedCallError(f"sent more than {MAX_BYTES:,} bytes")
        except httpx2.TimeoutException as error:
            kind = _UnreachableError if isinstance(error, httpx2.ConnectTimeout) else FailedCallError
            raise kind(f"did not answer within {self._timeout:g} s") from None
        except (httpx2.ConnectError, httpx2.InvalidURL, UnicodeError) as error:
            raise _UnreachableError(f"cannot be reached ({first_line(error)})") from None
        except (httpx2.TransportError, httpx2.DecodingError) as error:
            raise FailedCallError(f"broke off ({first_line(error)})") from None
        if answer.status_code == 200:
            try:
                return read(json.loads(content))
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
                raise FailedCallError(f"sent no answer in the expected form: {_quote(content)}") from None
        self._refuse(answer.status_code, answer.headers, content)

    def _refuse(self, status: int, headers: Mapping[str, str], content: bytes | bytearray) -> NoReturn:
        """Raise what an answer that is none means."""
        said = self._hide(_quote(content))
        if status in RETRIED or status >= 500:
            raise FailedCallError(f"answered {status} ({said})", _read_pause(headers.get("retry-after")))
        if status in REJECTED:
            raise RejectedError(said)
        advice = {401: "check the key that key_env names", 403: "check the key that key_env names"}.get(
            status, "check the model and the address, which usually ends in /v1"
        )
        raise UserError(f"The endpoint answered {status} ({said}); {advice}.")

    def _hide(self, text: str) -> str:
        return text.replace(self._key, "[key]") if self._key else text


class _UnreachableError(FailedCallError):
    """There is no connection."""


def _read_pause(value: str | None) -> float:
    """Return the seconds of a header ``Retry-After``; 0 if there is none."""
    if not value:
        return 0.0
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except ValueError:
            return 0.0
    return min(seconds, LONGEST_PAUSE) if seconds > 0 else 0.0


def _quote(content: bytes | bytearray) -> str:
    """Return the message of an answer, or its beginning."""
    text = bytes(content).decode("utf-8", "replace")
    try:
        found = json.loads(text)
        found = found.get("error", found) if isinstance(found, dict) else text
        found = found.get("message", found) if isinstance(found, dict) else found
        text = found if isinstance(found, str) else json.dumps(found)
    except (ValueError, RecursionError):
        pass
    return cut(" ".join(text.split()), 200) or "nothing"
