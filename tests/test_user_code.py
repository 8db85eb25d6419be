"""User code is part of the identity of results: after a change to it, they are computed again."""

import importlib
import json
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from acclimate.adaptation import method as methods
from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.method import REGISTRY
from acclimate.base.errors import UserError
from acclimate.base.registry import (
    PLACES,
    PLUGIN,
    declared_names,
    find_registry,
    hash_user_code,
    identify_function,
    imported_plugins,
    load_function,
)
from acclimate.data.documents import Corpus
from acclimate.parts import masking
from tests.cases import each
from tests.test_cli import call
from tests.tiny import TEXTS

USER_MODULE = """
from dataclasses import dataclass
from acclimate.adaptation.method import (
    Method,
    register,
)

@register("mine", summary="for this test")
@dataclass
class Mine(Method):
    factor: float = 1.0

    def objectives(self):
        return super().objectives()  # {}
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """Return a function that writes a module with a user-defined method and imports it."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(comment):
        (tmp_path / "my_methods.py").write_text(USER_MODULE.format(comment))
        sys.modules.pop("my_methods", None)
        importlib.invalidate_caches()
        return importlib.import_module("my_methods").Mine

    yield write
    sys.modules.pop("my_methods", None)
    REGISTRY.entries.pop("mine", None)


def test_code_of_this_package_is_identified_by_its_version():
    for name in methods.names():
        assert hash_user_code(methods.lookup(name)) == {}
    for name in masking.names():
        assert hash_user_code(masking.lookup(name)) == {}


def test_user_code_is_identified_by_its_file_also_for_derived_classes(mine):
    first = mine("first")
    code = hash_user_code(first)
    assert list(code) == ["my_methods"]
    assert methods.get("mine").file_contents() == {"code of my_methods": code["my_methods"]}
    derived = type("Derived", (first,), {"__module__": "my_methods"})
    assert hash_user_code(derived) == code
    assert hash_user_code(mine("second")) != code
    assert hash_user_code(mine("first")) == code


def test_a_class_without_a_file_has_no_hash():
    assert hash_user_code(type("Typed", (methods.Method,), {"__module__": "nowhere"})) == {}


def test_a_changed_method_does_not_reuse_an_earlier_result(mine, tiny_bert, tmp_path):
    options = {
        "model": tiny_bert,
        "corpus": Corpus.of(TEXTS),
        "steps": 1,
        "max_length": 24,
        "batch_size": 4,
        "progress": False,
    }
    mine("first")
    adapt(**options, method="mine", out=tmp_path / "out")
    made = (tmp_path / "out" / "model.safetensors").stat().st_mtime_ns
    adapt(**options, method="mine", out=tmp_path / "out")
    assert (tmp_path / "out" / "model.safetensors").stat().st_mtime_ns == made
    mine("second")
    with pytest.raises(UserError, match="holds another adaptation"):
        adapt(**options, method="mine", out=tmp_path / "out")


@pytest.fixture
def plugin(tmp_path):
    """The file of a method, as users write it next to their data."""
    (tmp_path / "my-method.py").write_text(USER_MODULE.format("in a file"))
    yield tmp_path / "my-method.py"
    for name in [name for name in sys.modules if name.startswith(PLUGIN)]:
        del sys.modules[name]
    REGISTRY.entries.pop("mine", None)


def test_a_method_in_a_file_is_used_by_name(plugin, tiny_bert, tmp_path, monkeypatch, capsys):
    code, out, err = call(monkeypatch, capsys, "methods", "mine", "--plugin", plugin)
    assert code == 0 and "factor = 1.0 (float)" in out and out.endswith(f"--method mine --plugin {plugin}\n"), err
    (tmp_path / "text.txt").write_text("\n".join(TEXTS))
    words = ["adapt", "--model", tiny_bert, "--corpus", tmp_path / "text.txt", "--method", "mine", "--plugin", plugin]
    code, out, err = call(monkeypatch, capsys, *words, "--steps", 1, "--max-length", 24, "--out", tmp_path / "out")
    assert code == 0 and f"--methods mine --out runs/compare --plugin {plugin}" in out, err
    assert '"code of acclimate_plugin_my-method"' in (tmp_path / "out" / "acclimate.json").read_text()


