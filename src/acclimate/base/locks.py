"""Locks between processes, on one machine or on several machines that share a folder.

A claim is a lock file, ``filelock.SoftFileLease``. It is created with ``O_CREAT | O_EXCL``, which is atomic also on
NFS, contains the process id and the machine, and is touched regularly by a thread. An advisory lock of the operating
system (``flock``) would not need the thread, but many shared file systems refuse it or grant it to each machine
separately.

A claim ends with its process, even if the process is killed. On the same machine this is detected at once, by the
process id and the start time. A claim of another machine is taken over if it is not touched for
:data:`LEASE_SECONDS` seconds, as measured by the waiting process. A process that is suspended for longer may therefore
repeat work that another process has done; since all output is written atomically, no result is lost.

A lock file that names no owner, for example because its process was killed between creating and writing it, is taken
over if it does not change for a few seconds.
"""

from __future__ import annotations

import errno
import functools
import inspect
import logging
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, ParamSpec, TypeVar

from filelock import LeaseSettingsMismatch, SoftFileLease, Timeout

from acclimate.base.errors import UserError, check_stop, environment_integer
from acclimate.base.files import follow_link, remove_leftovers
from acclimate.base.waiting import Wait

LEASE_SECONDS = 120.0
"""Seconds after which a claim of another machine that is not touched is taken over.

All processes that share a folder must use the same value."""
POLL_SECONDS = 1.0
"""Seconds between two checks of the claim of another machine."""
UNOWNED_SECONDS = 2.0
"""Seconds after which a lock file that names no owner, and does not change, counts as abandoned."""
ABANDONED = b"abandoned\n"
"""Content of a lock file that ``filelock`` may take over, since it is not one of its own records."""

log = logging.getLogger(__name__)
P = ParamSpec("P")
R = TypeVar("R")


class Owner(NamedTuple):
    """The process that holds a claim.

    Attributes:
        pid: Process id.
        machine: Host name, with a suffix that distinguishes the containers of a host.
        seen: Modification time of the lock file, when the claim was last touched.
    """

    pid: int
    machine: str
    seen: float

    @property
    def place(self) -> str:
        """Process and host, for messages."""
        host = self.machine.partition("?")[0]
        return f"pid {self.pid} on {host}"

    def __str__(self) -> str:
        return f"{self.place}, last seen {datetime.fromtimestamp(self.seen):%H:%M:%S}"


