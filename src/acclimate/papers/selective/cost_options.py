"""Options of ``inspect cost``."""

from __future__ import annotations

from dataclasses import KW_ONLY
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator

from acclimate.base.bounds import Count
from acclimate.base.options import MODEL, Option, options
from acclimate.data.fields import JsonFile, Models, read_models

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    ModelLists = Mapping[str, Sequence[str | Path]] | Sequence[str | Path] | None
else:
    ModelLists = Any


@options
class InspectCostOptions:
    """Options of ``acclimate inspect cost``."""

    adapted: Annotated[
        Models,
        BeforeValidator(read_models),
        Option(
            "Result of adapt --method selective, as FOLDER or NAME=FOLDER; each is a column.",
            MODEL,
            more="Or folders by name.",
            many=True,
        ),
    ]
    out: JsonFile = None
    _: KW_ONLY
    pretrained: Annotated[
        str | Path | None, Option("Result of pretrain --keep-steps that the adaptations started from.", MODEL)
    ] = None
    step: Annotated[
        Count | None,
        Option("Pre-training step that the adaptations started from.", MODEL, default="as recorded"),
    ] = None
    finetuned: Annotated[
        ModelLists,
        Option(
            "Result of finetune, as FOLDER, or NAME=FOLDER with the name of a column.",
            MODEL,
            more="Or lists of folders by column.",
            many=True,
        ),
    ] = None
