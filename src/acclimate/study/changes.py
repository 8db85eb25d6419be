"""Changes to a study from the command line: single settings, and the parts to run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from acclimate.base.errors import UserError, shorten, unknown_name_error
from acclimate.base.settings_file import read_value
from acclimate.data.reading import default_task_name
from acclimate.study.config import StudyConfig, find_section, read_study_file, section_types
from acclimate.study.sections import SectionEntry
from acclimate.study.settings import ShortForm

PARTS = ("model", "domain", "method", "task")
"""The parts of a study that ``--only`` can select."""


def load_study(
    config: StudyConfig | Mapping[str, Any] | str | Path,
    settings: Mapping[str, Any] | None = None,
    only: Sequence[str] = (),
) -> StudyConfig:
    """Read a study and change it.

    Args:
        config: The study, as an object, a dictionary or the path of a file.
        settings: Values by dotted path, see :func:`change_values`.
        only: The parts to keep, see :func:`keep_only`.

    Raises:
        UserError: If there is no such study, setting or part, or the study is invalid.
    """
    if isinstance(config, StudyConfig):
        if settings:
            raise UserError("Settings change a study file or a dictionary; change the object itself instead.")
        return keep_only(config, only)
    if not isinstance(config, str | Path):
        return keep_only(StudyConfig.of(change_values(config, settings or {})), only)
    if not settings:
        return keep_only(StudyConfig.load(config), only)
    path = Path(os.path.expanduser(config))
    study = StudyConfig.of(change_values(read_study_file(path), settings), f"{path} with --set")
    return keep_only(study.relative_to(path.resolve().parent), only)


def change_values(values: Any, settings: Mapping[str, Any]) -> Any:
    """Return the plain values of a study with some of them replaced.

    Args:
        values: The values, as in a study file.
        settings: New values by dotted path, such as ``adapt.steps``. An entry of a list is named by its number, from
            0, or by its name or label: ``methods.dga.adapt.steps``. Texts are read as in YAML.

    Raises:
        UserError: If a path leads nowhere. Unknown keys are reported when the study is validated.
    """
    for path, value in settings.items():
        parts = str(path).split(".")
        if not all(parts):
            raise UserError(f"'{path}' is not a path of names such as adapt.steps.")
        if isinstance(value, str) and not value.strip():
            raise UserError(f"'{path}=' has no value; write {path}=null for the default.")
        values = _changed(values, parts, read_value(value) if isinstance(value, str) else value, StudyConfig, ())
    return values


def _changed(values: Any, parts: Sequence[str], new: Any, model: Any, above: tuple[str, ...]) -> Any:
    """Return values with the one at ``parts`` replaced; ``model`` is the class of the section, None if unknown."""
    if not parts:
        return new
    part, rest, place = parts[0], parts[1:], (*above, parts[0])
    if isinstance(values, str) and isinstance(model, type) and issubclass(model, ShortForm):
        values = {model.short: values}
    if isinstance(values, list):
        number = _find_entry(values, part, ".".join(above))
        entry = _changed(values[number], rest, new, model, place)
        return [*values[:number], entry, *values[number + 1 :]]
    if values is None:
        values = {}
    if not isinstance(values, Mapping):
        raise UserError(
            f"'{'.'.join(place)}' cannot be set, as '{'.'.join(above)}' is {shorten(values)}, without keys."
        )
    field = getattr(model, "model_fields", {}).get(part)
    inner: Any = section_types().get(part) if model is StudyConfig and field is None else None
    inner = find_section(field.annotation) if field else inner
    below = values.get(part)
    if rest and isinstance(below, str) and part in ("models", "methods"):
        below = [below]
    return {**values, part: _changed(below, rest, new, inner, place)}


def _find_entry(entries: list[Any], part: str, place: str) -> int:
    """Return the number of the entry of a list that a part of a path names."""
    if part.isdecimal() and len(part) < 10 and int(part) < len(entries):
        return int(part)
    names = [_names_of(entry) for entry in entries]
    found = [number for number, own in enumerate(names) if part in own]
    if len(found) > 1:
        raise UserError(f"'{place}' has several entries '{part}'; give the number of one, such as {found[0]}.")
    if not found:
        known = [*map(str, range(len(entries))), *(name for own in names for name in own)]
        raise unknown_name_error(f"entry in '{place}':", part, known)
    return found[0]


def _names_of(entry: Any) -> set[str]:
    """Return the names by which an entry of a list may be called."""
    if not isinstance(entry, Mapping):
        return {default_task_name(entry)} if isinstance(entry, str) else set()
    if entry.get("label"):
        return {str(entry["label"])}
    name = entry.get("name") or (default_task_name(str(entry["path"])) if entry.get("path") else None)
    return {str(name)} if name else set()


def keep_only(config: StudyConfig, only: Sequence[str]) -> StudyConfig:
    """Return a study with some of its parts.

    The baseline stays. A domain all of whose tasks are left out is left out as well, and so is an entry of a section,
    such as ``distill``, all of whose domains or students are.

    Args:
        config: The study.
        only: What to keep, each as ``"domain=NAME"``, ``"method=LABEL"``, ``"task=NAME"`` or ``"model=NAME"``.

    Raises:
        UserError: If a part does not exist, or nothing is left.
    """
    wanted: dict[str, set[str]] = {}
    tasks = [task.name for domain in config.domains for task in domain.tasks]
    known = {
        "model": [model.name for model in config.models],
        "domain": [domain.name for domain in config.domains],
        "method": config.row_labels,
        "task": [*tasks, *(task.name for task in config.other_tasks)],
    }
    for item in only:
        part, sign, name = (text.strip() for text in item.partition("="))
        if part not in PARTS or not sign:
            raise UserError(f"--only expects one of {', '.join(f'{part}=NAME' for part in PARTS)}, not '{item}'.")
        if name not in known[part]:
            raise unknown_name_error(part, name, dict.fromkeys(known[part]))
        wanted.setdefault(part, set()).add(name)

    def keep(part: str, entries: Any, attribute: str = "name") -> list[Any]:
        return [entry for entry in entries if part not in wanted or getattr(entry, attribute) in wanted[part]]

    if "method" in wanted:
        wanted["method"] |= {config.baseline, ""}  # an entry without a label has no row
    domains = [
        domain.model_copy(update={"tasks": keep("task", domain.tasks)}) for domain in keep("domain", config.domains)
    ]
    left = [domain for domain in domains if domain.tasks or "task" not in wanted]
    if not left:
        raise UserError(f"No part of the study is left with --only {' --only '.join(only)}; give fewer of them.")
    models = keep("model", config.models)
    names = {
        "domains": {domain.name for domain in left},
        "students": {model.name for model in models},
        "tasks": {task.name for domain in left for task in domain.tasks},
    }
    return config.model_copy(
        update={
            "models": models,
            "methods": keep("method", config.methods, "label"),
            "sections": {
                key: [part for entry in keep("method", entries, "label") for part in _narrow(entry, names)]
                for key, entries in config.sections.items()
            },
            "domains": left,
            "other_tasks": keep("task", config.other_tasks),
        }
    )


def _narrow(entry: SectionEntry, names: Mapping[str, set[str]]) -> list[SectionEntry]:
    """Return an entry of a section without what it lists and is left out; nothing if a list of it is empty then."""
    changes = {}
    for key, kept in names.items():
        if listed := getattr(entry, key, None):
            changes[key] = [name for name in listed if name in kept]
            if not changes[key]:
                return []
    return [entry.model_copy(update=changes)]
