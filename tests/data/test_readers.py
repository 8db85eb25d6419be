from __future__ import annotations

import contextlib
import gzip
import json
import random
import tempfile
import tracemalloc
import zipfile
from itertools import islice
from pathlib import Path

import pyarrow
import pyarrow.feather
import pyarrow.parquet
import pytest
import zstandard
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from acclimate.base import errors
from acclimate.base.errors import UserError
from acclimate.data import opening, readers
from acclimate.data.documents import Corpus
from acclimate.data.opening import detect_format, guess_encoding
from acclimate.data.readers import detect_txt_layout, read_records
from acclimate.data.rows import read_rows
from tests.cases import each
from tests.data.writing import SUFFIXES, compress, write

# Any text that UTF-8 can encode.
anything = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
a_line = anything.filter(
    lambda text: text.strip() and "\n" not in text and not text.endswith("\r") and text[0] != "\ufeff"
)


def good(path: Path, **options) -> list[str]:
    records = list(read_records(path, **options))
    assert [problem for _, _, problem in records if problem] == []
    return [text for _, text, _ in records]


def looks_like_rows(text: str) -> bool:
    """Return whether a quoted text in a two-column TSV is read as several rows: see ``split_unquoted_tsv_rows``."""
    first, *others = text.split("\n")
    return bool(others) and "\t" not in first and all(line.count("\t") == 1 for line in others)


@each("suffix", [suffix for suffix in SUFFIXES if not suffix.startswith(".txt")])
@given(texts=st.lists(anything, min_size=1, max_size=6), end=st.sampled_from(["\n", "\r\n"]), bom=st.booleans())
@example(texts=['"', "a\tb", 'a,b\n\n"c"\r\nd', "\u2028\x85\x1c", "\ufeff", "\x00", "\r"], end="\r\n", bom=True)
def test_every_text_comes_back_from_every_format(suffix, texts, end, bom):
    assume(not (suffix.startswith(".tsv") and any(map(looks_like_rows, texts))))
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), suffix, texts, end=end, bom=bom)
        assert good(path) == texts


@each("suffix", [".txt", ".txt.gz", ".txt.zst"])
@given(texts=st.lists(a_line, min_size=1, max_size=6), end=st.sampled_from(["\n", "\r\n"]), bom=st.booleans())
def test_every_line_comes_back_from_txt(suffix, texts, end, bom):
    with tempfile.TemporaryDirectory() as folder:
        assert good(write(Path(folder), suffix, texts, end=end, bom=bom), txt="line") == texts


@given(
    blocks=st.lists(st.lists(a_line, min_size=1, max_size=4), min_size=2, max_size=5),
    gap=st.sampled_from(["", " ", "\n", "\t\n"]),
)
def test_blocks_come_back_from_txt(blocks, gap):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "blocks.txt"
        path.write_bytes(f"\n{gap}\n".join("\n".join(block) for block in blocks).encode())
        assert detect_txt_layout(path) == "block"
        assert good(path) == ["\n".join(block) for block in blocks]


@each("suffix", SUFFIXES)
@settings(max_examples=20)
@given(data=st.data())
def test_damage_anywhere_gives_records_or_a_user_error(suffix, data):
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), suffix, ["one", 'two "quoted", and\tmore', "drei: größer"])
        content = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 4))):
            at = data.draw(st.integers(0, len(content)))
            content[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
        path.write_bytes(content)
        try:
            records = list(read_records(path))
        except UserError as error:
            assert "\n" not in str(error)
        else:
            assert all(line >= 1 and "\n" not in problem for line, _, problem in records)


def test_a_damaged_size_that_no_memory_can_hold(tmp_path, monkeypatch):
    path = write(tmp_path, ".arrow", ["one", "two"])

    def allocate(data):
        raise MemoryError

    monkeypatch.setattr(pyarrow.ipc, "open_stream", allocate)
    monkeypatch.setattr(pyarrow.ipc, "open_file", allocate)
    ((line, text, problem),) = read_records(path)
    assert (line, text) == (1, "") and "damaged" in problem and "more memory" in problem


def test_a_parquet_column_name_that_is_not_utf8(tmp_path):
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["one", "two"]}), path)
    path.write_bytes(path.read_bytes().replace(b"text", b"t\x80xt"))
    ((line, text, problem),) = read_records(path)
    assert (line, text) == (1, "") and "damaged" in problem
    with pytest.raises(UserError, match="cannot be read"):
        list(read_rows(path))


