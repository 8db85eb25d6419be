"""Save models, including models with modules that ``transformers`` does not know, and sentence encoders.

A model without such modules is saved as an ordinary folder. With adapters or an original encoder, ``from_pretrained``
of ``transformers`` would drop them with a warning. Their weights are therefore saved under a name that it does not
look for, so that it fails instead; the README in the folder says how to load the model.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import cached_file

from acclimate.base.errors import UserError
from acclimate.base.files import local_folder, read_json, read_json_object, write_json, write_text
from acclimate.models.checkpoints import WEIGHTS, describe_extensions
from acclimate.models.kinds import find_kind

log = logging.getLogger(__name__)
MODULE_FOLDER = re.compile(r"\w+")
"""Pattern of the folders of modules, such as ``1_Pooling``, that cannot lead out of a folder."""

README = """# A model that needs acclimate

The weights in `{weights}` belong to a {kind} with {parts}, which that architecture does not have, so
`from_pretrained` of transformers does not load them. Load this folder with

{how}

or pass it to `acclimate finetune --model`.
"""
LOAD_LANGUAGE_MODEL = """    from acclimate.models import load_language_model
    model = load_language_model("{folder}").model"""
LOAD_TASK_MODEL = """    import torch
    import transformers
    from acclimate.tasks.loading import load_with_head
    auto = transformers.AutoModel{head}
    model, tokenizer, length = load_with_head(auto, "{folder}", {{}}, {length}, torch.device("cpu"), "model")"""
"""Code that loads such a model, with the head of a language model or of an end task."""


def save_model(model: PreTrainedModel, folder: str | Path, name: str | Path | None = None) -> None:
    """Save a model into an existing folder.

    Args:
        model: The model.
        folder: The folder.
        name: Final name of the folder, for its README.

    Raises:
        UserError: If a weight is not finite.
    """
    folder = Path(folder)
    if bad := find_non_finite(model):
        raise UserError(
            f"{len(bad)} of {len([*model.parameters()])} tensors of the model are not finite, such as '{bad[0]}', so "
            "it is not saved. Start from another checkpoint, or lower the learning rate."
        )
    parts = describe_extensions(model.config)
    if model.get_output_embeddings() is not None:  # a language model, not one of an end task
        copy_sentence_encoder_files(model.name_or_path, folder)
    if not parts:
        model.save_pretrained(folder)
        return
    model.save_pretrained(folder, max_shard_size="1000GB")
    os.replace(folder / "model.safetensors", folder / WEIGHTS)
    write_text(folder / "README.md", instructions(type(model).__name__, parts, str(name or folder)))


def find_non_finite(model: PreTrainedModel) -> list[str]:
    """Return the names of the weights with a value that is NaN or infinite."""
    weights = ((name, getattr(value, "_local_tensor", value)) for name, value in model.named_parameters())
    return [name for name, value in weights if not bool(value.isfinite().all())]


SENTENCE_ENCODER_FILES = (
    *("modules.json", "config_sentence_transformers.json"),
    *(f"sentence_{name}_config.json" for name in "bert roberta distilbert camembert albert xlm-roberta xlnet".split()),
)
"""Files of ``sentence-transformers`` next to the weights; the names of older versions depend on the architecture."""
MODULE_FILES = ("config.json", "model.safetensors", "pytorch_model.bin")
POOLING_MODES = {"cls_token": "cls", "mean_tokens": "mean", "max_tokens": "max"} | {
    **{
        "mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
        "weightedmean_tokens": "weightedmean",
        "lasttoken": "lasttoken",
    },
}
"""Names of poolings in the files of ``sentence-transformers`` before version 6, each with the later name."""
LONGEST_LIMIT = 10**9
"""Length from which a tokenizer has no limit."""


def copy_sentence_encoder_files(source: str | None, folder: Path) -> None:
    """Copy what makes a model one of ``sentence-transformers``: pooling, normalization, prompts, maximum length.

    Without these files, that library would load the adapted model with another pooling. In the layout of its first
    versions, the model itself is a folder of its own, such as ``0_Transformer``, and the files are in the one above.
    """
    sources, modules = _find_modules(source) if source else ((), [])
    if modules:
        _copy_modules(source, sources, modules, folder)


def _copy_modules(
    source: str | None, sources: Sequence[Path | str], modules: list[dict[str, Any]], folder: Path
) -> None:
    names, left = [*SENTENCE_ENCODER_FILES], []
    for module in modules[1:]:
        path = str(module.get("path"))
        if MODULE_FOLDER.fullmatch(path):
            names += [f"{path}/{name}" for name in MODULE_FILES]
        else:
            left.append(path)
    for place, name in itertools.product(map(str, sources), names):
        if (file := find_file(place, name)) is not None:
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copy(file, folder / name)
    if len(sources) > 1:
        write_text(folder / "modules.json", json.dumps(modules, indent=2))
    write_portable_modules(folder)
    if left:
        log.warning(
            "Modules of the sentence encoder '%s' are not carried over, since they are in folders of unusual names: "
            "%s. Copy them into the output directory.",
            source,
            ", ".join(left),
        )


def write_pooling(folder: Path, pooling: str, width: int) -> None:
    """Make a model folder one of ``sentence-transformers``, unless it is one.

    Args:
        folder: The folder, with model and tokenizer.
        pooling: ``"mean"`` over tokens, or ``"cls"`` for the first token.
        width: Width of the hidden states.
    """
    if (folder / "modules.json").is_file():
        return
    names = {"": "Transformer", "1_Pooling": "Pooling"}
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{name}"}
        for index, (path, name) in enumerate(names.items())
    ]
    modes = {"pooling_mode_cls_token": pooling == "cls", "pooling_mode_mean_tokens": pooling == "mean"}
    (folder / "1_Pooling").mkdir()
    for path, entries in (
        ("modules.json", modules),
        ("1_Pooling/config.json", {"word_embedding_dimension": width, **modes}),
    ):
        write_text(folder / path, json.dumps(entries, indent=2))
    write_portable_modules(folder)


def write_portable_modules(folder: Path) -> None:
    """Name modules, pooling and length of a sentence encoder as ``sentence-transformers`` did before version 6.

    llama.cpp, vLLM and text-embeddings-inference know only those names. Later versions of the library read them, too,
    and ignore what they know by another name, so nothing is removed. vLLM takes the first mode that is true.

    Args:
        folder: Folder of the encoder.
    """
    modules = _read_modules(find_file(str(folder), "modules.json"))
    renamed = [{**module} for module in modules]
    for module in renamed:
        library, _, kind = str(module.get("type")).rpartition(".")
        if library.startswith("sentence_transformers.") and kind in ("Transformer", "Pooling", "Dense", "Normalize"):
            module["type"] = f"sentence_transformers.models.{kind}"
        place = str(module.get("path"))
        if kind == "Pooling" and MODULE_FOLDER.fullmatch(place):
            _complete(folder / place / "config.json", _name_pooling)
    if renamed != modules:
        write_json(folder / "modules.json", renamed)
    length = (read_json_object(folder / "tokenizer_config.json") or {}).get("model_max_length")
    if isinstance(length, int) and length < LONGEST_LIMIT:
        for name in SENTENCE_ENCODER_FILES[2:]:
            _complete(folder / name, lambda _: {"max_seq_length": length})


def _name_pooling(entries: Mapping[str, Any]) -> dict[str, bool]:
    given = entries.get("pooling_mode")
    chosen = [given] if isinstance(given, str) else given or ()
    return {f"pooling_mode_{name}": later in chosen for name, later in POOLING_MODES.items()}


def _complete(file: Path, make: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
    """Put entries that a JSON file lacks before the others; leave a missing or complete file as it is."""
    entries = read_json_object(file)
    if entries is not None and (made := make(entries)).keys() - entries.keys():
        write_json(file, {**made, **entries})


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Save a tokenizer, with the SentencePiece model that it was converted from if its vocabulary has not changed.

    ``transformers`` reads ``tokenizer.json`` alone and drops that file; llama.cpp converts Gemma with it only.
    """
    tokenizer.save_pretrained(folder)
    source, name = tokenizer.name_or_path, "tokenizer.model"
    if source and not (folder / name).is_file() and (file := find_file(source, name)) is not None:
        before, after = (
            _read_vocabulary(one) for one in (find_file(source, "tokenizer.json"), folder / "tokenizer.json")
        )
        if before is not None and before == after:
            shutil.copy(file, folder / name)


