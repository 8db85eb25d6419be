"""Passes are compiled once, where that can be done, and nothing goes wrong where it cannot."""

import re
import stat
import subprocess
import sys

import pytest
import torch

from acclimate.backbone import compiled
from acclimate.backbone.passes import passes_for

HERE = pytest.mark.skipif(compiled.library() is None, reason="no compiler here")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty cache, and no memory of what was loaded before."""
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(compiled.SWITCH, raising=False)
    monkeypatch.setattr(compiled, "library", compiled.library.__wrapped__)
    return tmp_path / "cache" / "compiled"


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """Put a script in the place of the compiler."""

    def put(script):
        file = tmp_path / "c++"
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setattr(compiled.shutil, "which", lambda name: str(file))

    return put


@HERE
def test_the_compiler_is_called_once_and_leaves_one_file(folder, monkeypatch):
    assert compiled.library() is not None
    (file,) = folder.iterdir()
    assert file.suffix == ".so"
    monkeypatch.setattr(compiled.shutil, "which", lambda name: None)
    assert compiled.library() is not None


@HERE
@pytest.mark.parametrize(("wanted", "called"), [("mine", "mine"), ("absent", "c++"), ("", "c++")])
def test_the_compiler_that_is_wished_for_is_called_if_it_is_there(tmp_path, monkeypatch, wanted, called):
    for name in ("mine", "c++"):
        file = tmp_path / name
        file.write_text(f"#!/bin/sh\necho {name} >> {tmp_path}/called\nexit 1\n")
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("CXX", wanted)
    assert compiled.library() is None
    assert (tmp_path / "called").read_text().split() == [called]


@HERE
def test_another_processor_has_its_own(folder, tmp_path, monkeypatch):
    compiled.library()
    other = tmp_path / "cpuinfo"
    other.write_text("flags\t\t: mmx\n")
    monkeypatch.setattr(compiled, "PROCESSOR", other)
    compiled.library()
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize("answer", ["0", "no", "False"])
def test_it_can_be_switched_off(folder, monkeypatch, answer):
    monkeypatch.setenv(compiled.SWITCH, answer)
    assert compiled.library() is None and not folder.exists()
    assert passes_for(torch.ones(3)) is None


@HERE
def test_without_a_compiler_torch_does_it(monkeypatch, caplog):
    monkeypatch.setattr(compiled.shutil, "which", lambda name: None)
    with caplog.at_level("INFO"):
        assert compiled.library() is None
    assert "no compiler (c++, g++, clang++)" in caplog.text


@HERE
@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("echo 'no such option' >&2; exit 1", "failed: no such option"),
        ("exit 3", "failed: without a word"),
        ("sleep 20", "timed out"),
        ('while [ "$1" != -o ]; do shift; done; echo nonsense > "$2"', "invalid ELF header|file too short"),
        ("exit 0", "No such file"),
    ],
)
def test_a_compiler_that_fails_leaves_nothing_and_torch_does_it(folder, compiler, monkeypatch, caplog, script, says):
    monkeypatch.setattr(compiled, "SECONDS", 0.5)
    compiler(script)
    with caplog.at_level("INFO"):
        assert compiled.library() is None
    assert re.search(says, caplog.text)
    assert not list(folder.iterdir())


@HERE
def test_what_another_user_left_is_not_run(folder, monkeypatch):
    compiled.library()
    (file,) = folder.iterdir()
    file.write_text("harm")
    user = compiled.os.getuid()
    monkeypatch.setattr(compiled.os, "getuid", lambda: user + 1)
    monkeypatch.setattr(compiled, "_load", lambda path: path.read_bytes()[:4])
    assert compiled.library() == b"\x7fELF"  # compiled anew


@HERE
def test_a_folder_that_cannot_be_written_is_no_error(folder, tmp_path):
    (tmp_path / "cache").write_text("a file where a folder should be")
    assert compiled.library() is None


@HERE
def test_other_packages_with_threads_of_their_own_do_not_matter():
    code = (
        "import sklearn.metrics, torch, acclimate.backbone.compiled as c\n"
        "before = {l.split()[-1] for l in open('/proc/self/maps') if 'gomp' in l}\n"
        "assert c.library() is not None\n"
        "assert {l.split()[-1] for l in open('/proc/self/maps') if 'gomp' in l} == before\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
