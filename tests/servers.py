"""A server of chat completions on this machine, whose answers a test chooses."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def completion(text: str | None, reason: str = "stop", **message: Any) -> dict[str, Any]:
    """Return the answer of a server."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text, **message}, "finish_reason": reason}
    return {"model": "m", "choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}


class Server:
    """A server; ``answer`` gets the prompt and the number of the call, and returns a status, headers and content.

    Content that is bytes is sent as it is; if ``Content-Length`` is among the headers, the connection ends after it.
    """

    def __init__(self, answer: Callable[[str, int], Any], seconds: float = 0.0) -> None:
        self.answer, self.seconds = answer, seconds
        self.running = self.peak = 0
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.mutex = threading.Lock()
        self.closing = threading.Event()
        self.url = ""

    @property
    def prompts(self) -> list[str]:
        return [_prompt(body) for body in self.bodies]


@contextmanager
def serve(
    answer: Callable[[str, int], Any] = lambda prompt, number: completion(f"about {prompt}"), seconds: float = 0.0
) -> Iterator[Server]:
    """Run a server in threads of this process."""
    found = Server(answer, seconds)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with found.mutex:
                found.bodies.append({**body, "path": self.path})
                found.headers.append(dict(self.headers))
                number = len(found.bodies)
                found.running += 1
                found.peak = max(found.peak, found.running)
            found.closing.wait(found.seconds)
            made = found.answer(_prompt(body), number)
            status, headers, content = made if isinstance(made, tuple) else (200, {}, made)
            with found.mutex:
                found.running -= 1
            content = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)
            if "Content-Length" in headers:
                self.close_connection = True

        def log_message(self, *_: Any) -> None: ...

    class Threads(ThreadingHTTPServer):
        request_queue_size, daemon_threads, block_on_close = 128, True, False

        def handle_error(self, *_: Any) -> None: ...

    server = Threads(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.02), daemon=True)
    thread.start()
    found.url = f"http://127.0.0.1:{server.server_port}/v1"
    try:
        yield found
    finally:
        found.closing.set()
        server.shutdown()
        server.server_close()


def _prompt(body: dict[str, Any]) -> str:
    return body["messages"][-1]["content"] if "messages" in body else body["prompt"]
