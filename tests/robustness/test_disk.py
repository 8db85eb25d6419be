"""A disk that is full, read-only, or refuses large files: a one-line error, and no half-written file is used."""

from __future__ import annotations

import errno
import os

import pytest
from transformers import Trainer

from acclimate.base.errors import UserError, explain_os_error
from acclimate.base.files import (
    atomic_file,
    atomic_folder,
    check_writable,
    remove_leftovers,
    safe_join,
    translate_disk_errors,
)
from tests.cases import each
from tests.robustness.killed_process import Failure, left_over, results, run

VERBS = ("adapt", "finetune", "compare")


def check_recovery(command, folder, expected, ended) -> None:
    """Check that a command failed with a one-line error, and that it succeeds once there is space."""
    assert ended.code in (0, 2), ended.said
    if ended.code:
        assert "Error: " in ended.said.splitlines()[-1] and "Traceback" not in ended.said
    found = results(folder) if (folder / "out").exists() else {}
    assert found.items() <= expected.items()
    after = run(command, folder)
    assert after.code == 0, after.said
    assert results(folder) == expected
    assert left_over(folder) == []


@pytest.mark.parametrize(
    ("share", "verb"),
    [
        pytest.param(share, verb, marks=() if (share, verb) == (0.1, "finetune") else pytest.mark.slow)
        for share in (0.1, 0.5)
        for verb in VERBS
    ],
)
def test_a_disk_that_fills_up(commands, undisturbed, tmp_path, verb, share):
    whole, first = undisturbed(verb)
    failure = Failure(error=errno.ENOSPC, since=max(1, int(first.changes * share)))
    ended = run(commands[verb], tmp_path / "full", failure)
    assert ended.code == 2 and "No space left" in ended.said
    check_recovery(commands[verb], tmp_path / "full", results(whole), ended)


@pytest.mark.parametrize(
    ("verb", "limit"),
    [
        ("adapt", 40_000),
        pytest.param("adapt", 150_000, marks=pytest.mark.slow),
        pytest.param("finetune", 40_000, marks=pytest.mark.slow),
    ],
)
def test_files_that_are_cut_short_by_a_limit(commands, undisturbed, tmp_path, verb, limit):
    """Here, weights (safetensors) and the optimizer state (torch.save) are actually half-written."""
    whole, _ = undisturbed(verb)
    ended = run(commands[verb], tmp_path / "small", Failure(limit=limit))
    assert ended.code == 2, ended.said
    assert not (tmp_path / "small" / "out" / "model.safetensors").exists()
    check_recovery(commands[verb], tmp_path / "small", results(whole), ended)


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_a_disk_that_fills_up_at_any_change(commands, undisturbed, tmp_path, verb):
    whole, first = undisturbed(verb)
    for since in range(1, first.changes + 1, max(1, first.changes // 30)):
        folder = tmp_path / str(since)
        ended = run(commands[verb], folder, Failure(error=errno.ENOSPC, since=since))
        check_recovery(commands[verb], folder, results(whole), ended)


@each("verb", ["adapt", "finetune", "distill", "compare"])
def test_a_read_only_folder_is_detected_before_the_work(commands, tmp_path, monkeypatch, verb):
    def work(*_, **__):
        raise AssertionError("the work has begun")

    monkeypatch.setattr(Trainer, "train", work)
    ended = run(commands[verb], tmp_path / "closed", Failure(error=errno.EROFS))
    assert ended.code == 2, ended.said
    assert "Read-only file system" in ended.said.splitlines()[-1] and "Traceback" not in ended.said
    assert list((tmp_path / "closed").iterdir()) == []


@pytest.mark.parametrize("verb", ["adapt", "finetune", pytest.param("distill", marks=pytest.mark.slow)])
def test_a_finished_folder_can_be_read_where_nothing_can_be_written(commands, undisturbed, verb):
    whole, first = undisturbed(verb)
    ended = run(commands[verb], whole, Failure(error=errno.EROFS))
    assert ended.code == 0, ended.said
    assert ended.said == first.said


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"Cannot write next to '.*out'.*Choose another folder"):
        check_writable(tmp_path / "file" / "out")
    check_writable(tmp_path / "new" / "out")
    check_writable(None)
    assert list((tmp_path / "new").iterdir()) == []


def test_errors_of_tensor_libraries_become_disk_errors(tmp_path):
    for text in ("Error while serializing: I/O error: No space left on device (os error 28)", "inline_container.cc:1"):
        with pytest.raises(OSError) as caught, translate_disk_errors(tmp_path):
            raise RuntimeError(text)
        assert caught.value.errno == errno.ENOSPC
    with pytest.raises(RuntimeError, match="something else"), translate_disk_errors(tmp_path):
        raise RuntimeError("something else")


def test_leftovers_of_a_killed_process_are_removed_and_the_old_folder_is_restored(tmp_path):
    out = tmp_path / "out"
    for name in (".out.new-1", ".out.old-2/old", ".out.work", ".other.new-3"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "a").write_text(name)
    remove_leftovers(out)
    assert (out / "a").read_text() == ".out.old-2/old"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".other.new-3", ".out.work", "out"]
    with atomic_folder(out) as folder:
        (folder / "b").touch()
    assert [path.name for path in out.iterdir()] == ["b"]


@each("name", ["../x", "/etc/x", "a/../../x", "..", ".", ""])
def test_a_name_cannot_lead_out_of_a_folder(tmp_path, name):
    with pytest.raises(UserError, match="is outside the folder"):
        safe_join(tmp_path / "out", name)
    assert safe_join(tmp_path / "out", "summary.json") == tmp_path / "out" / "summary.json"


@each("name", ["rows", "results.json", "generated/a.jsonl"])
def test_a_full_cache_names_the_file_and_the_variable(tmp_path, monkeypatch, name):
    """A write, unlike opening a file, gives an error that names no file."""
    place = tmp_path / "cache" / name
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(OSError) as folder_error, atomic_folder(place):
        raise full
    with pytest.raises(OSError) as file_error, atomic_file(place.with_suffix(".x")):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    for error in (folder_error, file_error):
        line = explain_os_error(error.value, tmp_path / "cache")
        assert str(place.with_suffix("")) in line and "set ACCLIMATE_CACHE to another folder" in line
