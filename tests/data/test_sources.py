from __future__ import annotations

import json
import os
import sys
import types
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from acclimate.base.errors import UserError
from acclimate.base.settings_file import read_settings
from acclimate.data.documents import Corpus
from acclimate.data.sources import FileSource, HubSource, ListSource, resolve_sources
from acclimate.models.checkpoints import check_folder
from tests.cases import each


@pytest.fixture
def tree(tmp_path):
    for name in ("b.txt", "a.jsonl", "deep/c.csv.gz", "deep/.hidden.txt", ".git/d.txt", "README.md"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("x")
    return tmp_path


def names(sources, tree):
    return [str(source.path.relative_to(tree)) for source in sources]


def test_folders_globs_and_files(tree):
    assert names(resolve_sources(tree), tree) == ["a.jsonl", "b.txt", "deep/c.csv.gz"]
    assert names(resolve_sources(str(tree / "*")), tree) == ["a.jsonl", "b.txt", "deep/c.csv.gz"]
    assert names(resolve_sources(str(tree / "**")), tree) == ["a.jsonl", "b.txt", "deep/c.csv.gz"]
    assert names(resolve_sources(str(tree / "*.md")), tree) == ["README.md"]
    assert names(resolve_sources([tree / "b.txt", tree]), tree) == ["b.txt", "a.jsonl", "deep/c.csv.gz"]
    assert names(resolve_sources([str(tree / "*.txt"), str(tree / "deep" / ".." / "b.txt")]), tree) == ["b.txt"]


def test_an_existing_file_is_not_taken_for_a_glob(tmp_path):
    path = tmp_path / "data[1].txt"
    path.write_text("x")
    assert resolve_sources(path) == [FileSource(path)]


@each(
    ("source", "message"),
    [
        ("c.txt", "no file .*c.txt"),
        ("a.json", "Did you mean '.*a.jsonl'"),
        ("data.odd", r"format of .* is unknown.*\.parquet.*\.zst"),
        ("nowhere/a.txt", "folder '.*nowhere' does not exist"),
        ("*.parquet", "matches nothing"),
        ("*.odd", "matches no file of a known format"),
        ("empty", "contains no file of a known format"),
    ],
)
def test_missing_sources_give_a_one_line_error(tree, source, message):
    (tree / "empty").mkdir(exist_ok=True)
    (tree / "data.odd").touch()
    with pytest.raises(UserError, match=message) as error:
        resolve_sources(str(tree / source))
    assert "\n" not in str(error.value)


@each(
    ("source", "message"),
    [
        ("x" * 300, "File name too long"),
        ("*" * 5000, "is not the name of a file"),
        (f"*/{'x' * 300}/*.txt", "File name too long|matches nothing"),
        ("~no-such-user/x.txt", "home directory"),
        ("a\0.txt", "null|no file"),
    ],
)
def test_invalid_paths_give_a_one_line_error(tree, monkeypatch, source, message):
    monkeypatch.chdir(tree)
    with pytest.raises(UserError, match=message) as error:
        resolve_sources(source)
    assert "\n" not in str(error.value)


def test_an_empty_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for sources in ([], "", [""]):
        with pytest.raises(UserError, match=r"name at least one|name of a corpus is empty"):
            resolve_sources(sources)
    with pytest.raises(UserError, match="'hf:ag_news'"):
        resolve_sources("ag_news")
    with pytest.raises(UserError, match="'hf:someone/ag_news'"):
        resolve_sources("someone/ag_news")


def test_the_fingerprint_depends_on_the_content_only(tmp_path):
    one, other = tmp_path / "a.txt", tmp_path / "b.txt"
    one.write_text("same")
    other.write_text("same")
    os.utime(other, (1, 1))
    assert FileSource(one).fingerprint() == FileSource(other).fingerprint()
    other.write_text("sane")
    assert FileSource(one).fingerprint() != FileSource(other).fingerprint()
    assert ListSource(("ab", "c")).fingerprint() != ListSource(("a", "bc")).fingerprint()


def test_the_fingerprint_of_a_large_file(tmp_path, monkeypatch):
    monkeypatch.setattr("acclimate.data.sources.MAX_FULLY_HASHED_BYTES", 10)
    monkeypatch.setattr("acclimate.data.sources._HASH_CHUNK_BYTES", 4)
    path = tmp_path / "a.txt"
    fingerprints = set()
    for text in ("abcdefghijkl", "abcdefghijkm", "xbcdefghijkl", "abcdefghijk"):
        path.write_text(text)
        os.utime(path, (1, 1))
        fingerprints.add(FileSource(path).fingerprint())
    os.utime(path, (2, 2))
    fingerprints.add(FileSource(path).fingerprint())
    assert len(fingerprints) == 5


def test_hub_names():
    assert HubSource.parse("hf:user/set") == HubSource("user/set", None, "train")
    assert HubSource.parse("hf:set:conf") == HubSource("set", "conf", "train")
    assert HubSource.parse("hf:set::test") == HubSource("set", None, "test")
    assert HubSource.parse("hf:set:::body") == HubSource("set", None, "train", "body")
    for name in ("hf:", "hf:a:b:c:d:e"):
        with pytest.raises(UserError, match="hf:NAME:CONFIG:SPLIT"):
            HubSource.parse(name)


class _Rows(list):
    column_names = None


def _hub(monkeypatch, load):
    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load))


