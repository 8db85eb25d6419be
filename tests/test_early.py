"""Wrong paths and names are refused before torch is imported, with the message that the Python functions give."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys

import pytest

from acclimate.adaptation.method import REGISTRY as METHODS
from acclimate.base.catalog import read_entries, read_fields
from acclimate.base.registry import declared_names
from acclimate.data.mix.base import MIXES
from acclimate.data.operations import SELECTIONS, TRANSFORMS
from acclimate.labs.advise.methods import FIELDS, list_methods
from acclimate.merging.base import MERGES
from acclimate.parts.masking.base import REGISTRY as MASKINGS
from tests.cases import each

RUNNER = """
import contextlib, io, json, os, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers", "datasets"):
            raise RuntimeError(f"{name} is imported")

sys.meta_path.insert(0, Refuse())
from acclimate.cli.main import main

for words in json.loads(sys.stdin.read()):
    sys.argv, said, code = ["acclimate", *words], io.StringIO(), 0
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            main()
        except SystemExit as ended:
            code = ended.code
        except BaseException as error:
            said.write(f"{type(error).__name__}: {error}")
    print(json.dumps([code, said.getvalue()]))
"""
TEXT = ["--corpus", "text.txt"]
CASES = [
    (["adapt", "--model", "./no/such", *TEXT, "--out", "o"], "There is no model folder './no/such'"),
    (["adapt", "--model", "a/b/c", *TEXT, "--out", "o"], "There is no model folder 'a/b/c'"),
    (["adapt", "--model", "m", "--corpus", "no.txt", "--out", "o"], "There is no file 'no.txt'"),
    (["adapt", "--model", "m", *TEXT, "--heldout", "no.txt", "--out", "o"], "There is no file 'no.txt'"),
    (["adapt", "--model", "m", "--corpus", "pipe.txt", "--out", "o"], "is a pipe"),
    (["adapt", "--model", "m", "--corpus", "https://a.org/b.txt", "--out", "o"], "addresses are not read"),
    (["adapt", "--model", "m", *TEXT, "--method", "mln", "--out", "o"], "Unknown method 'mln'. Did you mean 'mlm'?"),
    (["adapt", "--model", "m", *TEXT, "--masking", "no", "--out", "o"], "Unknown masking 'no'."),
    (["finetune", "--model", "m", "--task", "no.csv", "--out", "o"], "There is no task file or folder 'no.csv'"),
    (["finetune", "--model", "m", "--task", "http://a.org/b.csv", "--out", "o"], "addresses are not read"),
    (["distill", "--teacher", "m", "--student", "./no", "--task", "text.txt", "--out", "o"], "no model folder './no'"),
    (["finetune", "--model", "./no", "--task", "no", "--out", "o"], "2 problems: (1) There is no model folder './no'"),
    (["select", "--corpus", "no", "--by", "random", "--out", "o.jsonl"], "There is no file 'no'"),
    (
        ["select", *TEXT, "--by", "nearst k=5", "--out", "o.jsonl"],
        "Unknown selection 'nearst'. Did you mean",
    ),
    (["select", *TEXT, "--by", "random", "--out", "o\n.jsonl"], "has a line end in it"),
    (["transform", *TEXT, "--by", "no", "--out", "o.jsonl"], "Unknown transform 'no'."),
    (["compare", "no.yaml", "--out", "o"], "No study file at 'no.yaml'"),
    (["compare", "--model", "m", *TEXT, "--methods", "lmm", "--out", "o"], "Unknown method 'lmm'. Did you mean 'lm'?"),
    (["merge", "--method", "no", "--model", "m", "--out", "o"], "Unknown method of merging 'no'."),
    (
        ["merge", "--method", "soup", "--model", "./a", "--model", "./b", "--out", "o"],
        "There is no model folder './a'",
    ),
    (["inspect", "model", "./no"], "There is no model folder './no'"),
    (["inspect", "masks", "--model", "m", "--corpus", "no", "--out", "o"], "There is no file 'no'"),
    (["advise", "--model", "m", *TEXT, "--general", "no"], "There is no file 'no'"),
    (["periods", "gap", "--model", "m", "--task", "no", "--by", "year", "--out", "o"], "There is no task file"),
    (["methods", "no"], "Unknown method 'no'."),
    (["predict", "--model", "m", "--data", "no.csv", "--out", "o.csv"], "There is no task file or folder 'no.csv'"),
    (["adapt", "--model", "m", *TEXT, "--mix", "no", "--out", "o"], "Unknown mix 'no'."),
    (["adapt", "--model", "m", *TEXT, "--adapter", "no", "--out", "o"], "Unknown adapter 'no'."),
    (["adapt", "--model", "m", *TEXT, "--method", "lm nope=3", "--out", "o"], "'nope' cannot be set"),
    (
        ["adapt", "--model", "m", *TEXT, "--adapter", "lora rnak=3", "--out", "o"],
        "parameter of adapter 'lora'",
    ),
    (["select", *TEXT, "--by", "random nope=3", "--out", "o.jsonl"], "Unknown parameter of selection 'random' 'nope'"),
    (["adapt", "--config", "folder"], "'folder' is a folder"),
    (["adapt", "--config", "pipe.txt"], "is a pipe"),
]


@pytest.fixture(scope="module")
def refused(tmp_path_factory) -> list[tuple[int, str]]:
    """What all cases ended with, in one process that cannot import torch."""
    place = tmp_path_factory.mktemp("early")
    (place / "text.txt").write_text("a text\n")
    (place / "folder").mkdir()
    os.mkfifo(place / "pipe.txt")
    words = json.dumps([*(words for words, _ in CASES), ["methods"]])
    ended = subprocess.run([sys.executable, "-c", RUNNER], input=words, capture_output=True, text=True, cwd=place)
    return [tuple(json.loads(line)) for line in ended.stdout.splitlines()]


@each(("number", "case"), enumerate(CASES))
def test_what_is_wrong_is_refused_without_torch(refused, number, case):
    code, said = refused[number]
    assert code == 2 and case[1] in said and len(said.splitlines()) == 1, said


def test_methods_are_listed_from_their_source(refused):
    code, said = refused[-1]
    assert code == 0 and " dga " in said and "torch is imported" not in said
    found, rows = read_entries("acclimate.methods"), {row["name"]: row for row in list_methods()}
    assert rows.keys() == found.keys()  # the rows are from the classes, as torch is imported here
    for name, row in rows.items():
        assert {key: found[name][key] for key in FIELDS} == {key: row[key] for key in FIELDS}, name


@each("registry", [METHODS, MASKINGS, SELECTIONS, TRANSFORMS, MIXES, MERGES])
def test_the_parameters_in_the_source_are_those_of_the_classes(registry):
    for name in registry.names():
        known = {field.name for field in dataclasses.fields(registry.lookup(name))}
        assert read_fields(registry.group, name) == known, name


@each("registry", [METHODS, MASKINGS, SELECTIONS, TRANSFORMS, MIXES, MERGES])
def test_the_names_in_the_source_are_those_of_the_registry(registry):
    registry.names()
    own = {name for name, cls in registry.entries.items() if cls.__module__.startswith("acclimate.")}
    assert declared_names(registry.group) == own
