"""Several columns are one text, in every form of a table, and a text is edited before anything reads it."""

from __future__ import annotations

import pandas
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from acclimate.base.errors import UserError
from acclimate.base.options import build
from acclimate.data.documents import Corpus, as_corpus
from acclimate.data.reading import ReadingOptions, TextOptions
from acclimate.data.rows import join_columns
from acclimate.labs.periods.dates import DatedCorpus, Periods

CELL = st.sampled_from(["", " ", "a", "two\nlines", 'a "quote"', "ä;|,\tß", "'", " x "])
ROWS = st.lists(st.tuples(CELL, CELL), min_size=1, max_size=6)
COLUMNS = ("subject", "body", "queue")


def joined(rows):
    """The distinct texts that hold something."""
    texts = ["\n".join(cell for cell in row if cell.strip()) for row in rows]
    return list(dict.fromkeys(text for text in texts if text))


def forms(folder, rows):
    """Yield the rows in every form of a table, with a third column."""
    frame = pandas.DataFrame([(*row, "q") for row in rows], columns=COLUMNS)
    for number, delimiter in enumerate(",;|"):
        frame.to_csv(folder / f"{number}.csv", index=False, sep=delimiter)
        yield folder / f"{number}.csv"
    frame.to_csv(folder / "t.tsv", index=False, sep="\t", quoting=1)
    frame.to_parquet(folder / "t.parquet")
    frame.to_feather(folder / "t.arrow", compression="uncompressed")
    frame.to_json(folder / "t.jsonl", orient="records", lines=True)
    frame.to_json(folder / "t.json", orient="records")
    frame.to_excel(folder / "t.xlsx", index=False)
    for name in ("t.tsv", "t.parquet", "t.arrow", "t.jsonl", "t.json", "t.xlsx"):
        yield folder / name
    yield frame
    yield frame.to_dict("records")


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=ROWS)
@example(rows=[("", "b"), ("a", ""), ("", " "), ("a", "b")])
def test_columns_are_joined_in_every_form(rows, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    rows = [("first", "row"), *rows]
    for form in forms(folder, rows):
        corpus = as_corpus(form, TextOptions(text_column="subject, body"))
        assert list(corpus) == joined(rows), form
        if not isinstance(form, list | pandas.DataFrame):
            assert list(Corpus(f"{form}:subject, body")) == joined(rows)
            assert list(Corpus([{"path": str(form), "text_column": "subject, body"}])) == joined(rows)


def test_a_column_whose_name_has_a_comma_is_itself(tmp_path):
    rows = [{"subject": "a", "body": "b", "subject,body": "c"}]
    for name, write in (("t.csv", "to_csv"), ("t.parquet", "to_parquet"), ("t.xlsx", "to_excel")):
        getattr(pandas.DataFrame(rows), write)(tmp_path / name, index=False)
    (tmp_path / "t.jsonl").write_text('{"subject": "a", "body": "b", "subject,body": "c"}\n')
    for form in (*tmp_path.iterdir(), rows):
        assert list(as_corpus(form, TextOptions(text_column="subject,body"))) == ["c"]
    assert join_columns([("here", rows[0])], ReadingOptions(text_column="subject,body")) == [("here", rows[0])]


def test_keys_that_rows_lack_are_empty_parts_and_columns_that_no_row_has_are_an_error(tmp_path):
    file = tmp_path / "mails.jsonl"
    file.write_text('{"body": "b"}\n{" subject ": "a", "body": "c"}\n{"queue": 1}\n{"body": 7}\n')
    corpus = Corpus(file, text_column="subject,body")
    assert list(corpus) == ["b", "a\nc"] and corpus.report.broken == 2
    with pytest.raises(UserError, match="has no column 'subjekt'"):
        list(Corpus(file, text_column="subjekt,body"))
    file.write_text('{"subject": "a", "body": "b", "body": "c"}\n{"subject": "d", "body": "e"}\n')
    assert list(corpus) == ["d\ne"] and "'body' is duplicated" in corpus.report.problems[0]
    pandas.DataFrame([("a", "b", "q")], columns=COLUMNS).to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(UserError, match=r"no column 'subjekt,body'.*several are joined"):
        list(Corpus(tmp_path / "t.csv", text_column="subjekt,body"))


def test_a_title_next_to_the_text_is_proposed(tmp_path, caplog):
    pandas.DataFrame([("a", "b", "q")], columns=COLUMNS).to_csv(tmp_path / "t.csv", index=False)
    assert list(Corpus(tmp_path / "t.csv")) == ["b"] and "--text-column subject,body reads both" in caplog.text


def test_dated_rows_are_joined_and_edited():
    rows = [{"subject": "a", "body": "<b>c</b>", "date": "2024-05-01", "n": 1}, {"body": "d", "date": "2024-05-02"}]
    reading = TextOptions(text_column="subject,body", clean="html")
    found = [document.row for document in DatedCorpus(rows, Periods.parse("year"), reading=reading)]
    assert [row["text"] for row in found] == ["a\nc", "d"] and found[0].keys() == {"text", "date", "n"}


def test_texts_are_edited_before_anything_counts_them(tmp_path):
    texts = ["<p>a@b.de</p>", "c@d.de", "> only\n> quoted", "&nbsp;", "plain"]
    edited = {"clean": "html,quotes", "mask_personal": True}
    pandas.DataFrame({"text": texts}).to_csv(tmp_path / "t.csv", index=False)
    for source in (tmp_path / "t.csv", texts):
        corpus = as_corpus(source, TextOptions(**edited))
        assert list(corpus) == ["[email]", "plain"]
        report = corpus.report
        assert (report.duplicates, report.empty, report.masked) == (1, 2, {"email": 1})
        assert "personal data masked: 1 email" in report.summary()
        assert corpus.fingerprint != as_corpus(source).fingerprint
        assert corpus.fingerprint == as_corpus(source, TextOptions(**edited)).fingerprint
        train, held = corpus.split(0.5)
        assert train.fingerprint != as_corpus(source).split(0.5)[0].fingerprint
        assert not any("@" in text for part in (train, held) for text in _read(part))
    assert "none found" in _summary(TextOptions(mask_personal=True)) and "masked" not in _summary(TextOptions())
    with pytest.raises(UserError, match="clean"):
        build(ReadingOptions, clean="htm")


def _read(part):
    try:
        return list(part)
    except UserError:
        return []


def _summary(reading):
    corpus = as_corpus(["plain text"], reading)
    return list(corpus) and corpus.report.summary()