def test_layout_of_txt(tmp_path):
    path = tmp_path / "a.txt"
    for content, layout in (
        ("one\ntwo\nthree\n", "line"),
        ("\n\none\ntwo\n\n", "line"),
        ("one\n\ntwo", "block"),
        ("line\n" * 300 + "\n" + "line\n" * 300, "line"),  # a stray blank line
        ("", "line"),
    ):
        path.write_text(content)
        assert detect_txt_layout(path) == layout


def test_bad_lines_are_reported_by_number(tmp_path):
    path = tmp_path / "a.jsonl"
    deep = b"[" * 100_000
    lines = [b'{"text": "ok"}', b"{broken", b"[1]", b'{"other": 1}', b'{"text": 3}', b'{"text": "\xff"}', b"", deep]
    path.write_bytes(b"\n".join([*lines, b'{"text": null}', b'{"text": "end"}']))
    records = list(read_records(path))
    assert [(line, text) for line, text, problem in records if not problem] == [
        (1, "ok"),
        (7, ""),
        (9, ""),
        (10, "end"),
    ]
    problems = {line: problem for line, _, problem in records if problem}
    assert set(problems) == {2, 3, 4, 5, 6, 8}
    assert "JSON" in problems[2] and "object" in problems[3] and "'text'" in problems[4]
    assert "int" in problems[5] and "UTF-8" in problems[6] and "0xff" in problems[6]


def test_undecodable_txt(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\n\xe9t\xe9\nthree\n")
    assert [(line, text, bool(problem)) for line, text, problem in read_records(path)] == [
        (1, "one", False), (2, "", True), (3, "three", False)
    ]  # fmt: skip
    path.write_bytes(b"one\nmore\n\ntwo\n\xe9t\xe9\n\nthree\n")
    assert [(line, text, bool(problem)) for line, text, problem in read_records(path)] == [
        (1, "one\nmore", False), (5, "", True), (7, "three", False)
    ]  # fmt: skip


@each("suffix", [".txt.gz", ".jsonl.gz", ".csv.gz", ".txt.zst", ".jsonl.zst", ".jsonl.bz2", ".txt.xz"])
def test_a_truncated_file_gives_what_it_has(tmp_path, suffix):
    draw = random.Random(0)
    texts = ["".join(draw.choices("abcdefghijklmnop", k=60)) for _ in range(10_000)]
    path = write(tmp_path, suffix, texts)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    records = list(read_records(path))
    assert "cut off" in records[-1][2]
    read = [text for _, text, problem in records if not problem]
    block = 0.5 if suffix.endswith(".bz2") else 0.1  # bzip2 compresses in blocks of 900 kB
    assert (0.5 - block) * len(texts) <= len(read) < len(texts) and read == texts[: len(read)]
    assert records[-1][0] in (len(read) + 1, len(read) + 2)  # CSV has a header


def test_several_zstandard_frames_and_gzip_members_are_joined(tmp_path):
    for suffix in (".txt.gz", ".txt.zst"):
        path = write(tmp_path, suffix, ["one", "two"])
        path.write_bytes(path.read_bytes() * 2)
        assert good(path) == ["one", "two", "one", "two"]


def test_a_limit_of_a_decoder_is_no_damage(tmp_path):
    """A long window is read; a longer one, or a dictionary, is named, and so is each file whose rest is lost."""
    settings = zstandard.ZstdCompressionParameters.from_level(1, window_log=28)
    lines = "".join(f"text {number}\n" for number in range(1000)).encode()
    stream = zstandard.ZstdCompressor(compression_params=settings).compressobj()
    (tmp_path / "a.txt.zst").write_bytes(stream.compress(lines) + stream.flush())
    assert len(good(tmp_path / "a.txt.zst")) == 1000
    window = (32 - 10) << 3  # 4 GiB
    (tmp_path / "b.txt.zst").write_bytes(bytes([0x28, 0xB5, 0x2F, 0xFD, 0, window, 1, 0, 0]))
    words = zstandard.train_dictionary(2_000, [f"some text number {n} of many".encode() for n in range(2_000)])
    (tmp_path / "c.txt.zst").write_bytes(zstandard.ZstdCompressor(dict_data=words).compress(lines))
    (tmp_path / "d.txt.gz").write_bytes(gzip.compress(lines)[:-100])
    (tmp_path / "e.jsonl").write_text("[" * 100_000 + "\n")
    (tmp_path / "f.txt").write_text("the last\n")
    corpus = Corpus(tmp_path)
    assert list(corpus)[-1] == "the last" and corpus.report.documents == 1001
    assert len(corpus.report.cut_off) == 3
    assert "needs a window of more than 2 GiB" in corpus.report.cut_off[0]
    assert "needs a dictionary" in corpus.report.cut_off[1] and "damaged" in corpus.report.cut_off[2]
    assert not any("damaged" in line for line in corpus.report.cut_off[:2])
    assert corpus.report.broken == 4 and "nested too deeply" in corpus.report.problems[3]
    summary = corpus.report.summary()
    assert all(f"{name}:" in summary for name in ("b.txt.zst", "c.txt.zst", "d.txt.gz"))


def test_the_content_does_not_match_the_extension(tmp_path):
    for name in ("a.txt.gz", "a.jsonl.zst", "a.parquet"):
        (tmp_path / name).write_bytes(b"plain text, not compressed\n" * 3)
        ((line, text, problem),) = read_records(tmp_path / name)
        assert (line, text) == (1, "") and "damaged" in problem


@each("suffix", [s for s in SUFFIXES if not s.startswith(".txt")])
def test_a_missing_column_error_lists_the_columns(tmp_path, suffix):
    path = write(tmp_path, suffix, ["one"], column="remark")
    with pytest.raises(UserError, match=r"no column 'text'.*'id', 'remark'.*--text-column"):
        list(read_records(path))
    assert good(path, text_column="remark") == ["one"]


@each("suffix", [s for s in SUFFIXES if not s.startswith(".txt")])
def test_a_column_with_a_usual_name_is_read_and_reported(tmp_path, suffix, caplog):
    errors.warn_once.cache_clear()
    path = write(tmp_path, suffix, ["one", "two"], column="Review")
    assert good(path) == ["one", "two"]
    assert "has its text in 'Review'; not used: id." in caplog.text
    with pytest.raises(UserError, match="no column 'body'"):
        list(read_records(path, "body"))


def test_a_missing_column_is_found_before_the_end_of_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "MAX_ROWS_WITHOUT_COLUMN", 10)
    path = tmp_path / "a.jsonl"
    path.write_text('{"blurb": 1}\n' * 1000)
    taken = []
    with pytest.raises(UserError, match="'blurb'"):
        taken.extend(record for record in iter_and_count(read_records(path), taken))
    assert len(taken) < 20