def _read_vocabulary(file: Path | None) -> tuple[Any, Any] | None:
    """Return the vocabulary and the added tokens of a ``tokenizer.json``."""
    entries = read_json_object(file) if file else None
    model = (entries or {}).get("model")
    return (model.get("vocab"), (entries or {}).get("added_tokens")) if isinstance(model, dict) else None


def _find_modules(source: str) -> tuple[tuple[Path | str, ...], list[dict[str, Any]]]:
    """Return the places of the files of a sentence encoder, and its modules, of which the first is the model."""
    if modules := _read_modules(find_file(source, "modules.json")):
        return (source,), modules
    above = Path(source).parent
    modules = _read_modules(find_file(str(above), "modules.json")) if local_folder(source) else []
    if not modules or modules[0].get("path") != Path(source).name:
        return (), []
    return (above, source), [{**modules[0], "path": ""}, *modules[1:]]


def _read_modules(file: Path | None) -> list[dict[str, Any]]:
    """Return the entries of ``modules.json``; empty if it is missing or damaged."""
    with suppress(OSError, ValueError):
        found = read_json(file) if file else []
        if isinstance(found, list) and all(isinstance(module, dict) for module in found):
            return found
    return []


def find_file(source: str, name: str) -> Path | None:
    """Return a file of a model folder or of a model on the Hub; None if there is none."""
    if (folder := local_folder(source)) is not None:
        return folder / name if (folder / name).is_file() else None
    errors = ("missing_entries", "gated_repo", "connection_errors")
    found = cached_file(source, name, **{f"_raise_exceptions_for_{error}": False for error in errors})
    return Path(found) if found else None


def instructions(kind: str, parts: str, folder: str, length: int = 128) -> str:
    """Return loading instructions for a model with modules beyond its architecture.

    Args:
        kind: Name of its class.
        parts: The result of :func:`describe_extensions`.
        folder: Folder of the model.
        length: Maximum tokens per text, for a model of an end task.
    """
    how = LOAD_LANGUAGE_MODEL if find_kind(kind) else LOAD_TASK_MODEL
    head = kind[kind.index("For") :] if "For" in kind else ""
    return README.format(
        weights=WEIGHTS, kind=kind, parts=parts, how=how.format(folder=folder, head=head, length=length)
    )
