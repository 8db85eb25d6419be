"""Uploading a model folder to the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from acclimate.errors import UserError, first_line

IGNORED_PATTERNS = ["acclimate.json", "run.json", "predictions.jsonl", "step-*/*", ".*"]
"""Files that are not uploaded: records with local paths, predictions on test items, intermediate checkpoints."""


def push_to_hub(folder: str | Path, repo: str, *, private: bool = True, api: Any = None) -> str:
    """Upload a model folder to a repository of the Hub, creating the repository if necessary.

    It is only called when the user explicitly asks for an upload.

    Args:
        folder: A model folder written by ``adapt``, ``pretrain``, ``finetune``, ``distill`` or a study.
        repo: ``USER/NAME``, or ``NAME`` under the account of the user.
        private: Create a new repository as private. The visibility of an existing repository does not change.
        api: A ``huggingface_hub.HfApi``; by default one with the token stored on this machine.

    Returns:
        The URL of the commit.

    Raises:
        UserError: If the folder has no model, the name is invalid, or the upload fails.
    """
    from huggingface_hub import HfApi

    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise UserError(f"'{folder}' is not a model folder: config.json is missing.")
    check_repo_name(repo)
    client = HfApi() if api is None else api
    try:
        created = client.create_repo(repo, private=private, exist_ok=True)
        name = str(getattr(created, "repo_id", repo))
        commit = client.upload_folder(
            repo_id=name,
            folder_path=str(folder),
            commit_message="Upload model and card with acclimate",
            ignore_patterns=IGNORED_PATTERNS,
        )
    except Exception as error:  # the client raises many classes for network and permission errors
        raise UserError(
            f"Could not upload '{folder}' to the Hub as '{repo}': {first_line(error).rstrip('.')}. The local model is "
            f"complete; fix the problem ('hf auth login' gives access), then run: acclimate push {folder} {repo}"
        ) from error
    return str(getattr(commit, "commit_url", None) or commit)


def check_repo_name(repo: str) -> None:
    """Validate the name of a repository before training starts.

    Raises:
        UserError: If the name is invalid.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise UserError(f"'{repo}' is not a valid repository name: {first_line(error).rstrip('.')}.") from error
