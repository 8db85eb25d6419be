"""Real processes that share a study with a fake backend; they are forked, to save the time of the imports."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from pathlib import Path

from acclimate.base.errors import UserError
from acclimate.study import executor
from acclimate.study.compare import compare
from tests.study.fakes import World, study

FORK = multiprocessing.get_context("fork")


class Slow(World):
    """A backend with slow jobs, each of which writes a line to a log when it starts: process, kind, inputs."""

    def __init__(self, journal: Path, seconds: float, endless: str = "", **options):
        super().__init__(**options)
        self.journal, self.seconds, self.endless = journal, seconds, endless

    def _called(self, kind, **arguments):
        if " " not in kind:
            what = [arguments.get(name, "") for name in ("method", "seed", "model")] + arguments.get("texts", [])[:1]
            with self.journal.open("a") as file:
                file.write(f"{os.getpid()} {kind} {what}\n")
            time.sleep(1000 if self.endless == kind else self.seconds)
        super()._called(kind, **arguments)


class Process:
    """A process that runs the study in ``folder / "data"`` with the output folder ``folder / "out"``."""

    def __init__(self, folder: Path, name: str, seconds: float = 0.02, endless: str = "", shard: str | None = None):
        self.folder, self.log, self.shard = folder, folder / f"{name}.log", shard
        self.world = Slow(folder / "journal", seconds, endless, headless=True)
        self.log.touch()
        self._process = FORK.Process(target=self._run, daemon=True)
        self._process.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _run(self) -> None:
        executor.POLL = 0.05
        sys.stdout = sys.stderr = self.log.open("w", buffering=1)
        try:
            compare(study(self.folder / "data"), self.folder / "out", shard=self.shard, backend=self.world.backend())
        except UserError as error:
            sys.stderr.write(f"{error}\n")
            sys.exit(2)

    def wait_for(self, text: str, file: Path | None = None) -> str:
        """Wait until a line with ``text`` is in the log, or in ``file``; return the line."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            path = file or self.log
            for line in path.read_text().splitlines() if path.exists() else []:
                if text in line:
                    return line
            assert self._process.is_alive(), self.log.read_text()
            time.sleep(0.02)
        raise AssertionError(f"no '{text}' in: {self.log.read_text()}")

    def end(self) -> int:
        """Wait until the process ends; return its exit code."""
        self._process.join(60)
        assert not self._process.is_alive(), self.log.read_text()
        return self._process.exitcode

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        self._process.kill()
        self._process.join()