def iter_and_count(records, taken):
    for record in records:
        taken.append(record)
        yield record


def test_parquet_values_that_are_not_strings(tmp_path):
    import pyarrow
    import pyarrow.parquet

    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a", None, "b"], "n": [1, 2, 3]}), path)
    assert list(read_records(path)) == [(1, "a", ""), (2, "", ""), (3, "b", "")]
    assert [bool(problem) for _, _, problem in read_records(path, "n")] == [True] * 3
    coded = pyarrow.array(["x", "y", "x"]).dictionary_encode()
    pyarrow.parquet.write_table(pyarrow.table({"text": coded}), path)
    assert good(path) == ["x", "y", "x"]


def test_reading_is_lazy(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps({"text": f"document {i}"}) + "\n" for i in range(60_000))
    tracemalloc.start()
    assert len(list(islice(read_records(path), 5))) == 5
    for _ in islice(read_records(path), 40_000):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


def test_detect_format():
    assert detect_format(Path("A.JSONL.GZ")) == ".jsonl"
    assert detect_format(Path("a.parquet")) == ".parquet"
    assert detect_format(Path("a.HTM")) == ".html" and detect_format(Path("a.markdown.xz")) == ".md"
    assert detect_format(Path("a.json.gz")) == ".json" and detect_format(Path("a.txt.bz2")) == ".txt"
    for name in ("a.parquet.gz", "a.pdf.gz", "a.gz", "txt", "a.txt.zip"):
        assert detect_format(Path(name)) is None


@each("encoding", ["utf-16", "utf-32"])
@each("suffix", [".txt", ".jsonl", ".csv", ".json", ".txt.gz"])
def test_a_byte_order_mark_decides(tmp_path, encoding, suffix):
    texts = ["a first text", "größer", "первый"]
    path = write(tmp_path, suffix, texts)
    plain = gzip.decompress(path.read_bytes()) if suffix.endswith(".gz") else path.read_bytes()
    wide = plain.decode().encode(encoding)
    path.write_bytes(gzip.compress(wide) if suffix.endswith(".gz") else wide)
    assert good(path) == good(path, encoding="cp1252") == texts


