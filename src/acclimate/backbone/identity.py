"""What makes two model folders the same model."""

from __future__ import annotations

import hashlib
from pathlib import Path

from acclimate.errors import UserError
from acclimate.files import hash_file

# Files of a model folder that decide what it computes. Its card, its logs and our own notes do not: they hold minutes.
_SUFFIXES = {".json", ".txt", ".model", ".safetensors", ".bin", ".jinja"}
_IGNORED = {
    *("acclimate.json", "metrics.json", "importance.json", "selective.json", "fasttext.json", "run.json"),
    *("trainer_state.json", "training_args.bin", "README.txt"),
}


def written_as_path(model: str) -> bool:
    """Say whether a model is no name of the hub, which has no more than one slash, and does not begin with a dot."""
    return model.startswith((".", "/", "~")) or model.count("/") > 1


def local_folder(path: str | Path) -> Path | None:
    """Return the folder that a model is meant to be in, or None for the name of a model on the hub.

    A path that is written as one is a folder, whether it is there or not.
    """
    folder = Path(path)
    return folder if folder.exists() or written_as_path(str(path)) else None


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


def model_identity(path: str) -> str:
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
