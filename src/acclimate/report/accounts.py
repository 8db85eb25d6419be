"""The table of what methods did before their training, such as the four stages of selective masking."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from acclimate.report.cells import Entry, Table, minutes_entry
from acclimate.report.words import method_name

NAMES = {"finetune": "fine-tuning", "annotate": "annotation", "train": "token classifier", "mark": "marking the text"}
"""What the stages of selective masking are called; those of other methods go by their own names."""


def accounts(results: dict[str, Any]) -> Table:
    """Say how many minutes each stage of each adaptation took, beside its training."""
    found = [(row, list(stages(row))) for row in results["adaptations"]]
    known = list(dict.fromkeys(name for _, minutes in found for name, _ in minutes))
    names = ["model", "domain", "method", "seed", *(NAMES.get(stage, stage) for stage in known), "sum", "training"]
    note = (
        "Minutes. A stage that several adaptations share was done once and is shown with each of them; its minutes "
        "are those of the time it was done. Training: as above."
    )
    table = Table("What came before the training", note, names, [False] * 3 + [True] * (len(names) - 3))
    for row, minutes in found:
        if minutes:
            took = dict(minutes)
            cells = [Entry(row["model"] or ""), Entry(row["domain"] or "all"), Entry(method_name(row))]
            cells.append(Entry("–" if row["seed"] is None else str(row["seed"]), row["seed"]))
            cells += [minutes_entry(took.get(stage)) for stage in known]
            cells += [minutes_entry(sum(took.values())), minutes_entry((row["seconds"] or 0.0) / 60)]
            table.rows.append(cells)
    return table


def stages(row: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield each stage before the training of an adaptation that noted its minutes, and these."""
    for account in row.get("accounts", {}).values():
        for name, stage in account.items() if isinstance(account, Mapping) else ():
            if isinstance(stage, Mapping) and isinstance(stage.get("minutes"), int | float):
                yield name, float(stage["minutes"])
