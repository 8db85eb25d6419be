"""How often the items that confirm a gain have been read."""

from __future__ import annotations

import hashlib
import logging
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from acclimate.errors import UserError, check_stop
from acclimate.files import cache_folder, read_json, write_json
from acclimate.locks import POLL_SECONDS, Claim
from acclimate.records import fingerprint
from acclimate.tasks.kinds import find_task_kind

SKETCH = 200
"""Number of hashes that a read is remembered by: the smallest of the hashes of its items."""
LEDGER = ".acclimate-reads.json"
ABOUT = "How often acclimate auto has confirmed a gain on these items; from the second time on, its bounds are wider."

log = logging.getLogger(__name__)


def count_reads(task: Any, run: str) -> int:
    """Record that a run reads the test split of a task, and return how often it has been read, this time included.

    An earlier read counts if it has read one of the same items, by whatever run. The same run counts once, also when
    it resumes. The record is ``.acclimate-reads.json`` in the folder of the task, or beside its file; for tasks
    without a path, and in read-only folders, it is in the cache. It is written before the items are scored, so a run
    that is killed between the two has counted.

    Args:
        task: The task, whose test split confirms.
        run: What identifies the run.

    Raises:
        UserError: If the record is damaged.
    """
    kind = find_task_kind(task)
    hashes = {
        hashlib.sha256(kind.item_text(item).encode("utf-8", "surrogatepass")).hexdigest()[:12] for item in task.test
    }
    sketch = sorted(hashes)[:SKETCH]
    path = getattr(task, "path", None)
    if path is not None:
        folder = Path(path)
        ledger = folder / LEDGER if folder.is_dir() else folder.with_name(f".{folder.name}.acclimate-reads.json")
        try:
            return _record(ledger, run, sketch)
        except OSError:
            log.warning("'%s' cannot be written, so reads of its confirming items are counted in the cache.", folder)
    return _record(cache_folder() / "reads" / f"{fingerprint([task.name, sketch])}.json", run, sketch)


def _record(path: Path, run: str, sketch: list[str]) -> int:
    """Add a read to a record under a lock, and return its number: see :func:`count_reads`."""
    lock = Claim(path.with_name(f".{path.name}.lock"))
    while not lock.take():
        check_stop()
        time.sleep(POLL_SECONDS / 10)
    try:
        reads = _load(path)
        for read in reads:
            if read["run"] == run and read["items"] == sketch:
                return int(read["number"])
        number = 1 + sum(not set(sketch).isdisjoint(read["items"]) for read in reads)
        reads.append(
            {"run": run, "at": datetime.now(UTC).isoformat("T", "seconds"), "number": number, "items": sketch}
        )
        write_json(path, {"about": ABOUT, "reads": reads})
        return number
    finally:
        lock.release()


def _load(path: Path) -> list[dict[str, Any]]:
    """Return the reads of a record; none if there is no record.

    Raises:
        UserError: If it is damaged: taking that for no reads would promise too much.
    """
    try:
        reads = read_json(path)["reads"]
        valid = all(
            isinstance(read["run"], str) and isinstance(read["number"], int) and isinstance(read["items"], list)
            for read in reads
        )
    except FileNotFoundError:
        return []
    except (ValueError, TypeError, KeyError):
        valid = False
    if not valid:
        raise UserError(
            f"'{path}' is damaged, and with it the count of how often the confirming items were read; restore it, or "
            "delete it to count from one again."
        )
    return list(reads)
