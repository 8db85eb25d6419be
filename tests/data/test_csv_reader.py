from __future__ import annotations

import csv
import gzip
import io

import pytest

from acclimate.base.errors import DamagedFileError, UserError
from acclimate.data import csv_reader
from acclimate.data.csv_reader import read_csv
from acclimate.data.readers import read_numbered_lines
from tests.cases import each


def table(tmp_path, content, delimiter=","):
    path = tmp_path / "a.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return list(read_csv(read_numbered_lines(path), path, "text", delimiter))


def test_wrong_number_of_fields_and_line_numbers(tmp_path):
    records = table(tmp_path, 'id,text\n1,"two\nlines"\n2\n3,x,y\n\n4,last\n')
    assert [(line, text) for line, text, problem in records if not problem] == [
        (2, "two\nlines"),
        (6, ""),
        (7, "last"),
    ]
    assert [(line, problem) for line, _, problem in records if problem] == [
        (4, "1 fields instead of 2"), (5, "3 fields instead of 2")
    ]  # fmt: skip


@each("bad", ['2,"never closed', '2,"closed" too early', '2,"spans\n3,"lines'])
def test_a_bad_quote_costs_one_line(tmp_path, bad):
    rows = "".join(f"{i},row {i}\n" for i in range(10))
    records = table(tmp_path, f"id,text\n1,first\n{bad}\n{rows}")
    texts = [text for _, text, problem in records if not problem]
    assert texts[0] == "first" and texts[-10:] == [f"row {i}" for i in range(10)]
    problems = [(line, problem) for line, _, problem in records if problem]
    assert 1 <= len(problems) <= 2 and problems[0][0] == 3
    assert "quote" in problems[0][1] or "expected after" in problems[0][1]


def test_an_open_quote_does_not_consume_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_reader, "MAX_ROW_LINES", 50)
    rows = "".join(f"{i},row {i}\n" for i in range(500))
    records = table(tmp_path, f'id,text\n0,"open\n{rows}')
    assert len([text for _, text, problem in records if not problem]) == 500
    assert [(line, problem) for line, _, problem in records if problem] == [
        (2, "not a valid row (a quote is not closed)")
    ]


def test_tsv_without_quoting(tmp_path):
    records = table(tmp_path, 'label\ttext\n1\t"Great" food, 5" pizza\n0\tno\n1\t"quoted\ttab"\n', "\t")
    assert records == [(2, '"Great" food, 5" pizza', ""), (3, "no", ""), (4, "quoted\ttab", "")]


STRAY = 'label\ttext\n1\t"This is good.\n0\tI hate the rest.\n1\tI like it."\n0\tend\n'


def test_a_quotation_that_spans_several_tsv_rows_does_not_join_them(tmp_path):
    assert table(tmp_path, STRAY, "\t") == [
        (2, '"This is good.', ""), (3, "I hate the rest.", ""), (4, 'I like it."', ""), (5, "end", "")
    ]  # fmt: skip
    assert table(tmp_path, STRAY.replace("\n", "\r\n"), "\t")[2] == (4, 'I like it."', "")


@each("texts", [["two\nlines", "a\ttab,\nand\ntwo lines"], ["x\n\ny", 'a "quote"\n\nand\tit']])
@each("columns", [["text"], ["text", "label"], ["label", "text", "id"]])
def test_multi_line_tsv_fields_stay_whole(tmp_path, columns, texts):
    buffer = io.StringIO(newline="")
    writer = csv.DictWriter(buffer, columns, restval="1", delimiter="\t", lineterminator="\n")
    writer.writeheader()
    writer.writerows({"text": text} for text in texts)
    assert [text for _, text, _ in table(tmp_path, buffer.getvalue(), "\t")] == texts


def test_undecodable_bytes_do_not_shift_rows(tmp_path):
    records = table(tmp_path, b'id,text\n1,"caf\xe9\nbar"\n2,good\n')
    assert records[1] == (4, "good", "")
    with pytest.raises(UnicodeEncodeError):
        records[0][1].encode("utf-8")


def test_long_fields(tmp_path):
    text = "word " * 100_000
    assert table(tmp_path, f"text\n{text}\n") == [(2, text, "")]


def test_header(tmp_path):
    assert table(tmp_path, "\n\n id , text \n1,a\n") == [(4, "a", "")]
    with pytest.raises(UserError, match="'id', 'caf\\?'"):
        table(tmp_path, b"id,caf\xe9\n1,a\n")
    with pytest.raises(UserError, match="header"):
        table(tmp_path, 'id,"text\n1,a\n')
    assert table(tmp_path, "") == []


def test_a_damaged_file_raises(tmp_path):
    path = tmp_path / "a.csv.gz"
    path.write_bytes(b"not gzip")
    with pytest.raises(DamagedFileError):
        list(read_csv(read_numbered_lines(path), path, "text", ","))


@each("delimiter", [",", "\t"])
def test_an_open_quote_loses_no_row_of_a_truncated_file(tmp_path, delimiter):
    rows = "".join(f"{i}{delimiter}row {i} {i * 7919 % 9973}\n" for i in range(2_000))
    packed = gzip.compress(f'id{delimiter}text\n0{delimiter}first\n1{delimiter}"open\n{rows}'.encode())
    path = tmp_path / "a.csv.gz"
    path.write_bytes(packed[: len(packed) * 95 // 100])
    found = []
    with pytest.raises(DamagedFileError) as caught:
        for record in read_csv(read_numbered_lines(path), path, "text", delimiter):
            found.append(record)
    whole = caught.value.line - 1  # lines that could be read
    assert whole > 1_500
    assert [line for line, _, _ in found] == list(range(2, whole + 1))
    problems = [record for record in found if record[2]]
    if delimiter == ",":
        assert [(line, problem) for line, _, problem in problems] == [(3, "not a valid row (a quote is not closed)")]
    else:
        assert not problems and found[1] == (3, '"open', "")


@each("delimiter", [";", "\t", "|", ","])
@each("usual", [",", "\t"])
@each("header", ["id{}text", '"id"{}"text"', "id{}text{}a,b;c"])
def test_the_delimiter_is_the_one_that_gives_the_columns(tmp_path, delimiter, usual, header):
    if delimiter in (",", ";") and "a,b" in header:
        return
    head = header.replace("{}", delimiter)
    row = delimiter.join(["1", "x, y; z" if delimiter == "\t" else "x y", "q"][: head.count(delimiter) + 1])
    assert [text for _, text, _ in table(tmp_path, f"{head}\n{row}\n", usual)] == [row.split(delimiter)[1]]


def test_a_missing_column_is_reported_with_the_likely_delimiter(tmp_path):
    with pytest.raises(UserError, match=r"no column 'text'\. Its columns are 'id', 'remark'"):
        table(tmp_path, "id;remark\n1;a\n")
    assert table(tmp_path, "text\na;b\n") == [(2, "a;b", "")]


def test_quotes_escaped_with_a_backslash(tmp_path):
    content = 'id,text\n1,"she said \\"no\\", and left"\n2,"x \\""\n3,plain\n4,"a ""usual"" one"\n'
    assert [text for _, text, _ in table(tmp_path, content)] == [
        'she said "no", and left',
        'x "',
        "plain",
        'a "usual" one',
    ]
