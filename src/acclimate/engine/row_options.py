"""Types of the options that say how documents become rows."""

from __future__ import annotations

from typing import Annotated, Literal

from acclimate.base.options import DATA, Option
from acclimate.models.kinds import CAUSAL, MASKED

Layout = Literal["padded", "packed"]
Documents = Literal["apart", "joined"]

RowLayout = Annotated[
    Layout | None,
    Option(
        "Texts per row: one (padded), or several that do not attend to each other (packed).",
        default=f"{MASKED.layout}; {CAUSAL.layout} for causal models",
        more="Texts are packed by best fit into rows of at most ``max_length`` tokens.",
    ),
]
DocumentBorders = Annotated[
    Documents | None,
    Option(
        "Documents of a causal model: apart, or joined into full rows, with attention across documents.",
        DATA,
        default="apart",
        more="An end token follows each document in both cases.",
    ),
]
