"""``acclimate merge``: a model from the weights of others, without training."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from acclimate.adaptation.result import find_result
from acclimate.base.errors import UserError
from acclimate.base.files import (
    MANIFEST_FILE,
    atomic_folder,
    check_writable,
    follow_link,
    read_json_object,
    record_files,
    write_json,
)
from acclimate.base.locks import with_output_lock
from acclimate.base.options import recorded, verb
from acclimate.base.verbs import Next
from acclimate.base.version import __version__
from acclimate.data.documents import as_corpus
from acclimate.merging.base import MERGES, Context, Merge
from acclimate.merging.card import write_merged_card
from acclimate.merging.experts import Experts
from acclimate.merging.measuring import open_data
from acclimate.merging.merger import Merger, Source
from acclimate.merging.options import PATH, MergeOptions, read_method
from acclimate.merging.path import COLUMNS, PATH_FILE, MergeResult, draw_path, measure_path, path_rows, path_tables
from acclimate.models.checkpoints import check_folder, model_fingerprint


@verb(MergeOptions)
@with_output_lock
def merge(options: MergeOptions) -> MergeResult:
    """Merge the weights of models that come from one base model, without training.

    ``method`` names the merge, one of :mod:`acclimate.merging.methods`: see docs/merging.md for what each computes.

    With ``target``, only the ``top`` models that fit a new domain best are merged (SaM): those with the lowest loss on
    its text, or those whose own text is most similar to it.

    Each tensor is read, merged in fp32 and written before the next, so that memory holds about two tensors; with
    ``ties`` and ``dare``, two per model. Models are loaded one at a time to be measured. The result has the
    architecture, the types of the weights, the configuration and the tokenizer of the first model. Heads of models of
    different tasks are not merged.

    With ``alphas``, the models along the interpolation are written one at a time, measured on held-out text and
    deleted. The losses are written to ``path.json``, ``path.png`` and ``path.svg``. The user decides which share to
    use.

    Returns:
        The output directory, notes on what was not merged, and the losses along the path.

    Raises:
        UserError: If the models differ in architecture, size or vocabulary, one cannot be read, or the result is not
            finite. An existing result is left unchanged.
    """
    method = read_method(options)
    models: Any = options.models
    sources = _find_sources(options, method)
    out = follow_link(options.out)
    texts = {name: as_corpus(getattr(options, name), options) for name in PATH if options.alphas}
    metric = getattr(method, "metric", None)
    data = [open_data(one, sources[0].name, options, metric) for one in cast(Any, options.data) or ()]
    experts = None if options.target is None else Experts(options, sources[0].name)
    identity = method.identity()
    config = recorded(
        options,
        ("models", "base", "corpora", "text_column"),
        acclimate=__version__,
        model=sources[0].name,
        sources=[{**source._asdict(), "files": model_fingerprint(source.name)} for source in sources],
        method=identity.pop("name"),
        settings={name: value for name, value in identity.items() if name not in method.models},
        **{name: text.fingerprint for name, text in texts.items()},
        data=[one.fingerprint() for one in data] or None,
        target=experts and experts.fingerprint(),
    )
    manifest = MANIFEST_FILE if method.writes_model else PATH_FILE
    if (done := _load_finished(out, manifest, config, options.overwrite)) is not None:
        return done
    check_writable(out)
    notes = _compare_origin(config)
    if experts:
        chosen, note = experts.select([source.name for source in sources if source.role == "model"])
        sources = [source for source in sources if source.role != "model" or source.name in chosen]
        sources.sort(key=lambda source: chosen.index(source.name) if source.role == "model" else len(chosen))
        notes.append(note)
    merger = None
    if method.merges_weights:
        merger = Merger(sources, options.max_shard_gb, options.progress, method.joins_tasks, method.adopt)
    notes[:0] = merger.notes if merger else []
    result = MergeResult(out, method.name, notes, has_model=method.writes_model)
    with atomic_folder(out) as folder:
        if options.alphas is not None and method.path:
            measure = method.measure(sources[0].name, merger, folder / "point", options.max_length)
            alphas: Any = options.alphas
            result.path = measure_path(measure, alphas, texts, options.documents, options.progress)
            write_json(folder / PATH_FILE, {**config, "notes": notes, "path": result.path})
            draw_path(result.path, folder, method.path)
        if method.writes_model and merger:
            with TemporaryDirectory(dir=folder) as work:
                context = Context(merger, [str(name) for name in models], data, Path(work), options.progress)
                rule, measured = method.rule(context)
                notes += measured
                merger.write(folder, rule)
            merged = [source.name for source in sources]
            write_json(folder / MANIFEST_FILE, {**config, "merged": merged, "notes": notes})
            write_merged_card(folder, out.name, method, COLUMNS, path_rows(result.path))
        record_files(folder, manifest)
    return result


def show_merge(result: Any, options: MergeOptions) -> Iterator[Any]:
    """Yield what ``acclimate merge`` prints."""
    method = MERGES.read(options.method)
    yield from result.notes
    yield from path_tables(result.path)
    if result.has_model:
        yield f"{result.out}: {result.method}"
        yield method.next_command(str(result.out))
        return
    yield f"Figure and numbers: {result.out}"
    if method.merges_weights:
        models = ["--model", *options.models]  # type: ignore[misc]
        models += [] if options.base is None else ["--base", options.base]
        words = ["merge", "--method", f"{method.name} alpha=0.5", *models, "--out", "merged"]
        yield Next(words, "with an alpha of your choice")


def _find_sources(options: MergeOptions, method: Merge) -> list[Source]:
    """Return the models to merge.

    Raises:
        UserError: If no base model is given or recorded, or a folder is not a model.
    """
    models: Any = options.models
    sources = [Source("model", str(name)) for name in models]
    sources += [Source(name, str(getattr(method, name))) for name in method.models]
    if method.needs_base:
        base = options.base
        if base is None:
            base = (read_json_object(Path(models[0]) / MANIFEST_FILE) or {}).get("model")
            if not isinstance(base, str):
                raise UserError(f"{method.name} needs the base model of '{models[0]}'; give it with --base.")
        sources.append(Source("base", str(base)))
    for source in sources:
        check_folder(source.name)
        if Path(source.name).resolve() == Path(options.out).resolve():
            raise UserError(f"'{options.out}' is one of the models that are merged; choose another directory.")
    return sources


def _load_finished(out: Path, manifest: str, config: dict[str, Any], overwrite: bool) -> MergeResult | None:
    """Return the result in ``out`` if it is that of the same merge; None if there is none, or it may be replaced.

    Raises:
        UserError: If ``out`` contains something else, or the result is damaged.
    """
    foreign = f"'{out}' exists and is not a result of the same kind; choose another directory."
    other = f"'{out}' holds another result; choose another directory, or replace '{out}' with --overwrite."
    if (found := find_result(out, manifest, config, overwrite, foreign, other)) is None:
        return None
    path = (read_json_object(out / PATH_FILE) or {}).get("path", [])
    return MergeResult(out, found["method"], found.get("notes", []), path, manifest == MANIFEST_FILE)


def _compare_origin(config: dict[str, Any]) -> list[str]:
    """Return a note for each adapted model that records another base model than the one given."""
    *models, base = config["sources"]
    notes = []
    for source in models if base["role"] == "base" else ():
        files = (read_json_object(Path(source["name"]) / MANIFEST_FILE) or {}).get("model_files")
        if source["role"] == "model" and files not in (None, base["files"]):
            notes.append(
                f"According to its {MANIFEST_FILE}, '{source['name']}' was not adapted from '{base['name']}', or the "
                "files of that model have changed."
            )
    return notes
