"""Files and folders: written atomically, with the right permissions, and recognized if they are damaged."""

from __future__ import annotations

import errno
import multiprocessing
import os
import stat
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from acclimate.base.errors import UserError, explain_os_error, first_line
from acclimate.base.files import (
    atomic_folder,
    cache_folder,
    check_replaceable,
    check_report_file,
    check_writable,
    find_file,
    follow_link,
    is_intact,
    read_json,
    read_json_object,
    read_lines,
    record_files,
    write_json,
    write_text,
)
from acclimate.base.locks import output_lock
from tests.cases import SOURCES, each


def make(path, times: int) -> None:
    for _ in range(times):
        with atomic_folder(path) as folder:
            (folder / "a").write_text("whole")
            (folder / "b").write_text("whole")


def test_several_processes_can_write_the_same_folder(tmp_path):
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=make, args=(tmp_path / "folder", 100)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert sorted(path.name for path in (tmp_path / "folder").iterdir()) == ["a", "b"]
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_an_error_keeps_the_old_folder(tmp_path):
    make(tmp_path / "folder", 1)
    with pytest.raises(KeyError), atomic_folder(tmp_path / "folder") as folder:
        (folder / "a").write_text("half")
        raise KeyError
    assert (tmp_path / "folder" / "a").read_text() == "whole"
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_find_file_ignores_invalid_paths(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.txt").write_text("x")
    assert find_file(tmp_path / "a.txt") == find_file("~/a.txt") == tmp_path / "a.txt"
    for name in ("", str(tmp_path), "gone.txt", "x" * 5000, "~no-such-user/a.txt", "a\0b"):
        assert find_file(name) is None


def mode(path) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def test_permissions_follow_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        with atomic_folder(tmp_path / "folder") as folder:
            (folder / "deep").mkdir(mode=0o700)
            os.close(os.open(folder / "deep" / "weights", os.O_CREAT | os.O_WRONLY, 0o600))  # as safetensors does
        write_text(tmp_path / "text", "x")
    finally:
        os.umask(before)
    found = [mode(tmp_path / name) for name in ("folder", "folder/deep", "folder/deep/weights", "text")]
    assert found == [0o750, 0o750, 0o640, 0o640]


def test_the_target_of_a_link_is_written(tmp_path):
    (tmp_path / "disk" / "real").mkdir(parents=True)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "disk" / "real")
    make(link, 2)
    assert link.is_symlink() and (tmp_path / "disk" / "real" / "a").read_text() == "whole"
    assert [path.name for path in (tmp_path / "disk").iterdir()] == ["real"]
    (tmp_path / "report.json").symlink_to(tmp_path / "disk" / "report.json")
    write_json(tmp_path / "report.json", {"a": 1})
    assert read_json(tmp_path / "disk" / "report.json") == {"a": 1}


@each("target", ["gone", "link", "other/deep"])
def test_a_link_that_leads_nowhere_is_found_before_the_work(tmp_path, target):
    link = tmp_path / "link"
    link.symlink_to(tmp_path / target)
    for check in (follow_link, check_writable):
        with pytest.raises(UserError, match=r"'.*link' is a link to '.*', which does not exist"):
            check(link)
    with pytest.raises(UserError, match=r"'.*link' is a link to '.*', which does not exist"):
        check_writable(link / "seed-0")
    with pytest.raises(UserError, match=r"'.*link' is a link to '.*', which does not exist"), output_lock(link / "a"):
        pass


def test_a_pipe_in_place_of_a_json_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "run.json")
    for read in (read_json, read_json_object):
        with pytest.raises(UserError, match=r"run.json' is a pipe"):
            read(tmp_path / "run.json")


def test_names_that_are_not_utf8(tmp_path):
    name = os.fsdecode(b"caf\xe9.txt")
    write_json(tmp_path / "card.json", {name: [name]})
    assert read_json(tmp_path / "card.json") == {name: [name]}
    write_text(tmp_path / "card.md", f"text of {name}")
    assert (tmp_path / "card.md").read_text() == "text of caf\\udce9.txt"
    with pytest.raises(UserError, match="not valid UTF-8; choose another"):
        check_writable(tmp_path / os.fsdecode(b"caf\xe9"))


FILES = {"model.safetensors": b"weights" * 20, "README.md": b"# Card", "step-1/config.json": b"{}"}


def finished(folder: Path) -> Path:
    with atomic_folder(folder) as made:
        for name, content in FILES.items():
            (made / name).parent.mkdir(exist_ok=True)
            (made / name).write_bytes(content)
        write_json(made / "run.json", {"result": 1})
        record_files(made, "run.json")
    return folder


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from([*FILES, "run.json"]), share=st.floats(0, 0.98), junk=st.binary(max_size=9))
def test_a_damaged_file_of_a_finished_folder_is_noticed(tmp_path, name, share, junk):
    folder = finished(tmp_path / "out")
    assert is_intact(folder, "run.json", "delete it")
    content = (folder / name).read_bytes()
    damaged = content[: int(share * len(content))] + junk
    (folder / name).write_bytes(damaged)
    if name == "README.md" or damaged == content:  # a study rewrites the card, and users may edit it
        assert is_intact(folder, "run.json", "delete it")
        return
    with pytest.raises(UserError, match=rf"'{folder / name}' is (damaged|not what was written there); delete it\."):
        is_intact(folder, "run.json", "delete it")


