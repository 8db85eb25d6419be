"""The same rows give the same task in every form that people have, and what is guessed or drawn is reported."""

from __future__ import annotations

import json
import logging
import lzma
import random
import shutil
from collections import Counter

import datasets
import pandas
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.adaptation.adapt import adapt
from acclimate.base.errors import UserError, warn_once
from acclimate.data.documents import as_corpus
from acclimate.data.reading import ReadingOptions, default_task_name
from acclimate.data.task_kinds import load_task
from acclimate.tasks.drawing import draw_rows
from acclimate.tasks.finetune import finetune
from acclimate.tasks.kinds.classification.data import Task
from acclimate.tasks.sources import LABEL_NAMES, PAIR_NAMES, TEXT_NAMES, choose_columns, match_splits
from tests.cases import each

QUICK = {"deadline": None, "database": None}
CELL = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1, max_size=8)
REVIEWS = [
    {"id": n, "review": f"dish {n} was {'good' if n % 3 else 'bad'}", "sentiment": "pos" if n % 3 else "neg"}
    for n in range(60)
]


@pytest.fixture(autouse=True)
def _quiet():
    datasets.disable_progress_bars()


def write_csv(path, rows, delimiter=","):
    pandas.DataFrame(rows).to_csv(path, index=False, sep=delimiter)
    return path


def written(folder, rows):
    """Yield the rows in every form."""
    frame = pandas.DataFrame(rows)
    dataset = datasets.Dataset.from_list(rows)
    for number, delimiter in enumerate(",;\t|"):
        yield write_csv(folder / f"{number}.csv", rows, delimiter)
    yield write_csv(folder / "t.tsv", rows, "\t")
    yield write_csv(folder / "t.csv.gz", rows)
    (folder / "t.json").write_text(json.dumps(rows), encoding="utf-8")
    yield folder / "t.json"
    for name in ("t.jsonl", "t.jsonl.zst", "t.jsonl.bz2", "t.jsonl.xz"):
        compression = {"zst": "zstd", "bz2": "bz2", "xz": "xz"}.get(name.rpartition(".")[2])
        text = "".join(json.dumps(row) + "\n" for row in rows)
        if compression == "xz":
            (folder / name).write_bytes(lzma.compress(text.encode()))
        elif compression:
            with pyarrow.CompressedOutputStream(str(folder / name), compression) as out:
                out.write(text.encode())
        else:
            (folder / name).write_text(text, encoding="utf-8")
        yield folder / name
    frame.to_parquet(folder / "t.parquet")
    yield folder / "t.parquet"
    dataset.save_to_disk(folder / "saved")
    yield next((folder / "saved").glob("*.arrow"))
    yield folder / "saved"
    yield dataset
    yield dataset.class_encode_column(next(name for name in dataset.column_names if name in LABEL_NAMES))
    yield datasets.DatasetDict(train=dataset)
    yield frame
    yield pyarrow.Table.from_pylist(rows)
    yield rows
    yield iter(rows)
    yield {"train": rows}


def test_a_task_is_shown_by_its_sizes():
    rows = [{"text": f"text {number}", "label": ("yes", "no")[number % 2]} for number in range(30)]
    assert repr(load_task(rows, name="t")) == "<Task 't': 20 train, 4 dev, 6 test; labels: no, yes>"
    numbers = [{"text": f"text {number}", "label": number / 4} for number in range(30)]
    assert repr(load_task(numbers, name="t")) == "<RegressionTask 't': 21 train, 3 dev, 6 test>"


def test_the_same_rows_give_the_same_task_in_every_form(tmp_path):
    @given(
        cells=st.lists(st.tuples(CELL, st.sampled_from(["yes", "no"])), min_size=30, max_size=40),
        text=st.sampled_from(TEXT_NAMES),
        label=st.sampled_from(LABEL_NAMES),
    )
    @settings(max_examples=4, **QUICK)
    def check(cells, text, label):
        rows = [{text: f"a{cell}b", label: name} for cell, name in cells] + [{text: "a", label: "yes"}]
        rows += [{text: f"t{n}", label: ("yes", "no")[n % 2]} for n in range(20)]
        prints = {load_task(form, name="t").fingerprint() for form in written(tmp_path, rows)}
        assert len(prints) == 1
        shutil.rmtree(tmp_path / "saved")

    check()


