"""The cell: the unit of work and of recovery. Its key is a hash of everything that determines its result."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from acclimate.files import read_json, write_json
from acclimate.locks import Claim
from acclimate.study.identity import digest

FORMAT = 1
"""Raise when what a cell holds or means changes: all cells are then computed anew."""

HEAD = "warm-up of the missing head"
"""Stands for the method of the cell that makes a language head where the model came without."""

Kind = Literal["adapt", "loss", "moved", "finetune", "teacher", "distill"]


@dataclass(frozen=True)
class Cell:
    """One piece of work.

    Attributes:
        kind: ``"adapt"``, ``"loss"``, ``"moved"``, ``"finetune"``, ``"distill"``, or ``"teacher"``, a fine-tuning that
            is kept.
        identity: Everything that determines the result, as plain values; nothing else.
        labels: Where the cell stands in the study (model, method, domain, ...), for people to read.
        needs: Key of the cell whose model is read, an adaptation or a teacher; None for a model as it came.
    """

    kind: Kind
    identity: dict[str, Any]
    labels: dict[str, Any] = field(default_factory=dict, compare=False)
    needs: str | None = None

    @property
    def key(self) -> str:
        """16 hex digits that stand for the kind and the identity."""
        return digest({"format": FORMAT, "kind": self.kind, **self.identity})

    @property
    def description(self) -> str:
        """One line for people."""
        return " · ".join([self.kind, *(f"{value}" for value in self.labels.values() if value not in (None, ""))])


def chain(cell: Cell, cells: Mapping[str, Cell]) -> list[Cell]:
    """Return a cell and what it needs, the nearest first; ``cells`` are those of the study by key."""
    links = [cell]
    while (needed := links[-1].needs) is not None:
        links.append(cells[needed])
    return links


class CellStore:
    """Results of cells under ``out/cells`` and adapted models under ``out/models``, each under its key."""

    def __init__(self, out: Path) -> None:
        """Use the folder ``out``; it is made when something is stored."""
        self.out = Path(out)

    def model_folder(self, key: str) -> Path:
        """Return where the model of a cell lies that keeps one."""
        return self.out / "models" / key

    def result(self, cell: Cell) -> dict[str, Any] | None:
        """Return the stored result of a finished cell, or None if it is absent, failed or unreadable."""
        record = self._record(cell)
        return record["result"] if record and record.get("status") == "done" else None

    def failure(self, cell: Cell) -> dict[str, Any] | None:
        """Return the stored record of a failed cell, with its ``error``, or None."""
        record = self._record(cell)
        return record if record and record.get("status") == "failed" else None

    def finished(self) -> Iterator[dict[str, Any]]:
        """Yield the stored records of all finished cells, also of those that no study asks for any more."""
        for path in sorted((self.out / "cells").glob("*.json")):
            record = self._read(path)
            if record and record.get("status") == "done":
                yield record

    def claim(self, cell: Cell) -> Claim:
        """Return the claim to work on a cell; it is not taken yet.

        Its marker lies beside the result: where a network file system remembers what a folder held, making the
        marker there makes it look again, so that who holds the claim sees the result that another just stored.
        """
        return Claim(self.out / "cells" / f"{cell.key}.claim")

    def _record(self, cell: Cell) -> dict[str, Any] | None:
        return self._read(self._path(cell))

    @staticmethod
    def _read(path: Path) -> dict[str, Any] | None:
        try:
            record = read_json(path)
        except (OSError, json.JSONDecodeError, UnicodeDecodeError):
            return None
        return record if isinstance(record, dict) and record.get("format") == FORMAT else None

    def finish(self, cell: Cell, result: dict[str, Any], seconds: float) -> None:
        """Store the result of a cell, atomically."""
        self._write(cell, {"status": "done", "seconds": round(seconds, 3), "result": result})

    def fail(self, cell: Cell, message: str, seconds: float) -> None:
        """Store that a cell failed, and why; it is tried again by the next run."""
        self._write(cell, {"status": "failed", "seconds": round(seconds, 3), "error": message})

    def _path(self, cell: Cell) -> Path:
        return self.out / "cells" / f"{cell.key}.json"

    def _write(self, cell: Cell, outcome: dict[str, Any]) -> None:
        head = {
            "format": FORMAT,
            "key": cell.key,
            "kind": cell.kind,
            "description": cell.description,
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        write_json(self._path(cell), {**head, "identity": cell.identity, "labels": cell.labels, **outcome})
