"""Task folders in every format, and a one-line error for each invalid one."""

from __future__ import annotations

import csv
import gzip
import io
import json

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.base.errors import UserError
from acclimate.data.task_kinds import load_task
from acclimate.tasks.kinds.classification.data import Example, Task
from tests.cases import each

TRAIN = [{"text": "good food", "label": "pos"}, {"text": "rude waiter", "label": "neg"}]
TEST = [{"text": "fresh pasta", "label": "pos"}]


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def folder(path, **splits):
    """Write each split, given as rows or as the content of the file."""
    path.mkdir(exist_ok=True)
    for split, rows in {"train": TRAIN, "test": TEST, **splits}.items():
        if rows is not None:
            (path / f"{split}.jsonl").write_text(rows if isinstance(rows, str) else lines(rows), encoding="utf-8")
    return path


def table(rows, delimiter):
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def write(path, rows):
    kind = path.name.removesuffix(".gz").rpartition(".")[2]
    if kind == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        return
    text = lines(rows) if kind == "jsonl" else table(rows, "\t" if kind == "tsv" else ",")
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


@each("ending", ["jsonl", "jsonl.gz", "csv", "csv.gz", "tsv", "parquet"])
def test_every_format_gives_the_same_task(tmp_path, ending):
    rows = [
        {"text": 'She said "no",\n\tand left', "text_pair": "service", "label": "neg", "id": "7"},
        {"text": "Crème brûlée", "text_pair": "", "label": "pos", "id": "8"},
    ]
    for split in ("train", "test"):
        write(tmp_path / f"{split}.{ending}", rows)
    task = load_task(tmp_path)
    assert task.train == [Example('She said "no",\n\tand left', "service", 0), Example("Crème brûlée", "", 1)]
    assert (task.labels, task.dev, task.is_pair, task.name) == (["neg", "pos"], [], True, tmp_path.name)
    assert task.fingerprint() == Task.of("other", rows, rows).fingerprint()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1).filter(str.strip), min_size=1, max_size=5))
def test_any_text_survives_jsonl(tmp_path_factory, texts):
    path = tmp_path_factory.mktemp("task")
    task = load_task(folder(path, test=[{"text": text, "label": "pos"} for text in texts]))
    assert [example.text for example in task.test] == texts


