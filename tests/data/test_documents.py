from __future__ import annotations

import json
import random
import tracemalloc

import datasets
import pandas
import pyarrow
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus, as_corpus
from acclimate.data.reading import TextOptions
from acclimate.study.settings import store_texts
from tests.cases import each
from tests.data.writing import write

texts = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), min_size=1, max_size=30).filter(
    lambda items: any(not (text.isspace() or not text) for text in items)
)


def documents(corpus: Corpus) -> list[str]:
    try:
        return list(corpus)
    except UserError:
        return []


@given(texts=texts)
def test_each_text_is_yielded_once_in_order_and_every_record_counted(texts):
    corpus = Corpus.of(texts)
    usable = [text for text in texts if text and not text.isspace()]
    assert list(corpus) == list(dict.fromkeys(usable)) == list(corpus)
    report = corpus.report
    assert report.documents + report.duplicates + report.empty == len(texts) and report.complete
    assert list(Corpus.of(texts, dedup=False)) == usable


@given(texts=texts, share=st.floats(0.05, 0.95), seed=st.integers(-5, 2**31), order=st.randoms())
def test_a_split_is_a_partition_that_does_not_depend_on_the_order(texts, share, seed, order):
    train, held = (documents(part) for part in Corpus.of(texts).split(share, seed))
    assert not set(train) & set(held)
    assert set(train) | set(held) == set(Corpus.of(texts))
    shuffled = list(texts)
    order.shuffle(shuffled)
    again = [set(documents(part)) for part in Corpus.of(shuffled, dedup=False).split(share, seed)]
    assert again == [set(train), set(held)]


def test_shares_and_seeds():
    corpus = Corpus.of(f"document {i}" for i in range(4000))
    train, held = corpus.split(0.1, 1)
    first = set(held)
    assert 320 < len(first) < 480
    assert held.report.elsewhere == 4000 - len(first)
    assert first != set(corpus.split(0.1, 2)[1])
    assert first < set(corpus.split(0.2, 1)[1])
    inner = set(train.split(0.5, 1)[1])  # the same seed must not repeat the draws of the first split
    assert inner < set(train) and 1500 < len(inner) < 2100
    assert len({part.fingerprint for part in (corpus, train, held, *corpus.split(0.1, 2))}) == 5
    for share in (0, 1, -1, 2, float("nan")):
        with pytest.raises(UserError, match="held-out share"):
            corpus.split(share)


def test_an_empty_part_is_an_error():
    corpus = Corpus.of(["one"])
    parts = corpus.split(0.5, 0)
    full = [part for part in parts if documents(part)]
    assert len(full) == 1
    with pytest.raises(UserError, match=r"part of the corpus is empty.*1 document "):
        list(parts[parts[0] is full[0]])


