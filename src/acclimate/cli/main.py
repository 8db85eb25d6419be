"""The command line with the commands of all packages."""

from __future__ import annotations

import gc
import io
import logging
import os
import signal
import sys
import traceback

from acclimate.base.errors import Stopped, UserError, explain_os_error, first_line, stop_on_signals
from acclimate.base.files import cache_path
from acclimate.base.terminal import SafeFormatter, echo
from acclimate.cli.app import app
from acclimate.cli.document import make_document, named_verb

__all__ = ["app", "main"]

BUG = 70
"""Exit code of an error of acclimate itself (``EX_SOFTWARE``); 1 says that a requirement is not met."""
ABSURD_INPUT = {
    OverflowError: "too large a number",
    RecursionError: "too deeply nested",
    MemoryError: "too large for the memory of this machine",
}
"""Fault of an input that no earlier check refused, by the error that it causes."""

AFTER_STOP = {
    True: "Run the same command again to resume from the last checkpoint.",
    False: "There is no checkpoint of this training yet; the same command will start it again.",
    None: "Run the same command again; it does not repeat what is finished.",
    "keeps nothing": "Run the same command again to measure anew: it keeps nothing.",
}
"""Advice after a signal."""


def _silence_libraries() -> None:
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def main() -> None:
    """Run the command line; docs/commands.md lists the exit codes."""
    _silence_libraries()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name of a file may have characters that cannot be encoded
            stream.reconfigure(errors="backslashreplace")
    warnings = logging.StreamHandler()  # also where another library has configured logging
    warnings.setFormatter(SafeFormatter())
    logging.getLogger("acclimate").addHandler(warnings)
    try:
        with stop_on_signals():
            app()
    except (Stopped, KeyboardInterrupt) as error:
        number = error.number if isinstance(error, Stopped) else signal.SIGINT
        name = signal.Signals(number).name
        saved = "keeps nothing" if "bench" in sys.argv[1:2] else getattr(error, "saved", None)
        _fail(f"Stopped by {name}. {AFTER_STOP[saved]}", 128 + number)
        sys.exit(128 + number)
    except Exception as error:
        if (line := _explain(error)) is None:
            traceback.print_exception(error)
            _fail(f"{type(error).__name__}: {first_line(error)}", BUG, logged=True)
            sys.exit(BUG)
        _fail(f"Error: {line}", 2)
        sys.exit(2)
    finally:
        gc.freeze()  # the interpreter would visit all objects of imported modules before it ends, for two seconds
        logging.getLogger("acclimate").removeHandler(warnings)


def _fail(line: str, code: int, *, logged: bool = False) -> None:
    """Print why a command ends, and its JSON document if that is wanted."""
    if not logged:
        echo(line, err=True)
    if "--json" in sys.argv:
        echo(make_document(named_verb(sys.argv[1:]), error=line.removeprefix("Error: "), code=code))


def _explain(error: Exception) -> str | None:
    """Return the line for an error that the user can do something about; None for a bug."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, OSError):
        return explain_os_error(error, cache_path())
    torch = sys.modules.get("torch")  # not imported here, since that takes seconds
    if torch is not None and isinstance(error, torch.OutOfMemoryError):
        return (
            f"{first_line(error).split('. ')[0]}. Set ACCLIMATE_MEMORY_GB to fewer gigabytes than the device has, "
            "such as half, and run the same command again with smaller micro-batches. Where that does not help, as in "
            "fine-tuning, lower the batch size."
        )
    problem = next((text for kind, text in ABSURD_INPUT.items() if isinstance(error, kind)), None)
    if isinstance(error, RuntimeError) and "can't allocate memory" in str(error):  # torch, on a CPU
        problem = ABSURD_INPUT[MemoryError]
    if problem is None:
        return None
    command = next((argument for argument in sys.argv[1:] if not argument.startswith("-")), "")
    return f"An input of 'acclimate {command}' is {problem} ({first_line(error)}). Check its numbers, sizes and files."
