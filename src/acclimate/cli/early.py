"""Refusal of wrong paths and names before torch is imported, which takes seconds.

What is refused here would be refused later, too, with the same message.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from acclimate.adaptation.replay_options import TEXT, split_source
from acclimate.base.catalog import read_fields
from acclimate.base.errors import Problems, unknown_name_error
from acclimate.base.files import check_output_name, existing_folder
from acclimate.base.options import MODEL, OptionField, defaults
from acclimate.base.registry import check_parameters, declared_names, split_entry
from acclimate.base.settings_file import check_study_file
from acclimate.data.reading import LabelOptions, find_task
from acclimate.study.options import StudyOptions

TEXTS = ("corpus", "heldout", "general", "target", "replay")
MODELS = ("model", "models", "teacher", "student", "base", "instruct", "before", "after")
METHODS = ("acclimate.methods", "method")
NAMES = {
    "adapt": {"method": METHODS},
    "methods": {"name": METHODS},
    "periods self-train": {"method": METHODS},
    **{command: {"methods": METHODS} for command in ("compare", "init", "sequence")},
    "merge": {"method": ("acclimate.merges", "method of merging")},
    "select": {"by": ("acclimate.selections", "selection")},
    "transform": {"by": ("acclimate.transforms", "transform")},
}
"""Options that name entries of a registry, by command: the group of the registry, and what an entry is."""
PARTS = {
    "masking": ("acclimate.masking", "masking"),
    "adapter": ("acclimate.adapters", "adapter"),
    "rules": ("acclimate.rules", "update rule"),
    "mix": ("acclimate.mixes", "mix"),
}


def refuse_early(command: str, options: Any, fields: Mapping[str, OptionField], plugins: bool) -> None:
    """Check the paths of texts, tasks and models, and the names of methods, masking strategies and operations.

    Args:
        command: Name of the command.
        options: The options of the command.
        fields: Their declarations.
        plugins: Whether plugins were imported, which may add names.

    Raises:
        UserError: If one does not exist; the message lists all mistakes.
    """
    if "torch" in sys.modules:  # there is nothing to gain
        return
    problems = Problems()
    given = {name: _strings(getattr(options, name, None)) for name in fields}
    given["replay"] = [str(name) for kind, name in map(split_source, given.get("replay", ())) if kind == TEXT]
    for name, (package, kind) in ({} if plugins else {**NAMES.get(command, {}), **PARTS}).items():
        for value in given.get(name, ()):
            with problems.collect():
                entry, settings = split_entry(value, kind)
                check_name(entry, package, kind)
                # A masking, and a row of a study, may have the parameters of others.
                if name not in ("masking", "methods") and isinstance(settings, Mapping) and declared_names(package):
                    check_parameters(settings, read_fields(package, entry), kind, entry)
    if command in ("compare", "init") and not (given["model"] and given["corpus"]):
        usual = defaults(StudyOptions) | defaults(LabelOptions)
        if given.get("config") and all(getattr(options, name) == value for name, value in usual.items()):
            check_study_file(given["config"][0])
        return  # the options do not describe a study
    models = [name for name in MODELS if name in fields and fields[name].option.panel == MODEL]
    checks = {**dict.fromkeys(models, existing_folder), "task": find_task, "out": check_output_name}
    checks |= {"data": find_task} if command == "predict" else {}
    for check, value in ((check, value) for name, check in checks.items() for value in given.get(name, ())):
        with problems.collect():
            check(value)
    for name in (name for name in TEXTS if given.get(name)):
        from acclimate.data.sources import resolve_sources

        with problems.collect():
            resolve_sources(given[name], getattr(options, "text_column", None) or "text")
    problems.check()


def check_name(name: str, package: str, kind: str) -> None:
    """Check that a registry has an entry with a name.

    Raises:
        UserError: If it has none; the message suggests the closest name.
    """
    names = declared_names(package)
    if "torch" not in sys.modules and names and name not in names:
        raise unknown_name_error(kind, name, names)


def _strings(value: Any) -> list[str]:
    """Return the names that an option holds; none if it holds something else, such as names with values."""
    if isinstance(value, str | os.PathLike):
        return [str(value)]
    if isinstance(value, Iterable) and not isinstance(value, Mapping):
        return [str(entry) for entry in value if isinstance(entry, str | Path)]
    return []
