"""The count of reads: what counts, resuming, several processes, damage, and tasks without a folder."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from acclimate.base.errors import UserError
from acclimate.labs.auto import confirming
from acclimate.labs.auto.confirming import LEDGER, count_reads
from acclimate.tasks.kinds.classification.data import Example, Task
from tests.cases import each


def task(path=None, first=0, items=30):
    test = [Example(f"text {number}", None, number % 2) for number in range(first, first + items)]
    return Task("toy", test, test, ["a", "b"], path=path)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Give each test a cache of its own, which remembers the items of all tasks."""
    monkeypatch.setattr(confirming, "cache_folder", lambda: tmp_path / "cache")
    return tmp_path / "cache"


def test_reads_of_the_same_items_count_across_runs(tmp_path):
    assert [count_reads(task(tmp_path), run) for run in ("one", "two", "two", "one", "three")] == [1, 2, 2, 1, 3]
    assert count_reads(task(tmp_path, first=100), "four") == 1  # other items
    assert count_reads(task(tmp_path, first=110), "five") == 2  # some of them again
    assert count_reads(replace(task(tmp_path), test=task().test[::-1]), "six") == 4  # in another order
    reads = json.loads((tmp_path / LEDGER).read_text())["reads"]
    assert [read["run"] for read in reads] == ["one", "two", "three", "four", "five", "six"]
    assert "text" not in json.dumps(reads)  # hashes only


def test_the_record_is_beside_a_file(tmp_path):
    (tmp_path / "data.csv").write_text("text,label\n")
    count_reads(task(tmp_path / "data.csv"), "one")
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".json"] == [".data.csv.acclimate-reads.json"]


def test_tasks_without_a_folder_are_counted_in_the_cache(tmp_path, monkeypatch, caplog):
    assert [count_reads(task(), run) for run in ("one", "two")] == [1, 2]

    write = confirming.write_json

    def refuse(path, value):
        if "cache" not in str(path):
            raise PermissionError(path)
        return write(path, value)

    monkeypatch.setattr(confirming, "write_json", refuse)
    assert count_reads(task(tmp_path), "three") == 3
    assert "counted elsewhere only" in caplog.text
    assert not list(tmp_path.glob(".*lock"))


def test_a_copy_of_the_items_is_recognized_and_so_is_a_shared_folder_on_another_machine(tmp_path, cache):
    for name in ("one", "copy"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "data.csv").write_text("text,label\n")
    assert count_reads(task(tmp_path / "one" / "data.csv"), "one") == 1
    assert count_reads(task(tmp_path / "copy" / "data.csv"), "two") == 2
    shutil.rmtree(cache)  # another machine
    assert count_reads(task(tmp_path / "copy" / "data.csv"), "two") == 2
    assert count_reads(task(tmp_path / "copy" / "data.csv"), "three") == 2
    assert count_reads(task(tmp_path / "one" / "data.csv"), "four") == 4  # by now the cache has the reads of the copy


def test_several_runs_at_once_have_different_numbers(tmp_path):
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda run: count_reads(task(tmp_path), str(run)), range(4)))
    assert sorted(found) == [1, 2, 3, 4]


@each("content", [
    "", "[]", "{", '{"reads": 1}', '{"reads": [{"run": "a"}]}', '{"reads": ["a"]}', '"a"', "\x00",
    '{"reads": [{"run": "a", "number": 1, "hashes": [[1]]}]}', '{"reads": [{"run": "a", "number": 0, "hashes": []}]}',
])  # fmt: skip
def test_a_damaged_record_is_an_error(content, tmp_path):
    (tmp_path / LEDGER).write_text(content)
    with pytest.raises(UserError, match="delete it to count from one again"):
        count_reads(task(tmp_path), "one")
    assert (tmp_path / LEDGER).read_text() == content