class Claim:
    """A lock file. Use the same object for several attempts, since it remembers when the owner was last seen."""

    def __init__(self, path: str | Path) -> None:
        """Set the path of the lock file; nothing is locked yet."""
        self.path = Path(path)
        self._lease = SoftFileLease(self.path, lease_duration=LEASE_SECONDS, blocking=False, thread_local=False)
        self._unowned: tuple[os.stat_result, float] | None = None
        self._watched: Owner | None = None
        self._wait: Wait | None = None

    def take(self) -> bool:
        """Try to take the claim once, and return whether this process holds it.

        Raises:
            UserError: If the lock file was made with a different value of :data:`LEASE_SECONDS`.
            OSError: If the folder is not writable.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        for _ in range(2):  # on some file systems the first attempt only removes the file of a dead owner
            try:
                self._lease.acquire()
                return True
            except Timeout:
                self._mark_abandoned()
            except LeaseSettingsMismatch as error:
                raise UserError(
                    f"'{self.path}' was written by another version of acclimate; wait until that run has ended, or "
                    "delete the file if there is no such run."
                ) from error
        return False

    def _mark_abandoned(self) -> None:
        """Let ``filelock`` take over a lock file that has named no owner for a while.

        ``filelock`` does so for most content, if the same object looks at it several times, but it respects an empty
        file and the records of its other kinds of locks for ever. A process that is still alive writes its record over
        the mark.
        """
        try:
            if self.owner() is not None or not stat.S_ISREG((status := os.lstat(self.path)).st_mode):
                self._unowned = None
                return
            seen, since = self._unowned or (None, 0.0)
            if seen is None or (seen.st_ino, seen.st_ctime_ns) != (status.st_ino, status.st_ctime_ns):
                self._unowned = status, time.monotonic()
            elif time.monotonic() - since >= UNOWNED_SECONDS:
                handle = os.open(self.path, os.O_RDWR | os.O_NOFOLLOW)
                try:
                    # Marking it again would restart the time that filelock waits.
                    if os.path.samestat(os.fstat(handle), status) and os.pread(handle, 99, 0) != ABANDONED:
                        os.pwrite(handle, ABANDONED, 0)
                        os.ftruncate(handle, len(ABANDONED))
                finally:
                    os.close(handle)
        except OSError:  # there is no lock file, or it may not be changed
            return

    def wait(self, what: str) -> None:
        """Take the claim as soon as its owner releases it; report the wait.

        Args:
            what: The owner, in words.

        Raises:
            Stopped: If a signal asks to end.
            UserError: If the owner shows no sign of life for :data:`acclimate.base.waiting.SILENT_SECONDS` seconds.
        """
        while not self.take():
            self.watch(what).pause(min(POLL_SECONDS, LEASE_SECONDS / 4))

    def watch(self, what: str) -> Wait:
        """Return the wait for the owner, which lasts as long as it shows signs of life."""
        owner = self.owner()
        if self._wait is None or (owner or [])[:2] != (self._watched or [])[:2]:
            advice = f"if it hangs, end it with 'kill -9 {owner.pid}'" if owner else "delete that file if it is old"
            self._wait = Wait(f"{what} ({self.holder()})", advice)
        elif owner != self._watched:
            self._wait.renew()
        self._watched = owner
        return self._wait

    def release(self) -> None:
        """Release the claim and remove the lock file."""
        self._lease.release()

    def owner(self) -> Owner | None:
        """Return the owner of the claim; None if there is none, or if the lock file names none."""
        record = self._lease.owner
        try:
            if record is None or record.mode != "lease":
                return None
            return Owner(record.pid, record.hostname, self.path.stat().st_mtime)
        except OSError:
            return None

    def holder(self) -> str:
        """Return the owner, or the lock file if it names none, for messages."""
        return str(self.owner() or f"unknown; the lock file is '{self.path}'")


@contextmanager
def output_lock(out: str | Path) -> Iterator[None]:
    """Lock the output directory ``out``, or the target of it if it is a link, with the file ``.NAME.lock`` next to it.

    Unfinished folders of killed processes are removed first. In a distributed run the process with rank 0 holds the
    lock for all. If the parent folder is read-only there is no lock: nothing can be written there, and a finished
    folder can still be read.

    Raises:
        UserError: If ``out`` is a link that leads nowhere, or another process holds the lock. If that process is on
            another machine, the error is raised only after up to :data:`LEASE_SECONDS` seconds, since it may have been
            killed.
    """
    path = follow_link(os.path.abspath(out))
    follow_link(path.parent)  # checks it
    claim = Claim(path.parent / f".{path.name}.lock")
    if environment_integer("RANK") > 0 or not _acquire_claim(claim, path):
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
    def locked(*args: P.args, **options: P.kwargs) -> R:
        bound = signature.bind(*args, **options)
        bound.apply_defaults()
        given = bound.arguments
        out = given["out"] if "out" in given else next(iter(given.values())).out
        if out is None or environment_integer("RANK") > 0:
            return function(*args, **options)
        with output_lock(out):
            return function(*args, **options)

    return locked


def _acquire_claim(claim: Claim, out: Path) -> bool:
    """Take the claim; return False if the folder is read-only."""
    try:
        if claim.take() or _wait_for_stale_owner(claim, out):
            return True
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return False
        raise UserError(f"Cannot write next to '{out}': {error.strerror}. Choose another folder.") from error
    raise UserError(f"Another run is writing '{out}' ({claim.holder()}); wait for it or choose another folder.")


def _wait_for_stale_owner(claim: Claim, out: Path) -> bool:
    """Watch an owner on another machine, or a lock file without one; return whether the claim was taken over."""
    owner = claim.owner()
    if owner is not None and owner.machine == machine_name():
        return claim.take()  # the owner may just have ended
    seconds = 3 * UNOWNED_SECONDS + POLL_SECONDS if owner is None else LEASE_SECONDS + 2 * POLL_SECONDS
    if owner is not None:
        log.warning("'%s' is locked by %s; waiting up to %.0f s for a sign of life.", out, owner, LEASE_SECONDS)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(min(POLL_SECONDS, LEASE_SECONDS / 4))
        check_stop()
        if claim.take():
            return True
        if (now := claim.owner()) is not None and now != owner:
            return False
    return False


@functools.cache
def machine_name() -> str:
    """Return the name of this machine in lock files."""
    with tempfile.TemporaryDirectory(prefix="acclimate-") as folder, SoftFileLease(Path(folder) / "lock") as lease:
        owner = lease.owner
    return owner.hostname if owner else ""
