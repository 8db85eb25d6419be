"""Reading and writing model folders, those of models with parts that no architecture of ``transformers`` has.

Mostly a folder is an ordinary one. Adapters, and an original beside the model, would be left out with no more than a
warning by a loader that does not know them. So the weights of a model with such parts have a name that such a loader
does not look for: it stops, and the README in the folder says what is needed.

What makes two model folders the same model.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import PreTrainedModel
from transformers.utils import logging as their_logging

from acclimate.errors import UserError, first_line
from acclimate.files import hash_file, write_text
from acclimate.models.attention import attach
from acclimate.models.extensions import ADAPTER_SIZE_KEY, ENSEMBLE_KEY, ORIGINAL, add_adapters, average_with_original

# Files of a model folder that decide what it computes. Its card, its logs and our own notes do not: they hold minutes.
_SUFFIXES = {".json", ".txt", ".model", ".safetensors", ".bin", ".jinja"}
_IGNORED = {
    *("acclimate.json", "metrics.json", "importance.json", "selective.json", "fasttext.json", "run.json"),
    *("trainer_state.json", "training_args.bin", "README.txt"),
}


def is_written_as_path(model: str) -> bool:
    """Say whether a model is no name of the hub, which has no more than one slash, and does not begin with a dot."""
    return model.startswith((".", "/", "~")) or model.count("/") > 1


def local_folder(path: str | Path) -> Path | None:
    """Return the folder that a model is meant to be in, or None for the name of a model on the hub.

    A path that is written as one is a folder, whether it is there or not.
    """
    folder = Path(path)
    return folder if folder.exists() or is_written_as_path(str(path)) else None


def check_folder(path: str | Path) -> None:
    """Check that a model folder is there and is one; a name of the hub is not looked at.

    Raises:
        UserError: If it is not there, or has no ``config.json``.
    """
    folder = local_folder(path)
    if folder is None:
        return
    if not folder.is_dir():
        raise UserError(f"There is no model folder '{path}'. Give a Hugging Face model folder or the name of a model.")
    if not (folder / "config.json").is_file():
        raise UserError(f"The folder '{path}' holds no config.json, so it is no Hugging Face model.")


def model_fingerprint(path: str) -> str:
    """Return a hash of the files of a model folder, or the name itself when it is a name of the hub.

    The weights are read whole: a model that was trained again in the same place is another model, and a folder
    that was moved is the same one.

    Raises:
        UserError: If the path is a folder without a ``config.json``, or looks like a path and is not there.
    """
    folder = local_folder(path)
    if folder is None:
        return path
    check_folder(path)
    state = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        if file.is_file() and file.suffix in _SUFFIXES and file.name not in _IGNORED:
            state.update(f"{file.name} {hash_file(file)}\n".encode())
    return state.hexdigest()[:16]


log = logging.getLogger(__name__)
WEIGHTS = "adapted.safetensors"
ADAPTER_KEY, ORIGINAL_PREFIX = ".adapter.", f"{ORIGINAL}."
IGNORED_WEIGHTS = (".pooler.", "position_ids")
"""Parts of names of weights that an encoder does not need: other heads read them, or they are the same in all."""

README = """# A model that needs acclimate

The weights in `{weights}` are those of a {kind} with {parts}. They are no part of that architecture, so
`from_pretrained` of transformers does not load them. Load this folder with

{how}