@each("names", [["bad", "good"], ["0", "1"], ["1 star", "2 stars", "3 stars"], ["5", "3", "1"]])
@each("column", ["label", "sentiment"])
@settings(max_examples=3, **QUICK)
@given(marks=st.lists(st.sampled_from([0, 0, 1, -1]), min_size=8, max_size=20))
def test_rows_without_a_label_are_left_out_in_every_form(names, column, marks, tmp_path, monkeypatch, caplog):
    """``datasets`` marks them by -1 in a column of class names; their number is reported."""
    labels = [0, 1] * 15 + [number % len(names) for number in range(6)] + marks
    rows = [{"text": f"text {number}", column: label} for number, label in enumerate(labels)]
    kept = [{**row, column: names[row[column]]} for row in rows if row[column] != -1]
    splits = {"train": kept, "test": kept[:9]}
    expected = load_task(splits, name="t", label_column=column)
    features = datasets.Features({"text": datasets.Value("string"), column: datasets.ClassLabel(names=names)})
    test = [*[row for row in rows if row[column] != -1][:9], {"text": "without", column: -1}]
    made = {
        split: datasets.Dataset.from_list(part, features=features) for split, part in (("train", rows), ("test", test))
    }
    shutil.rmtree(tmp_path / "parquet", ignore_errors=True)
    (tmp_path / "parquet").mkdir()
    for split, part in made.items():
        part.to_parquet(tmp_path / "parquet" / f"{split}.parquet")
    datasets.DatasetDict(made).save_to_disk(tmp_path / "saved")
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: datasets.DatasetDict(made))
    tables = {split: part.data.table for split, part in made.items()}
    for form in (datasets.DatasetDict(made), made, tables, tmp_path / "parquet", tmp_path / "saved", "hf:snli"):
        warn_once.cache_clear()
        caplog.clear()
        task = load_task(form, name="t", label_column=column)
        assert task.fingerprint() == expected.fingerprint() and "-1" not in task.labels
        assert ("without a label" in caplog.text) and "1 test" in caplog.text
    hidden = {"train": kept, "test": [{"text": f"u{n}", column: -1} for n in range(9)]}
    for split, part in hidden.items():
        (tmp_path / "parquet" / f"{split}.parquet").unlink()
        (tmp_path / "parquet" / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    drawn = [load_task(form, name="t", label_column=column) for form in (hidden, tmp_path / "parquet")]
    assert drawn[0].fingerprint() == drawn[1].fingerprint() and drawn[0].drawn


def rows_of(first, last):
    return [
        {"text": f"dish {n} was {'good' if n % 3 else 'bad'}", "label": "np"[n % 3 > 0]} for n in range(first, last)
    ]


def write_rows(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@each("name", ["test_labeled.jsonl", "Test.jsonl", "test.JSONL", "reviews-testing-2.jsonl", "testb.jsonl"])
@each("train", ["train.jsonl", "train_val.jsonl", "my-training.jsonl"])
def test_a_test_split_of_another_name_is_read_and_no_part_is_two_splits(name, train, tmp_path, caplog):
    write_rows(tmp_path / train, rows_of(0, 40))
    write_rows(tmp_path / name, rows_of(40, 60))
    task = load_task(tmp_path)
    assert (len(task.train), len(task.dev), len(task.test)) == (40, 0, 20)
    is_usual = (train, name) == ("train.jsonl", "testb.jsonl")
    assert (f"test from {name}" in caplog.text) != is_usual and "not read" not in caplog.text
    write_rows(tmp_path / "holdout.jsonl", rows_of(0, 5))
    assert load_task(tmp_path) == task and "that are not read: holdout.jsonl" in caplog.text
    both = {"train_val": rows_of(0, 40), "test": rows_of(40, 60)}
    assert (
        load_task(both, name="t").fingerprint()
        == load_task({"train": both["train_val"], "test": both["test"]}, name="t").fingerprint()
    )
    with pytest.raises(UserError, match="one part, 'train_test', for several splits"):
        load_task({"train_test": rows_of(0, 40), "more": rows_of(0, 9)})


def test_columns_in_json_are_joined_by_the_keys_of_rows(tmp_path):
    rows = rows_of(0, 40)
    labels = {str(number): row["label"] for number, row in reversed([*enumerate(rows)])}
    value = {"text": {str(number): row["text"] for number, row in enumerate(rows)}, "label": labels}
    (tmp_path / "a.json").write_text(json.dumps(value))
    assert load_task(tmp_path / "a.json", name="t").fingerprint() == load_task(rows, name="t").fingerprint()


@each("value", ["eval", "holdout", "trian", None])
def test_a_column_of_splits_without_test_but_with_another_value_is_refused(value):
    rows = [{**row, "split": "train" if number % 6 else value} for number, row in enumerate(rows_of(0, 60))]
    with pytest.raises(UserError, match="has 'test' in the column 'split', but some have another value"):
        load_task(rows)
    rows = [{**row, "split": "test"} if number % 6 == 1 else row for number, row in enumerate(rows)]
    assert len(load_task(rows).test) == 10


@each("delimiter", [",", ";", "\t", "|"])
@each("labels", [("pos", "neg"), ("1", "0"), ("3", "1")])
def test_a_table_without_a_header_or_with_lines_above_it_is_refused(delimiter, labels, tmp_path):
    rows = "".join(f"dish {n} was rather{delimiter}{labels[n % 2]}\n" for n in range(40))
    header = f"text{delimiter}label\n"
    path = tmp_path / "table.csv"
    path.write_text(rows)
    with pytest.raises(UserError, match="have no header; add a first line"):
        load_task(path)
    path.write_text(f"Export{delimiter}2026-01-01\n{header}{rows}")
    with pytest.raises(UserError, match=r"table.csv:2 has the names of the columns; remove the lines above"):
        load_task(path)
    path.write_text(f"a remark\n{header}{rows}")
    with pytest.raises(UserError, match=r"fields instead of 1 \(the header has no|columns are: a remark"):
        load_task(path)
    expected = load_task(path.write_text(header + rows) and path).fingerprint()
    for mark in (f"sep={delimiter}\n", f'\ufeff"sep={delimiter}"\r\n'):
        path.write_text(mark + header + rows, newline="")
        assert load_task(path).fingerprint() == expected
        assert next(iter(as_corpus(path))) == "dish 0 was rather"


@each("column", ["label", "score", "value", "y"])
@each("number", [-1, -1.0, "-1.0"])
def test_a_split_of_hidden_labels_is_left_out_whatever_the_column_of_labels(column, number, tmp_path):
    rows = [{"text": f"text {n}", column: round(n / 7, 3)} for n in range(40)]
    given = "y" if column == "y" else None
    splits = {"train": rows, "validation": rows[:5], "test": [{"text": f"u {n}", column: number} for n in range(9)]}
    for split, part in splits.items():
        write_csv(tmp_path / f"{split}.csv", part)
    for form in (splits, tmp_path):
        task = load_task(form, label_column=given)
        assert task.task_kind == "regression" and task.drawn and all(row.target >= 0 for row in task.test)
    known = [{**row, "rating": -1} for row in splits["test"]]  # another column that usually holds labels
    extra = {"train": [{**row, "rating": 1} for row in rows], "test": [{**row, column: 0.5} for row in known]}
    assert len(load_task(extra, label_column=column).test) == 9


NUMBERED = {
    "topic": ({"text": "string", "y": "class"}, lambda n: {"text": f"text {n}", "y": n % 3}),
    "labels": ({"text": "string", "labels": ["class"]}, lambda n: {"text": f"text {n}", "labels": [n % 3, n % 2]}),
    "tags": (
        {"tokens": ["string"], "ner_tags": ["class"]},
        lambda n: {"tokens": ["Ada", f"w{n}"], "ner_tags": [1, 0]},
    ),
    "choice": (
        {"question": "string", "choices": ["string"], "label": "class"},
        lambda n: {"question": f"what {n}?", "choices": ["red", "blue", "green"], "label": n % 3},
    ),
    "group": (
        {"text": "string", "label": "string", "document": "class"},
        lambda n: {"text": f"text {n}", "label": "ab"[n % 2], "document": n % 12},
    ),
}
"""Types of the columns of rows with numbers of classes, and what makes the rows."""


@each("kind", NUMBERED)
def test_numbers_of_classes_are_their_names_in_every_column_of_every_form(kind, tmp_path):
    types, make = NUMBERED[kind]
    names = ["O", "B-PER", "I-PER"] if kind == "tags" else list("CBALKJIHGFED")
    known = {"string": datasets.Value("string"), "class": datasets.ClassLabel(names=names)}
    features = {name: [known[one[0]]] if isinstance(one, list) else known[one] for name, one in types.items()}
    rows = [make(number) for number in range(60)]

    def named(cell):
        return [*map(named, cell)] if isinstance(cell, list) else names[cell] if isinstance(cell, int) else cell

    numbered = datasets.Dataset.from_list(rows, features=datasets.Features(features))
    numbered.to_parquet(tmp_path / "t.parquet")
    numbered.save_to_disk(tmp_path / "saved")
    forms = [numbered, numbered.data.table, numbered.to_iterable_dataset(), tmp_path / "t.parquet", tmp_path / "saved"]
    forms.append([{name: named(cell) for name, cell in row.items()} for row in rows])
    column = "y" if kind == "topic" else None
    assert len({load_task(form, name="t", label_column=column).fingerprint() for form in forms}) == 1


def test_minus_one_is_a_class_only_where_it_can_be_one():
    def rows(*counts):
        return [{"text": f"{label} {number}", "label": label} for label, count in counts for number in range(count)]

    for mark in ("-1", -1, -1.0, "-1.0", -100, "-100.0", "-"):
        assert load_task(rows(("bad", 30), ("good", 30), (mark, 3)), name="t").labels == ["bad", "good"]
    assert load_task(rows((-100, 3), (0, 30), (1, 30)), name="t").labels == ["0", "1"]
    assert load_task(rows(("-", 30), ("+", 30)), name="t").labels == ["+", "-"]
    assert load_task(rows((-1, 30), (0, 30), (1, 30)), name="t").labels == ["-1", "0", "1"]
    with pytest.raises(UserError, match="has 4 of 104 train rows"):
        load_task(rows((-1, 4), (0, 50), (1, 50)), name="t")


@each("encoding", ["cp1252", "utf-16", "utf-16-le", "utf-8-sig", "mac-roman"])
def test_other_encodings_can_be_named(tmp_path, encoding):
    rows = [{**row, "review": f"crème brûlée “{row['id']}”"} for row in REVIEWS]
    text = write_csv(tmp_path / "r.csv", rows).read_text(encoding="utf-8")
    expected = load_task(tmp_path / "r.csv").fingerprint()
    for end in ("\n", "\r\n", "\r"):
        (tmp_path / "r.csv").write_bytes(text.replace("\n", end).encode(encoding))
        assert load_task(tmp_path / "r.csv", encoding=encoding).fingerprint() == expected
    if encoding != "utf-8-sig":
        for given in (None, "utf-8"):
            if encoding == "utf-16":
                assert load_task(tmp_path / "r.csv", encoding=given).fingerprint() == expected
                continue
            with pytest.raises(UserError, match=r"not UTF-8.*--encoding"):
                load_task(tmp_path / "r.csv", encoding=given)


def test_an_encoding_must_exist_and_apply(tmp_path):
    path = tmp_path / "r.parquet"
    pandas.DataFrame(REVIEWS).to_parquet(path)
    with pytest.raises(UserError, match=r"r.parquet' has the encoding of its format; remove the encoding 'cp1252'"):
        load_task(path, encoding="cp1252")
    with pytest.raises(UserError, match=r"encoding.*must be an encoding that Python knows"):
        load_task(path, encoding="cp9999")


def test_an_excel_file_is_read_as_csv(tmp_path, caplog):
    openpyxl = pytest.importorskip("openpyxl")
    rows = [{**row, "stars": 1 + row["id"] % 2, "note": None} for row in REVIEWS]
    book = openpyxl.Workbook()
    for row in [list(rows[0]), [None] * 5, *(list(row.values()) for row in rows)]:
        book.active.append(row)
    book.create_sheet("second")
    book.save(tmp_path / "reviews.xlsx")
    write_csv(tmp_path / "reviews.csv", rows)
    for column in ("sentiment", "stars"):
        prints = {
            load_task(tmp_path / f"reviews.{ending}", label_column=column).fingerprint() for ending in ("csv", "xlsx")
        }
        assert len(prints) == 1
    assert "only the first sheet, 'Sheet', is read" in caplog.text
    (tmp_path / "bad.xlsx").write_bytes(b"PK not a zip")
    with pytest.raises(UserError, match=r"bad\.xlsx' is not an Excel file"):
        load_task(tmp_path / "bad.xlsx")


def test_columns_can_be_named_in_every_place(tmp_path, tiny_bert):
    rows = [{**row, "stars": row["id"] % 2, "title": "x"} for row in REVIEWS]
    path = write_csv(tmp_path / "reviews.csv", rows, ";")
    with pytest.raises(UserError, match=r"label can be in 'sentiment' or 'stars'.*--label-column"):
        load_task(path)
    task = load_task(path, label_column="stars", text_column="title", pair_column="review")
    assert (task.name, task.labels, task.is_pair) == ("reviews", ["0", "1"], True)
    assert task.train[0].text == "x"
    by_suffix = load_task(f"{path}:title", label_column="stars", pair_column="review")
    assert by_suffix.fingerprint() == task.fingerprint()
    with pytest.raises(UserError, match=r"'stras'.*Did you mean 'stars'"):
        load_task(path, label_column="stras")
    result = finetune(
        tiny_bert, path, label_column="sentiment", epochs=1, max_length=16, precision="fp32", progress=False
    )
    assert len(result.gold) == len(load_task(path, label_column="sentiment").test)


@pytest.mark.needs("tapt")
def test_an_adaptation_reads_tables_and_columns_of_a_task(tiny_bert, tmp_path):
    path = write_csv(tmp_path / "reviews.csv", [{**row, "title": f"food {row['id']}"} for row in REVIEWS])
    quick = {"steps": 1, "batch_size": 4, "max_length": 16, "precision": "fp32", "progress": False}

    def documents(corpus, method, **options):
        adapt(tiny_bert, corpus, method, tmp_path / "out", overwrite=True, **quick, **options)
        return json.loads((tmp_path / "out" / "acclimate.json").read_text())["text"]["documents"]

    train = load_task(path, text_column="title").train
    assert len({example.text for example in train}) == 42
    assert documents(None, "tapt", task=path, text_column="title") == 42
    assert documents(None, "tapt", task=f"{path}:title") == 42
    frame = pandas.DataFrame([{"body": f"good food {n}"} for n in range(9)] + [{"body": None}])
    assert documents(frame, "lm", text_column="body") == 9
    assert documents(datasets.Dataset.from_pandas(frame), "lm", text_column="body") == 9
    assert documents(frame, "lm") == 9
    with pytest.raises(UserError, match=r"'the DataFrame in memory' has no column 'blurb'\. Its columns are 'body'"):
        documents(frame, "lm", text_column="blurb")
    with pytest.raises(UserError, match="'label_column' says how to read a task, but there is no task"):
        documents(frame, "lm", label_column="x", text_column="body")
    with pytest.raises(UserError, match="'text_column' says how to read a task, but the task is loaded already"):
        finetune(tiny_bert, load_task(path), text_column="title")


@each(
    ("columns", "expected"),
    [
        (("text", "label", "review", "class"), ("text", None, "label")),
        (("Review", "Sentiment"), ("Review", None, "Sentiment")),
        (("premise", "hypothesis", "label"), ("premise", "hypothesis", "label")),
        (("idx", "question", "sentence", "label"), ("question", "sentence", "label")),
        (("text", "text_pair", "target"), ("text", "text_pair", "target")),
        (("tweet", "label_text", "label"), ("tweet", None, "label")),
        (("review", "body", "label"), "the text can be in 'review' or 'body'"),
        (("a", "label"), "no column 'text'.*The columns are: a, label"),
        (("tokens", "ner_tags"), "must be lists of the same length"),
        (("text", "class", "topic"), "the label can be in 'class' or 'topic'"),
        (("text", "x"), "no column 'label'"),
    ],
)
def test_usual_names_of_columns_are_inferred_if_they_are_clear(columns, expected):
    if isinstance(expected, str):
        with pytest.raises(UserError, match=expected):
            choose_columns(columns, ReadingOptions(), "t", "t: row 1")
        return
    found = choose_columns(columns, ReadingOptions(), "t", "t: row 1")
    assert tuple(found.get(name) for name in ("text", "text_pair", "label")) == expected


def test_no_usual_name_is_in_two_roles():
    names = [*TEXT_NAMES, *LABEL_NAMES]
    assert len(set(names)) == len(names)
    assert len({pair for pair in PAIR_NAMES}) == len(PAIR_NAMES)
    assert all(name == name.lower() for name in (*names, *(n for pair in PAIR_NAMES for n in pair)))


def test_what_is_inferred_and_drawn_is_reported(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "acclimate"):
        task = load_task(write_csv(tmp_path / "some_reviews.csv", REVIEWS), split_seed=7)
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        "The task 'some_reviews' is classification: text in 'review', label in 'sentiment'.",
        "The task 'some_reviews' has no test split, so 12 test rows and 6 dev rows were drawn from its 60 train rows "
        "with the seed 7: every class in proportion, equal texts in one split.",
    ]
    assert [len(split) for split in (task.train, task.dev, task.test)] == [42, 6, 12]
    assert load_task(tmp_path / "some_reviews.csv").fingerprint() != task.fingerprint()


@each(("kind", "row"), [
    ("classification", {"text": "a {}", "label": "{}"}),
    ("regression", {"text": "a {}", "label": 0.5}),
    ("entities", {"tokens": ["a", "{}"], "tags": ["B-X", "O"]}),
    ("entities", {"text": "a {}", "spans": [{"start": 0, "end": 1, "label": "X"}]}),
    ("entities", {"sentence_id": "{}", "word": "a{}", "tag": "B-X"}),
    ("qa", {"id": "{}", "context": "the a {}", "question": "what?", "answers": [{"text": "a", "answer_start": 4}]}),
    ("choice", {"question": "what {}?", "choices": ["a", "b"], "answer": "A"}),
    ("retrieval", {"query": "a {}", "passage": "b {}"}),
])  # fmt: skip
def test_columns_that_are_not_used_are_named_with_their_count(kind, row, caplog):
    rows = [json.loads(json.dumps(row).replace("{}", str(number % 12))) for number in range(48)]
    if kind == "regression":
        rows = [{**row, "label": row["label"] + number} for number, row in enumerate(rows)]
    if kind == "qa":
        rows = [{**row, "id": str(number)} for number, row in enumerate(rows)]
    for number, one in enumerate(rows[:5]):
        one |= {"foo": "x", "meta": {"n": number}}
    warn_once.cache_clear()
    caplog.clear()
    task = load_task({"train": rows, "test": [dict(row) for row in rows[12:]]}, name="t")
    assert task.task_kind == kind
    assert "Columns of the task 't' that are not used: 'foo' (5), 'meta' (5)." in caplog.text


def test_a_folder_with_usual_names_is_read_as_before(tmp_path, caplog):
    rows = [{"text": row["review"], "label": row["sentiment"]} for row in REVIEWS]
    write_csv(tmp_path / "train.csv", rows[:40])
    write_csv(tmp_path / "test.csv", rows[40:])
    write_csv(tmp_path / "my_dev.csv", rows[:3])  # is not a name of a split
    task = load_task(tmp_path, name="t")
    assert task.fingerprint() == Task.of("t", rows[:40], rows[40:]).fingerprint()
    assert not task.dev and len(caplog.records) == 2
    assert "The task 't' is classification: text in 'text', label in 'label'." in caplog.text
    assert "that are not read: my_dev.csv." in caplog.text


def test_names_of_splits_are_guessed(tmp_path, caplog):
    for name, rows in {
        "Reviews-Train": REVIEWS[:40],
        "Reviews-Test": REVIEWS[40:],
        "reviews_val": REVIEWS[:6],
    }.items():
        write_csv(tmp_path / f"{name}.csv", rows)
    with caplog.at_level(logging.WARNING, "acclimate"):
        task = load_task(tmp_path)
    assert [len(split) for split in (task.train, task.dev, task.test)] == [40, 6, 20]
    assert any(
        "train from Reviews-Train.csv, dev from reviews_val.csv" in line.getMessage() for line in caplog.records
    )
    write_csv(tmp_path / "other_train.csv", REVIEWS)
    with pytest.raises(UserError, match=r"several train splits \(Reviews-Train.csv, other_train.csv\)"):
        load_task(tmp_path)
    assert match_splits(["train", "retrain_x", "latest", "validation_1"], "x") == {
        "train": "train",
        "dev": "validation_1",
    }


def test_a_column_can_name_the_splits(tmp_path, caplog):
    splits = ["train"] * 40 + ["Validation"] * 5 + ["test"] * 15
    rows = [{**row, "split": split} for row, split in zip(REVIEWS, splits, strict=True)]
    with caplog.at_level(logging.WARNING, "acclimate"):
        task = load_task(write_csv(tmp_path / "r.csv", rows))
    assert task.fingerprint() == load_task({"train": rows[:40], "dev": rows[40:45], "test": rows[45:]}).fingerprint()
    assert not task.drawn
    assert "in the column 'split': 40 train, 5 dev, 15 test" in caplog.text
    with pytest.raises(UserError, match="row 2: the column 'split' is 'old'"):
        load_task([rows[0], {**rows[1], "split": "old"}])
    with pytest.raises(UserError, match="No row of the task 'task' has 'train'"):
        load_task(rows[45:])


def test_a_folder_with_one_file_is_that_file(tmp_path):
    path = write_csv(tmp_path / "labelled.csv", REVIEWS)
    assert load_task(tmp_path).fingerprint() == load_task(path).fingerprint()


def test_only_test_is_drawn_where_there_is_dev():
    task = load_task({"train": REVIEWS[:40], "validation": REVIEWS[40:]})
    assert [len(split) for split in (task.train, task.dev, task.test)] == [32, 20, 8]


def test_a_data_set_of_the_hub_is_read_through_datasets(tmp_path, monkeypatch, caplog):
    labels = datasets.ClassLabel(names=["neg", "pos"])
    features = datasets.Features(id=datasets.Value("int64"), review=datasets.Value("string"), sentiment=labels)
    hidden = [{**row, "sentiment": -1} for row in REVIEWS[:5]]
    made = {"train": REVIEWS[:40], "validation": REVIEWS[40:], "test": hidden, "unsupervised": REVIEWS[:3]}
    loaded = datasets.DatasetDict(
        {
            name: datasets.Dataset.from_list(
                [
                    {**row, "sentiment": labels.str2int(s) if isinstance(s := row["sentiment"], str) else s}
                    for row in rows
                ],
                features=features,
            )
            for name, rows in made.items()
        }
    )
    asked = []
    monkeypatch.setattr(datasets, "load_dataset", lambda *a, **k: asked.append((a, k)) or loaded)
    with caplog.at_level(logging.WARNING, "acclimate"):
        task = load_task("hf:some/reviews:en")
    assert asked == [(("some/reviews", "en"), {"split": None})]
    assert task.name == "reviews-en"
    assert task.fingerprint() == load_task({"train": REVIEWS[:40], "dev": REVIEWS[40:]}).fingerprint()
    assert any("unsupervised, test (its labels are hidden)" in record.getMessage() for record in caplog.records)
    with pytest.raises(UserError, match="write hf:NAME"):
        load_task("hf:a:b:c:d:e")


def test_an_unreadable_data_set_of_the_hub_is_one_line():
    with pytest.raises(UserError, match=r"Cannot open 'hf:no/such_set'"):
        load_task("hf:no/such_set")


@each(
    ("value", "message"),
    [
        (3, "'task' is a int; a task can be"),
        ([1, 2], "row 1: it is a int"),
        ([], "no train rows"),
        ({"a": REVIEWS}, "'task' has no train split; it has a"),
        (REVIEWS[:2], "too few train rows"),
    ],
)
def test_other_objects_are_refused_in_one_line(value, message):
    with pytest.raises(UserError, match=message):
        load_task(value)


def test_a_draw_is_stratified_and_keeps_groups_together():
    @given(
        st.lists(st.tuples(st.integers(0, 30), st.sets(st.sampled_from("abc"), max_size=2)), min_size=1, max_size=60),
        st.integers(0, 3),
    )
    @settings(max_examples=60, **QUICK)
    def check(rows, seed):
        groups, labels = [str(group) for group, _ in rows], [sorted(names) for _, names in rows]
        drawn = draw_rows(groups, labels, {"test": 0.2, "dev": 0.1}, seed)
        split_of = {place: split for split, places in drawn.items() for place in places}
        assert sum(map(len, drawn.values())) == len(split_of)
        assert len({(group, split_of.get(place, "train")) for place, group in enumerate(groups)}) == len(set(groups))
        kept = [labels[place] for place in range(len(rows)) if place not in split_of]
        assert {name for names in labels for name in names} == {name for names in kept for name in names}
        order = list(range(len(rows)))
        random.Random(seed).shuffle(order)
        again = draw_rows([groups[i] for i in order], [labels[i] for i in order], {"test": 0.2, "dev": 0.1}, seed)
        for split, places in again.items():
            assert {groups[order[place]] for place in places} == {groups[place] for place in drawn[split]}

    check()
    labels = [["ab"[n % 10 == 0]] for n in range(1000)]
    drawn = draw_rows([str(n) for n in range(1000)], labels, {"test": 0.2, "dev": 0.1}, 0)
    counts = {split: Counter(labels[place][0] for place in places) for split, places in drawn.items()}
    assert counts == {"test": {"a": 180, "b": 20}, "dev": {"a": 90, "b": 10}}


@each(
    ("source", "name"),
    [
        ("a/reviews.csv", "reviews"),
        ("a/reviews.jsonl.gz", "reviews"),
        ("reviews.csv:body", "reviews"),
        ("hf:stanfordnlp/imdb", "imdb"),
        ("hf:glue:mrpc:train", "glue-mrpc"),
        ("data/v1.2", "v1.2"),
    ],
)
def test_a_task_is_named_after_its_source(source, name):
    assert default_task_name(source) == name
