"""Code blocks of the documentation, and how each kind is run.

The blocks of a page run in order, in one folder, and Python blocks share their names. A block may write to a folder
that an earlier one wrote; it is removed first, unless the block reads a file in it. A comment before a block changes
how it is run:

- ``<!-- run: --steps 2 -->`` appends options to the commands of the block;
- ``<!-- run: skip, needs a network -->`` skips it and says why.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
import tomllib
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from unittest.mock import patch

import yaml
from typer.testing import CliRunner

from acclimate.cli.main import app
from acclimate.study.config import StudyConfig
from tests.printed import check, printed, run

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
GENERATED_TABLE = r"<!-- Table of [^\n]* -->\n\n(?:\|[^\n]*\n)+"
"""A table of a page that a script writes."""
SKILL = ROOT / "src" / "acclimate" / "labs" / "skill" / "SKILL.md"
NOT_GUIDES = ("dev", "results")
"""Folders of docs/ without guides."""
SHELLS = ("console", "bash", "shell", "sh")
LAUNCHERS = r"(torchrun|accelerate launch)( -\S+( \d+)?)* -m "
DOMAIN = {"name": "domain", "corpus": "reviews.jsonl.gz"}
SAMPLES = {"MODEL": "roberta-base", "TEXT": "general.txt", "GENERAL": "wiki.txt", "TASK": "reviews.csv"}
SAMPLES |= {"DATA": "reviews.csv"}
"""Files of the sample for what a printed command leaves to fill in."""
ENDPOINT = "http://localhost:11434/v1"
"""The server of language models that pages name."""
STUDY = {"models": ["roberta-base"], "methods": ["none", "lm"], "domains": [DOMAIN]}
"""The study that a part of a study file belongs to."""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: its language, its text, the line it starts at, and the comment before it."""

    page: Path
    line: int
    language: str
    text: str
    marker: str = ""

    @property
    def place(self) -> str:
        """Return page and line."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def skipped(self) -> str:
        """Return why it is not run, or an empty text."""
        word, _, reason = self.marker.partition(",")
        return reason.strip() if word == "skip" else ""


def pages() -> list[Path]:
    """Return the README, the instructions for agents, the pages for users, and those of papers."""
    guides = (page for page in DOCS.rglob("*.md") if page.relative_to(DOCS).parts[0] not in NOT_GUIDES)
    return [ROOT / "README.md", SKILL, *sorted(guides), *papers()]


def papers() -> list[Path]:
    """Return the pages of papers."""
    return sorted(ROOT.glob("src/acclimate/papers/*/README.md"))


def blocks(page: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a page."""
    text = page.read_text(encoding="utf-8")
    pattern = r"(?:<!-- run: ([^>]*?) -->\s*)?^([ ]*)```(\w*)[^\n]*\n(.*?)^\2```$"
    for found in re.finditer(pattern, text, flags=re.M | re.S):
        marker, indent, language, body = found.groups()
        body = "".join(line.removeprefix(indent) for line in body.splitlines(keepends=True))
        yield Block(page, text.count("\n", 0, found.start(3)) + 1, language, body, marker or "")


def commands(block: Block) -> list[str]:
    """Return the commands of a block; in ``console`` blocks they follow ``$``, and other lines are output."""
    lines = block.text.replace("\\\n", " ").splitlines()
    if block.language == "console":
        lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        assert lines, f"{block.place}: no line starts with '$ '"
    return [line for line in lines if line.strip() and not line.startswith("#")]