def test_hub_rows_stream(monkeypatch):
    calls = []

    def load(name, config, **options):
        calls.append((name, config, options))
        return _Rows([{"text": "a"}, {"text": 1}, {"other": 2}])

    _hub(monkeypatch, load)
    records = list(HubSource("set", "conf", "test").records("text", "auto"))
    assert calls == [("set", "conf", {"split": "test", "streaming": True})]
    assert [(line, text, bool(problem)) for line, text, problem in records] == [
        (1, "a", False),
        (2, "", True),
        (3, "", True),
    ]


def test_hub_errors_are_one_line(monkeypatch):
    def refuse(*_, **__):
        raise ConnectionError("no network\nlong story")

    _hub(monkeypatch, refuse)
    with pytest.raises(UserError, match=r"Cannot open 'hf:set::train': no network\.$"):
        list(HubSource("set").records("text", "auto"))

    def breaking():
        yield {"text": "a"}
        raise ConnectionError("gone")

    rows = type("Rows", (), {"column_names": ["text"], "__iter__": lambda self: breaking()})()
    _hub(monkeypatch, lambda *_, **__: rows)
    with pytest.raises(UserError, match="stopped at row 1: gone"):
        list(HubSource("set").records("text", "auto"))
    with pytest.raises(UserError, match=r"no column 'body'.*'text'"):
        list(HubSource("set").records("body", "auto"))


def test_each_source_may_name_its_column(tmp_path):
    (tmp_path / "a.csv").write_text("text,body\nx,one\n")
    (tmp_path / "b.jsonl").write_text('{"text": "two"}\n')
    (tmp_path / "odd:name.txt").write_text("three\n")
    sources = [f"{tmp_path}/a.csv:body", tmp_path / "b.jsonl", f"{tmp_path}/odd:name.txt"]
    assert list(Corpus(sources)) == ["one", "two", "three"]
    assert list(Corpus(f"{tmp_path}/*.csv:body")) == list(Corpus(tmp_path / "a.csv", text_column="body")) == ["one"]
    assert list(Corpus([f"{tmp_path}/a.csv:body", f"{tmp_path}/a.csv:text"])) == ["one", "x"]
    assert Corpus(f"{tmp_path}/a.csv:body").fingerprint != Corpus(f"{tmp_path}/a.csv:text").fingerprint
    assert list(Corpus(f"{tmp_path}/odd:*.txt")) == list(Corpus(f"{tmp_path}/*:name.txt")) == ["three"]
    with pytest.raises(UserError, match="no column 'gone'"):
        list(Corpus(f"{tmp_path}/a.csv:gone"))
    with pytest.raises(UserError, match=r"no file '.*c.csv:body'"):
        Corpus(f"{tmp_path}/c.csv:body")


