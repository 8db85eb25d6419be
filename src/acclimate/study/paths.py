"""Resolution of the paths in a study file against its folder."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from acclimate.adaptation.replay_options import CHAT, MEMORIES, is_self
from acclimate.adaptation.vocabulary_options import split_new_tokens
from acclimate.base.errors import UserError
from acclimate.base.files import is_written_as_path
from acclimate.base.registry import Part, Registry, find_registry
from acclimate.data.operations import SELECTIONS, TRANSFORMS
from acclimate.data.sources import is_hub_name
from acclimate.data.writers import LOCAL, SERVER


def locate_settings(given: Any, names: Collection[str], folder: Path) -> None:
    """Resolve the named settings, or lists of values to try for them, as paths against ``folder``, in place."""
    if not isinstance(given, dict):
        return
    for name in set(names) & given.keys():
        value = given[name]
        if isinstance(value, Mapping):  # such as a model by source of text
            given[name] = {key: _locate_setting(str(one), folder) for key, one in value.items()}
        elif isinstance(value, list):
            given[name] = [_locate_setting(str(one), folder) for one in value]
        else:
            given[name] = _locate_setting(str(value), folder)


PARTS = {
    "masking": "acclimate.masking",
    "adapter": "acclimate.adapters",
    "rules": "acclimate.rules",
    "mix": "acclimate.mixes",
}
"""Options of ``adapt`` that name entries of a registry, and the group of the registry."""


def locate_parts(given: Mapping[str, Any], folder: Path, where: str = "adapt") -> dict[str, Any]:
    """Resolve the files of parts among options of ``adapt``, or among lists of values to try, against ``folder``.

    Args:
        given: The options.
        folder: The folder of the study file.
        where: Section of the study file, for messages.

    Raises:
        UserError: If a part does not exist or is not written as one; the message names the option.
    """
    found: dict[str, Any] = {}
    for name, group in PARTS.items():
        if given.get(name):
            try:
                found[name] = locate_part(given[name], find_registry(group), folder)
            except UserError as error:
                raise UserError(f"study: '{where}.{name}': {error}") from error
    if given.get("new_tokens"):
        found["new_tokens"] = locate_new_tokens(given["new_tokens"], folder)
    return found


def locate_part(given: Any, registry: Registry[Any], folder: Path) -> Any:
    """Resolve the files among the parameters of a part, or of several, against ``folder``."""
    if isinstance(given, list | tuple):
        return type(given)(locate_part(one, registry, folder) for one in given)
    if isinstance(given, Part):
        return given
    cls, settings = registry.parse(given)
    # A masking may have the parameters of others.
    locate_settings(settings, {file for name in registry.names() for file in registry.lookup(name).files}, folder)
    return {cls.name: settings} if settings else cls.name


def locate_new_tokens(given: Any, folder: Path) -> Any:
    """Resolve the files of new tokens, or of several to try; numbers and words are returned unchanged."""
    if isinstance(given, list):
        return [locate_new_tokens(one, folder) for one in given]
    what, settings = split_new_tokens(given)
    locate_settings(settings, ("vectors",), folder)
    what = locate_file(what, folder) if isinstance(what, str) else what
    return {what: settings} if settings else what


def locate_operations(parts: Iterable[Any], folder: Path) -> None:
    """Resolve the files among the parameters of operations against ``folder``, in place.

    Args:
        parts: Parts of a study that are instances of :class:`acclimate.study.settings.OperationSpec`.
        folder: The folder.
    """
    lists = [pair for part in parts for pair in ((part.select, SELECTIONS), (part.transform, TRANSFORMS))]
    for operation, registry in ((one, registry) for given, registry in lists for one in given or []):
        for name, settings in operation.items():
            cls = registry.lookup(name)
            locate_settings(settings, cls.files, folder)
            settings |= {key: locate_model(settings[key], folder) for key in cls.models if settings.get(key)}
            settings |= {key: locate_writer(settings[key], folder) for key in cls.functions if settings.get(key)}


def locate_writer(given: Any, folder: Path) -> Any:
    """Resolve the file of a function, or the folder of a model, against ``folder``; addresses stay."""
    if isinstance(given, Mapping):
        return {**given, "by": locate_writer(given.get("by"), folder)}
    if not isinstance(given, str) or given.startswith(SERVER):
        return given
    if given.startswith(LOCAL):
        model, blank, options = given.removeprefix(LOCAL).partition(" ")
        return f"{LOCAL}{locate_model(model, folder)}{blank}{options}"
    return locate_file(given, folder) if ".py:" in given else given


def locate_file(path: str, folder: Path) -> str:
    """Resolve a path against ``folder``; ``~`` is the home folder."""
    # Path.resolve() fails for a link to itself.
    return os.path.realpath(folder / Path(path).expanduser())


def locate_model(name: str, folder: Path) -> str:
    """Resolve a model against ``folder`` if it exists there or is written as a path; else it is a name on the Hub."""
    return locate_file(name, folder) if is_written_as_path(name) or (folder / name).exists() else name


def locate_text(source: str, folder: Path) -> str:
    """Resolve a source of text or a task against ``folder``, unless it is a dataset on the Hub (``hf:...``)."""
    if source.startswith(f"{CHAT}:"):
        return f"{CHAT}:{locate_text(source.removeprefix(f'{CHAT}:'), folder)}"
    return source if not source or is_hub_name(source) or _keeps_texts(source) else locate_file(source, folder)


def _keeps_texts(source: str) -> bool:
    return source.partition(":")[0] in MEMORIES or is_self(source)


def locate_source(source: str | dict[str, str], folder: Path) -> str | dict[str, str]:
    """Resolve a source of text that may have its own column and encoding."""
    if isinstance(source, str):
        return locate_text(source, folder)
    return {name: locate_text(value, folder) if name == "path" else value for name, value in source.items()}


def locate_texts(sources: Any, folder: Path) -> Any:
    """Resolve one or several sources of text, or the keys of a mapping of sources to shares."""
    if isinstance(sources, Mapping):
        return {locate_text(str(source), folder): share for source, share in sources.items()}
    if isinstance(sources, list | tuple):
        return [locate_text(str(source), folder) for source in sources]
    return locate_text(sources, folder) if isinstance(sources, str) else sources


def locate_mixture(given: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Resolve the options of ``adapt`` that name further text or a mix, as far as given, against ``folder``."""
    found: dict[str, Any] = {"replay": locate_texts(given["replay"], folder)} if "replay" in given else {}
    if given.get("sources"):
        found["sources"] = {name: locate_texts(text, folder) for name, text in given["sources"].items()}
    return found


def _locate_setting(source: str, folder: Path) -> str:
    """Resolve ``source`` against ``folder`` if it exists there or looks like a path; else it may be a Hub name.

    Of several parts with commas between them, each is resolved, and of a part ``name=path`` what follows the name.
    """
    if not source:
        return source
    if ("," in source or "=" in source) and not (folder / source).exists():
        parts = [part.strip().rpartition("=") for part in source.split(",")]
        return ",".join(f"{name}{mark}{_locate_part(path, folder)}" for name, mark, path in parts)
    return _locate_part(source, folder)


def _locate_part(source: str, folder: Path) -> str:
    if not source:
        return source
    path = Path(os.path.expanduser(source))
    if path.is_absolute():
        return str(path)
    here = folder / path
    looks_like_path = source.startswith(".") or path.suffix != "" or any(mark in source for mark in "*?[")
    return os.path.realpath(here) if here.exists() or looks_like_path else source


def files_of(method: str) -> set[str]:
    """Return the parameters of a method that are file paths; none for an unknown method, which is reported later."""
    from acclimate.adaptation.method import lookup, names

    return set(lookup(method).files) if method in names() else set()
