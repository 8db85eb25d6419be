"""Card of a model that was merged from others, from the manifest in its folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from acclimate.base.files import MANIFEST_FILE, read_json
from acclimate.cards.card import Card, display_name, escape_markdown, find_origin, markdown_table, settings_table
from acclimate.cards.writers import LIMITS
from acclimate.merging.base import Merge
from acclimate.models.kinds import find_kind

PIPELINES = {"ForSequenceClassification": "text-classification", "ForQuestionAnswering": "question-answering"}
"""Pipeline tags of end tasks, by the end of the name of their class."""
NOT_MEASURED = (
    "Not evaluated. `acclimate compare` measures this model and the ones that it was merged from on held-out text and "
    "end tasks."
)
LOSS_INTRO = (
    "Losses on held-out text of the models along the interpolation. Changes are differences to the base model in nats "
    "per token, with 95 % intervals over texts."
)


def write_merged_card(
    folder: Path, name: str, method: Merge, columns: Sequence[str], losses: Mapping[str, Sequence[Sequence[Any]]]
) -> Path:
    """Write ``README.md`` to the folder of a model written by ``merge``.

    Args:
        folder: Folder of the model, with its ``acclimate.json``.
        name: Name of the model.
        method: The merge.
        columns: Columns of the tables of losses.
        losses: Rows of a table of losses for each text; empty if none were measured.

    Returns:
        The path of the card.
    """
    manifest = read_json(folder / MANIFEST_FILE)
    sources = manifest["sources"]
    merged: list[str] = manifest["merged"]
    names = ", ".join(f"`{display_name(source['name'])}`" for source in sources if source["name"] in merged)
    tables = [f"{title}:\n\n{markdown_table(columns, rows)}" for title, rows in losses.items()]
    notes = [_strip_folders(note, sources) for note in manifest["notes"]]
    card = Card(
        name,
        _pipeline(read_json(folder / "config.json").get("architectures") or []),
        f"Merged from {names} without training: {method.formula}.",
        origin=find_origin(merged[0]),
        tags=["merge", method.name],
    )
    card.sections = [
        ("Results", "\n\n".join([LOSS_INTRO, *tables]) if tables else NOT_MEASURED),
        (
            "Method",
            settings_table(
                {"method": f"{method.name} ({method.paper})", "computes": method.formula, **manifest["settings"]}
            ),
        ),
        (
            "Models",
            markdown_table(
                ("role", "model", "hash of the files"),
                [(source["role"], display_name(source["name"]), source["files"]) for source in sources],
            ),
        ),
        *([("Notes", "\n".join(f"- {escape_markdown(note)}" for note in notes))] if notes else []),
        ("Limits", LIMITS),
    ]
    return card.write(folder)


def _pipeline(architectures: Sequence[str]) -> str:
    """Return the pipeline tag of a language model, a model of an end task, or a bare encoder."""
    name = str(architectures[0]) if architectures else ""
    if kind := find_kind(name):
        return kind.pipeline_tag
    return next((tag for end, tag in PIPELINES.items() if name.endswith(end)), "feature-extraction")


def _strip_folders(note: str, sources: Sequence[Mapping[str, Any]]) -> str:
    """Reduce the local paths in a note to their last part."""
    for source in sources:
        note = note.replace(f"'{source['name']}'", f"'{display_name(source['name'])}'")
    return note
