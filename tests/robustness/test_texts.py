"""Malformed corpora and tasks: each unusable line is counted and named, each unusable file is a one-line error."""

from __future__ import annotations

import gzip
import json
import os
import random
import tracemalloc
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.adaptation.adapt import adapt
from acclimate.base.errors import UserError
from acclimate.data import opening, tokenizing
from acclimate.data.documents import Corpus
from acclimate.data.task_kinds import load_task
from acclimate.data.tokenizing import tokenize
from tests.cases import each
from tests.tasks.test_data import TEST, TRAIN, folder, lines
from tests.tiny import tiny_tokenizer

GOOD = [
    *("the food was good", "مرحبا بالعالم", "שלום עולם", "👩‍👩‍👧‍👦🏳️‍🌈 emoji"),
    *("\u202eright to left", "e\u0301 and é", "日本語のテキスト"),
]


def write_malformed_files(place: Path) -> dict[str, tuple[int, int, int]]:
    """Write files of many kinds; return for each the documents, blank records and broken records in it."""
    place.mkdir(exist_ok=True)
    expected = {}

    def put(name: str, data: bytes, documents: int, empty: int = 0, broken: int = 0) -> None:
        (place / name).write_bytes(data)
        expected[name] = (documents, empty, broken)

    def objects(*values) -> bytes:
        return "".join(json.dumps(value) + "\n" for value in values).encode()

    put("good.txt", "\n".join(GOOD).encode(), len(GOOD))
    put("latin.txt", "naïve\nplain latin\ncafé\n".encode("latin-1"), 1, 0, 2)
    put("utf16.txt", "all of it is read\nand this\n".encode("utf-16"), 2)
    put("unmarked.txt", "nothing of it is read\n".encode("utf-16-le") * 2, 0, 0, 1)
    put("nul.txt", b"a\x00b nul\n\x00\x00\n", 2)
    put("bom.txt", b"\xef\xbb\xbfafter the mark\r\nand a windows line end\r\n", 2)
    put("blank.txt", b"\n \n\t\r\nonly this one\n", 1, 3)
    put("long.txt", b"word " * 50_000 + b"\nshort after long\n", 2)
    put("one-word.txt", b"x" * 100_000, 1)
    put("mixed.jsonl", objects({"text": "with text"}, {"body": "without"}, [1], "string", 3, None), 1, 0, 5)
    put("nested.jsonl", objects({"text": {"en": "deep"}}, {"text": ["list"]}, {"text": 7}, {"text": None}), 0, 1, 3)
    put("twice.jsonl", b'{"text": "first", "text": "second"}\n{"text": "once", "a": {"text": "inner"}}\n', 1, 0, 1)
    put("half.jsonl", b'{"text": "whole"}\n{"text": "ha', 1, 0, 1)
    put("surrogate.jsonl", b'{"text": "\\ud83d"}\n{"text": "\\ud83d\\ude00 paired"}\n', 1, 0, 1)
    put("empty.jsonl", objects({"text": ""}, {"text": " \u3000"}, {"text": "filled"}), 1, 2)
    put("quotes.csv", b'id,text\n1,"open\n2,closed\n3,"a ""quoted"" word"\n4\n', 2, 0, 2)
    put("cut.txt.gz", gzip.compress(random.Random(0).randbytes(40_000).hex().encode())[:-40], 0, 0, 1)
    put("plain.jsonl.gz", b"not packed at all", 0, 0, 1)
    put("no.parquet", b"PAR1 and no more", 0, 0, 1)
    table = pyarrow.table({"text": pyarrow.array(["in parquet", None, ""], pyarrow.string())})
    pyarrow.parquet.write_table(table, place / "good.parquet")
    expected["good.parquet"] = (1, 2, 0)
    numbers = pyarrow.table({"text": pyarrow.array([1, 2], pyarrow.int64())})
    pyarrow.parquet.write_table(numbers, place / "numbers.parquet")
    expected["numbers.parquet"] = (0, 0, 2)
    return expected


def counts(corpus: Corpus) -> tuple[int, int, int]:
    try:
        found = list(corpus)
        assert all(text and not text.isspace() for text in found)
    except UserError as error:
        assert "\n" not in str(error)
        if "no usable document" not in str(error):
            raise
    report = corpus.report
    assert len(report.problems) == min(report.broken, 20)
    return report.documents, report.empty, report.broken


