"""The command line: verbs, nothing else; a file for each."""

from __future__ import annotations

import errno
import os
import sys

import typer

from acclimate.cli import advise, annotate, compare, cost, demo, distill, finetune, inspect, leakage, methods, training
from acclimate.cli.app import app
from acclimate.errors import UserError, first_line

__all__ = [
    "advise",
    "annotate",
    "app",
    "compare",
    "cost",
    "demo",
    "distill",
    "finetune",
    "inspect",
    "leakage",
    "main",
    "methods",
    "training",
]

DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)
"""Of a disk that is full, read-only or broken."""
PLACES = (errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG)
"""Of a name that nothing can be written to: there is a file where a folder must be, say."""


def _quieten() -> None:
    """Keep the libraries below from writing between our lines."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def main() -> None:
    """Run the command line; an error that the user can mend is one line and exit code 2."""
    _quieten()
    try:
        app()
    except UserError as error:
        typer.echo(f"Error: {error}", err=True)
        sys.exit(2)
    except OSError as error:
        if error.errno not in (*DISK, *PLACES):
            raise
        where = f" ('{error.filename}')" if error.filename else ""
        typer.echo(
            f"Error: {error.strerror}{where}. Nothing half-written counts as a result: make room, or choose another "
            "folder, and give the same command again.",
            err=True,
        )
        sys.exit(2)
    except RuntimeError as error:
        torch = sys.modules.get("torch")  # importing it takes seconds, which --help need not wait for
        if torch is None or not isinstance(error, torch.OutOfMemoryError):
            raise
        typer.echo(
            f"Error: {first_line(error).split('. ')[0]}. Set ACCLIMATE_MEMORY_GB to fewer gigabytes than the device "
            "has, such as half, and give the same command again: less is read at once then. Where that does not help, "
            "as in fine-tuning, lower the batch size.",
            err=True,
        )
        sys.exit(2)
    except KeyboardInterrupt:
        typer.echo("Stopped. The same command goes on from the last checkpoint.", err=True)
        sys.exit(130)