@each(
    ("name", "text", "message"),
    [
        ("missing.py", None, "There is no Python file"),
        ("notes.txt", "x = 1", "give the .py file that registers the method or function"),
        ("broken.py", "x = 1 +", "cannot be imported: SyntaxError"),
        ("fails.py", "raise ValueError('no file')", "cannot be imported: ValueError: no file."),
        ("exits.py", "import sys; sys.exit(0)", "cannot be imported: SystemExit: 0."),
        ("closes.py", "raise GeneratorExit", "cannot be imported: GeneratorExit: GeneratorExit."),
    ],
)
def test_a_file_that_is_no_plugin_is_one_line(plugin, tmp_path, monkeypatch, capsys, name, text, message):
    other = tmp_path / "other"
    other.mkdir()
    if text is not None:
        (other / name).write_text(text)
    flags = ["--plugin", plugin, "--plugin", other / name]
    code, _, err = call(monkeypatch, capsys, "methods", *flags)
    assert code == 2 and message in err and len(err.splitlines()) == 1


def test_files_of_the_same_name_are_modules_of_their_own(plugin, tmp_path):
    functions = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        file = tmp_path / name / "score.py"
        file.write_text(f"@dataclass\nclass {name.title()}:\n    x: int = 1\ndef score():\n    return '{name}'\n")
        file.write_text("from dataclasses import dataclass\n" + file.read_text())
        functions.append(load_function(f"{file}:score", "scorer"))
        assert load_function(f"{file}:score", "scorer") is functions[-1]
    assert [function() for function in functions] == ["one", "two"]
    first, second = (identify_function(function, "scorer") for function in functions)
    assert first != second == identify_function(f"{tmp_path / 'two' / 'score.py'}:score", "scorer")
    assert [Path(file).parent.name for file in imported_plugins()][-2:] == ["one", "two"]


EXITS = """
import sys
from dataclasses import dataclass
from acclimate.adaptation.method import (
    Method,
    register,
)

@register("exiting", summary="for this test")
@dataclass
class Exiting(Method):
    def objectives(self):
        sys.exit(0)

def write(text):
    sys.exit(0)

def close(text):
    raise GeneratorExit
"""


@pytest.mark.needs("best")
@each(
    "words",
    [
        ("adapt", "--model", "MODEL", "--method", "exiting", "--max-length", 24),
        ("transform", "--by", "generate by=write"),
        ("transform", "--by", "generate by=close"),
        ("select", "--by", "best by=rater rater=write documents=2"),
        ("generate-queries", "--generator", "FILE:write"),
    ],
)
def test_code_of_the_user_that_exits_is_an_error(words, tiny_bert, tmp_path, monkeypatch, capsys):
    file, corpus = tmp_path / "exits.py", tmp_path / "text.jsonl"
    file.write_text(EXITS)
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    words = [str(word).replace("MODEL", str(tiny_bert)).replace("FILE", str(file)) for word in words]
    words += ["--corpus", corpus, "--out", tmp_path / "out.jsonl"]
    try:
        plugins = [] if words[0] == "generate-queries" else ["--plugin", file]
        code, _, err = call(monkeypatch, capsys, *words, *plugins)
    finally:
        sys.modules.pop(f"{PLUGIN}exits", None)
        REGISTRY.entries.pop("exiting", None)
    assert code == 2 and ("SystemExit: 0" in err or "GeneratorExit" in err), err
    assert "Traceback" not in err and err.splitlines()[-1].startswith("Error: ")


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Return a function that declares an entry point of a group whose module has a text."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def declare(group, text):
        (tmp_path / "installed_part.py").write_text(text)
        importlib.invalidate_caches()
        entry = EntryPoint("part", "installed_part", group)
        monkeypatch.setattr("acclimate.base.registry.entry_points", lambda group: [entry] * (group == entry.group))
        monkeypatch.setattr(find_registry(group), "_discovered", False)
        declared_names.cache_clear()

    yield declare
    declared_names.cache_clear()


@each(
    ("group", "text", "message"),
    [
        *((group, "import sys; sys.exit(0)", "SystemExit: 0") for group in PLACES if group != "acclimate.verbs"),
        ("acclimate.methods", "import nothing_of_this_name", "No module named 'nothing_of_this_name'"),
        ("acclimate.methods", "x = = 1", "SyntaxError"),
    ],
)
def test_an_installed_package_that_cannot_be_imported_is_named(group, text, message, installed):
    installed(group, text)
    for _ in range(2):  # the second use is not without the package
        with pytest.raises(UserError, match=f"declares 'part' in {group}, which cannot be imported: .*{message}"):
            find_registry(group).names()


def test_an_installed_package_that_exits_is_an_error_of_every_command(installed, tmp_path, monkeypatch, capsys):
    installed("acclimate.methods", "import sys; sys.exit(0)")
    study = ["compare", "--model", "nothing", "--corpus", __file__, "--task", __file__, "--out", tmp_path / "out"]
    for words in (["methods"], [*study, "--dry-run"], study):
        code, _, err = call(monkeypatch, capsys, *words)
        assert code == 2 and "'part' in acclimate.methods" in err, (words, err)
