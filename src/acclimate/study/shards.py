"""Shares of a study for job arrays: which cells the i-th of n processes computes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from acclimate.errors import UserError
from acclimate.study.cells import Cell

COST = {"adapt": 10.0, "finetune": 1.0, "loss": 0.5, "moved": 0.5, "teacher": 1.0, "distill": 3.0}
"""Rough cost of a cell by its kind. It only balances the shares, so it need not be right, but it must not change
between the processes of one study: each works out the shares by itself."""


@dataclass(frozen=True)
class Shard:
    """The ``index``-th of ``count`` shares, counted from 1."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read ``"2/4"``.

        Raises:
            UserError: If it is not two whole numbers i/n with 1 <= i <= n.
        """
        found = re.fullmatch(r"\s*([0-9]{1,9})\s*/\s*([0-9]{1,9})\s*", text, flags=re.ASCII)
        shard = cls(int(found[1]), int(found[2])) if found else cls(0, 0)
        if not 1 <= shard.index <= shard.count:
            raise UserError(f"'{text}' is no shard. Give i/n with i from 1 to n, for example 2/4.")
        return shard

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    def own(self, cells: dict[str, Cell]) -> list[str]:
        """Return the keys of this share, in the order of work. The shares of all indices hold each cell once.

        The dearest group goes first, always to the share that has least to do so far.
        """
        groups = sorted(_groups(cells), key=lambda group: -sum(COST[cells[key].kind] for key in group))
        loads = [0.0] * self.count
        own: set[str] = set()
        for group in groups:  # the sort is stable, so groups that cost the same keep the order of the study
            least = loads.index(min(loads))
            loads[least] += sum(COST[cells[key].kind] for key in group)
            if least == self.index - 1:
                own.update(group)
        return [key for key in cells if key in own]


def _groups(cells: dict[str, Cell]) -> list[list[str]]:
    """Return what is best computed in one place: an adaptation with all that reads its model, or comes from it.

    The cell that gives a model its missing head is a group by itself, though all methods start from it; else a study
    of one such model could not be shared at all. Who needs it waits for its claim, and it waits for nobody.
    """
    bases = {cell.needs for cell in cells.values() if cell.kind == "adapt" and cell.needs}
    groups: dict[str, list[str]] = {}
    for key, cell in cells.items():
        together, link = key, cell
        while link.needs and link.needs not in bases:
            together, link = link.needs, cells[link.needs]
        groups.setdefault(together, []).append(key)
    return list(groups.values())


def with_needs(keys: list[str], cells: dict[str, Cell]) -> list[str]:
    """Return ``keys`` and everything that they need, in the order of work."""
    wanted = set(keys)
    for key in reversed(cells):  # what is needed comes before what needs it
        needed = cells[key].needs
        if key in wanted and needed:
            wanted.add(needed)
    return [key for key in cells if key in wanted]
