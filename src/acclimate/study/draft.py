"""Study files that are written from options of the command line."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from acclimate.adaptation.options import BUDGETS
from acclimate.base.errors import Problems, UserError, unknown_name_error
from acclimate.base.files import read_json_object, write_text
from acclimate.base.options import defaults, option_fields
from acclimate.base.registry import imported_plugins
from acclimate.data.documents import as_corpus
from acclimate.data.reading import EDITS, LabelOptions, ReadingOptions, TextOptions, default_task_name, find_task
from acclimate.data.sources import is_hub_name, parse_hub_name, resolve_sources
from acclimate.models.checkpoints import check_folder
from acclimate.study.changes import change_values
from acclimate.study.config import StudyConfig, read_study_file
from acclimate.study.inputs import HELDOUT_SHARE
from acclimate.study.options import StudyOptions
from acclimate.study.paths import locate_model, locate_part, locate_text
from acclimate.study.settings import UNADAPTED

TEXTS = ("corpus", "heldout", "general")
"""Options that name text."""
ONE_PASS = "Each adaptation reads the corpus once."
STUDY_FILE, QUICK_FILE, PLUGINS = "study.yaml", "quick.yaml", "plugins"
"""The study file, that of ``--quick``, and the folder of plugins in the folder of a study."""
FITTED_FILE = "minutes.json"
"""The study before ``--minutes`` changed it, in the folder of the study."""
QUICK_TOKENS, TOKEN_CHARACTERS = 300_000, 4
"""Maximum tokens per adaptation of ``--quick`` if none are given, and about how many characters each has."""
RECIPES = Path(__file__).parent / "recipes"
"""Folder of the studies to copy."""
COPY = "# A copy of the study as it was run, by `acclimate compare`; the next run replaces it.\n"
HEADER = "# Written by `acclimate init` or `acclimate compare`. docs/study.md describes all keys.\n"


def given(options: StudyOptions) -> dict[str, Any]:
    """Return the options that describe a study and have been given, by name."""
    usual = {**defaults(StudyOptions), **defaults(LabelOptions)}
    return {name: getattr(options, name) for name in usual if getattr(options, name) != usual[name]}


def draft_study(
    options: StudyOptions, settings: Mapping[str, Any] | None = None, *, timed: bool = False
) -> dict[str, Any]:
    """Return the study that options describe, as values for a study file in any folder.

    Args:
        options: The options.
        settings: Further values by dotted path, see :func:`acclimate.study.changes.change_values`.
        timed: Whether ``--minutes`` sets the budget, so that ``--quick`` does not.

    Raises:
        UserError: If the model or the corpus is missing, a method does not exist, or the study is invalid.
    """
    from acclimate.adaptation.method import REGISTRY

    if lacking := [f"--{name}" for name in ("model", "corpus") if not getattr(options, name)]:
        verb = "is" if len(lacking) == 1 else "are"
        raise UserError(f"A study without a file needs --model and --corpus; {' and '.join(lacking)} {verb} missing.")
    problems = Problems()
    for method in options.methods:
        if method != UNADAPTED:
            with problems.collect():
                REGISTRY.read(method)
    if problems:
        with problems.collect():
            check_files(options)
        problems.check()
    here = Path.cwd()
    chosen = given(options)
    read = {key: chosen[key] for key in option_fields(ReadingOptions) if key in chosen} | adapt_reading(options)
    if "passages" in read:
        read["passages"] = locate_text(str(read["passages"]), here)
    texts = {name: [describe_source(source, here, options) for source in getattr(options, name)] for name in TEXTS}
    name = _name_domain(options.corpus[0])
    models = [locate_model(model, here) for model in options.model]
    tasks = [locate_text(task, here) for task in options.task]
    study: dict[str, Any] = {
        "title": f"{', '.join(Path(model).name for model in models)} adapted to {name}",
        "notes": [],
        "models": _with_names(models, [Path(model).name for model in models], {}),
        "methods": [
            locate_part(one, REGISTRY, here) for one in dict.fromkeys([UNADAPTED, *(options.methods or ("lm",))])
        ],
        "domains": [
            {
                "name": name,
                "corpus": texts["corpus"],
                "heldout": texts["heldout"],
                "tasks": _with_names(tasks, [default_task_name(task) for task in tasks], read),
            }
        ],
        "general": texts["general"],
        "adapt": adapt_reading(options) | ({} if options.tokens is None else {"tokens": options.tokens}),
        "seeds": options.seeds or (3 if options.quick else 5),
        "search": options.tune and bool(tasks) and not options.quick,
        "evaluate": {name: True for name in ("advice", "quick") if getattr(options, name)},
    }
    if options.quick and not timed and options.tokens is None and _is_long(options):
        study["adapt"]["tokens"] = QUICK_TOKENS
    study["domains"] = [{key: value for key, value in study["domains"][0].items() if value}]
    study = change_values({key: value for key, value in study.items() if value or key == "notes"}, settings or {})
    study["notes"] += _describe_defaults(StudyConfig.of(study, "study of the command line"))
    return study


def describe_source(source: str, here: Path, options: TextOptions) -> str | dict[str, str]:
    """Return the entry of a study file for a source of text."""
    located = locate_text(source, here)
    return located if options.encoding is None else {"path": located, "encoding": options.encoding}


def adapt_reading(options: TextOptions) -> dict[str, Any]:
    """Return the options for reading text that the section ``adapt`` of a study file takes, as far as given."""
    usual, names = defaults(TextOptions), ("text_column", *EDITS)
    given = {name: getattr(options, name) for name in names if getattr(options, name) != usual[name]}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}


def _with_names(paths: list[str], usual: list[str], more: Mapping[str, Any]) -> list[Any]:
    """Return entries of a study file for paths; those whose usual names clash are named by their folder as well.

    Args:
        paths: The paths, or names on the Hub.
        usual: The name that each has if none is given.
        more: Further keys of every entry.
    """
    entries: list[Any] = []
    names: list[str] = []
    for path, name in zip(paths, usual, strict=True):
        named: dict[str, str] = {}
        if usual.count(name) > 1 and paths.count(path) == 1:
            longer = f"{Path(path).parent.name}-{name}".strip("-")
            name = next(
                f"{longer}-{number}" if number > 1 else longer
                for number in itertools.count(1)
                if (f"{longer}-{number}" if number > 1 else longer) not in (*names, *usual)
            )
            named = {"name": name}
        names.append(name)
        entries.append({"path": path, **named, **more} if named or more else path)
    return entries


def _is_long(options: StudyOptions) -> bool:
    """Return whether a corpus has more than about :data:`QUICK_TOKENS` tokens."""
    lengths = map(len, as_corpus(list(options.corpus), options))
    return any(read > QUICK_TOKENS * TOKEN_CHARACTERS for read in itertools.accumulate(lengths))


def check_files(options: StudyOptions) -> None:
    """Check that the models, texts and tasks of a study exist, as far as they are on this machine.

    Raises:
        UserError: If some do not; it lists all of them.
    """
    problems = Problems()
    for model in options.model:
        with problems.collect():
            check_folder(model)
    for name in TEXTS:
        for source in getattr(options, name):
            with problems.collect():
                resolve_sources(source, encoding=options.encoding)
    for task in options.task:
        with problems.collect():
            find_task(task)
    problems.check()


def _name_domain(source: str) -> str:
    """Return a name for the text of a source: that of the file, folder or dataset, without endings."""
    file = parse_hub_name(source)[0] if is_hub_name(source) else source.partition(":")[0]
    name = Path(file).name.partition(".")[0]
    return "domain" if not name or any(mark in name for mark in "*?[") else name


def _describe_defaults(study: StudyConfig) -> list[str]:
    """Return sentences on what is left to defaults, for the terminal and the report."""
    notes, (domain,) = [], study.domains
    if not domain.heldout:
        notes.append(
            f"Held-out text: {100 * HELDOUT_SHARE:.0f} % of the documents of the corpus, drawn at random. No model is "
            "adapted to them."
        )
    if not study.adapt.given().keys() & set(BUDGETS):
        notes.append(ONE_PASS)
    if not domain.tasks:
        notes.append("No task is given, so only the loss of the language model is compared.")
    if not study.general:
        notes.append("No general text is given, so forgetting is not measured.")
    return notes


def find_fitted(study: Mapping[str, Any], path: Path) -> Path | None:
    """Return the file of the study that ``--minutes`` has made of this one before; None if it has not.

    Args:
        study: The study.
        path: File that it would have without ``--minutes``.

    Raises:
        UserError: If there is another study.
    """
    before = read_json_object(path.parent / FITTED_FILE)
    if before is not None and _comparable(before["study"]) == _comparable(study):
        return path.parent / str(before["file"])
    if path.exists():
        raise _other_study_error(path)
    return None


def _comparable(study: Any) -> Any:
    """Return the values of a study that make it another one: without notes, advice and ``keep``."""
    if not isinstance(study, Mapping):
        return study
    kept = {key: value for key, value in study.items() if key not in ("notes", "keep")}
    values = kept.pop("evaluate", None) or {}
    if values := {key: value for key, value in values.items() if key != "advice"}:
        kept["evaluate"] = values
    return kept


def _other_study_error(path: Path) -> UserError:
    return UserError(
        f"'{path}' describes another study. Go on with it: acclimate compare {path} --out FOLDER; or give another "
        "name or output directory, or delete it."
    )


def write_study(study: Mapping[str, Any], path: str | Path) -> Path:
    """Write a study file, or keep the one that is there if it describes the same study.

    Raises:
        UserError: If the file describes another study, or is not a YAML file by name.
    """
    path = Path(os.path.expanduser(path))
    if path.suffix not in (".yaml", ".yml"):
        raise UserError(f"'{path}' is written as YAML; give it a name that ends in .yaml.")
    if path.exists() and not _is_copy_of_quick(path):
        if _comparable({"name": path.stem, **study}) == _comparable(read_study_file(path)):
            return path
        raise _other_study_error(path)
    return _write_yaml(path, HEADER, study)


def _is_copy_of_quick(path: Path) -> bool:
    """Return whether a study file is the copy that ``--quick`` has left, which the full study replaces."""
    return is_copy(path) and (path.parent / QUICK_FILE).exists()


def study_path(options: StudyOptions, out: Path) -> Path:
    """Return the file of a study that options describe; ``--quick`` has its own, so that the full study can follow.

    Raises:
        UserError: If the full study has been run in the folder.
    """
    path = out / STUDY_FILE
    if options.quick and path.exists() and not _is_copy_of_quick(path):
        raise _other_study_error(path)
    return out / QUICK_FILE if options.quick else path


def copy_recipe(name: str, path: Path) -> Path:
    """Write a recipe as a study file.

    Raises:
        UserError: If there is no such recipe, or the file exists and is another study.
    """
    recipes = {file.stem: file for file in RECIPES.glob("*.yaml")}
    if name not in recipes:
        raise unknown_name_error("recipe", name, recipes)
    text = recipes[name].read_text(encoding="utf-8").replace(f" {name}.yaml", f" {path}")
    if path.exists() and path.read_text(encoding="utf-8") != text:
        raise _other_study_error(path)
    return write_text(path, text)


def _write_yaml(path: Path, header: str, study: Mapping[str, Any]) -> Path:
    import yaml

    return write_text(path, header + yaml.safe_dump(dict(study), sort_keys=False, allow_unicode=True, width=110))


def is_copy(path: Path) -> bool:
    """Return whether a study file is a copy with all changes, which the next run replaces."""
    return path.is_file() and path.read_text(encoding="utf-8").startswith(COPY)


def keep_study(config: StudyConfig, out: Path) -> None:
    """Write a study and the files of ``--plugin`` to its folder, so that commands which are printed later find them.

    The file has the values as they are used, with changes of ``--set``, and absolute paths. A study file that is there
    and is no such copy stays.
    """
    path = out / STUDY_FILE
    if path.is_file() and not is_copy(path):
        return
    _write_yaml(path, COPY, config.relative_to(Path.cwd()).resolved())
    for plugin in map(Path, imported_plugins()):
        kept = out / PLUGINS / plugin.name
        if not kept.is_file() or not kept.samefile(plugin):
            write_text(kept, plugin.read_text(encoding="utf-8"))


@contextmanager
def removed_if_nothing_ran(out: Path, *, written: bool) -> Iterator[None]:
    """Remove a study file just written if no job could run, so that the corrected command is not refused."""
    try:
        yield
    except UserError:
        if written and not (out / "jobs").exists():
            for name in (STUDY_FILE, QUICK_FILE, FITTED_FILE):
                (out / name).unlink(missing_ok=True)
            with suppress(OSError):  # not empty
                out.rmdir()
        raise