@settings(max_examples=30, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_give_a_task_or_a_one_line_error(tmp_path_factory, data):
    path = folder(tmp_path_factory.mktemp("task"), test=None)
    for name in ("test.jsonl", "test.csv", "test.tsv", "test.jsonl.gz", "test.parquet"):
        (path / name).write_bytes(data)
        try:
            load_task(path)
        except UserError as error:
            assert "\n" not in str(error)
        (path / name).unlink()


@each(
    ("labels", "order"),
    [
        ([10, 9, 2], ["2", "9", "10"]),
        (["10", "9", "b"], ["10", "9", "b"]),
        ([True, False], ["false", "true"]),
        ([1.0, 0.0], ["0", "1"]),
        ([" b ", "a"], ["a", "b"]),
    ],
)
def test_label_order_is_stable(labels, order):
    rows = [{"text": "x", "label": label} for label in labels]
    assert Task.of("t", rows, rows[:1]).labels == order
    assert Task.of("t", rows[::-1], rows[:1]).labels == order


def test_the_fingerprint_ignores_what_does_not_matter(tmp_path):
    base = load_task(folder(tmp_path / "a")).fingerprint()
    assert load_task(folder(tmp_path / "b", test=[{**TEST[0], "id": 3}])).fingerprint() == base
    assert load_task(folder(tmp_path / "c", test=[{"text": "fresh pasta.", "label": "pos"}])).fingerprint() != base
    assert load_task(folder(tmp_path / "d", train=TRAIN[::-1])).fingerprint() != base
    assert load_task(folder(tmp_path / "e", dev=TEST)).fingerprint() != base
    assert load_task(folder(tmp_path / "f", test=[{"text": "fresh pasta", "label": "neg"}])).fingerprint() != base


def test_few_shot_keeps_that_many_of_each_class():
    rows = [{"text": f"t{number}", "label": "ab"[number % 2]} for number in range(20)] + [{"text": "c", "label": "c"}]
    task = Task.of("t", rows, rows[:1])
    kept = task.few_shot(3, seed=0)
    assert [sum(example.label == label for example in kept) for label in range(3)] == [3, 3, 1]
    assert [task.train.index(example) for example in kept] == sorted(task.train.index(example) for example in kept)
    assert task.few_shot(3, seed=0) == kept != task.few_shot(3, seed=1)
    with pytest.raises(UserError, match="few_shot=0"):
        task.few_shot(0, seed=0)


def test_a_missing_folder_proposes_the_closest_name(tmp_path):
    folder(tmp_path / "asc_restaurant")
    with pytest.raises(UserError, match=r"no task file or folder .*asc_restaurnt'\. Did you mean .*asc_restaurant'"):
        load_task(tmp_path / "asc_restaurnt")
    (tmp_path / "notes.txt").write_text("good food")
    with pytest.raises(UserError, match=r"notes\.txt' is not a table; a task needs \.jsonl"):
        load_task(tmp_path / "notes.txt")
    with pytest.raises(UserError, match="no task file or folder"):
        load_task(tmp_path / "no" / "where")


def test_labels_that_are_tags_of_words_are_refused_and_the_hint_leads_on(tmp_path):
    tags = ["B-DRUG", "I-DRUG", "O", "O"]
    rows = [{"text": f"{tag}{number}", "label": tag} for number in range(30) for tag in tags]
    with pytest.raises(UserError, match=r"are tags of words, not classes.*a column 'sentence_id'"):
        load_task(rows)
    numbered = [{"word": row["text"], "tag": row["label"], "sentence_id": n // 4} for n, row in enumerate(rows)]
    assert load_task(numbered).task_kind == "entities"
    assert load_task([{"text": f"{n}", "label": "B-1" if n % 2 else "O"} for n in range(30)]).labels == ["B-1", "O"]


def test_missing_and_duplicate_files(tmp_path):
    path = folder(tmp_path / "t", test=None)
    with pytest.raises(UserError, match=r"no test split, and too few train rows \(2\) to draw one from"):
        load_task(path)
    write(path / "test.csv", TEST)
    write(path / "test.tsv", TEST)
    with pytest.raises(UserError, match=r"several test files \(test\.csv, test\.tsv\)"):
        load_task(path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"no train file; it needs train\.jsonl .*Found: nothing\."):
        load_task(tmp_path / "empty")


@each(
    ("split", "content", "message"),
    [
        ("test", '{"text": "x", "label": "pos"}\n\n{"text": "x"', r"test\.jsonl:3: not JSON"),
        ("test", "[1]\n", r"test\.jsonl:1: a row must be a JSON object"),
        ("train", [{"subject": "x", "label": "pos"}], r":1: no column 'text'\. The columns are: subject, label"),
        ("dev", [{"text": "x", "gold": "pos"}], r"dev\.jsonl:1: no column 'label'\. The columns are: text, gold"),
        ("test", [{"text": " \n", "label": "pos"}], r"1 without a text \(first: test\.jsonl:1\)"),
        ("test", [{"text": 3, "label": "pos"}], ":1: the text is 3"),
        ("test", [{"text": "\ud800", "label": "pos"}], "surrogate"),
        ("test", [{"text": "x", "text_pair": 3, "label": "pos"}], "'text_pair' is 3"),
        ("test", [{"text": "x", "text_pair": "y", "label": "pos"}], "has a 'text_pair', other than most rows"),
        ("test", [{"text": "x", "label": None}], r"without a label \(first: test\.jsonl:1"),
        ("test", [{"text": "x", "label": 0.5}], "label must be a string"),
        ("test", [{"text": "x", "label": " "}], "without a label"),
        ("test", [{"text": "x", "label": ["pos"]}], ":1: the label is a list, but those of most"),
        ("test", [*TEST, {"text": "x", "label": "mixed"}], r":2: the label 'mixed' does not occur in train"),
        ("dev", [{"text": "x", "label": "mixed"}], "'mixed' does not occur in train.*neg, pos"),
        ("train", TRAIN[:1], "All train rows .* have the label 'pos'"),
        ("train", "", "holds no rows"),
    ],
)
def test_bad_rows_are_named_by_file_and_line(tmp_path, split, content, message):
    with pytest.raises(UserError, match=message) as caught:
        load_task(folder(tmp_path / "t", **{split: content}))
    assert "\n" not in str(caught.value)


def test_pair_tasks_need_a_pair_in_every_row(tmp_path):
    pairs = [{**row, "text_pair": "x"} for row in TRAIN]
    with pytest.raises(UserError, match=r"test\.jsonl:1: the row has no 'text_pair'"):
        load_task(folder(tmp_path / "t", train=pairs))


@each(
    ("name", "data", "message"),
    [
        ("test.csv", b"text,label\nfine,pos\na,b,pos\n", r"test\.csv:3: 3 fields instead of 2"),
        ("test.csv", b'text,label\n"a" b,pos\n', r"test\.csv:2: not a valid row"),
        ("test.csv", b"text,label\n\xff,pos\n", r"test\.csv:2: not UTF-8"),
        ("test.csv", b"", "holds no rows"),
        ("test.parquet", b"PAR1", "cannot be read"),
        ("test.jsonl.gz", b"no gzip", "cannot be read"),
        ("test.jsonl.gz", gzip.compress(b'{"text": "x", "label": "pos"}' * 50, mtime=0)[:-12], "cannot be read"),
    ],
)
def test_damaged_files(tmp_path, name, data, message):
    path = folder(tmp_path / "t", test=None)
    (path / name).write_bytes(data)
    with pytest.raises(UserError, match=message):
        load_task(path)


def test_byte_order_marks_and_long_cells_are_read(tmp_path):
    path = folder(tmp_path / "t", test=None)
    (path / "test.csv").write_bytes(b"\xef\xbb\xbftext,label\r\n" + b"x" * 200_000 + b",pos\r\n")
    assert len(load_task(path).test[0].text) == 200_000


def test_a_quotation_over_several_tsv_rows_loses_no_example(tmp_path):
    path = folder(tmp_path / "t", test=None)
    rows = ['"This is good.\tpos', "I hate the rest.\tneg", 'I like it."\tpos', "end\tneg"]
    (path / "test.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    task = load_task(path)
    assert [(example.text, task.labels[example.label]) for example in task.test] == [
        tuple(row.split("\t")) for row in rows
    ]
    (path / "test.tsv").write_text("\n".join(["text\tlabel", *rows[:2], 'I like it."\tmixed', rows[3]]) + "\n")
    with pytest.raises(UserError, match=r"test\.tsv:4: the label 'mixed'"):
        load_task(path)


def test_tsv_without_quoting_is_read_as_in_a_corpus(tmp_path):
    path = folder(tmp_path / "t", test=None)
    rows = ['"Hello" he said\tpos', '5" pizza\tneg', '"open\tpos', "end\tneg"]
    (path / "test.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    assert [example.text for example in load_task(path).test] == [row.split("\t")[0] for row in rows]


@each(
    ("header", "row"),
    [("text;label", "a, b;pos"), (" text , label ", "a;pos"), ("text\tlabel", "a\tpos"), ("label|text", "pos|a")],
)
def test_other_delimiters_and_blanks_in_headers(tmp_path, header, row):
    path = folder(tmp_path / "t", test=None)
    delimiter = next(mark for mark in ";\t|," if mark in header)
    (path / "test.csv").write_text(f"{header}\n{row.replace(';', delimiter)}\n")
    assert load_task(path).test == [Example(row.replace(";", delimiter).split(delimiter)[delimiter == "|"], None, 1)]


def test_json_arrays_are_read(tmp_path):
    path = folder(tmp_path / "t", train=None)
    (path / "train.json").write_text(json.dumps(TRAIN, indent=1))
    assert load_task(path).fingerprint() == load_task(folder(tmp_path / "other")).fingerprint()
    (path / "train.json").write_text('{"a": [1]}')
    with pytest.raises(UserError, match=r"train\.json: row 1: no column 'text'"):
        load_task(path)


def test_real_tasks_are_read(shared):
    task = load_task(shared / "data" / "asc_restaurant")
    assert (len(task.train), len(task.dev), len(task.test)) == (3452, 150, 1120)
    assert task.labels == ["negative", "neutral", "positive"]
    assert task.is_pair
    assert load_task(shared / "data" / "rrc_restaurant").task_kind == "qa"
