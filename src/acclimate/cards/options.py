"""Options of ``push``."""

from __future__ import annotations

from dataclasses import KW_ONLY
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator

from acclimate.base.options import MODEL, OUTPUT, Option, options
from acclimate.base.verbs import PUBLISH, register_verb
from acclimate.data.fields import read_listed


@register_verb(
    "push",
    "acclimate.cards.hub:push",
    show="show_upload",
    example="acclimate push adapted/ me/roberta-reviews",
    page="docs/report.md",
    section=PUBLISH,
    order=4,
)
@options
class PushOptions:
    """Upload a model with its card to the Hugging Face Hub."""

    folder: Annotated[
        str | Path, Option("Model folder, such as adapted/ or runs/study/models/KEY.", MODEL, flag="FOLDER")
    ]
    repo: Annotated[str, Option("Repository on the Hugging Face Hub, as USER/NAME.", MODEL, flag="REPO")]
    _: KW_ONLY
    public: Annotated[bool, Option("Make a new repository public.", OUTPUT)] = False
    license: Annotated[
        str | None,
        Option("License in the card, such as apache-2.0.", OUTPUT, default="the base model's, if known"),
    ] = None
    language: Annotated[
        tuple[str, ...],
        BeforeValidator(read_listed),
        Option("Language in the card, such as en.", OUTPUT, default="the base model's, if known"),
    ] = ()
    base_model_name: Annotated[
        str | None, Option("Base model in the card, as its name on the Hub.", OUTPUT, default="as trained, if known")
    ] = None