def test_malformed_records_are_counted_in_every_file(tmp_path):
    for name, expected in write_malformed_files(tmp_path).items():
        assert counts(Corpus(tmp_path / name)) == expected, name


def test_a_model_adapts_to_a_folder_of_malformed_files(tiny_bert, tmp_path):
    """All files together, from text to model; the model card says what was skipped."""
    expected = write_malformed_files(tmp_path / "text")
    options = {"steps": 3, "batch_size": 8, "max_length": 24, "precision": "fp32", "progress": False}
    result = adapt(tiny_bert, tmp_path / "text", "mlm", tmp_path / "out", **options)
    assert result.tokens > 0
    text = json.loads((tmp_path / "out" / "acclimate.json").read_text())["text"]
    assert text["documents"] + text["duplicates"] == sum(documents for documents, _, _ in expected.values())
    assert text["broken"] == sum(broken for _, _, broken in expected.values())
    assert text["empty"] == sum(empty for _, empty, _ in expected.values())


def test_an_unusable_file_is_a_one_line_error(tmp_path):
    table = pyarrow.table([["a"], ["b"]], names=["text", "text"])
    pyarrow.parquet.write_table(table, tmp_path / "twice.parquet")
    pyarrow.parquet.write_table(pyarrow.table({"blurb": ["a"]}), tmp_path / "other.parquet")
    (tmp_path / "twice.csv").write_text("text,id,text\na,1,b\n")
    (tmp_path / "other.csv").write_text("blurb\na\n")
    (tmp_path / "folder.txt").mkdir()
    (tmp_path / "image.png").write_bytes(b"\x89PNG")
    for name, message in (
        ("twice.parquet", "several columns 'text'"),
        ("twice.csv", "several columns 'text'"),
        ("other.parquet", "no column 'text'"),
        ("other.csv", "no column 'text'"),
        ("folder.txt", "contains no file of a known format"),
        ("image.png", "format of .* is unknown"),
        ("gone.txt", "There is no file"),
    ):
        with pytest.raises(UserError, match=message) as caught:
            list(Corpus(tmp_path / name))
        assert "\n" not in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_files_without_permission(tmp_path):
    path = folder(tmp_path / "task")
    (tmp_path / "a.txt").write_text("secret")
    for file in (tmp_path / "a.txt", path / "test.jsonl"):
        file.chmod(0)
    with pytest.raises(UserError, match="Cannot read"):
        list(Corpus(tmp_path / "a.txt"))
    with pytest.raises(UserError, match="Cannot read"):
        load_task(path)


def test_files_that_may_not_be_opened(tmp_path, monkeypatch):
    """The same with a patched ``open``, because permissions do not restrict root."""
    path = folder(tmp_path / "task")
    (tmp_path / "a.txt").write_text("secret")

    def refuse(self, *_, **__):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", refuse)
    for use in (lambda: list(Corpus(tmp_path / "a.txt")), lambda: Corpus(tmp_path / "a.txt").fingerprint):
        with pytest.raises(UserError, match=r"Cannot read '.*a.txt': Permission denied"):
            use()
    with pytest.raises(UserError, match=r"Cannot read '.*Permission denied"):
        load_task(path)


def test_a_line_that_is_too_long_ends_the_file_and_memory_stays_bounded(tmp_path, monkeypatch):
    """A file of 64 MB in one line, with a limit of a quarter of a megabyte instead of 256."""
    monkeypatch.setattr(opening, "MAX_LINE_BYTES", 1 << 18)
    path = tmp_path / "a.jsonl"
    with path.open("wb") as file:
        file.write(b'{"text": "before"}\n[')
        file.truncate(64_000_000)  # the rest of a sparse file reads as zeros
    corpus = Corpus(path)
    tracemalloc.start()
    assert list(corpus) == ["before"]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000
    assert corpus.report.broken == 1 and "has more than" in corpus.report.problems[0]
    assert corpus.report.problems[0].startswith(f"{path}:2: ")


words = st.lists(st.sampled_from(["the", "food", "a", "wine,", "日本語", "👩‍👧", "x" * 30]), min_size=1, max_size=60)