def test_report_over_several_files(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": "one"}\nnot json\n{"text": " "}\n')
    (tmp_path / "b.csv").write_bytes(b"text,n\ntwo,1\none,2\nthree\ncaf\xe9,4\n")
    (tmp_path / "c.jsonl").write_text('{"text": "\\ud800"}\n{"text": "three"}')
    corpus = Corpus(tmp_path)
    assert list(corpus) == ["one", "two", "three"]
    report = corpus.report
    assert (report.documents, report.duplicates, report.empty, report.broken) == (3, 2, 1, 4)
    assert [problem.removeprefix(str(tmp_path) + "/").split(": ")[0] for problem in report.problems] == [
        "a.jsonl:3", "b.csv:4", "b.csv:5", "c.jsonl:1",
    ]  # fmt: skip
    assert report.summary().startswith("3 documents from 3 sources; left out: 2 duplicates, 1 empty, 4 broken; first")
    assert "\n" not in report.summary()
    json.dumps(report.as_dict())


def test_only_the_first_problems_are_kept():
    corpus = Corpus.of([1] * 50 + ["text"])  # type: ignore[list-item]
    assert list(corpus) == ["text"]
    assert corpus.report.broken == 50 and len(corpus.report.problems) == 20


def test_no_usable_document(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('[\n{"text": ""}\n]\n')
    with pytest.raises(
        UserError, match=r"1 source \('.*a.jsonl'\): 2 broken, 1 empty. First problem: .*a.jsonl:1: "
    ) as e:
        list(Corpus(path))
    assert "\n" not in str(e.value)
    for content in ("", "\n\n"):
        path.write_text(content)
        with pytest.raises(UserError, match="no usable document"):
            list(Corpus(path))
    with pytest.raises(UserError, match="no usable document"):
        list(Corpus.of([]))


def test_limit_and_layout(tmp_path):
    path = write(tmp_path, ".txt", ["a", "a", "b", "", "c"])
    assert list(Corpus(path, limit=2, txt="line")) == ["a", "b"]
    assert list(Corpus(path, txt="block")) == ["a\na\nb", "c"]
    limited = Corpus.of((str(i) for i in range(100)), limit=10)
    parts = limited.split(0.5, 0)
    assert {*documents(parts[0]), *documents(parts[1])} == {str(i) for i in range(10)}
    with pytest.raises(UserError, match="limit"):
        Corpus(path, limit=0)
    with pytest.raises(UserError, match="Did you mean 'line'"):
        Corpus(path, txt="lines")  # type: ignore[arg-type]


def test_reading_is_lazy_and_memory_is_flat(tmp_path):
    path = tmp_path / "a.txt"
    draw = random.Random(0)
    with path.open("w") as file:
        for _ in range(3000):
            file.write(f"{draw.random()} " * 200 + "\n")
    corpus = Corpus(path)
    stream = iter(corpus)
    next(stream)
    assert corpus.report.documents == 1 and not corpus.report.complete
    tracemalloc.start()
    assert sum(1 for _ in corpus) == 3000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_500_000 < path.stat().st_size / 5


def test_the_fingerprint_depends_on_content_and_settings(tmp_path):
    path = write(tmp_path, ".txt", ["a", "b"])
    first = Corpus(path).fingerprint
    assert first == Corpus(str(path)).fingerprint == Corpus([path, path]).fingerprint
    others = [Corpus(path, dedup=False), Corpus(path, limit=1), Corpus(path, txt="block"), Corpus.of(["a", "b"])]
    assert len({first, *(corpus.fingerprint for corpus in others)}) == 5
    write(tmp_path, ".txt", ["a", "c"])
    assert Corpus(path).fingerprint != first


def test_real_files(shared):
    files = sorted((shared / "data").rglob("corpora/*/*.jsonl.gz"))
    if not files:
        pytest.skip("no corpora in the shared folder")
    corpus = Corpus(files[0], limit=50)
    assert len(list(corpus)) == 50 and corpus.report.broken == 0


def in_memory(texts, column):
    """Yield texts in every form in memory."""
    rows = [{"id": number, column: text} for number, text in enumerate(texts)]
    yield datasets.Dataset.from_list(rows)
    yield datasets.Dataset.from_list(rows).to_iterable_dataset()
    yield pandas.DataFrame(rows)
    yield pyarrow.Table.from_pylist(rows)
    yield rows
    yield iter(rows)
    yield texts
    yield (*rows,)
    yield pandas.Series(texts)
    yield (text for text in texts)


@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1), max_size=5), st.sampled_from(["text", "Review"]))
@example([".", "/", "*", ".:S", "/:S"], "text")  # names that exist
@settings(max_examples=8)
def test_texts_in_memory_are_the_same_corpus_in_every_form(texts, column):
    texts = ["The soup was cold.", *texts]
    corpora = [as_corpus(form) for form in in_memory(texts, column)]
    assert len({corpus.fingerprint for corpus in corpora}) == 1
    expected = list(dict.fromkeys(text for text in texts if text.strip()))
    assert all(list(corpus) == expected for corpus in corpora)
    assert list(as_corpus(pandas.DataFrame({"blurb": texts}), TextOptions(text_column="blurb"))) == expected


@given(st.lists(st.none() | st.text("ab", max_size=3), min_size=1, max_size=5))
@settings(max_examples=8)
def test_missing_texts_are_counted_in_every_form(texts):
    texts = ["The soup was cold.", *texts]
    rows = [{"text": text} for text in texts]
    forms = [
        datasets.Dataset.from_list(rows),
        datasets.IterableDataset.from_generator(lambda: iter(rows)),
        pandas.DataFrame(rows),
        rows,
        texts,
    ]
    for form in forms:
        corpus = as_corpus(form)
        assert list(corpus) == list(dict.fromkeys(text for text in texts if text))
        assert corpus.report.empty == sum(not text for text in texts)


