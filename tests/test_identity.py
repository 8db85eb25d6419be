"""Another value of a parameter, or another byte in a file that is read, changes every identity that depends on it."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.adaptation.method import REGISTRY as METHODS
from acclimate.base.errors import UserError
from acclimate.base.registry import PLUGIN, identify_function
from acclimate.data.documents import Corpus
from acclimate.data.mix.base import MIXES
from acclimate.data.operations import SELECTIONS, TRANSFORMS
from acclimate.data.task_kinds import load_task
from acclimate.labs.benchmarks.jobs import BenchmarkJob, BenchmarkSpec
from acclimate.merging.base import MERGES
from acclimate.parts.masking.base import REGISTRY as MASKINGS
from acclimate.parts.masking.base import Strategy
from acclimate.study.inputs import Checkpoint
from acclimate.study.job import Place
from tests.cases import each

REGISTRIES = (METHODS, MASKINGS, SELECTIONS, TRANSFORMS, MIXES, MERGES)
MODELS = {"encoder", "expert", "adapters", "teacher", "teachers", "reference", "model", "classifier", "judge"}
MODELS |= {"instruct", "skill", "domain_model", "memory"}
"""Parameters that are folders of models; others are files."""
REQUIRED = {"policy": each, "reference": "no folder"}
"""Values of parameters without a default that every identity reads."""
OBJECTS = {"of", "store", "policy", "functions"}
"""Parameters that are objects with an identity of their own."""


def parameters():
    """Yield each parameter that names a file, a model or a function: its class and its name."""
    for registry in REGISTRIES:
        for name in registry.names():
            cls = registry.lookup(name)
            for kind in ("files", "models", "functions"):
                yield from ((cls, parameter) for parameter in getattr(cls, kind, ()))


def instance(cls, parameter, value):
    """Return an instance whose other parameters are the defaults, or missing."""
    made = object.__new__(cls)
    for field in dataclasses.fields(cls):
        usual = REQUIRED.get(field.name) if field.default in (dataclasses.MISSING, "", None) else field.default
        object.__setattr__(made, field.name, usual)
    object.__setattr__(made, parameter, value)
    return made


def identity_of(cls, parameter, value):
    """Return what identifies an instance by the content of a file."""
    made = instance(cls, parameter, value)
    return json.dumps(made.file_contents() if hasattr(made, "file_contents") else made.identity(), default=str)


@each(("cls", "parameter"), [*parameters()])
def test_a_byte_changed_in_a_file_of_a_parameter_changes_the_identity(cls, parameter, tmp_path, monkeypatch):
    file = tmp_path / "given.csv"
    file.write_text("text,code\na,b\n")
    value, changed = str(file), file
    if parameter in MODELS:
        folder = tmp_path / "model"
        folder.mkdir()
        changed = folder / "model.safetensors"
        changed.write_text("a")
        for name in ("config.json", "tokenizer.json"):
            (folder / name).write_text("{}")
        value = {"adapters": (str(folder),), "teachers": {"first": str(folder)}}.get(parameter, str(folder))
    if parameter == "tasks":
        changed = tmp_path / "tasks" / "one" / "train.csv"
        changed.parent.mkdir(parents=True)
        for split in ("train", "test"):
            changed.with_name(f"{split}.csv").write_text("text,label\na good one,x\na bad one,y\n")
        value = str(tmp_path / "tasks")
    if parameter in getattr(cls, "functions", ()) or parameter == "policy":
        changed = tmp_path / "own.py"
        changed.write_text("def write(text):\n    return text\n")
        value = f"{changed}:write"
    try:
        before = identity_of(cls, parameter, value)
        assert before == identity_of(cls, parameter, value)
        changed.write_text(changed.read_text() + ("a third one,x\n" if parameter == "tasks" else "#"))
        sys.modules.pop(f"{PLUGIN}own", None)
        assert identity_of(cls, parameter, value) != before
        if changed == file and not issubclass(cls, Strategy):  # a strategy reads the file when it is made
            monkeypatch.setenv("HOME", str(tmp_path))
            assert identity_of(cls, parameter, "~/given.csv") == identity_of(cls, parameter, value)
    finally:
        sys.modules.pop(f"{PLUGIN}own", None)


def values_of_parameters():
    """Yield each parameter that is not the name of a file, a model or a function: its class and its name."""
    content = {*parameters()}
    for cls in (registry.lookup(name) for registry in REGISTRIES for name in registry.names()):
        for field in dataclasses.fields(cls):
            if (cls, field.name) not in content and field.name not in OBJECTS:
                yield cls, field.name


@each(("cls", "parameter"), [*values_of_parameters()])
def test_another_value_of_a_parameter_changes_the_identity(cls, parameter, monkeypatch):
    for kind in ("files", "models"):
        monkeypatch.setattr(cls, kind, (), raising=False)

    def values(value):
        made = instance(cls, parameter, value)
        return json.dumps(made.settings() if hasattr(made, "file_contents") else made.identity(), default=str)

    assert (values(7.25) != values(8.25)) == (parameter not in getattr(cls, "unidentified", ()))


@each("name", ["train.csv", "test.csv", "a.jsonl", "sub/b.txt"])
def test_a_byte_changed_in_a_text_or_a_task_changes_its_fingerprint(name, tmp_path):
    files = {"train.csv": "text,label\na,x\nb,y\n", "test.csv": "text,label\nc,x\nd,y\n"}
    files |= {"a.jsonl": '{"text": "one"}\n', "sub/b.txt": "two\n"}
    for file, text in files.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(text)

    def identities():
        task = load_task(tmp_path).fingerprint()
        return {"task": task, "corpus": Corpus([tmp_path / "a.jsonl", tmp_path / "sub"]).fingerprint}

    before = identities()
    (tmp_path / name).write_text(files[name].replace("a,x", "e,x").replace("c,x", "e,x").replace("o", "0"))
    after = identities()
    assert [key for key in before if before[key] != after[key]] == (["task"] if "csv" in name else ["corpus"])


def test_a_function_is_identified_by_its_file(tmp_path):
    file, found = tmp_path / "own.py", set()
    for text in ("a", "b"):
        file.write_text(f"def write(text):\n    return text  # {text}\n")
        found.add(identify_function(f"{file}:write", "generator"))
        del sys.modules[f"{PLUGIN}own"]
    assert len(found) == 2


@each("name", ["mine.yaml", "more/utils.py"])
def test_a_byte_changed_in_a_folder_of_benchmarks_changes_the_key(name, tmp_path):
    (tmp_path / "more").mkdir()
    found = set()
    for text in ("a", "b", "b"):
        (tmp_path / name).write_text(text)
        settings = BenchmarkSpec(task="mine", include_path=str(tmp_path)).settings
        found.add(BenchmarkJob(place=Place(None), model=Checkpoint("base", "x"), settings=settings).key)
    assert len(found) == 2


class Holder:
    """An object that can be called, and holds a value."""

    def __init__(self, value):
        self.value, self.own = value, self  # an object that holds itself is read once

    def __call__(self, text):
        return [text, self.value]

    def write(self, text):
        return [text, self.value]


def write(value, text):
    return [text, value]


def rewrite(value, text):
    return [value, text]


def closure(value):
    def held(text):
        return held(text[1:]) if text else value

    return held


def default(value):
    return lambda text, value=value: [text, value]


def keyword(value):
    return lambda text, *, value=value: [text, value]


FORMS = {
    "partial": lambda value: functools.partial(write, value),
    "another function": lambda value: functools.partial(rewrite, value),
    "keyword of a partial": lambda value: functools.partial(write, value=value),
    "partial of a method": lambda value: functools.partial(Holder(value).write, "text"),
    "callable object": Holder,
    "method": lambda value: Holder(value).write,
    "closure": closure,
    "closure of a function": lambda value: closure(closure(value)),
    "default": default,
    "keyword default": keyword,
    "cached": lambda value: functools.cache(closure(value)),
}
"""Functions of a value that they hold."""
plain = st.none() | st.integers(0, 2) | st.text("ab", max_size=2) | st.builds(Path, st.just("a"))
held = st.recursive(
    plain | st.builds(re.compile, st.sampled_from("ab")) | st.sampled_from([json, Holder, write]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.text("ab", max_size=1), inner, max_size=2)
        | st.frozensets(plain, max_size=2)
    ),
    max_leaves=3,
)


@settings(max_examples=100, deadline=None)
@given(held, held)
def test_functions_have_one_identity_if_and_only_if_they_hold_the_same(one, other):
    found = {(form, side): identify_function(make(value), "writer") for form, make in FORMS.items()
             for side, value in (("one", one), ("other", other))}  # fmt: skip
    same = one == other and repr(one) == repr(other)
    assert len(set(found.values())) == len(FORMS) * (1 if same else 2)
    assert all(identify_function(make(one), "writer") == found[form, "one"] for form, make in FORMS.items())


@each(("form", "value"), [(form, value) for form in FORMS for value in (np.zeros(2), open, iter("ab"))])
def test_a_function_that_holds_what_cannot_be_read_needs_a_key(form, value):
    with pytest.raises(UserError, match="identify its results with key=TEXT"):
        identify_function(FORMS[form](value), "writer")
    assert identify_function(FORMS[form](value), "writer", key="v1").endswith(" v1")