@settings(max_examples=40, deadline=None)
@given(words=words, gap=st.sampled_from([" ", " ", "  ", "\n"]), size=st.integers(5, 40), room=st.integers(3, 20))
def test_long_documents_are_read_in_pieces_and_give_the_same_rows(words, gap, size, room):
    """For words shorter than half a piece; text without spaces is cut at the end of a piece."""
    text = gap.join(words)
    tokenizer, corpus = tiny_tokenizer(), Corpus.of([text, "a"], dedup=False)
    whole = tokenize(corpus, tokenizer, room)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizing, "MAX_PIECE_CHARACTERS", 2 * size)
        assert "".join(tokenizing.split_long_text(text)) == text
        assert all(0 < len(piece) <= 2 * size for piece in tokenizing.split_long_text(text))
        pieces = tokenize(corpus, tokenizer, room)
    assert (pieces.bytes, pieces.characters) == (whole.bytes, whole.characters)
    assert pieces.document.tolist() == sorted(pieces.document.tolist())
    if gap == " " and size > 34:
        assert [row.tolist() for row in pieces] == [row.tolist() for row in whole]
        assert pieces.document.tolist() == whole.document.tolist()


def test_a_document_of_many_megabytes_takes_little_memory(tmp_path):
    """20 MB in one line; all of its tokens at once would take several gigabytes."""
    path = tmp_path / "a.txt"
    path.write_bytes(b"the food was good " * 1_100_000)
    taken = []
    encode = tokenizing._Encoder.encode

    def watched(self, texts, **options):
        taken.append(sum(map(len, texts)))
        return encode(self, ["a"], **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizing._Encoder, "encode", watched)
        tokenize(Corpus(path), tiny_tokenizer(), 64, cache=tmp_path / "cache")
    assert sum(taken) > 19_000_000 and max(taken) <= tokenizing.MAX_PIECE_CHARACTERS


@each(
    ("name", "data", "message"),
    [
        ("test.jsonl", b'{"text": "x", "text": "y", "label": "pos"}\n', r"test.jsonl:1: the key 'text' is duplicated"),
        ("test.jsonl", b'{"text": "x", "label": "pos", "label": "neg"}\n', "the key 'label' is duplicated"),
        ("test.csv", b"text,label,text\nx,pos,y\n", "two columns are named 'text'"),
        ("test.jsonl", b'{"text": "x", "label": {"a": 1}}\n', "label must be a string"),
        ("test.jsonl", b'{"text": {"a": "x"}, "label": "pos"}\n', "1 whose text is not a string"),
        ("test.jsonl", b'{"text": "x", "label": NaN}\n', "1 without a label"),
        ("test.jsonl", "naïve\n".encode("latin-1"), "not UTF-8"),
        ("test.tsv", "text\tlabel\nx\tpos\n".encode("utf-16-le"), "not UTF-8.*--encoding UTF-16LE"),
        ("test.jsonl", b"\x00\x00\n", "not JSON"),
    ],
)
def test_tasks_that_cannot_be_used(tmp_path, name, data, message):
    path = folder(tmp_path / "t", test=None)
    (path / name).write_bytes(data)
    with pytest.raises(UserError, match=message) as caught:
        load_task(path)
    assert "\n" not in str(caught.value)


def test_unnamed_columns_and_folders_with_similar_names_work(tmp_path):
    path = folder(tmp_path / "t", test=None)
    (path / "test.csv").write_bytes(b"text,label,,\nx,pos,,\n")
    (path / "dev.jsonl").mkdir()
    assert len(load_task(path).test) == 1 and load_task(path).dev == []


def test_text_of_any_script_is_read_unchanged_from_a_task(tmp_path):
    rows = [{"text": text, "label": text[::-1]} for text in GOOD]
    task = load_task(folder(tmp_path / "t", train=rows, test=rows))
    assert [example.text for example in task.test] == GOOD
    assert sorted(task.labels) == sorted(text[::-1].strip() for text in GOOD)


names = st.sampled_from(["text", "label", "a"])
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=40, deadline=None)
@given(rows=st.lists(anything, max_size=4))
def test_any_values_in_json_lines_give_documents_or_counts_and_a_task_or_a_line(tmp_path_factory, rows):
    place = tmp_path_factory.mktemp("any")
    (place / "a.jsonl").write_text(lines(rows))
    try:
        documents, empty, broken = counts(Corpus(place / "a.jsonl", dedup=False))
        assert documents + empty + broken == len(rows)
    except UserError as error:
        assert "no column 'text'" in str(error)
    try:
        load_task(folder(place / "t", train=lines([*TRAIN, *rows]), test=TEST))
    except UserError as error:
        assert "\n" not in str(error)
