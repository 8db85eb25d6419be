"""Stored results of jobs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from acclimate.errors import UserError
from acclimate.files import read_json, write_json
from acclimate.locks import Claim
from acclimate.records import Record
from acclimate.study.jobs.base import FORMAT, Job, Outcome, place_values


class JobStore:
    """Results of jobs, one file ``out/cells/KEY.json`` per job, written atomically."""

    def __init__(self, out: Path) -> None:
        """Use the folder ``out``; it is created when something is stored."""
        self.out = Path(out)

    def result(self, job: Job) -> Record | None:
        """Return the result of a finished job, or None if it is missing, failed or unreadable."""
        record = self._read(self._path(job))
        if record is None or record.get("status") != "done":
            return None
        try:
            return job.result_type.from_dict(record["result"])
        except (KeyError, TypeError, UserError):
            return None

    def failure(self, job: Job) -> dict[str, Any] | None:
        """Return the record of a failed job, with its ``error``, or None."""
        record = self._read(self._path(job))
        return record if record and record.get("status") == "failed" else None

    def outcome(self, job: Job) -> Outcome:
        """Return what is stored of a job."""
        result = self.result(job)
        if result is not None:
            return Outcome(job, "reused", result)
        record = self.failure(job)
        if record is not None:
            return Outcome(job, "failed", error=str(record.get("error")))
        return Outcome(job, "missing", error="not computed yet")

    def finished(self) -> Iterator[dict[str, Any]]:
        """Yield the records of all finished jobs, including those of earlier versions of the study."""
        for path in sorted((self.out / "cells").glob("*.json")):
            record = self._read(path)
            if record and record.get("status") == "done":
                yield record

    def claim(self, job: Job) -> Claim:
        """Return a claim to work on a job; it is not taken yet.

        Its marker is in the folder of the results: creating it makes a network file system refresh its view of the
        folder, so that whoever holds the claim sees a result that another process just stored.
        """
        return Claim(self.out / "cells" / f"{job.key}.claim")

    def finish(self, job: Job, result: Record, seconds: float) -> None:
        """Store the result of a job."""
        self._write(job, {"status": "done", "seconds": round(seconds, 3), "result": result.to_dict()})

    def fail(self, job: Job, message: str, seconds: float) -> None:
        """Store why a job failed; the next run tries it again."""
        self._write(job, {"status": "failed", "seconds": round(seconds, 3), "error": message})

    def _path(self, job: Job) -> Path:
        return self.out / "cells" / f"{job.key}.json"

    @staticmethod
    def _read(path: Path) -> dict[str, Any] | None:
        try:
            record = read_json(path)
        except (OSError, json.JSONDecodeError, UnicodeDecodeError):
            return None
        return record if isinstance(record, dict) and record.get("format") == FORMAT else None

    def _write(self, job: Job, outcome: dict[str, Any]) -> None:
        head = {
            "format": FORMAT,
            "key": job.key,
            "kind": job.name,
            "description": job.description,
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "identity": job.identity,
            "place": place_values(job.place),
        }
        write_json(self._path(job), {**head, **outcome})
