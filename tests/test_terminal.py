"""Texts from outside reach the terminal as text: they cannot act on it, and no output passes by this rule."""

from __future__ import annotations

import ast
import io
import json
import logging
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.table import Table
from rich.text import Text

import acclimate
from acclimate.base.errors import CONTROL, UserError
from acclimate.base.terminal import SafeConsole, SafeFormatter, echo
from acclimate.tasks.seeds import _describe_details
from tests.cases import SOURCES
from tests.test_cli import call

PACKAGE = Path(acclimate.__file__).parent
HOSTILE = "\x1b]0;title\x07\x1b[2J\x1b]52;c;YQ==\x07\x9b31m\u202egpj.exe\u2066\u200f\u061c\x7f\r[red]x[/red] :smile:"
ALLOWED = {"base/terminal.py": {"echo"}, "base/progress.py": {"write"}, "study/workers.py": {"write"}}
"""Functions that write to the terminal themselves: these escape what they write."""


def acts(text: str) -> list[str]:
    """Return the characters of a text that act on a terminal."""
    return [mark for mark in CONTROL.findall(text) if mark not in "\n\t"]


def output_calls(path: Path):
    """Yield the name and line of each call of a source file that writes to the terminal past the module."""
    source = path.read_text(encoding="utf-8")
    if not any(word in source for word in ("print(", "echo", "Console(", ".write(")):
        return
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        if name in ("print", "typer.echo", "typer.secho", "click.echo", "Console", "rich.print"):
            yield name.rpartition(".")[2], node.lineno
        if name in ("sys.stdout.write", "sys.stderr.write"):
            yield "write", node.lineno


def test_all_output_goes_through_one_module():
    found = {
        f"{path.relative_to(PACKAGE).as_posix()}:{line} {name}"
        for path in SOURCES
        for name, line in output_calls(path)
        if name not in ALLOWED.get(path.relative_to(PACKAGE).as_posix(), ())
    }
    assert not found


@given(st.text(st.characters() | st.sampled_from(HOSTILE), max_size=30))
@settings(max_examples=50, deadline=None)
def test_no_text_acts_on_a_terminal(text):
    file = io.StringIO()
    console = SafeConsole(file=file, width=200)
    table = Table(title=text)
    table.add_column(text)
    table.add_row(text)
    for shown in (text, Text(text), table):
        console.print(shown)
    record = logging.LogRecord("acclimate", logging.WARNING, "", 1, "%s", (text,), None)
    assert not acts(file.getvalue() + SafeFormatter().format(record) + str(UserError(text)))


def test_echo_escapes_and_keeps_lines(capsys):
    echo(f"a\tb\n{HOSTILE}é")
    shown = capsys.readouterr().out
    assert not acts(shown) and shown.startswith("a\tb\n\\x1b]0;title") and shown.endswith(":smile:é\n")
    assert "\\u202egpj.exe" in shown


def test_styles_are_kept():
    file = io.StringIO()
    SafeConsole(file=file, force_terminal=True, color_system="standard").print(Text("\x1b[2Ja", style="bold"))
    assert file.getvalue() == "\x1b[1m\\x1b[2Ja\x1b[0m\n"


def test_documents_and_class_names_are_shown_as_text_and_cut(tmp_path, monkeypatch, capsys):
    corpus = tmp_path / "a.jsonl"
    documents = [f"{HOSTILE}\nkept: faked {number} " + "long " * 30 for number in range(6)]
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    words = ["select", "--corpus", corpus, "--by", "random documents=2", "--out", tmp_path / "out.jsonl"]
    code, out, err = call(monkeypatch, capsys, *words)
    assert code == 0 and "kept:" in out and not acts(out + err)
    assert sum(line.lstrip().startswith("kept:") for line in out.splitlines()) == out.count("  kept: ")
    score = {"per_class": {HOSTILE: {"f1": 0.5, "support": 2}, "a" * 100_000: {"f1": 0.5, "support": 2}}}
    for line in _describe_details([score]):
        echo(line)
    out = capsys.readouterr().out
    assert not acts(out) and len(out) < 1_000 and "F1 \\x1b]0;title" in out