@each("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
@each(
    "text",
    ["a first text\nand more\n", "первый текст и ещё один\nи ещё\n", "ข้อความแรก ครับ\nและอีก\n", "😀 ok – it’s fine\n"],
)
def test_wide_encodings_without_a_mark_are_recognized(tmp_path, encoding, text):
    path = tmp_path / "a.txt"
    path.write_bytes((text * 3).encode(encoding))
    ((line, found, problem),) = read_records(path)
    assert (line, found) == (1, "")
    name = encoding.upper().replace("-", "").replace("UTF", "UTF-")
    assert f"{name}, not UTF-8; give --encoding {name}" in problem
    assert "\n".join(good(path, txt="line", encoding=name)) + "\n" == text * 3


@given(st.text(st.characters(codec="utf-8"), min_size=16, max_size=60))
@example("a\tb\tc\td\te\tf\tg\th\ti\n")
@example("\0" * 40)
def test_utf8_is_not_taken_for_a_wide_encoding(text):
    assume(text.count("\0") < 8 or len(set(text)) == 1)
    assert opening.detect_wide_encoding(text.encode()) == "" or text[0] == "\ufeff"


@each("suffix", [".txt", ".csv", ".jsonl"])
def test_files_with_carriage_returns_as_line_ends(tmp_path, suffix):
    path = write(tmp_path, suffix, ["one", "two, three", "four"], end="\r")
    assert good(path) == ["one", "two, three", "four"]


ROWS = [{"id": 1, "text": "one"}, {"id": 2, "text": 'two "quoted"\nlines'}, {"id": 3, "text": ""}]


@each(
    "content",
    [
        json.dumps(ROWS),
        json.dumps(ROWS, indent=2),
        "[\n" + ",\n".join(map(json.dumps, ROWS)) + "\n]\n",
        json.dumps({"version": 1, "data": ROWS}),
        "".join(json.dumps(row) + "\n" for row in ROWS),
        json.dumps({name: {str(i): row[name] for i, row in enumerate(ROWS)} for name in ("id", "text")}),
        json.dumps({"text": {str(i): row["text"] for i, row in enumerate(ROWS)}, "id": {"2": 3, "0": 1, "1": 2}}),
        json.dumps({name: [row[name] for row in ROWS] for name in ("id", "text")}, indent=1),
        json.dumps({str(i): row for i, row in enumerate(ROWS)}),
        json.dumps({"columns": ["id", "text"], "index": [0, 1, 2], "data": [list(row.values()) for row in ROWS]}),
    ],
)
def test_json_as_pandas_and_datasets_write_it(tmp_path, content):
    (tmp_path / "a.json").write_text(content)
    assert good(tmp_path / "a.json") == [row["text"] for row in ROWS]


def test_json_that_holds_no_rows(tmp_path):
    path = tmp_path / "a.json"
    for content in ("3", '[{"text": "a"}', '{"a": 1', '{"text": ["a"], "id": [1, 2]}', "[" * 90_000, "[1]"):
        path.write_text(content)
        ((_, text, problem),) = read_records(path)
        assert (text, bool(problem)) == ("", True), content
    path.write_text('{broken\n{"text": "a"}\n')
    assert [bool(problem) for _, _, problem in read_records(path)] == [True, False]
    for content in ('[{"blurb": "a"}]', '{"blurb": 1}', '{"blurb": {"text": 1}}'):
        path.write_text(content)
        with pytest.raises(UserError, match=r"no column 'text'.*'blurb'"):
            list(read_records(path))


@each("data", [{"text ": ["a"]}, {" text": ["a"], "id": [1]}])
def test_blanks_around_a_column_name_do_not_count(tmp_path, data):
    table = pyarrow.table(data)
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    (tmp_path / "a.jsonl").write_text(json.dumps(table.to_pylist()[0]))
    (tmp_path / "a.csv").write_text(",".join(data) + "\n" + ",".join("a" for _ in data) + "\n")
    for name in ("a.parquet", "a.jsonl", "a.csv"):
        assert good(tmp_path / name) == ["a"]


@each("suffix", SUFFIXES)
@settings(max_examples=20)
@given(data=st.binary(max_size=80) | st.text(max_size=40).map(str.encode))
def test_any_bytes_give_records_or_a_user_error(suffix, data):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"a{suffix}"
        path.write_bytes(data)
        with contextlib.suppress(UserError):
            assert all(line >= 1 and "\n" not in problem for line, _, problem in read_records(path))
        with contextlib.suppress(UserError):
            list(read_rows(path)) if ".txt" not in suffix else None


SAMPLES = {
    "cp1252": "crème brûlée “für” 5 €",
    "latin-1": "größer à la carte",
    "cp1251": "Суп был холодный, а хлеб старый",
    "gbk": "这家餐厅的汤很好喝，面包旧了",
    "shift_jis": "このスープはとても美味しいです",
    "utf-16-le": "größer суп 汤",
    "utf-16": "größer суп 汤",
}


@given(
    encoding=st.sampled_from(sorted(SAMPLES)),
    suffix=st.sampled_from([*(suffix for suffix in SUFFIXES if suffix not in (".parquet", ".arrow")), "semicolon"]),
    order=st.permutations(range(4)),
    end=st.sampled_from(["\n", "\r\n"]),
)
@settings(max_examples=60)
def test_every_encoding_of_every_format_is_read_if_it_is_named(encoding, suffix, order, end):
    texts = [
        ("plain text", SAMPLES[encoding], f"one, {SAMPLES[encoding]}; two\t3", 'a "quote" and more')[n] for n in order
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), ".csv" if suffix == "semicolon" else suffix, texts, end=end)
        with opening.open_bytes(path) as file:
            opened = file.read().decode()
        if suffix == "semicolon":
            opened = "id;text\n" + "".join(
                f"{n};{json.dumps(text, ensure_ascii=False)}\n" for n, text in enumerate(texts)
            )
            opened = opened.replace('\\"', '""').replace("\\t", "\t")
        path.write_bytes(compress(opened.encode(encoding), path.name))
        assert good(path, encoding=encoding, txt="line") == texts
        corpus = Corpus(path, txt="line")
        with contextlib.suppress(UserError):  # no usable document
            list(corpus)
        named = [problem for problem in corpus.report.problems if "UTF-8" in problem]
        assert any("--encoding" in problem for problem in named) or encoding == "utf-16" or suffix.startswith(".json")


