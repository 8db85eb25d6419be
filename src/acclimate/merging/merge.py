"""``acclimate merge``: a model from the weights of others, without training."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from acclimate.adaptation.inputs import as_corpus
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
from acclimate.base.progress import Progress
from acclimate.base.version import __version__
from acclimate.merging.card import write_merged_card
from acclimate.merging.experts import Experts
from acclimate.merging.fisher import measure_fisher, read_fisher, save_fisher
from acclimate.merging.measure_memory import measure_memory
from acclimate.merging.measuring import Measured, open_data
from acclimate.merging.options import (
    DENSITY,
    LAYERS,
    METHODS,
    OTHER_MODELS,
    PATH,
    TOP,
    MergeOptions,
    check_options,
)
from acclimate.merging.path import (
    COLUMNS,
    PATH_FILE,
    MergeResult,
    draw_path,
    measure_path,
    merged_model,
    path_rows,
)
from acclimate.merging.rules import (
    Rule,
    fisher_weighted,
    least_kept,
    linear,
    make_rule,
    sparse,
    taken_from_second,
)
from acclimate.merging.soup import cook
from acclimate.merging.weights import Checkpoint, find_folder, match, write_weights
from acclimate.models.checkpoints import check_folder, model_fingerprint
from acclimate.models.loading import load_tokenizer
from acclimate.models.saving import copy_sentence_encoder_files, find_file

GENERATION_FILE = "generation_config.json"


class Source(NamedTuple):
    """A model that is merged: ``"model"``, ``"instruct"``, ``"skill"``, ``"domain"`` or ``"base"``, and its name."""

    role: str
    name: str


@with_output_lock
def _merge(options: MergeOptions) -> MergeResult:
    """Merge the weights of models that come from one base model, without training.

    ``chat-vector`` adds to a model what instruction tuning has changed: model + weight (instruct - base) (Huang et
    al., ACL 2024). ``skill`` adds what any other training has changed: model + weight (skill - base). With a sentence
    encoder as the skill, the result is one, too (AdaSent, Huang et al., EMNLP 2023). ``interpolation`` is
    (1 - alpha) base + alpha model (WiSE-FT, Wortsman et al., CVPR 2022). ``soup`` is the weighted mean of the models
    (Wortsman et al., ICML 2022); ``greedy-soup`` adds models to an equal mean, from the best to the worst, as long as
    the score on dev (of language models, the loss on text) does not get worse. ``fisher`` weights each parameter of
    each model by its Fisher information (Matena and Raffel, NeurIPS 2022), measured on tasks or text without labels.
    ``task-arithmetic`` adds to the base model the weighted differences of the models to it (Ilharco et al., ICLR
    2023). ``ties`` (Yadav et al., NeurIPS 2023), ``dare-linear`` and ``dare-ties`` (Yu et al., ICML 2024) drop a part
    of these differences first; ``peft`` computes it, tensor by tensor. ``layers`` takes the embeddings and the first
    layers from a model that was adapted to the domain, and the rest from one that learned a task elsewhere, with the
    first part frozen (Vast et al., ECIR 2024).

    ``memory`` merges no weights: it measures a model whose predictions are mixed with those of a smaller model of the
    same tokenizer, which the method ``memory`` trained (Cao et al., 2025), by the shares in ``alphas``. The class
    :class:`acclimate.merging.measure_memory.MemoryProcessor` generates with one of them.

    With ``target``, only the ``top`` models that fit a new domain best are merged (SaM): those with the lowest loss on
    its text, or those whose own text is most similar to it.

    Each tensor is read, merged in fp32 and written before the next, so that memory holds about two tensors; with
    ``ties`` and ``dare``, two per model. Models are loaded one at a time to be measured. The result has the
    architecture, the types of the weights, the configuration and the tokenizer of the first model. Heads of models of
    different tasks are not merged. A chat vector also brings the chat template and the generation settings of the
    instruction-tuned model. An ``alpha`` of 0 or 1 copies weights bit by bit.

    With ``alphas``, the models along the interpolation are written one at a time, measured on held-out text and
    deleted. The losses are written to ``path.json``, ``path.png`` and ``path.svg``. The user
    decides which share to use.

    Returns:
        The output directory, notes on what was not merged, and the losses along the path.

    Raises:
        UserError: If the models differ in architecture, size or vocabulary, one cannot be read, or the result is not
            finite. An existing result is left unchanged.
    """
    check_options(options)
    sources = _find_sources(options)
    out, has_model = follow_link(options.out), options.alphas is None or options.alpha is not None
    texts = {
        name: as_corpus(getattr(options, name), options.text_column, options.encoding)
        for name in PATH
        if options.alphas
    }
    data = [open_data(one, sources[0].name, options) for one in cast(Any, options.data) or ()]
    experts = None if options.target is None else Experts(options, sources[0].name)
    config = recorded(
        options,
        ("models", "base", *OTHER_MODELS, "corpora", "text_column"),
        acclimate=__version__,
        model=sources[0].name,
        sources=[{**source._asdict(), "files": model_fingerprint(source.name)} for source in sources],
        **_resolve_settings(options),
        **{name: text.fingerprint for name, text in texts.items()},
        data=[one.fingerprint() for one in data] or None,
        target=experts and experts.fingerprint(),
    )
    manifest = MANIFEST_FILE if has_model else PATH_FILE
    if (done := _load_finished(out, manifest, config, options.overwrite)) is not None:
        return done
    check_writable(out)
    notes = _compare_origin(config)
    if experts:
        models, note = experts.select([source.name for source in sources if source.role == "model"])
        sources = [source for source in sources if source.role != "model" or source.name in models]
        sources.sort(key=lambda source: models.index(source.name) if source.role == "model" else len(models))
        notes.append(note)
    merger = None if options.method == "memory" else Merger(sources, options)
    notes[:0] = merger.notes if merger else []
    result = MergeResult(out, options.method, notes, has_model=has_model)
    with atomic_folder(out) as folder:
        if options.alphas is not None:
            measure = _measure_share(merger, folder / "point", options)
            alphas: Any = options.alphas
            result.path = measure_path(measure, alphas, texts, options.documents, options.progress)
            write_json(folder / PATH_FILE, {**config, "notes": notes, "path": result.path})
            is_memory = options.method == "memory"
            draw_path(result.path, folder, ("model", "memory") if is_memory else ("base model", "adapted model"))
        if has_model and merger:
            with TemporaryDirectory(dir=folder) as work:
                rule, measured = _make_rule(config, merger, data, Path(work), options)
                notes += measured
                merger.write(folder, rule)
            merged = [source.name for source in sources]
            write_json(folder / MANIFEST_FILE, {**config, "merged": merged, "notes": notes})
            write_merged_card(folder, out.name, COLUMNS, path_rows(result.path))
        record_files(folder, manifest)
    return result


merge = verb(MergeOptions, _merge)


def _find_sources(options: MergeOptions) -> list[Source]:
    """Return the models to merge.

    Raises:
        UserError: If no base model is given or recorded, or a folder is not a model.
    """
    models: Any = options.models
    sources = [Source("model", str(name)) for name in models]
    method = METHODS[options.method]
    for option in OTHER_MODELS:
        if option in method.needs:
            sources.append(Source(option.partition("_")[0], str(getattr(options, option))))
    if method.needs_base:
        base = options.base
        if base is None:
            base = (read_json_object(Path(models[0]) / MANIFEST_FILE) or {}).get("model")
            if not isinstance(base, str):
                raise UserError(f"{options.method} needs the base model of '{models[0]}'; give it with --base.")
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


class Merger:
    """Models that are checked against each other and can be merged by several rules.

    Attributes:
        models: Folders or names of the models themselves, without the base model and the like.
        notes: What is not merged.
    """

    def __init__(self, sources: Sequence[Source], options: MergeOptions) -> None:
        """Open the models.

        Raises:
            UserError: If one cannot be read, or they do not fit together.
        """
        self._first = Checkpoint(find_folder(sources[0].name), sources[0].name)
        others = [Checkpoint(find_folder(source.name), source.name, self._first) for source in sources[1:]]
        self._models = [self._first, *others]
        self._max_shard_bytes, self._progress = round(options.max_shard_gb * 10**9), options.progress
        self._tokenizer = load_tokenizer(self._first.folder)
        self._generation = self._first.folder / GENERATION_FILE
        self._sentence_modules = self._first.folder
        self.models = [source.name for source in sources if source.role == "model"]
        self.notes: list[str] = []
        for source, other in zip(sources[1:], others, strict=True):
            self.notes += match(self._first, other, METHODS[options.method].joins_tasks)
            tokenizer = load_tokenizer(other.folder)
            missing = self._missing_tokens(tokenizer.get_vocab(), other.label)
            if source.role == "instruct":
                self._take_chat_files(other, tokenizer.chat_template, missing)
            if source.role == "skill" and find_file(str(other.folder), "modules.json"):
                self._sentence_modules = other.folder
                self.notes.append(f"From '{other.label}', the result also has the modules of a sentence encoder.")
        self.notes = list(dict.fromkeys(self.notes))

    def _missing_tokens(self, vocabulary: dict[str, int], label: str) -> list[str]:
        """Return the tokens that only the other model has.

        Raises:
            UserError: If an id has different tokens.
        """
        own = {index: token for token, index in self._tokenizer.get_vocab().items()}
        others = {index: token for token, index in vocabulary.items()}
        for index in sorted(own.keys() & others.keys()):
            if own[index] != others[index]:
                raise UserError(
                    f"The token with the id {index} is {own[index]!r} in '{self._first.label}', but "
                    f"{others[index]!r} in '{label}'; merge models of the same vocabulary."
                )
        missing = [others[index] for index in sorted(others.keys() - own.keys())]
        if missing:
            self.notes.append(
                f"The tokenizer of '{self._first.label}', which the result has, lacks {len(missing):,} tokens of "
                f"'{label}', such as {missing[0]!r}."
            )
        return missing

    def _take_chat_files(self, instruct: Checkpoint, template: Any, missing: Sequence[str]) -> None:
        """Use the chat template and the generation settings of the instruction-tuned model."""
        if template is None:
            self.notes.append(f"'{instruct.label}' has no chat template, so the result has that of the first model.")
        else:
            self._tokenizer.chat_template = template
        if unknown := [token for token in missing if token in str(template)]:
            self.notes.append(
                f"The chat template uses {unknown[0]!r}, which the result reads as ordinary text, so that chats may "
                "not work. Adapt a model that has this token."
            )
        if (instruct.folder / GENERATION_FILE).is_file():
            self._generation = instruct.folder / GENERATION_FILE
        taken = [
            *(["chat template"] if template is not None else []),
            *(["generation settings"] if self._generation.parent == instruct.folder else []),
        ]
        if taken:
            self.notes.append(f"From '{instruct.label}', the result also has the {' and the '.join(taken)}.")

    @property
    def largest(self) -> int:
        """Number of entries of the largest tensor."""
        return max(math.prod(one.shape) for one in self._first.stored.values())

    def find_names(self, model: int, names: Iterable[str]) -> dict[str, str]:
        """Return which of the names of tensors in memory each tensor of the result has in a model."""
        checkpoint = self._models[model]
        found = {checkpoint.resolve(name): name for name in names}
        return {name: found[place] for name in self._first.stored if (place := checkpoint.source_of(name)) in found}

    def first_layers(self, count: int) -> set[str]:
        """Return the names of the embeddings and of the first layers; see :meth:`Checkpoint.first_layers`."""
        return self._first.first_layers(count)

    def write(self, folder: Path, rule: Rule) -> None:
        """Write the merged model into an existing folder: weights, configuration and tokenizer.

        Raises:
            UserError: If a weight is not finite.
        """
        first = self._first
        with Progress("merge", len(first.stored), unit="tensors", enabled=self._progress) as bar:
            done = iter(range(1, 1 + len(first.stored)))

            def compute(name: str) -> Tensor:
                bar.update(next(done))
                return self._merge_tensor(name, rule)

            write_weights(folder, first.stored, compute, self._max_shard_bytes)
        shutil.copy(first.folder / "config.json", folder)
        if self._generation.is_file():
            shutil.copy(self._generation, folder)
        self._tokenizer.save_pretrained(folder)
        copy_sentence_encoder_files(str(self._sentence_modules), folder)

    def _merge_tensor(self, name: str, rule: Rule) -> Tensor:
        """Merge the tensor, or the rows of it that all models have."""
        one = self._first.stored[name]
        if not (reads := self._readers(name)):
            return self._first.read(name)
        merged = rule(name, reads).to(one.dtype)
        if merged.numel() and not all(bool(end.isfinite()) for end in merged.aminmax()):
            raise UserError(
                f"The merged tensor {name} is not finite in {one.dtype}, so nothing is written. Check the models, or "
                "use smaller weights."
            )
        if merged.shape != one.shape:
            merged = torch.cat([merged, self._first.read(name)[len(merged) :]])
        return merged

    def _readers(self, name: str) -> list[Callable[[], Tensor]]:
        """Return a function per model that reads a tensor, or the rows that all models have; none if it is kept."""
        found = [model.find(name) for model in self._models]
        if not self._first.stored[name].dtype.is_floating_point or not all(found):
            return []
        rows = min((other.shape[0] for other in found if other and other.shape), default=0)

        def read(model: Checkpoint) -> Tensor:
            value = model.read(name)
            return value[:rows] if value.dim() else value

        return [partial(read, model) for model in self._models]

    def differences(self, number: int) -> Iterator[Tensor]:
        """Yield the difference of each tensor of a model to that of the base model, the last one, in fp32."""
        for name in self._first.stored:
            if reads := self._readers(name):
                yield reads[number]().float() - reads[-1]().float()


def _measure_share(merger: Merger | None, point: Path, options: MergeOptions) -> Any:
    """Return the function of a share that :func:`measure_path` needs."""
    if merger is None:
        return measure_memory(str(options.models[0]), str(options.memory), options.max_length)  # type: ignore[index]

    def measure(alpha: float) -> Any:
        rule = linear([alpha, 1 - alpha])
        return merged_model(lambda folder: merger.write(folder, rule), point, options.max_length)

    return measure


def _make_rule(
    config: Mapping[str, Any], merger: Merger, data: Sequence[Measured], work: Path, options: MergeOptions
) -> tuple[Rule, list[str]]:
    """Return the rule of a merge, and notes on what was measured for it.

    Args:
        config: The resolved options.
        merger: The models.
        data: What they are measured on.
        work: Folder for models and Fisher information while the rule is in use.
        options: The options as given.
    """
    models: list[str] = [source["name"] for source in config["sources"] if source["role"] == "model"]
    if config["method"] == "layers":
        return taken_from_second(merger.first_layers(config["layers"])), []
    if config["method"] == "greedy-soup":
        return cook(models, merger.write, data[0], work / "soup")
    if config["method"] == "fisher":
        reads = []
        for number, model in enumerate(merger.models):
            information = measure_fisher(
                data[models.index(model) if len(data) > 1 else 0], model, options.seed, options.progress
            )
            names = merger.find_names(number, information)
            save_fisher(information, work / f"{number}.safetensors")
            reads.append(read_fisher(work / f"{number}.safetensors", names))
        return fisher_weighted(config["weights"], reads), []
    if config["trim"] == "model":
        count = len(merger.models)
        limits = [least_kept(partial(merger.differences, number), config["density"]) for number in range(count)]
        return sparse(config["method"], config["weights"], 1.0, config["seed"], limits), []
    if config["density"] is not None and config["density"] * merger.largest < 1:
        raise UserError(
            f"With density={config['density']:g}, no entry of a difference would be kept: the largest tensor has "
            f"{merger.largest:,} entries. Use a higher density."
        )
    return make_rule(config), []


def _resolve_settings(options: MergeOptions) -> dict[str, Any]:
    """Return the options that only some methods use, with defaults filled in; None where the method has none."""
    method = METHODS[options.method]
    count: int = options.top or TOP if options.target is not None else len(options.models)  # type: ignore[arg-type]
    given: Any = options.weights
    weights = list(given or [1 / count if method.weight is None else method.weight] * count)
    if options.method in ("soup", "fisher"):
        weights = [weight / sum(weights) for weight in weights]
    settings: dict[str, Any] = {"weights": weights if "weights" in method.uses else None}
    for name, default in (("density", DENSITY), ("layers", LAYERS)):
        value = getattr(options, name)
        settings[name] = default if value is None and name in method.uses else value
    return settings
