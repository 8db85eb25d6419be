"""Which seeds of a comparison share a draw of luck: those that began with the same adaptation, on either side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from acclimate.study.cells import HEAD, Cell, chain


def draws(pairs: Sequence[tuple[Cell, Cell]], cells: Mapping[str, Cell]) -> list[int]:
    """Return for each seed the number of its draw; seeds of one draw have the same.

    Two seeds share a draw if their models come from the same adaptation, or, where nothing was adapted, from the same
    teacher; be it those of the method or those of what it is compared with. A side that has one adaptation for all
    seeds joins nothing: its luck cannot be seen in any case.

    Args:
        pairs: For each seed the cell of the method and that of what it is compared with.
        cells: All cells of the study by key.
    """
    number = list(range(len(pairs)))
    for side in zip(*pairs, strict=True):
        origins = [_origin(cell, cells) for cell in side]
        if len(set(origins)) == 1:
            continue
        first: dict[str, int] = {}
        for seed, origin in enumerate(origins):
            if origin is not None:
                old, new = number[seed], number[first.setdefault(origin, seed)]
                number = [new if mine == old else mine for mine in number]
    return number


def _origin(cell: Cell, cells: Mapping[str, Cell]) -> str | None:
    """Return the key of the first cell that went into the model which a cell reads; None for a model as it came."""
    made = [link.key for link in chain(cell, cells)[1:] if link.labels.get("method") != HEAD]  # the same for all
    return made[-1] if made else None
