"""Headless Chromium, controlled through its debugging protocol over a pipe, without further packages."""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path

QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"),
)
WAIT = 60.0


def chromium() -> str | None:
    """Path of the program, or None."""
    return next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )


class Browser:
    """One page of a browser; ``errors`` collects console messages and exceptions."""

    def __init__(self, profile: Path):
        ours, theirs = os.pipe(), os.pipe()  # the browser reads from the first and writes to the second
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 100) for fd in (ours[0], theirs[1])]

        def connect() -> None:  # the browser expects descriptors 3 and 4
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        command = [str(chromium()), *QUIET, f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"]
        self._process = subprocess.Popen(
            command, preexec_fn=connect, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for fd in (ours[0], theirs[1], *high):
            os.close(fd)
        self._write, self._read = ours[1], theirs[0]
        self._buffer, self._number, self._session = b"", 0, None
        self.errors: list[str] = []
        self._loaded = False
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def close(self) -> None:
        os.close(self._write)
        os.close(self._read)
        self._process.terminate()
        self._process.wait(20)

    def ask(self, method: str, **parameters):
        """Send a command and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]

    def _next(self) -> dict:
        end = time.monotonic() + WAIT
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            piece = os.read(self._read, 1 << 20) if ready else b""
            if not piece:
                raise TimeoutError("no answer from the browser")
            self._buffer += piece
        raw, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(raw)
        name, params = message.get("method"), message.get("params", {})
        if name == "Page.loadEventFired":
            self._loaded = True
        elif name == "Runtime.exceptionThrown":
            self.errors.append(str(params["exceptionDetails"]))
        elif name == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(params["entry"]["text"])
        elif name == "Runtime.consoleAPICalled":
            self.errors.append(str(params["args"]))
        return message

    def open(self, file: Path, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Open a file with a window size and colour scheme."""
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.ask("Emulation.setEmulatedMedia", features=scheme)
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.ask("Emulation.setDeviceMetricsOverride", **size)
        self.errors.clear()
        self._loaded = False
        self.ask("Page.navigate", url=file.resolve().as_uri())
        while not self._loaded:
            self._next()

    def run(self, script: str):
        """Return the value of an expression in the page."""
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def key(self, name: str, code: int, text: str = "") -> None:
        """Press and release a key."""
        key = {"key": name, "code": name if len(name) > 1 else "Space", "windowsVirtualKeyCode": code}
        self.ask("Input.dispatchKeyEvent", type="keyDown", **key, **({"text": text} if text else {}))
        self.ask("Input.dispatchKeyEvent", type="keyUp", **key)

    def click(self, selector: str) -> None:
        """Click the centre of the first element that matches a selector."""
        place = f"document.querySelector({json.dumps(selector)})"
        self.run(f"{place}.scrollIntoView({{block: 'center', inline: 'center'}})")
        x, y = self.run(f"(b => [b.x + b.width / 2, b.y + b.height / 2])({place}.getBoundingClientRect())")
        for kind in ("mousePressed", "mouseReleased"):
            self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
