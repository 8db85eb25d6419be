"""What one call of a study computes: everything, its share, or nothing, of one plan after the other."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from acclimate.errors import UserError
from acclimate.study.cells import Cell, CellStore
from acclimate.study.parts import Parts
from acclimate.study.plan import Plan
from acclimate.study.runner import Runner
from acclimate.study.shards import Shard
from acclimate.study.summary import Outcome


@dataclass
class Working:
    """Computes the cells of a plan when it is called with one; returns what became of each, also of other processes.

    Attributes:
        store: Where cells are kept.
        parts: What computes them.
        progress: Show a bar, and a line per cell.
        share: The share that is computed; None for everything.
        report_only: Compute nothing.
        ours: What became of the cells of this call, over all plans.
    """

    store: CellStore
    parts: Parts
    progress: bool
    share: Shard | None
    report_only: bool
    ours: dict[str, Outcome] = field(default_factory=dict)

    def __call__(self, plan: Plan) -> dict[str, Outcome]:
        """Compute what is to be computed of a plan."""
        keys = [] if self.report_only else self.share.own(plan.cells) if self.share else list(plan.cells)
        made = Runner(plan, self.store, self.parts, self.progress).run(keys)
        # What an earlier plan of this call computed is found in the store by a later one, but it was done now.
        self.ours |= {key: one for key, one in made.items() if one.state != "reused" or key not in self.ours}
        return {key: self.ours.get(key) or stored(cell, self.store) for key, cell in plan.cells.items()}

    def check_failures(self, forgiven: Collection[str]) -> None:
        """Raise UserError for cells that failed, but for those that are forgiven."""
        failed = [one for key, one in self.ours.items() if one.state == "failed" and key not in forgiven]
        if failed:
            raise UserError(
                f"{len(failed)} of {len(self.ours)} cells failed; the others are in '{self.store.out}'. First: "
                f"{failed[0].cell.description}: {failed[0].error} Mend it and run the same command again."
            )


def stored(cell: Cell, store: CellStore) -> Outcome:
    """Return what the store says of a cell that this call does not compute."""
    result = store.result(cell)
    if result is not None:
        return Outcome(cell, "reused", result)
    record = store.failure(cell)
    if record is not None:
        return Outcome(cell, "failed", error=str(record.get("error")))
    return Outcome(cell, "missing", error="not computed yet")
