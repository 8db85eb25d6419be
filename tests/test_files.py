"""Folders are written atomically, even by several processes at the same time."""

from __future__ import annotations

import multiprocessing

import pytest

from acclimate.files import atomic_folder, find_file


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