@each(
    ("encoding", "text", "guess"),
    [
        ("cp1252", "la crème brûlée", "cp1252"),
        ("cp1251", SAMPLES["cp1251"], "cp1251"),
        ("gbk", SAMPLES["gbk"] * 2, "gb18030"),
        ("shift_jis", SAMPLES["shift_jis"] * 2, "cp932"),
        ("gbk", "汤", ""),
        ("utf-8", "汤", ""),
    ],
)
def test_the_encoding_is_guessed_where_it_is_clear(tmp_path, encoding, text, guess):
    path = tmp_path / "a.txt"
    path.write_bytes(b"plain\n" + f"{text}\n".encode(encoding) + b"plain, too\n")
    assert guess_encoding(path) == guess


def test_a_file_that_is_utf8_is_read_as_that_whatever_was_named(tmp_path, caplog):
    path = tmp_path / "a.txt"
    path.write_text("größer\n" * 20_000, encoding="utf-8")
    assert set(good(path, encoding="cp1252", txt="line")) == {"größer"}
    assert "is UTF-8, so it is read as that, not as cp1252" in caplog.text
    path.write_bytes(b"caf\xe9 \x81\nok\n")
    assert list(read_records(path, encoding="cp1252", txt="line")) == [
        (1, "", "byte 0x81 does not exist in the encoding that is given"), (2, "ok", "")
    ]  # fmt: skip
    path.write_bytes("größer\n".encode("utf-16-le") + b"\x00\xd8\n")
    assert [bool(problem) for _, _, problem in read_records(path, encoding="utf-16-le", txt="line")] == [False, True]


