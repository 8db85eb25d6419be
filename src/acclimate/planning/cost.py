"""`acclimate inspect cost`: minutes of task-guided pre-training compared with the minutes saved by stopping early."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from acclimate.errors import UserError, unknown_name_error
from acclimate.files import check_report_file, write_json
from acclimate.methods.selective.cost import Cost, read_cost
from acclimate.version import __version__


def inspect_cost(
    adapted: Mapping[str, str | Path],
    out: str | Path | None = None,
    *,
    pretrained: str | Path | None = None,
    step: int | None = None,
    finetuned: Mapping[str, Sequence[str | Path]] | None = None,
) -> dict[str, Cost]:
    """Read the duration of every stage from the folders of finished runs.

    Args:
        adapted: Folder of ``acclimate adapt --method selective`` for each column.
        out: JSON file to write; None writes nothing.
        pretrained: Folder of ``acclimate pretrain`` with intermediate checkpoints that the adaptations started from.
        step: Step of the checkpoint; by default the one recorded by each adaptation.
        finetuned: Folders of ``acclimate finetune`` for each column; columns may be omitted.

    Returns:
        The cost of each column, for :func:`acclimate.methods.selective.cost.cost_table`.

    Raises:
        UserError: If a folder was not written by the expected command, or ``finetuned`` names an unknown column.
    """
    check_report_file(out)
    tuned = dict(finetuned or {})
    if not adapted:
        raise UserError("There are no runs to read; give the folder of an adaptation with --adapted.")
    for name in tuned:
        if name not in adapted:
            raise unknown_name_error("column", name, adapted)
    costs = {
        name: read_cost(folder, pretrained, step=step, finetuned=tuned.get(name, ()))
        for name, folder in adapted.items()
    }
    if out is not None:
        columns = {name: _to_json(cost, adapted[name], tuned.get(name, ())) for name, cost in costs.items()}
        general = None if pretrained is None else str(pretrained)
        write_json(out, {"acclimate": __version__, "pretrained": general, "columns": columns})
    return costs


def _to_json(cost: Cost, adapted: str | Path, finetuned: Sequence[str | Path]) -> dict[str, Any]:
    return {
        "adapted": str(adapted),
        "finetuned": list(map(str, finetuned)),
        "step": cost.step,
        "steps": cost.steps,
        "minutes": cost.minutes(),
    }
