"""Load and fingerprint model folders, including models with modules that ``transformers`` does not know.

See :mod:`acclimate.models.saving` for how they are saved.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from pickle import UnpicklingError
from types import SimpleNamespace
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from transformers import AutoConfig

from acclimate.base.errors import UserError, first_line
from acclimate.base.files import (
    check_regular_file,
    existing_folder,
    hash_file,
    local_folder,
    read_json,
    read_json_object,
    safe_join,
)
from acclimate.models.extensions import (
    ENSEMBLE_KEY,
    EXTENSIONS,
    ORIGINAL,
    average_with_original,
    extensions_of,
)
from acclimate.models.kinds import class_names, find_kind
from acclimate.models.probe import attach

# Files that decide what a model computes. Cards, logs and acclimate's own records do not, and they contain times.
_SUFFIXES = {
    *(".json", ".txt", ".model", ".safetensors", ".bin", ".jinja"),
    *(".codes", ".bpe", ".vocab", ".tiktoken", ".spm"),  # of tokenizers
}
_IGNORED = {
    *("acclimate.json", "metrics.json", "importance.json", "selective.json", "fasttext.json", "run.json"),
    *("trainer_state.json", "training_args.bin", "README.txt"),
}


def check_folder(path: str | Path) -> None:
    """Check that a model folder exists and contains a model. Hub names are not checked.

    Raises:
        UserError: If the folder does not exist or has no ``config.json``.
    """
    folder = existing_folder(path)
    if folder is None:
        return
    if not (folder / "config.json").is_file():
        raise UserError(
            f"The folder '{path}' has no config.json, so it is not a Hugging Face model.{_suggest(folder)}"
        )
    for file in (*folder.iterdir(), *model_files(folder)):
        check_regular_file(file)


def model_files(folder: Path) -> list[Path]:
    """Return the files of a model folder that decide what the model computes, sorted; some may not exist.

    Next to the files of the folder itself, these are weights that an index names, modules of a sentence encoder, chat
    templates, and the code of a model that may run it.

    Raises:
        UserError: If an index names a file outside the folder.
    """
    files = {file for file in folder.iterdir() if file.suffix in _SUFFIXES and file.name not in _IGNORED}
    for index in folder.glob("*.index.json"):
        shards = (read_json_object(index) or {}).get("weight_map")
        files.update(safe_join(folder, str(name)) for name in (shards.values() if isinstance(shards, dict) else ()))
    with suppress(OSError, ValueError, TypeError, AttributeError):
        names = [module.get("path") for module in read_json(folder / "modules.json")]
        # A module outside the folder is not read; what copies the modules names it.
        inside = (name for name in names if name and ".." not in Path(name).parts and not Path(name).is_absolute())
        parts = (file for name in inside for file in safe_join(folder, name).rglob("*"))
        files.update(file for file in parts if file.suffix in _SUFFIXES)
    files.update((folder / "additional_chat_templates").glob("*.jinja"))
    if trusts_remote_code():
        files.update(folder.rglob("*.py"))
    return sorted(file for file in files if not file.is_dir())


def has_chat_template(folder: Path) -> bool:
    """Return whether the tokenizer that was saved in a folder has a chat template."""
    return (folder / "chat_template.jinja").is_file() or (folder / "additional_chat_templates").is_dir()


def _suggest(folder: Path) -> str:
    """Name a subfolder that holds a model, as in old folders of sentence-transformers; empty if there is none.

    Of an adapter without its base model, say so.
    """
    if (folder / "adapter_config.json").is_file():
        return (
            " It is an adapter of peft: give a model with the adapter merged into it (in peft merge_and_unload; "
            "acclimate saves it in the folder above)."
        )
    model = next((child for child in sorted(folder.iterdir()) if _model_type(child)), None)
    return f" The folder '{model}' is one." if model else ""


def _model_type(folder: Path) -> Any:
    return (read_json_object(folder / "config.json") or {}).get("model_type")


LIMITS = {
    "num_hidden_layers": 10_000,
    "num_attention_heads": 10_000,
    "num_key_value_heads": 10_000,
    "head_dim": 10**5,
    "hidden_size": 10**6,
    "intermediate_size": 10**7,
    "vocab_size": 10**8,
}
"""Settings that must be positive in every configuration, and the largest values that are accepted."""
HOW_TO_RUN = {
    **{"return_dict": True, "output_attentions": False, "output_hidden_states": False},
    **{"chunk_size_feed_forward": 0, "gradient_checkpointing": False},
}
"""Settings that do not change what a model computes, only how it is run, and the values that training expects."""


def load_config(path: str | Path, **changes: Any) -> Any:
    """Load the configuration of a model.

    Args:
        path: A model folder or a name on the Hugging Face Hub.
        changes: Entries to replace.

    Raises:
        UserError: If there is no model, or its configuration cannot belong to a model.
    """
    check_folder(path)
    folder = local_folder(path)
    try:
        if folder and not isinstance(read_json(folder / "config.json"), dict):
            raise ValueError("config.json is not a JSON object")
        config = AutoConfig.from_pretrained(str(path), trust_remote_code=trusts_remote_code(), **changes)
    except UNREADABLE as error:
        if folder:  # the reason may be a size that is clearer than the error of its computations
            entries = read_json_object(folder / "config.json") or {}
            check_limits(SimpleNamespace(**entries), f"config.json of '{path}'")
        hint = "" if folder is None or _model_type(folder) else _suggest(folder)
        raise UserError(f"No model could be read from '{path}': {load_error(error, path)}{hint}") from error
    check_limits(config, f"config.json of '{path}'")
    for name, value in HOW_TO_RUN.items():
        if hasattr(config, name):
            setattr(config, name, value)
    causal = any(kind and not kind.uses_masking for kind in map(find_kind, class_names(config.architectures)))
    if getattr(config, "is_decoder", False) and not causal:
        raise UserError(
            f"In config.json of '{path}', is_decoder is true, so no token would see later text; set it to false."
        )
    padding, size = getattr(config, "pad_token_id", None), getattr(config, "vocab_size", None)
    if isinstance(padding, int) and isinstance(size, int) and padding >= size:
        raise UserError(f"In config.json of '{path}', pad_token_id is {padding}, but vocab_size is only {size}.")
    return config


def check_limits(config: Any, where: str) -> None:
    """Check that the sizes in a configuration are positive, and not absurdly large.

    Raises:
        UserError: If one is not; ``where`` names the configuration.
    """
    for name, most in LIMITS.items():
        value = getattr(config, name, 1)
        if isinstance(value, int | float) and not 1 <= value <= most:
            raise UserError(f"In {where}, {name} is {value}; it must be between 1 and {most:,}.")


def model_fingerprint(path: str) -> str:
    """Return a hash of the files of a model folder, or the name itself for a Hub name.

    The hash covers the weights, so it changes when a model is retrained, and not when its folder moves.

    Raises:
        UserError: If the folder does not exist or has no ``config.json``.
    """
    folder = local_folder(path)
    if folder is None:
        return path
    check_folder(path)
    state = hashlib.sha256()
    for file in model_files(folder):
        if file.is_file():
            state.update(f"{file.relative_to(folder).as_posix()} {hash_file(file)}\n".encode())
    return state.hexdigest()[:16]


log = logging.getLogger(__name__)
WEIGHTS = "adapted.safetensors"
ORIGINAL_PREFIX = f"{ORIGINAL}."
IGNORED_WEIGHTS = (".pooler.", "position_ids")
"""Parts of the names of weights that an encoder does not need: poolers, and constant buffers."""

UNREADABLE = (
    *(OSError, ValueError, RuntimeError, LookupError, TypeError, AttributeError, ImportError),
    *(ArithmeticError, AssertionError, SafetensorError, StrictDataclassError, UnpicklingError),
)
"""Exceptions of ``transformers`` for damaged or unsuitable configurations, tokenizers and weights."""

TRUST = "ACCLIMATE_TRUST_REMOTE_CODE"
"""Environment variable: 1 lets a model run its own Python code when it is loaded."""


def trusts_remote_code() -> bool:
    """Return whether code that comes with models may run."""
    return os.environ.get(TRUST, "") == "1"


NO_CLASS = re.compile(r"Unrecognized configuration class .*?(\w+)'> for this kind of AutoModel: (\w+)")
"""Message of transformers if an architecture has no such head."""


def load_error(error: Exception, path: str | Path) -> str:
    """Explain in one line why a model could not be loaded.

    For a Hub name, the line adds that there is no such folder, in case a path was meant.
    """
    here = "" if local_folder(path) else f" There is no folder '{path}' either."
    if "custom code" in str(error) or "trust_remote_code" in str(error):
        return (
            f"it needs its own Python code, which is not run. Set {TRUST}=1 if you have read the code and trust it."
            + here
        )
    if isinstance(error, UnpicklingError) or "weights_only" in str(error):
        return (
            "its weights are a pickle file with more than tensors in it, which could run code when it is loaded. Use "
            "a copy of the model in safetensors." + here
        )
    if found := NO_CLASS.search(str(error)):
        return f"transformers has no {found[2]} for {found[1]}; choose a model of another architecture." + here
    return (f"there is no entry {error}." if isinstance(error, KeyError) else first_line(error)) + here


def describe_extensions(config: Any) -> str:
    """Describe the modules of a model that its architecture does not have; empty for an ordinary model."""
    parts = [extension.describe(config) for extension in extensions_of(config)]
    parts += ["its original encoder, for an ensemble"] if getattr(config, ENSEMBLE_KEY, False) else []
    return " and ".join(filter(None, parts))


def from_pretrained(auto: Any, path: str | Path, config: Any, **options: Any) -> tuple[Any, dict[str, Any]]:
    """Load a model with an auto class of ``transformers``, including modules beyond its architecture.

    Args:
        auto: An auto class, such as ``AutoModelForMaskedLM``.
        path: A model folder, or a name on the Hub.
        config: Its configuration.
        options: Further arguments of ``from_pretrained``.

    Returns:
        The model, and the loading information of ``transformers`` (missing and mismatched weights).

    Raises:
        UserError: If the weights of these modules are missing or do not fit.
    """
    parts = describe_extensions(config)
    _check_stored_types(path)
    if parts:
        return _load_extended(auto, path, config, parts, options)
    code = {"trust_remote_code": trusts_remote_code()}
    model, info = auto.from_pretrained(str(path), config=config, output_loading_info=True, **code, **options)
    if info["unexpected_keys"]:
        _warn_of_unused_weights(model, info["unexpected_keys"], str(path))
    return _keep_weight_names(model), info


def _is_added(weight: str) -> bool:
    return any(extension.weights in weight for extension in EXTENSIONS)


def _load_extended(
    auto: Any, path: str | Path, config: Any, parts: str, options: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    try:
        state = load_file(Path(path) / WEIGHTS)
    except OSError as error:
        raise UserError(f"'{path}' should contain a model with {parts}, but {WEIGHTS} is missing.") from error
    original = {
        name.removeprefix(ORIGINAL_PREFIX): value for name, value in state.items() if name.startswith(ORIGINAL_PREFIX)
    }
    adapters = {name: value for name, value in state.items() if _is_added(name)}
    plain = {
        name: value for name, value in state.items() if name not in adapters and not name.startswith(ORIGINAL_PREFIX)
    }
    kind = type(auto.from_config(config))  # auto classes cannot load from a state dict
    model, info = kind.from_pretrained(None, config=config, state_dict=plain, output_loading_info=True, **options)
    _keep_weight_names(model)
    for extension in extensions_of(config):
        extension.add(model, attach)
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    fits = set(filter(_is_added, shapes)) == set(adapters)
    if not fits or any(shapes[name] != value.shape for name, value in adapters.items()):
        raise UserError(f"The adapters in '{path}' do not fit a {type(model).__name__} with {parts}.")
    model.load_state_dict(adapters, strict=False)
    if getattr(config, ENSEMBLE_KEY, False):
        _load_ensemble(model, original, path)
    return model, info


def _check_stored_types(path: str | Path) -> None:
    """Refuse quantized weights: converted to floating point without their scales, they are another model."""
    folder = local_folder(path)
    files = model_files(folder) if folder else []
    for file in (one for one in files if one.suffix == ".safetensors" and one.name != "carried.safetensors"):
        with safe_open(file, "pt") as stored:
            for name in stored.keys():  # noqa: SIM118
                kind = stored.get_slice(name).get_dtype()
                if name.endswith((".weight", ".bias")) and kind not in ("F64", "F32", "F16", "BF16"):
                    raise UserError(
                        f"The weights in '{path}' are quantized: {name} has the type {kind}. Use the model before "
                        "quantization."
                    )


def _warn_of_unused_weights(model: Any, names: Iterable[str], path: str) -> None:
    """Warn of encoder weights that ``transformers`` ignores: the loaded model then differs from the trained one."""
    places = (f"{model.base_model_prefix}.", "embeddings.", "encoder.", "layers.", "transformer.")
    unread = sorted(
        name for name in names if name.startswith(places) and not any(part in name for part in IGNORED_WEIGHTS)
    )
    if unread:
        log.warning(
            "%d encoder weights in '%s' are ignored, because %s of transformers does not have them, such as %s: the "
            "loaded model differs from the one that was trained.",
            len(unread),
            path,
            type(model).__name__,
            unread[0],
        )


def _keep_weight_names(model: Any) -> Any:
    """Make ``save_pretrained`` use the names that weights have in memory.

    ``transformers`` renames weights of old files when it loads them (``LayerNorm.gamma`` of bert-base-uncased), and
    renames them back when it saves. ``load_state_dict``, which the ``Trainer`` uses for checkpoints, would then skip
    those weights with a warning.
    """
    model._weight_conversions = None
    return model


def _load_ensemble(model: Any, original: dict[str, Any], path: str | Path) -> None:
    """Turn an end-task model into an ensemble. A language model keeps only its adapted encoder."""
    if model.get_output_embeddings() is not None:
        setattr(model.config, ENSEMBLE_KEY, False)
        return
    try:
        average_with_original(model, original)
    except (ValueError, RuntimeError) as error:
        raise UserError(f"The original encoder in '{path}' cannot be loaded: {first_line(error)}") from error
