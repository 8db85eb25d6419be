"""`acclimate inspect cost`: the minutes of task-guided pre-training against those that an early stop saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from acclimate.errors import UserError, unknown_name_error
from acclimate.files import write_json
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
    """Read what every stage took, from what the runs wrote; nothing is computed again.

    Args:
        adapted: For each column its folder of ``acclimate adapt --method selective``.
        out: JSON file to write; None writes nothing.
        pretrained: Folder of ``acclimate pretrain`` with kept steps, from one of which each adaptation started.
        step: Which one; by default what each adaptation says.
        finetuned: For each column folders of ``acclimate finetune``; a column may be left out.

    Returns:
        The cost of each column, for :func:`acclimate.methods.selective.cost.cost_table`.

    Raises:
        UserError: If a folder is not what it should be, or a column of ``finetuned`` does not exist.
    """
    tuned = dict(finetuned or {})
    if not adapted:
        raise UserError("There is nothing to count; give the folder of an adaptation with --adapted.")
    for name in tuned:
        if name not in adapted:
            raise unknown_name_error("column", name, adapted)
    costs = {
        name: read_cost(folder, pretrained, step=step, finetuned=tuned.get(name, ()))
        for name, folder in adapted.items()
    }
    if out is not None:
        columns = {name: _told(cost, adapted[name], tuned.get(name, ())) for name, cost in costs.items()}
        general = None if pretrained is None else str(pretrained)
        write_json(out, {"acclimate": __version__, "pretrained": general, "columns": columns})
    return costs


def _told(cost: Cost, adapted: str | Path, finetuned: Sequence[str | Path]) -> dict[str, Any]:
    return {
        "adapted": str(adapted),
        "finetuned": list(map(str, finetuned)),
        "step": cost.step,
        "steps": cost.steps,
        "minutes": cost.minutes(),
    }