or give it to `acclimate finetune --model` as it is.
"""
LOADERS = {
    "ForMaskedLM": """    from acclimate.models import load_language_model
    model = load_language_model("{folder}").model""",
    "": """    import torch
    import transformers
    from acclimate.tasks.loading import load_with_head
    auto = transformers.AutoModel{head}
    model, tokenizer, length = load_with_head(auto, "{folder}", {{}}, 128, torch.device("cpu"), "model")""",
}
"""How to load it, by the end of the name of its class; the last fits any end task."""


UNREADABLE = (
    *(OSError, ValueError, RuntimeError, KeyError, TypeError, AttributeError, ImportError),
    *(SafetensorError, StrictDataclassError, UnpicklingError),
)
"""What ``transformers`` raises where a configuration, a tokenizer or weights are damaged or of another kind."""

TRUST = "ACCLIMATE_TRUST_REMOTE_CODE"
"""Variable of the environment: 1 lets a model folder run Python code of its own while it is loaded."""


def trusts_remote_code() -> bool:
    """Say whether the user trusts the code that comes with models; nobody is asked for it in the middle of a run."""
    return os.environ.get(TRUST, "") == "1"


def load_error(error: Exception, path: str | Path) -> str:
    """Return in a line why a model could not be loaded; what to do if it wants to run code of its own.

    Where ``path`` is read as a name of the hub, it adds that there is no such folder: a path may have been meant.
    """
    here = "" if local_folder(path) else f" There is no folder '{path}' here, either."
    if "custom code" in str(error) or "trust_remote_code" in str(error):
        return (
            f"it comes with Python code of its own, which is not run. Set {TRUST}=1 if you have read it and trust it."
            + here
        )
    return first_line(error) + here


def describe_extensions(config: Any) -> str:
    """Say in words which parts a model has that its architecture has not; empty for an ordinary model."""
    size = getattr(config, ADAPTER_SIZE_KEY, 0)
    adapters = f"bottleneck adapters of size {size} (Houlsby et al., 2019)" if size else ""
    original = "its original beside it, for an ensemble" if getattr(config, ENSEMBLE_KEY, False) else ""
    return " and ".join(part for part in (adapters, original) if part)


def from_pretrained(auto: Any, path: str | Path, config: Any, **options: Any) -> tuple[Any, dict[str, Any]]:
    """Load a model with one of the auto classes of ``transformers``, with its parts beyond the architecture.

    Args:
        auto: Such as ``AutoModelForMaskedLM``.
        path: A model folder, or a name on the hub.
        config: Its configuration.
        options: Of ``from_pretrained``.

    Returns:
        The model, and what ``transformers`` says about missing and mismatched weights.

    Raises:
        UserError: If those parts are incomplete.
    """
    parts = describe_extensions(config)
    if not parts:
        code = {"trust_remote_code": trusts_remote_code()}
        model, info = auto.from_pretrained(str(path), config=config, output_loading_info=True, **code, **options)
        _warn_of_unused_weights(model, info["unexpected_keys"], str(path))
        return _keep_weight_names(model), info
    try:
        state = load_file(Path(path) / WEIGHTS)
    except OSError as error:
        raise UserError(f"The folder '{path}' should hold a model with {parts}, but {WEIGHTS} is missing.") from error
    original = {
        name.removeprefix(ORIGINAL_PREFIX): value for name, value in state.items() if name.startswith(ORIGINAL_PREFIX)
    }
    adapters = {name: value for name, value in state.items() if ADAPTER_KEY in name}
    plain = {
        name: value for name, value in state.items() if name not in adapters and not name.startswith(ORIGINAL_PREFIX)
    }
    kind = type(auto.from_config(config))  # the auto classes themselves want a path
    model, info = kind.from_pretrained(None, config=config, state_dict=plain, output_loading_info=True, **options)
    _keep_weight_names(model)
    if size := getattr(config, ADAPTER_SIZE_KEY, 0):
        add_adapters(model, attach(model), size)
        expected = {name for name in model.state_dict() if ADAPTER_KEY in name}
        if expected != set(adapters):
            raise UserError(f"The adapters in '{path}' are not those of a {type(model).__name__} with size {size}.")
        model.load_state_dict(adapters, strict=False)
    if getattr(config, ENSEMBLE_KEY, False):
        _load_ensemble(model, original, path)
    return model, info


def _warn_of_unused_weights(model: Any, names: Iterable[str], path: str) -> None:
    """Warn of weights of an encoder that ``transformers`` has no place for: what it makes is another model."""
    places = (f"{model.base_model_prefix}.", "embeddings.", "encoder.", "layers.", "transformer.")
    unread = sorted(
        name for name in names if name.startswith(places) and not any(part in name for part in IGNORED_WEIGHTS)
    )
    if unread:
        log.warning(
            "%d weights of the encoder in '%s' have no place in the %s that transformers makes of it, such as %s: it "
            "reads text as another model than the one that was trained.",
            len(unread),
            path,
            type(model).__name__,
            unread[0],
        )


def _keep_weight_names(model: Any) -> Any:
    """Let a model be saved under the names that its weights have in memory.

    ``transformers`` renames weights of old files when it reads them (``LayerNorm.gamma`` of bert-base-uncased), and
    renames them back in all that it saves. What reads such a file with ``load_state_dict``, as the ``Trainer`` does
    with its checkpoints, leaves those weights as they were, with a warning.
    """
    model._weight_conversions = None
    return model


def _load_ensemble(model: Any, original: dict[str, Any], path: str | Path) -> None:
    """Make an ensemble of a model that is not a language model; as one, it is its adapted half."""
    if model.get_output_embeddings() is not None:
        setattr(model.config, ENSEMBLE_KEY, False)
        return
    try:
        average_with_original(model, original)
    except (ValueError, RuntimeError) as error:
        raise UserError(f"The original beside the model in '{path}' cannot be loaded: {first_line(error)}") from error


def save_model(model: PreTrainedModel, folder: str | Path, name: str | Path | None = None) -> None:
    """Write a model into a folder that exists; see the head of this module for those with parts of ours.

    Args:
        model: The model.
        folder: Where to write.
        name: How the folder is going to be called, for its README.
    """
    folder = Path(folder)
    parts = describe_extensions(model.config)
    if not parts:
        model.save_pretrained(folder)
        return
    model.save_pretrained(folder, max_shard_size="1000GB")
    os.replace(folder / "model.safetensors", folder / WEIGHTS)
    write_text(folder / "README.md", instructions(type(model).__name__, parts, str(name or folder)))


def instructions(kind: str, parts: str, folder: str) -> str:
    """Say what a model needs that has parts beyond its architecture.

    Args:
        kind: Name of the class of ``transformers``.
        parts: What :func:`parts_beyond` says.
        folder: Where the model is.
    """
    how = next(text for end, text in LOADERS.items() if kind.endswith(end))
    head = kind[kind.index("For") :] if "For" in kind else ""
    return README.format(weights=WEIGHTS, kind=kind, parts=parts, how=how.format(folder=folder, head=head))


@contextmanager
def silence_transformers() -> Iterator[None]:
    """Keep transformers from listing the new weights and drawing bars: what is new is known and documented."""
    level, bar = their_logging.get_verbosity(), their_logging.is_progress_bar_enabled()
    their_logging.set_verbosity_error()
    their_logging.disable_progress_bar()
    try:
        yield
    finally:
        their_logging.set_verbosity(level)
        if bar:
            their_logging.enable_progress_bar()
