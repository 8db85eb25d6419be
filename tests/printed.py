"""The commands that acclimate prints, and what they have to be: complete, valid, and about files that exist."""

from __future__ import annotations

import html
import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

from typer.testing import CliRunner

from acclimate.base.verbs import Verb
from acclimate.cli.main import app

PLACEHOLDER = re.compile(r"\b(MODEL|TEXT|TASK|DATA|GENERAL|NAME|OUT)\b")
"""What a user has to fill in, since no option of the command that prints it says it."""
NOT_RUN = ("push",)
"""Verbs that need a network."""


class Parsed(Exception):
    """A command was read and its files were found; it would start now."""


def printed(text: str) -> list[str]:
    """Return the commands in the output of a command, in a card or in a report, each once."""
    page = html.unescape(re.sub("</?span>", "", text))  # in reports each word of a command is one
    found = re.findall(r"(?:^Next[^:\n]*: |^\$ |^    |<code>)(acclimate [a-z][^\n<`]*)", page, flags=re.M)
    return list(dict.fromkeys(found))


def filled(command: str, samples: Mapping[str, str]) -> list[str]:
    """Return the words of a command after ``acclimate``, with samples for what is to be filled in."""
    words = shlex.split(command)[1:]
    return [PLACEHOLDER.sub(lambda found: samples.get(found[0], found[0]), word) for word in words]


def check_plugins(files: Iterable[Path] | None) -> None:
    """Check that the files of ``--plugin`` exist; a process imports each only once."""
    assert all(file.is_file() for file in files or ())


def check(commands: Iterable[str], samples: Mapping[str, str]) -> None:
    """Check that commands can start: their words are read, their values are valid, and what they read exists."""

    def stop(verb: Verb, given) -> None:
        for name in ("data", "passages", "before", "after"):
            value = getattr(given, name, None)
            assert value is None or name == "data" or Path(str(value)).exists() or "/" not in str(value), value
        if verb.name == "predict":
            assert Path(given.data).exists(), given.data
        raise Parsed

    for command in commands:
        words = filled(command, samples)
        # The early check of paths is left out where torch is imported, which it always is in tests.
        early = patch("acclimate.cli.early.sys", SimpleNamespace(modules={}))
        with patch.object(Verb, "call", stop), early, patch("acclimate.cli.flags.import_plugins", check_plugins):
            result = CliRunner().invoke(app, words)
        if not isinstance(result.exception, Parsed):
            raise AssertionError(f"{command}: {result.exception}\n{result.output[-500:]}") from result.exception


def run(commands: Iterable[str], samples: Mapping[str, str], *more: str) -> None:
    """Run commands, with further options, but for those that need a network."""
    for command in commands:
        words = filled(command, samples)
        if words[0] in NOT_RUN:
            continue
        with patch("sys.argv", ["acclimate", *words]):
            result = CliRunner().invoke(app, [*words, *more])
        if result.exit_code:
            raise AssertionError(f"{command}: {result.exception}\n{result.output[-2000:]}") from result.exception
