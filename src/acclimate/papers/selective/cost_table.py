"""`acclimate inspect cost`: minutes of task-guided pre-training compared with the minutes saved by stopping early."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from acclimate.api import (
    VERSION,
    UserError,
    check_report_file,
    show_place,
    split_name,
    unknown_name_error,
    verb,
    write_json,
)
from acclimate.papers.selective.command_options import InspectCostOptions
from acclimate.papers.selective.cost import Cost, cost_table, read_cost


@verb(InspectCostOptions)
def inspect_cost(options: InspectCostOptions) -> dict[str, Cost]:
    """Read the duration of every stage from the folders of finished runs.

    Returns:
        The cost of each column, for :func:`acclimate.papers.selective.cost.cost_table`.

    Raises:
        UserError: If a folder was not written by the expected command, or ``finetuned`` names an unknown column.
    """
    check_report_file(options.out)
    adapted: dict[str, str | Path] = dict(options.adapted)  # type: ignore[arg-type]
    if not adapted:
        raise UserError("There are no runs to read; give the folder of an adaptation with --adapted.")
    tuned = _by_column(options.finetuned or (), list(adapted))
    costs = {
        name: read_cost(folder, options.pretrained, step=options.step, finetuned=tuned.get(name, ()))
        for name, folder in adapted.items()
    }
    if options.out is not None:
        columns = {name: _to_json(cost, adapted[name], tuned.get(name, ())) for name, cost in costs.items()}
        general = None if options.pretrained is None else str(options.pretrained)
        write_json(options.out, {"acclimate": VERSION, "pretrained": general, "columns": columns})
    return costs


def show_cost(costs: Mapping[str, Cost], options: InspectCostOptions) -> Iterator[str]:
    """Yield what ``acclimate inspect cost`` prints."""
    yield cost_table(costs)
    yield from show_place("Full report", options.out)


def _by_column(given: Any, columns: list[str]) -> Mapping[str, Sequence[str | Path]]:
    """Return folders by column; they are given as such, or as a list of ``FOLDER`` and ``NAME=FOLDER``."""
    found: dict[str, list[str | Path]] = {}
    if isinstance(given, Mapping):
        found.update(given)
    else:
        for name, folder in map(split_name, [given] if isinstance(given, str | Path) else given):
            if not name and len(columns) > 1:
                raise UserError(f"'{folder}' could belong to several columns; write NAME={folder}.")
            found.setdefault(name or columns[0], []).append(folder)
    for name in found:
        if name not in columns:
            raise unknown_name_error("column", name, columns)
    return found


def _to_json(cost: Cost, adapted: str | Path, finetuned: Sequence[str | Path]) -> dict[str, Any]:
    return {
        "adapted": str(adapted),
        "finetuned": list(map(str, finetuned)),
        "step": cost.step,
        "steps": cost.steps,
        "minutes": cost.minutes(),
    }
