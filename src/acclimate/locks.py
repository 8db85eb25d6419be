"""Who works on what: claims that other processes can see, on this machine and on others that share the folder.

A claim is a marker file, ``filelock.SoftFileLease``: made with ``O_CREAT | O_EXCL``, which one process alone can do,
also on NFS; it names process and machine, and a small thread touches it as a sign of life. An advisory lock of the
operating system (``flock``) would need no thread, but on many shared file systems it is refused, or granted to each
machine by itself, and two machines would then believe that they are alone.

A claim ends with its process, also when that is killed. On the same machine it is seen at once that the process is
gone (its number and its start time are compared). Of another machine the touches are watched: if none comes in
:data:`LEASE_SECONDS` seconds, measured by the watcher's own clock so that clocks may differ, the claim is taken over.
The price: a process that stood still for longer than that, and then goes on, may do work that another did, too. What
is written here is written whole and under a temporary name first, so work may be lost by that, but no result.
"""

from __future__ import annotations

import errno
import functools
import inspect
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, ParamSpec, TypeVar

from filelock import LeaseSettingsMismatch, SoftFileLease, Timeout

from acclimate.errors import UserError
from acclimate.files import remove_leftovers

LEASE_SECONDS = 120.0
"""Seconds without a sign of life after which a claim of another machine is taken over.

All who share a folder must agree."""
POLL_SECONDS = 1.0
"""Seconds between two looks at the claim of another machine."""

log = logging.getLogger(__name__)
P = ParamSpec("P")
R = TypeVar("R")


class Owner(NamedTuple):
    """Who holds a claim, and the time of its last sign of life by the clock of the file system."""

    pid: int
    machine: str
    seen: float

    @property
    def place(self) -> str:
        """Process and host, for people."""
        host = self.machine.partition("?")[0]  # what follows tells containers of one host apart
        return f"pid {self.pid} on {host}"

    def __str__(self) -> str:
        return f"{self.place}, last seen {datetime.fromtimestamp(self.seen):%H:%M:%S}"


class Claim:
    """A claim of one path; hold on to the object between tries, since it remembers what it saw of the owner."""

    def __init__(self, path: str | Path) -> None:
        """Take nothing yet; ``path`` is the marker file."""
        self.path = Path(path)
        self._lease = SoftFileLease(self.path, lease_duration=LEASE_SECONDS, blocking=False, thread_local=False)

    def take(self) -> bool:
        """Try once; return whether the claim is now ours.

        Raises:
            UserError: If a program with another :data:`LEASE_SECONDS` made the marker.
            OSError: If the folder cannot be written.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        for _ in range(2):  # where two files cannot change places, the first try only removes what a dead owner left
            try:
                self._lease.acquire()
                return True
            except Timeout:
                continue
            except LeaseSettingsMismatch as error:
                raise UserError(
                    f"'{self.path}' was made by another version of acclimate. Wait for its run, or delete the file if "
                    "there is none."
                ) from error
        return False

    def release(self) -> None:
        """Give the claim back; its marker disappears."""
        self._lease.release()

    def owner(self) -> Owner | None:
        """Return who holds the claim, or None if nobody does or the marker is just being written."""
        record = self._lease.owner
        try:
            return record and Owner(record.pid, record.hostname, self.path.stat().st_mtime)
        except OSError:
            return None


@contextmanager
def output_lock(out: str | Path) -> Iterator[None]:
    """Be the only process that writes the folder ``out``; the marker is ``.NAME.lock`` beside it.

    What a killed process left of an unfinished folder is removed first.
    Of several processes of one distributed run the first takes the lock for all. Where the place beside ``out`` is
    read-only there is no lock: nothing can be written there either, and a finished folder can still be read.

    Raises:
        UserError: If another process writes it. A claim of another machine is watched first, for :data:`LEASE_SECONDS`
            seconds at most, since its process may have been killed.
    """
    path = Path(os.path.abspath(out))
    claim = Claim(path.parent / f".{path.name}.lock")
    if int(os.environ.get("RANK") or 0) > 0 or not _acquire_claim(claim, path):
        yield
        return
    try:
        remove_leftovers(path)
        yield
    finally:
        claim.release()


def with_output_lock(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function so that it holds the :func:`output_lock` of the folder that it writes.

    The folder is its argument ``out``, or the attribute ``out`` of its only argument; if it is None there is no lock.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def alone(*args: P.args, **options: P.kwargs) -> R:
        bound = signature.bind(*args, **options)
        bound.apply_defaults()
        # Of the processes that torchrun starts for one run, the first writes and holds the claim for all.
        given = bound.arguments
        out = given["out"] if "out" in given else next(iter(given.values())).out
        if out is None or int(os.environ.get("RANK") or 0) > 0:
            return function(*args, **options)
        with output_lock(out):
            return function(*args, **options)

    return alone


def _acquire_claim(claim: Claim, out: Path) -> bool:
    """Take the claim, or return False where none can be made because the place is read-only."""
    try:
        if claim.take() or _wait_for_stale_owner(claim, out):
            return True
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return False
        raise UserError(f"Cannot write beside '{out}': {error.strerror}. Choose another folder.") from error
    who = claim.owner() or "unknown"
    raise UserError(f"Another run is writing '{out}' ({who}); wait for it or choose another folder.")


def _wait_for_stale_owner(claim: Claim, out: Path) -> bool:
    """Watch an owner on another machine until it gives a sign of life (False) or is given up (True)."""
    owner = claim.owner()
    if owner is None or owner.machine == _machine_name():
        return claim.take()  # it may just have ended
    log.warning("'%s' was being written by %s; waiting up to %.0f s for a sign of life.", out, owner, LEASE_SECONDS)
    end = time.monotonic() + LEASE_SECONDS + 2 * POLL_SECONDS
    while time.monotonic() < end:
        time.sleep(min(POLL_SECONDS, LEASE_SECONDS / 4))
        if claim.take():
            return True
        if (now := claim.owner()) is not None and now != owner:
            return False
    return False


@functools.cache
def _machine_name() -> str:
    """Return how claims of this process name their machine."""
    with tempfile.TemporaryDirectory(prefix="acclimate-") as folder, SoftFileLease(Path(folder) / "lock") as lease:
        owner = lease.owner
    return owner.hostname if owner else ""