def test_an_excel_file_that_unpacks_into_more_than_the_limit_is_refused_before_it_is_unpacked(tmp_path):
    with zipfile.ZipFile(tmp_path / "bomb.xlsx", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("xl/worksheets/sheet1.xml", b" " * (2**20))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("acclimate.data.readers.MAX_WORKBOOK", 2**19)
        patch.setattr("openpyxl.load_workbook", None)  # not reached
        with pytest.raises(UserError, match=r"unpacks into 1 MB; the limit is 0: use CSV"):
            list(readers.read_excel_rows(tmp_path / "bomb.xlsx"))


@each(("kind", "text"), [("parquet", pyarrow.string()), ("parquet", pyarrow.large_string()), ("arrow", None)])
def test_a_file_that_repeats_a_text_is_refused_before_that_is_copied(kind, text, tmp_path, monkeypatch):
    rows = pyarrow.array(["a" * 1000, None, "b"]).dictionary_encode().take(pyarrow.array([0, 1, 2, 0, 0]))
    table = pyarrow.table({"text": rows if kind == "arrow" else rows.cast(text), "n": [1, 2, 3, 4, 5]})
    path = tmp_path / f"a.{kind}"
    if kind == "parquet":
        pyarrow.parquet.write_table(table, path)
    else:
        pyarrow.feather.write_feather(table, path)
    for limit in (3001, 3000):
        monkeypatch.setattr("acclimate.data.readers.MAX_BATCH", limit)
        if limit == 3001:
            ((schema, batch),) = readers.read_batches(path, lambda schema: ["n", "text"])
            assert batch.schema.field("text").type == schema.field("text").type and batch.schema.names == ["n", "text"]
            assert batch.column("text").to_pylist() == ["a" * 1000, None, "b", "a" * 1000, "a" * 1000]
        else:
            with pytest.raises(UserError, match=r"repeats texts that take 0\.0 GB for 5 rows"):
                list(read_records(path))


@each("suffix", [".xz", ".zst"])
@given(parts=st.lists(st.tuples(st.text("ab ", min_size=1), st.integers(0, 3)), max_size=3))
def test_parts_of_a_compressed_file_are_joined_and_padding_is_skipped(suffix, parts, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / f"a.txt{suffix}"
    path.write_bytes(b"".join(compress(text.encode(), f"a{suffix}") + bytes(4 * zeros) for text, zeros in parts))
    with opening.open_bytes(path) as file:
        assert file.read().decode() == "".join(text for text, _ in parts)


def test_an_excel_file_with_a_password_is_not_called_damaged(tmp_path):
    (tmp_path / "a.xlsx").write_bytes(bytes.fromhex("d0cf11e0a1b11ae1") + bytes(2000))
    with pytest.raises(UserError, match=r"encrypted or of an older format; save it as \.xlsx without a password"):
        list(readers.read_excel_rows(tmp_path / "a.xlsx"))


def test_gaps_between_rows_of_an_excel_file_are_filled_up_to_the_limit_of_excel(tmp_path, monkeypatch):
    book = pytest.importorskip("openpyxl").Workbook()
    for row in (["text"], ["good soup"]):
        book.active.append(row)
    book.active.cell(40, 1, "the last")
    book.save(tmp_path / "a.xlsx")
    monkeypatch.setattr("acclimate.data.readers.MAX_SHEET_ROWS", 40)
    assert list(read_records(tmp_path / "a.xlsx")) == [(2, "good soup", ""), (40, "the last", "")]
    monkeypatch.setattr("acclimate.data.readers.MAX_SHEET_ROWS", 39)
    with pytest.raises(UserError, match="more than 39 rows, the limit of Excel: use CSV"):
        list(read_records(tmp_path / "a.xlsx"))


def test_cells_of_a_sheet_in_columns_without_a_name_are_said(tmp_path, caplog):
    book = pytest.importorskip("openpyxl").Workbook()
    for row in (["text", None, "label"], ["a", "x", "b"], ["c", None, "d", "e"], ["f", None, "g"]):
        book.active.append(row)
    book.save(tmp_path / "a.xlsx")
    assert next(row for _, row in readers.read_excel_rows(tmp_path / "a.xlsx")) == {"text": "a", "label": "b"}
    assert "2 rows have cells in columns without a name" in caplog.text


def test_excel_files_are_read_as_tables(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in ([" Review ", "stars"], ["good soup", 5], [None, None], ["größer", None], [None, 1]):
        book.active.append(row)
    book.save(tmp_path / "a.xlsx")
    expected = [(2, "good soup", ""), (4, "größer", ""), (5, "", "")]
    assert list(read_records(tmp_path / "a.xlsx")) == expected
    with zipfile.ZipFile(tmp_path / "a.xlsx") as made, zipfile.ZipFile(tmp_path / "wrong.xlsx", "w") as wrong:
        for part in made.namelist():  # the size of a sheet that its writer got wrong loses no row
            wrong.writestr(part, made.read(part).replace(b'ref="A1:B5"', b'ref="A1"'))
    assert list(read_records(tmp_path / "wrong.xlsx")) == expected
