"""The command line."""

from __future__ import annotations

import errno
import os
import sys

import typer

from acclimate.cli import advise, compare, demo, inspect, tasks, training
from acclimate.cli.app import app
from acclimate.errors import UserError, first_line

__all__ = [
    "advise",
    "app",
    "compare",
    "demo",
    "inspect",
    "main",
    "tasks",
    "training",
]

DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)
"""Errors of a disk that is full, read-only or broken."""
PATHS = (errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG)
"""Errors of a path that cannot be written to, for example because a file is in the place of a folder."""


def _silence_libraries() -> None:
    """Silence log messages and progress bars of other libraries."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def main() -> None:
    """Run the command line; a user error becomes one line and exit code 2."""
    _silence_libraries()
    try:
        app()
    except UserError as error:
        typer.echo(f"Error: {error}", err=True)
        sys.exit(2)
    except OSError as error:
        if error.errno not in (*DISK, *PATHS):
            raise
        where = f" ('{error.filename}')" if error.filename else ""
        typer.echo(
            f"Error: {error.strerror}{where}. No partial result was kept: free some space or choose another "
            "folder, and run the same command again.",
            err=True,
        )
        sys.exit(2)
    except RuntimeError as error:
        torch = sys.modules.get("torch")  # not imported here, since that takes seconds
        if torch is None or not isinstance(error, torch.OutOfMemoryError):
            raise
        typer.echo(
            f"Error: {first_line(error).split('. ')[0]}. Set ACCLIMATE_MEMORY_GB to fewer gigabytes than the device "
            "has, such as half, and run the same command again with smaller micro-batches. Where that does not help, "
            "as in fine-tuning, lower the batch size.",
            err=True,
        )
        sys.exit(2)
    except KeyboardInterrupt:
        typer.echo("Stopped. Run the same command again to resume from the last checkpoint.", err=True)
        sys.exit(130)