def test_other_files_in_a_folder_are_counted_and_named(tmp_path, caplog):
    for name in ("a.txt", "README.md", "c.odd"):
        (tmp_path / name).write_text("x")
    (tmp_path / "config.json").write_text('{\n"size": 3, "features": {"text": "string"}\n}')
    (tmp_path / "rows.json").write_text('[{"text": "y"}]')
    assert list(Corpus(tmp_path)) == ["x", "y"]
    assert "3 files are left out" in caplog.text and "README.md, c.odd, config.json" in caplog.text
    caplog.clear()
    assert list(Corpus([tmp_path / "a.txt", tmp_path / "rows.json"])) == ["x", "y"] and not caplog.text


def test_linked_folders_are_read_once(tmp_path):
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "a.txt").write_text("x")
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "part").symlink_to(tmp_path / "else")
    (tmp_path / "corpus" / "same").symlink_to(tmp_path / "corpus")
    assert list(Corpus(tmp_path / "corpus")) == ["x"]


def test_a_folder_that_cannot_be_read_is_an_error(tmp_path, monkeypatch):
    """With a patched ``os.scandir``, because permissions do not restrict root."""
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "closed").mkdir()
    scan = os.scandir

    def refuse(place):
        if str(place).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(place))
        return scan(place)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(UserError, match=r"Cannot read '.*closed': Permission denied"):
        resolve_sources(tmp_path)
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "b.txt").write_text("x")
    for pattern in ("**/*.txt", "*/*.txt", "*/b.txt"):
        with pytest.raises(UserError, match=r"Cannot read '.*closed': Permission denied"):
            resolve_sources(tmp_path / pattern)
    assert len(resolve_sources(tmp_path / "open" / "*.txt")) == 1


def test_pipes_devices_and_broken_links_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "zero.txt").symlink_to("/dev/zero")
    (tmp_path / "loop.csv").symlink_to("loop.csv")
    (tmp_path / "gone.tsv").symlink_to("nowhere.tsv")
    for name, message in (
        *((name, "is a pipe, a socket or a device") for name in ("pipe.jsonl", "zero.txt")),
        *((name, "is a link to a file that does not exist, or to itself") for name in ("loop.csv", "gone.tsv")),
    ):
        place = tmp_path / f"with-{name}"
        place.mkdir()
        (place / "a.txt").write_text("x")
        (tmp_path / name).rename(place / name)
        for source in (place / name, place, f"{place}/*{Path(name).suffix}"):
            with pytest.raises(UserError, match=message):
                resolve_sources(source)
        if name != "loop.csv":
            with pytest.raises(UserError, match=message if "pipe" in message else "Cannot read"):
                FileSource(place / name).fingerprint()


def test_pipes_among_settings_and_model_files_are_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    for name, use in (("study.yaml", read_settings), ("model.safetensors", lambda path, _: check_folder(path.parent))):
        os.mkfifo(tmp_path / name)
        with pytest.raises(UserError, match=f"{name}' is a pipe, a socket or a device"):
            use(tmp_path / name, "study")
        (tmp_path / name).unlink()


def test_file_names_that_are_not_utf8(tmp_path):
    for name in (b"caf\xe9.txt", b"caf\xe9.csv", b"new\nline.txt"):
        Path(os.fsdecode(os.fsencode(tmp_path / "x")[:-1] + name)).write_bytes(b"text\nb\n\xff\n")
    pyarrow.parquet.write_table(pyarrow.table({"text": ["c"]}), tmp_path / "c.parquet")
    (tmp_path / "c.parquet").rename(os.fsdecode(os.fsencode(tmp_path) + b"/\xe9.parquet"))
    corpus = Corpus(tmp_path)
    assert sorted(corpus) == ["b", "c", "text"]
    shown = json.dumps([corpus.report.as_dict(), corpus.contents()], ensure_ascii=False)
    assert "caf\\\\xe9.txt" in shown and shown.encode("utf-8")
    assert all("\n" not in problem for problem in corpus.report.problems)
    with pytest.raises(UserError) as caught:
        Corpus(os.fsdecode(b"gone\xe9\n.txt"))
    assert r"gone\xe9\n.txt" in str(caught.value)
