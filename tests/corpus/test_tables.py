from __future__ import annotations

import pytest

from acclimate.corpus import tables
from acclimate.corpus.streams import Damaged
from acclimate.corpus.tables import read_table
from acclimate.errors import UserError


def table(tmp_path, content, delimiter=","):
    path = tmp_path / "a.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return list(read_table(path, "text", delimiter))


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


@pytest.mark.parametrize("bad", ['2,"never closed', '2,"closed" too early', '2,"spans\n3,"lines'])
def test_a_bad_quote_costs_one_line(tmp_path, bad):
    rows = "".join(f"{i},row {i}\n" for i in range(10))
    records = table(tmp_path, f"id,text\n1,first\n{bad}\n{rows}")
    texts = [text for _, text, problem in records if not problem]
    assert texts[0] == "first" and texts[-10:] == [f"row {i}" for i in range(10)]
    problems = [(line, problem) for line, _, problem in records if problem]
    assert 1 <= len(problems) <= 2 and problems[0][0] == 3
    assert "quote" in problems[0][1] or "expected after" in problems[0][1]


def test_a_quote_may_not_swallow_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "LONGEST_ROW_IN_LINES", 50)
    rows = "".join(f"{i},row {i}\n" for i in range(500))
    records = table(tmp_path, f'id,text\n0,"open\n{rows}')
    assert len([text for _, text, problem in records if not problem]) == 500
    assert [(line, problem) for line, _, problem in records if problem] == [
        (2, "not a row of fields (a quote is not closed)")
    ]


def test_tsv_without_quoting(tmp_path):
    records = table(tmp_path, 'label\ttext\n1\t"Great" food, 5" pizza\n0\tno\n1\t"quoted\ttab"\n', "\t")
    assert records == [(2, '"Great" food, 5" pizza', ""), (3, "no", ""), (4, "quoted\ttab", "")]


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


def test_damage_passes_through(tmp_path):
    path = tmp_path / "a.csv.gz"
    path.write_bytes(b"no gzip")
    with pytest.raises(Damaged):
        list(read_table(path, "text", ","))
