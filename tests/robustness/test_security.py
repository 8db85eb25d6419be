"""No code that comes with a model, corpus or task is run, and nothing is written outside the output folder."""

from __future__ import annotations

import ast
import json
import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file

import acclimate
from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.method import Method
from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from acclimate.engine.callbacks import find_newest_checkpoint, mark_complete
from acclimate.models.checkpoints import TRUST, trusts_remote_code
from acclimate.models.loading import load_language_model
from acclimate.study.compare import compare
from acclimate.tasks.finetune import finetune
from acclimate.tasks.kinds.classification.data import Task
from tests.cases import SOURCES
from tests.kills import killed
from tests.study.fakes import World, files, study
from tests.tiny import TEXTS, save_tiny, tiny_tokenizer

SOURCE = Path(acclimate.__file__).parent
SHORT = {"steps": 3, "batch_size": 4, "max_length": 24, "precision": "fp32", "progress": False}
ROWS = [{"text": text, "label": "ab"[number % 2]} for number, text in enumerate(TEXTS)]
TASK = Task.of("t", ROWS, ROWS[:4])

FORBIDDEN = {
    *("pickle.load", "pickle.loads", "pickle.dump", "pickle.dumps", "pickle.Unpickler", "joblib.load", "joblib.dump"),
    *("torch.load", "torch.save", "eval", "exec", "os.system", "yaml.load", "marshal.loads"),
    *("shutil.unpack_archive", "tarfile.open", "zipfile.ZipFile", "KeyedVectors.load"),
}


PIPE = {("study/workers.py", "pickle.dumps"), ("study/workers.py", "pickle.load")}
"""What a process sends to the worker that it has started, and the worker reads, as in ``multiprocessing``."""
STATE = {("engine/sharding.py", "torch.save"), ("engine/sharding.py", "torch.load")}
"""The optimizer in a checkpoint, which the ``Trainer`` reads and writes where nothing is sharded."""

LISTING = {("data/conversion.py", "zipfile.ZipFile")}
"""The sizes of the parts of a document, before it is read; nothing is unpacked."""


WORDS = re.compile(
    r"pickle|joblib|torch\.(load|save)|\beval|\bexec|system|yaml|marshal|unpack|extractall|tarfile|ZipFile|KeyedV|pretrained"
)
"""What a file with one of the calls below contains."""


@cache
def calls():
    """Return the calls in the files of the package with such a call: location, the name called, and keywords."""
    return [
        (f"{file.relative_to(SOURCE)}:{node.lineno}", ast.unparse(node.func), node.keywords)
        for file in SOURCES
        if WORDS.search(text := file.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
    ]


def test_the_package_neither_pickles_nor_unpacks_nor_evaluates():
    found = {(where, name) for where, name, _ in calls() if name in FORBIDDEN or name.endswith("extractall")}
    assert {(where.split(":")[0], name) for where, name in found} == PIPE | STATE | LISTING, found
    loads = [
        {word.arg: ast.unparse(word.value) for word in words} for _, name, words in calls() if name == "torch.load"
    ]
    assert all(words.get("weights_only") == "True" for words in loads), loads
    given = {where: word.value for where, _, words in calls() for word in words if word.arg == "allow_pickle"}
    assert all(ast.unparse(value) == "False" for value in given.values()), given


def test_every_loader_sets_trust_remote_code():
    loaders = {}
    for where, name, keywords in calls():
        if name.startswith(("Auto", "auto")) and name.endswith(".from_pretrained"):
            given = {word.arg: ast.unparse(word.value) for word in keywords}
            spread = [ast.unparse(word.value) for word in keywords if word.arg is None]
            loaders[where] = given.get("trust_remote_code") or ("code" if "code" in spread else None)
    assert len(loaders) >= 4
    assert set(loaders.values()) <= {"trusts_remote_code()", "False", "code"}, loaders


def test_only_one_value_of_one_variable_is_trust(monkeypatch):
    monkeypatch.delenv(TRUST, raising=False)
    assert not trusts_remote_code()
    for value in ("", "0", "true", "yes"):
        monkeypatch.setenv(TRUST, value)
        assert not trusts_remote_code()
    monkeypatch.setenv(TRUST, "1")
    assert trusts_remote_code()


def test_code_in_a_model_folder_is_not_run(tmp_path, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("nobody is asked"))
    folder, flag = tmp_path / "model", tmp_path / "flag"
    folder.mkdir()
    names = {"AutoConfig": "code.C", "AutoModelForMaskedLM": "code.M", "AutoModelForSequenceClassification": "code.M"}
    (folder / "config.json").write_text(json.dumps({"model_type": "unheard-of", "auto_map": names}))
    (folder / "code.py").write_text(f"open({str(flag)!r}, 'w')\nC = M = None\n")
    tiny_tokenizer().save_pretrained(folder)
    for use in (lambda: load_language_model(folder), lambda: finetune(folder, TASK, epochs=1, progress=False)):
        with pytest.raises(UserError, match=f"its own Python code, which is not run\\. Set {TRUST}=1") as caught:
            use()
        assert "\n" not in str(caught.value)
    assert not flag.exists()


@dataclass
class Bomb:
    """An object that creates a file when it is unpickled."""

    flag: Path

    def __reduce__(self):
        return os.mkdir, (str(self.flag),)


def test_pickled_weights_are_read_as_weights_only(tmp_path):
    folder, flag = save_tiny("bert", tmp_path / "model"), tmp_path / "flag"
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save({**state, "bomb": Bomb(flag)}, folder / "pytorch_model.bin")
    with pytest.raises(UserError) as caught:
        load_language_model(folder)
    assert "\n" not in str(caught.value) and not flag.exists()
    model = transformers.AutoModelForMaskedLM.from_config(transformers.AutoConfig.from_pretrained(folder))
    torch.save({**model.state_dict(), **state}, folder / "pytorch_model.bin")
    loaded = load_language_model(folder).model.state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in state.items())


