"""What a study says of tasks of which it reads only a part."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from acclimate.study.plan import Plan


def limit_notes(plan: Plan) -> list[str]:
    """Return a paragraph for each task of which not all rows are read, one for equal tasks of several domains."""
    notes = [
        f"Of {name} only a part was read, drawn at random once for all models and seeds: "
        + " and ".join(f"{kept:,} of {whole:,} rows of {split}" for split, (kept, whole) in sizes.items())
        + ". Scores on it cannot be compared with those on the whole."
        for (_, name), sizes in plan.limits.items()
        if sizes
    ]
    return list(dict.fromkeys(notes))
