"""Putting a model folder on the hub, with the hub's own client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from acclimate.errors import UserError, first_line

IGNORED_PATTERNS = ["acclimate.json", "run.json", "predictions.jsonl", "step-*/*", ".*"]
"""What stays here: accounts with paths of this machine, answers to test items, models of single steps."""


def push_to_hub(folder: str | Path, repo: str, *, private: bool = True, api: Any = None) -> str:
    """Upload a model folder to a repository of the hub, which is made if it is not there.

    Nothing in this package calls it unless a user asks for it.

    Args:
        folder: A model folder, as ``adapt``, ``pretrain``, ``finetune``, ``distill`` or a study made it.
        repo: ``USER/NAME``, or ``NAME`` under the user's own account.
        private: Whether a new repository can only be seen by its owner; one that is there stays as it is.
        api: A ``huggingface_hub.HfApi``; by default one with the token of this machine.

    Returns:
        The address of the upload.

    Raises:
        UserError: If there is no model, the name cannot be one, or the hub cannot be reached or refuses.
    """
    from huggingface_hub import HfApi

    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise UserError(f"'{folder}' is no model folder: it has no config.json.")
    check_repo_name(repo)
    client = HfApi() if api is None else api
    try:
        made = client.create_repo(repo, private=private, exist_ok=True)
        name = str(getattr(made, "repo_id", repo))
        done = client.upload_folder(
            repo_id=name,
            folder_path=str(folder),
            commit_message="Model and card by acclimate",
            ignore_patterns=IGNORED_PATTERNS,
        )
    except Exception as error:  # the client has a class for each way in which a connection or a right can be missing
        raise UserError(
            f"Could not put '{folder}' on the hub as '{repo}': {first_line(error).rstrip('.')}. The model is whole; "
            f"when that is mended (hf auth login gives access): acclimate push {folder} {repo}"
        ) from error
    return str(getattr(done, "commit_url", None) or done)


def check_repo_name(repo: str) -> None:
    """Check that a repository can be called so, before hours of work.

    Raises:
        UserError: If it cannot.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise UserError(f"'{repo}' cannot be a repository of the hub: {first_line(error).rstrip('.')}.") from error