def test_a_checkpoint_is_read_as_weights_only(tiny_bert, tmp_path):
    out, flag = tmp_path / "out", tmp_path / "flag"
    with killed(2):
        adapt(tiny_bert, Corpus.of(TEXTS), "mlm", out, save_every=1, **SHORT)
    checkpoint = find_newest_checkpoint(tmp_path / ".out.work" / "steps")
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"):
        torch.save({"bomb": Bomb(flag)}, checkpoint / name)
    mark_complete(checkpoint)
    with pytest.raises(Exception, match=r"[Ww]eights.only"):
        adapt(tiny_bert, Corpus.of(TEXTS), "mlm", out, save_every=1, **SHORT)
    assert not flag.exists() and not out.exists()


@pytest.mark.needs("dga")
def test_what_is_written_holds_no_pickle(tiny_bert, tmp_path, monkeypatch):
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))
    adapt(tiny_bert, Corpus.of(TEXTS), {"dga": {"importance_tokens": 100}}, tmp_path / "a", **SHORT)
    finetune(tiny_bert, TASK, epochs=1, out=tmp_path / "b", progress=False)
    written = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert any("cache" in file.parts for file in written)
    assert len(written) > 10
    known = {".json", ".jsonl", ".safetensors", ".txt", ".jinja", ".md"}
    rows = {"tokens.bin", "ends.bin", "documents.bin"}  # raw arrays of numbers
    assert [file.name for file in written if file.suffix not in known and file.name not in rows] == []
    for file in written:
        assert not file.read_bytes().startswith((b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"PK"))


@dataclass
class Escaping(Method):
    """A method whose record has a file name that leads out of the folder."""

    where: str = "../summary.json"
    name = "escaping"

    def prepare(self, run) -> None:
        run.preparation[self.where] = {"found": 1}


def test_records_of_a_method_stay_in_its_folder(tiny_bert, tmp_path):
    with pytest.raises(UserError, match=r"'\.\./summary\.json' is outside the folder"):
        adapt(tiny_bert, Corpus.of(TEXTS), Escaping(), tmp_path / "out", **SHORT)
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == []
    adapt(tiny_bert, Corpus.of(TEXTS), Escaping("summary.json"), tmp_path / "out", **SHORT)
    assert json.loads((tmp_path / "out" / "summary.json").read_text()) == {"found": 1}


def test_names_in_a_study_cannot_leave_its_folder(tmp_path):
    given = files(tmp_path / "given")
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    domain = {"name": "../../evil", "corpus": str(given / "cs.txt"), "tasks": [str(given / "intent")]}
    methods = ["none", {"name": "mlm", "label": "/../../worse"}]
    values = study(given, domains=[domain], methods=methods, seeds=1, name="../worst")
    compare(values, tmp_path / "runs" / "out", progress=False, backend=World().backend())
    made = {path for path in tmp_path.rglob("*") if path.is_file()} - before
    assert made and all(path.is_relative_to(tmp_path / "runs" / "out") for path in made)
