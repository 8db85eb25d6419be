"""Record of how often the items that confirm a gain have been read."""

from __future__ import annotations

import hashlib
import logging
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from acclimate.base.files import cache_folder, write_json
from acclimate.base.locks import Claim
from acclimate.base.records import Record, read_record
from acclimate.data.task_kinds import find_task_kind

SKETCH = 200
"""Number of hashes that a read is remembered by: the smallest of the hashes of its items."""
LEDGER = ".acclimate-reads.json"
CACHED = "reads.json"
"""The record in the cache, of the items of all tasks."""
ABOUT = "How often acclimate auto has confirmed a gain on these items; from the second time on, its bounds are wider."

log = logging.getLogger(__name__)


class _Read(Record):
    """A read: what identifies the run, the time, its number, and the smallest hashes of the items."""

    run: str
    at: str = ""
    number: Annotated[int, 1]
    hashes: list[str]


class _Ledger(Record):
    """The record of reads of confirming items."""

    about: str = ABOUT
    reads: list[_Read]


def count_reads(task: Any, run: str) -> int:
    """Record that a run reads the test split of a task, and return how often it has been read, this time included.

    An earlier read counts if it has read one of the same items, by whatever run. The same run counts once, also when
    it resumes. There are two records: one in the cache, which recognizes items wherever they lie, and
    ``.acclimate-reads.json`` in the folder of the task or next to its file, which other users and machines share. They
    are written before the items are scored, so a run that is killed between the two has counted.

    Args:
        task: The task, whose test split confirms.
        run: What identifies the run.

    Raises:
        UserError: If a record is damaged.
    """
    kind = find_task_kind(task)
    hashes = {
        hashlib.sha256(kind.item_text(item).encode("utf-8", "surrogatepass")).hexdigest()[:12] for item in task.test
    }
    sketch = sorted(hashes)[:SKETCH]
    ledgers, path = [cache_folder() / CACHED], getattr(task, "path", None)
    if path is not None:
        folder = Path(path)
        ledgers.append(folder / LEDGER if folder.is_dir() else folder.with_name(f".{folder.name}{LEDGER}"))
    with ExitStack() as locks:
        records = {}
        for ledger in ledgers:
            records[ledger] = _load(ledger)
            with suppress(OSError):  # a folder that cannot be written
                locks.callback(_lock(ledger).release)
                records[ledger] = _load(ledger)
        reads = {(read.run, *read.hashes): read for record in records.values() for read in record}
        read = reads.get((run, *sketch))
        if read is None:
            number = 1 + sum(not set(sketch).isdisjoint(one.hashes) for one in reads.values())
            now = datetime.now(UTC).isoformat("T", "seconds")
            read = _Read(run=run, at=now, number=number, hashes=sketch)
        for ledger, record in records.items():
            if not any(one.run == run and one.hashes == sketch for one in record):
                try:
                    write_json(ledger, _Ledger(reads=[*record, read]).to_dict())
                except OSError:
                    log.warning("'%s' cannot be written, so reads of these items are counted elsewhere only.", ledger)
        return read.number


def _lock(path: Path) -> Claim:
    lock = Claim(path.with_name(f".{path.name}.lock"))
    lock.wait("another process that counts a read")
    return lock


def _load(path: Path) -> list[_Read]:
    """Return the reads of a record; none if there is no record.

    Raises:
        UserError: If it is damaged: taking that for no reads would promise too much.
    """
    remedy = "restore it, or delete it to count from one again how often the confirming items were read"
    try:
        return read_record(path, _Ledger, remedy).reads
    except FileNotFoundError:
        return []