@each("other", [3, 1.5, b"bytes", ["a list"], object()])
def test_a_list_of_texts_with_something_else_is_refused_with_its_number(other):
    with pytest.raises(UserError, match=r"^Item 4 of the list of texts is .*; each must be a text\.$"):
        as_corpus(["The soup was cold.", None, "The bread was warm.", other, "And more."])


def test_names_of_files_are_not_taken_for_texts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my file.txt").write_text("one\n")
    assert list(as_corpus(["my file.txt"])) == list(as_corpus(iter([tmp_path / "my file.txt"]))) == ["one"]
    assert as_corpus(["hf:some set"]).report.sources == ["hf:some set::train"]
    for given_, message in (
        (["good", "bad"], "no file 'good'"),
        (["no file.txt"], "no file 'no file.txt'"),
        (("The soup was cold.",), r"'The soup was cold.'. Give a text itself in a list"),
        (["my file.txt", "The soup was cold."], r"'The soup was cold.'. Give a text itself in a list"),
        ("The soup was cold.", r"'The soup was cold.'. Give a text itself in a list"),
        ("One line\nand another", "Give a text itself in a list"),
        ("word " * 2000, "Give a text itself in a list"),
        ([3], "A source of text is a int"),
        ([], "No corpus is given"),
        (datasets.DatasetDict(train=datasets.Dataset.from_list([{"text": "a"}])), "mapping with the keys train"),
        ([{"a": "x"}], "'the list in memory' has no column 'text'"),
        ({"path": "my file.txt", "colum": "x"}, "mapping with the keys path, colum"),
        ([{"path": "my file.txt", "colum": "x"}], "has the keys path, text_column, encoding, not path, colum"),
        ([{"path": "my file.txt", "encoding": "cp9999"}], "no encoding 'cp9999'"),
    ):
        with pytest.raises(UserError, match=message):
            as_corpus(given_)


def test_each_source_can_have_its_column_and_encoding(tmp_path):
    (tmp_path / "a.csv").write_bytes("id;blurb\n1;größer\n".encode("cp1252"))
    (tmp_path / "b.txt").write_text("größer\nкнига\n", encoding="utf-8")
    spec = {"path": str(tmp_path / "a.csv"), "text_column": "blurb", "encoding": "cp1252"}
    assert list(Corpus([spec, tmp_path / "b.txt"], dedup=False)) == ["größer", "größer", "книга"]
    assert list(Corpus(spec)) == list(Corpus(f"{tmp_path}/a.csv:blurb", encoding="cp1252")) == ["größer"]
    assert len({Corpus({**spec, "encoding": name}).fingerprint for name in ("cp1252", "latin-1")}) == 2


def test_a_saved_dataset_is_a_folder_of_text(tmp_path, caplog):
    dataset = datasets.Dataset.from_list([{"review": "one"}, {"review": "two"}])
    dataset.save_to_disk(tmp_path / "saved")
    datasets.DatasetDict(train=dataset, test=dataset.select([1])).save_to_disk(tmp_path / "splits")
    caplog.clear()
    assert list(Corpus(tmp_path / "saved")) == list(Corpus(tmp_path / "splits")) == ["one", "two"]
    assert list(Corpus(tmp_path / "splits" / "test")) == ["two"]
    assert "splits' has splits, of which only 'train' is read" in caplog.text
    assert "left out" not in caplog.text


def test_stored_texts_are_named_by_their_content(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path))
    path = store_texts(pandas.Series(["The soup", None, "größer\n"]))
    assert path == store_texts(pandas.DataFrame({"review": ["The soup", None, "größer\n"]}))
    assert list(Corpus(path)) == ["The soup", "größer\n"]
    assert store_texts(pandas.Series(["The soup"])) != path
    assert store_texts("a.txt") == "a.txt" and store_texts(["a b"]) == ["a b"]
