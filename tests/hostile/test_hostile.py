"""Every hostile input of the table ends as it should: exit code, last line, and nothing half-written."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path

import pytest
import typer

from acclimate.cli import main as cli
from tests.cases import each
from tests.hostile.makers import ordinary, put
from tests.hostile.runner import Case, run
from tests.hostile.table_decoders import DECODERS
from tests.hostile.table_inputs import INPUTS
from tests.hostile.table_usage import USAGE

TABLE = {**INPUTS, **USAGE, **DECODERS}
LONG = ("adapters", "decoders", "measurements", "replay")
"""Topics whose inputs differ least from those of others; they are checked with the slow tests."""
STRIDE = 6


@pytest.mark.parametrize("topic", sorted(set(TABLE) - set(LONG)))
def test_some_hostile_inputs_end_as_they_should(topic, tiny_bert, tmp_path):
    check(TABLE[topic][::STRIDE], tiny_bert, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("topic", sorted(TABLE))
def test_hostile_inputs_end_as_they_should(topic, tiny_bert, tmp_path):
    check(TABLE[topic], tiny_bert, tmp_path)


def check(cases, tiny_bert, tmp_path):
    failures = []
    for number, case in enumerate(cases):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        ordinary(folder, tiny_bert)
        try:
            run(case, folder)
        except AssertionError as error:
            failures.append(error)
    if failures:
        raise ExceptionGroup(f"{len(failures)} of {len(cases)} inputs", failures)


def test_all_verbs_and_distinct_names_are_in_the_table():
    cases = [case for cases in TABLE.values() for case in cases]
    assert len({case.name for case in cases}) == len(cases) >= 100
    group = typer.main.get_command(cli.app)
    groups = ("inspect", "periods")
    verbs = {(name,) for name in group.commands if name not in groups}
    verbs |= {(name, verb) for name in groups for verb in group.commands[name].commands}
    words = [shlex.split(case.command) for case in cases]
    assert {(tuple(word[:2]) if word[0] in groups else (word[0],)) for word in words} == verbs


@each(
    ("change", "message"),
    [
        ({"code": 0}, "exit code 2, not 0"),
        ({"line": "another"}, "the last line does not match"),
        ({"also": "another"}, "the output does not contain"),
        ({"never": "Did you mean"}, "the output contains"),
        ({"make": put(".out.new-x", "")}, "is left"),
        ({"inside": lambda: sys.stdout.write("Traceback (most recent call last)")}, "there is a traceback"),
        ({"inside": lambda: time.sleep(9), "seconds": 0.3}, "more than 0.3 s"),
        ({"inside": lambda: (Path("out").mkdir(), Path("out/a").touch())}, "is written"),
    ],
)
def test_the_runner_finds_what_is_wrong(tiny_bert, tmp_path, change, message):
    case = {"name": "a misspelled name", "command": "methods mln", "code": 2, "line": "Did you mean 'mlm'"}
    with pytest.raises(AssertionError, match=message):
        run(Case(**{**case, **change}), tmp_path)