def test_a_folder_with_missing_files_is_made_again_unless_it_has_files_of_the_user(tmp_path):
    folder = finished(tmp_path / "out")
    check_replaceable(folder, "run.json", "a model")
    (folder / "model.safetensors").unlink()
    assert not is_intact(folder, "run.json", "delete it")
    (folder / "step-1" / "notes.txt").touch()
    for check in (
        lambda: is_intact(folder, "run.json", "delete it"),
        lambda: check_replaceable(folder, "run.json", "a"),
    ):
        with pytest.raises(UserError, match=r"step-1/notes.txt' was not written by acclimate; move it"):
            check()


@each(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        '{"checksums": []}',
        '{"checksums": {"a": 1}}',
        '{"checksums": {"a": {"bytes": "1"}}}',
        "[" * 9999,
    ],
)
def test_a_manifest_that_is_not_one_is_damaged(tmp_path, content):
    folder = finished(tmp_path / "out")
    (folder / "run.json").write_text(content)
    for check in (
        lambda: is_intact(folder, "run.json", "delete it"),
        lambda: check_replaceable(folder, "run.json", "a"),
    ):
        with pytest.raises(UserError, match=r"run.json' is damaged; delete"):
            check()


def test_a_report_replaces_reports_only(tmp_path):
    report = tmp_path / "report.json"
    check_report_file(None)
    check_report_file(report)
    write_json(report, {"acclimate": "0.1", "found": 3})
    check_report_file(report)
    for content in ("text of the user", "[1]", '{"a": 1}'):
        report.write_text(content)
        with pytest.raises(UserError, match="is not a report of this command; choose another"):
            check_report_file(report)
    with pytest.raises(UserError, match="is not a report"):
        check_report_file(tmp_path)


def test_a_cache_that_cannot_be_written_costs_no_run(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").touch()
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "file" / "cache"))
    folder = cache_folder()
    assert folder == cache_folder() and "Set ACCLIMATE_CACHE to a folder that you can write" in caplog.text
    write_text(folder / "rows" / "a", "x")
    assert caplog.text.count("ACCLIMATE_CACHE") == 1


def test_a_read_only_cache_is_still_read(tmp_path, monkeypatch):
    write_text(tmp_path / "cache" / "rows" / "entry" / "meta.json", "{}")
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))

    def refuse(folder):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(folder))

    monkeypatch.setattr("acclimate.base.files._write_probe", refuse)
    folder = cache_folder()
    assert (folder / "rows" / "entry" / "meta.json").read_text() == "{}"
    write_text(folder / "rows" / "other", "x")
    assert [path.name for path in (tmp_path / "cache" / "rows").iterdir()] == ["entry"]


def test_errors_of_the_system_say_what_to_do(tmp_path, monkeypatch):
    def line(number, path, cache=None):
        return explain_os_error(OSError(number, os.strerror(number), str(path)), cache)

    (tmp_path / "secret").touch()
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) == str(tmp_path))
    assert "secret' cannot be read: Permission denied. Change its permissions" in line(
        errno.EACCES, tmp_path / "secret"
    )
    assert "free some space or choose another folder" in line(errno.EACCES, tmp_path / "new")
    assert "set ACCLIMATE_CACHE to another folder" in line(errno.ENOSPC, tmp_path / "rows" / "a", tmp_path)
    assert "Raise the limit with 'ulimit" in line(errno.EMFILE, tmp_path / "a")
    assert "current folder no longer exists" in str(explain_os_error(FileNotFoundError(errno.ENOENT, "gone")))
    assert line(errno.ENOENT, tmp_path / "a") is None and explain_os_error(OSError("can't load")) is None


def test_the_advice_of_torch_to_run_pickled_code_is_not_repeated():
    text = "Weights only load failed. Re-running `torch.load` with `weights_only` set to `False` will likely succeed"
    assert first_line(ValueError("Invalid field:\n  'a' is 3\nmore")) == "Invalid field: 'a' is 3"
    assert "weights_only" not in first_line(RuntimeError(text)) and "could run code" in first_line(RuntimeError(text))


@given(st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=4)))
def test_only_line_ends_separate_the_lines_of_a_file(tmp_path_factory, lines):
    path = tmp_path_factory.getbasetemp() / "lines.txt"
    for end in ("\n", "\r\n"):
        path.write_bytes("".join(line + end for line in lines).encode())
        assert read_lines(path) == lines


def test_no_file_is_split_at_the_separators_of_unicode():
    lines = [(file.name, line) for file in SOURCES for line in file.read_text(encoding="utf-8").split("\n")]
    split = [(name, line) for name, line in lines if ".splitlines(" in line and "/proc/" not in line]
    assert not [(name, line) for name, line in split if "read_text" in line or "open(" in line]