class Runner:
    """Runs the blocks of one page in the current folder, which has the files that they name."""

    server: ClassVar[str] = ENDPOINT
    """Address of the server that answers instead of the one that pages name."""
    executed: ClassVar[set[tuple[str, str]]] = set()
    """Commands that were printed and executed, on any page, each with the command that printed it."""

    def __init__(self, page: Path, module: types.ModuleType, *, follows: bool = False) -> None:
        """Start a page, whose Python blocks share the names of ``module``.

        With ``follows`` the commands that a command prints are executed, too, once for each pair of commands.
        """
        self.page, self.module, self.ran, self.follows = page, module, 0, follows

    def run(self, block: Block) -> None:
        """Run a block, or check it if it is data."""
        for out in set(re.findall(r"(?:--out |\bout=\")([^\s\"]+)", block.text)):
            if f"{out}/" not in block.text:  # the block does not read it
                remove(Path(out))
        if block.language in SHELLS:
            for command in commands(block):
                self._command(block, command)
        elif block.language == "python":
            self._python(block)
        elif block.language in ("yaml", "yml"):
            self._study(block)
        elif block.language == "json":
            try:
                json.loads(block.text)
            except json.JSONDecodeError:  # JSON lines
                [json.loads(line) for line in block.text.splitlines()]
        elif block.language == "toml":
            tomllib.loads(block.text)
        else:
            assert block.language in ("text", "bibtex", "html", "mermaid"), f"{block.place}: name the language"
            assert not re.search(r"^(\$ )?acclimate ", block.text, flags=re.M), f"{block.place}: a command in a text"
            return
        self.ran += 1

    def _command(self, block: Block, command: str) -> None:
        words = shlex.split(re.sub(LAUNCHERS, "", command).replace(ENDPOINT, self.server), comments=True)
        changed = {}
        while "=" in words[0]:
            name, _, changed[name] = words.pop(0).partition("=")
        if words[0] == "acclimate":
            if words[1] == "init":
                Path(words[2]).unlink(missing_ok=True)  # the sample; the command writes over no other study
            options = shlex.split(block.marker)
            with patch("sys.argv", ["acclimate", *words[1:], *options]):
                result = CliRunner().invoke(app, [*words[1:], *options], env=changed)
            if result.exit_code not in ((0, 1, 3) if "--require" in words else (0,)):  # which follow from the result
                raise AssertionError(f"{command}: {result.exception}\n{result.output[-2000:]}") from result.exception
            self._follow(words, printed(result.output))
        elif words[:2] == ["pip", "install"]:
            check_extras(words[2:])
        elif words[0] == "make":
            targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.M)
            assert set(words[1:]) <= set(targets), command
        else:
            raise AssertionError(f"'{words[0]}' is not run here; give the block '<!-- run: skip, REASON -->'")

    def _follow(self, words: list[str], found: list[str]) -> None:
        """Check the commands that a command has printed, and execute those of a kind that was not before."""
        check(found, SAMPLES)
        for command in found if self.follows else ():
            given = shlex.split(command)
            if (pair := (" ".join(words[1:3]), given[1])) not in self.executed:
                self.executed.add(pair)
                place = f"printed-{len(self.executed)}" + ".csv" * (given[1] == "predict")
                more = ["--out", place] if "--out" in given else []
                if given[1:3] == ["compare", "--model"] and "--heldout" not in given:
                    more += ["--heldout", "heldout.txt"]  # 2 % of a small sample are no document
                run([command], SAMPLES, *more)

    def _python(self, block: Block) -> None:
        """Run a block as the continuation of the page's module, whose source can be read like that of any other.

        If its first line is a comment with the name of a file, it is written there, too.
        """
        for name in re.findall(r"\A# (\w+\.py)\n", block.text):
            Path(name).write_text(block.text, encoding="utf-8")
        file = Path(str(self.module.__file__))
        before = file.read_text(encoding="utf-8") if file.exists() else ""
        file.write_text(before + block.text, encoding="utf-8")
        exec(compile("\n" * before.count("\n") + block.text, file, "exec"), vars(self.module))

    def _study(self, block: Block) -> None:
        """Check a study file, or the keys of one; the file is there for the commands that follow."""
        given = yaml.safe_load(block.text)
        if "models" in given:
            Path("study.yaml").write_text(block.text, encoding="utf-8")
        tasks = {"tasks": given.pop("tasks")} if "tasks" in given and "domains" not in given else {}
        domains = given.get("domains", [{**DOMAIN, **tasks}])
        StudyConfig.of({**STUDY, **given, "domains": domains})


def remove(out: Path) -> None:
    """Remove what an earlier block or the sample wrote to a folder."""
    assert not out.is_absolute(), f"{out} is outside of the folder of the test"
    if out.is_symlink():
        out.unlink()
    shutil.rmtree(out, ignore_errors=True)


def check_extras(words: list[str]) -> None:
    """Check that the extras of acclimate in the arguments of pip exist."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for name in re.findall(r"(?:^|\s)(?:acclimate|\.)\[([\w,-]+)\]", " ".join(words)):
        assert set(name.split(",")) <= set(extras), name


def run_page(page: Path, module: types.ModuleType, *, follows: bool = False) -> int:
    """Run the blocks of a page, and the commands that these print; return how many blocks ran.

    Raises:
        AssertionError: If one fails; the message starts with page and line.
    """
    sys.modules[module.__name__] = module
    runner = Runner(page, module, follows=follows)
    try:
        for block in blocks(page):
            if not block.skipped:
                try:
                    runner.run(block)
                except (Exception, SystemExit) as error:
                    raise AssertionError(f"{block.place}: {error}") from error
    finally:
        del sys.modules[module.__name__]
    return runner.ran
