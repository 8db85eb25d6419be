from __future__ import annotations

import json
import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acclimate.corpus import Corpus
from acclimate.errors import UserError
from tests.corpus.writing import write

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
