"""What makes two model folders the same model."""

from __future__ import annotations

import hashlib
from pathlib import Path

from acclimate.errors import UserError

# Files of a model folder that decide what it computes. Its card, its logs and our own notes do not.
_SUFFIXES = {".json", ".txt", ".model", ".safetensors", ".bin", ".jinja"}
_IGNORED = {"acclimate.json", "importance.json", "run.json", "trainer_state.json", "training_args.bin", "README.txt"}


def model_identity(path: str) -> str:
    """Return a hash of the files of a model folder, or the name itself when it is a name of the hub.

    The weights are read whole: a model that was trained again in the same place is another model, and a folder
    that was moved is the same one.

    Raises:
        UserError: If the path is a folder without a ``config.json``, or looks like a path and is not there.
    """
    folder = Path(path)
    if not folder.exists():
        if path.startswith((".", "/", "~")) or path.count("/") > 1:
            raise UserError(f"No model at '{path}'. Give a Hugging Face model folder or the name of a model.")
        return path
    if not (folder / "config.json").is_file():
        raise UserError(f"'{path}' is no model folder: it has no config.json.")
    state = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        if file.is_file() and file.suffix in _SUFFIXES and file.name not in _IGNORED:
            with file.open("rb") as handle:
                state.update(f"{file.name} {hashlib.file_digest(handle, 'sha256').hexdigest()}\n".encode())
    return state.hexdigest()[:16]
