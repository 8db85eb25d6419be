"""Labels in every form that people have are read as the same classes in every format, or refused."""

from __future__ import annotations

import csv
import decimal
import enum
import io
import json
import os
from pathlib import Path

import numpy
import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.base.errors import UserError, warn_once
from acclimate.data.documents import Corpus
from acclimate.data.task_kinds import load_task
from acclimate.tasks.kinds.classification.data import Task
from tests.cases import each

FORMATS = ("csv", "tsv", "jsonl", "json", "parquet", "arrow")


def write(path: Path, rows: list[dict], metadata: dict | None = None) -> None:
    kind = path.suffix[1:]
    if kind in ("csv", "tsv"):
        buffer = io.StringIO(newline="")
        writer = csv.DictWriter(
            buffer, list(rows[0]), delimiter="," if kind == "csv" else "\t", quoting=csv.QUOTE_ALL, lineterminator="\n"
        )
        writer.writeheader()
        writer.writerows(rows)
        path.write_bytes(buffer.getvalue().encode())
    elif kind in ("jsonl", "json"):
        lines = [json.dumps(row) for row in rows]
        path.write_text("\n".join(lines) if kind == "jsonl" else f"[{', '.join(lines)}]")
    else:
        table = pyarrow.Table.from_pylist(rows).replace_schema_metadata(metadata)
        if kind == "parquet":
            pyarrow.parquet.write_table(table, path)
        else:
            with pyarrow.ipc.new_stream(path, table.schema) as stream:
                stream.write_table(table)


def read(labels, test=None) -> Task:
    rows = [{"text": f"t{number}", "label": label} for number, label in enumerate(labels)]
    return Task.of("t", rows, rows if test is None else [{"text": "x", "label": test}], strict=True)


names = st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=4) | st.sampled_from(
    ["1", "1.0", "0", "-1", "2", "True", "true", "nan", "4.5", "a|b", "a", "b", "[1]", "['a', 'b']", "none", "1,5"]
)
columns = st.one_of(
    st.lists(kind, min_size=2, max_size=5)
    for kind in (
        *(st.integers(-2, 3), st.booleans(), st.integers(0, 3).map(float), st.floats(), names),
        *(st.lists(names, max_size=3), st.lists(st.integers(0, 1), min_size=2, max_size=2)),
    )
)
texts = st.text(st.characters(codec="utf-8", exclude_characters="\n"), min_size=1).filter(str.strip)


@settings(max_examples=25, deadline=None)
@given(columns, st.data())
def test_the_same_rows_give_the_same_task_and_the_same_corpus_in_every_format(tmp_path_factory, labels, data):
    rows = [{"text": data.draw(texts), "label": label} for label in labels]
    if data.draw(st.booleans()):
        rows = [{**row, "text_pair": data.draw(st.none() | texts)} for row in rows]
    place, found, read_texts = tmp_path_factory.mktemp("formats"), {}, {}
    for kind in FORMATS:
        for split in ("train", "test"):
            path = place / kind / f"{split}.{kind}"
            path.parent.mkdir(exist_ok=True)
            write(path, rows)
        read_texts[kind] = list(Corpus(path, dedup=False))
        try:
            found[kind] = load_task(path.parent).fingerprint()
        except UserError as error:
            assert "\n" not in str(error)
            found[kind] = "refused"
    assert len(set(found.values())) == 1, found
    assert all(given == [row["text"] for row in rows] for given in read_texts.values())


def vector(members: set[int], kinds: int) -> list[int]:
    return [int(kind in members) for kind in range(kinds)]


MULTI = {
    "numbers": lambda members, _: sorted(members),
    "names": lambda members, _: [f"class {kind}" for kind in members],
    "tuple": lambda members, _: tuple(sorted(members)),
    "set": lambda members, _: {f"c{kind}" for kind in members},
    "array": lambda members, _: numpy.array(sorted(members), dtype=int),
    "JSON": lambda members, _: json.dumps([str(kind) for kind in members]),
    "printed": lambda members, _: str([f"c'{kind}" for kind in members]),
    "printed array": lambda members, _: str(numpy.array([f"c{kind}" for kind in sorted(members)])),
    "vector": lambda members, kinds: vector(members, kinds),
    "floats": lambda members, kinds: [float(bit) for bit in vector(members, kinds)],
    "booleans": lambda members, kinds: [bool(bit) for bit in vector(members, kinds)],
    "tensor": lambda members, kinds: torch.tensor(vector(members, kinds)),
    "printed vector": lambda members, kinds: str([float(bit) for bit in vector(members, kinds)]),
    "printed vector array": lambda members, kinds: str(numpy.array(vector(members, kinds))),
    "probabilities": lambda members, kinds: [0.9 if bit else 0.1 for bit in vector(members, kinds)],
}
SINGLE = {
    "number": lambda kind, _: kind,
    "text": lambda kind, _: f" {kind} ",
    "float": lambda kind, _: float(kind),
    "float as text": lambda kind, _: f"{kind}.0",
    "exponent": lambda kind, _: f"{kind:e}",
    "numpy": lambda kind, _: numpy.int64(kind),
    "numpy float": lambda kind, _: numpy.float32(kind),
    "numpy text": lambda kind, _: numpy.str_(f"c{kind}"),
    "numpy boolean": lambda kind, _: numpy.bool_(kind % 2) if kind < 2 else kind,
    "tensor": lambda kind, _: torch.tensor(kind),
    "decimal": lambda kind, _: decimal.Decimal(kind),
    "boolean as text": lambda kind, _: ("FALSE", "True")[kind] if kind < 2 else f"c{kind}",
    "from -1": lambda kind, _: kind - 1,
    "score": lambda kind, _: kind / 2,
    "score as text": lambda kind, _: str(kind / 2),
    "decimal comma": lambda kind, _: f"{kind},5",
    "missing": lambda kind, _: "nan" if kind == 0 else str(kind),
}


def memberships(rows: list[set]) -> list[tuple[bool, ...]]:
    """Return which rows belong to each class, whatever the classes are called."""
    return sorted(tuple(kind in row for row in rows) for kind in set().union(*rows))


def check_classes(labels: list, members: list[set[int]]) -> bool:
    """Return whether labels were read; fail if they were read as other classes."""
    try:
        task = read(labels)
    except UserError as error:
        assert "\n" not in str(error)
        return False
    assert memberships([set(example.places) for example in task.train]) == memberships(members)
    return True


@each("form", sorted(MULTI))
@settings(max_examples=15, deadline=None)
@given(members=st.lists(st.sets(st.integers(0, 3), max_size=3), min_size=2, max_size=6), kinds=st.integers(4, 5))
def test_several_labels_in_any_form_are_the_same_classes(form, members, kinds):
    check_classes([MULTI[form](row, kinds) for row in members], members)


@each("form", sorted({*SINGLE, *MULTI}))
@settings(max_examples=12, deadline=None)
@given(kinds=st.lists(st.integers(0, 3), min_size=2, max_size=6))
def test_one_label_in_any_form_is_the_same_class(form, kinds):
    make = SINGLE.get(form) or (lambda kind, count: MULTI[form]({kind}, count))
    was_read = check_classes([make(kind, 4) for kind in kinds], [{kind} for kind in kinds])
    refused = ("score", "score as text", "decimal comma", "missing", "probabilities", "printed array", "from -1")
    assert was_read or len(set(kinds)) < 2 or form.startswith(refused) or form == "printed vector array"


@each(
    ("labels", "order"),
    [
        (["1.0", "0.0"], ["0", "1"]),
        (["True", "FALSE"], ["false", "true"]),
        (["['a', 'b']", "[]"], ["a", "b"]),
        (["01", "02"], ["01", "02"]),
        (["3.11.2", "3.12.0"], ["3.11.2", "3.12.0"]),
        (["[CLS]", "(other)"], ["(other)", "[CLS]"]),
        ([-1, 0, 1], ["-1", "0", "1"]),
        (["-1", "+1"], ["+1", "-1"]),
        ([[0, 1], [1, 0]], ["0", "1"]),
        ([[0, 1, 1], [1, 0, 0]], ["0", "1", "2"]),
        ([[0], [1], [0, 1]], ["0", "1"]),
        ([[True, False], [False, True]], ["0", "1"]),
    ],
)
def test_names_of_classes(labels, order):
    assert sorted(read(labels).labels) == sorted(order)


@each(
    ("labels", "message"),
    [
        (["4.5", "1.25"], "row 1: the label must be .* not '4.5': numbers with a fraction are scores"),
        ([1.0, 0.5], "row 2: the label must be .* not 0.5: numbers with a fraction"),
        (["4,5", "1,25"], "row 1: .* write several labels as a list, and numbers without a comma"),
        (["1", "nan"], "row 2: the label 'nan' is how libraries write a missing .*; a class needs another name"),
        (["1", "1.0", "beta"], "row 2: the label '1.0' is '1' in another row"),
        (["a", "b", "a|b"], r"The label 'a\|b' looks like several"),
        ([True, 1, 0, False], "Some labels are 0 or 1, others true or false"),
        (["True", "0"], "Some labels are 0 or 1, others true or false"),
        ([-1, 0, 1, 2], "'-1' next to 0 to 2 has 1 of 4 train rows and usually marks rows without a label"),
        (["[0 1]", "[1 0]"], r"row 1: the label \[0 1\] cannot be read as a list"),
        (["['a' 'b']", "['a']"], "row 1: the label .* cannot be read as a list"),
        (["array([0, 1])", "array([1, 0])"], "row 1: the label .* cannot be read as a list"),
        (['{"a": 1}', "b"], "row 1: the label must be a string"),
        ([[0, 1, 0], [1, 1], [0, 0, 0]], "row 2: lists of 0 and 1 must all have the same length"),
        ([[0.2, 0.8], [1.0, 0.0]], "numbers with a fraction are scores"),
    ],
)
def test_labels_that_are_refused(labels, message):
    with pytest.raises(UserError, match=message):
        read(labels)


def test_labels_of_other_splits_in_other_forms():
    assert read([0, 1], "1.0").test[0].label == 1
    assert read(["False", "True"], True).test[0].label == 1
    with pytest.raises(UserError, match=r"'-1' does not occur in train .-1 usually marks rows without a label"):
        read([0, 1], -1)


@each("mark", ["NA", "n/a", "NULL", "None", "-", "#N/A", "nan", "-100"])
def test_a_mark_of_no_value_next_to_numbers_is_no_class(mark, tmp_path, caplog):
    rows = [{"text": f"t{number}", "label": ("1", "0", mark)[number % 16 % 3]} for number in range(64)]
    rows = [row for number, row in enumerate(rows) if row["label"] != mark or number % 5 == 2]
    left = sum(row["label"] == mark for row in rows)
    for kind in FORMATS:
        warn_once.cache_clear()
        caplog.clear()
        write(tmp_path / f"a.{kind}", rows)
        assert load_task(tmp_path / f"a.{kind}").labels == ["0", "1"] and str(left) in caplog.text
        with pytest.raises(UserError, match=f"{left}.*'strict' is given"):
            load_task(tmp_path / f"a.{kind}", strict=True)
    symbols = read(["-", "+"])
    assert symbols.labels == ["+", "-"]


def test_an_enumeration_is_its_values():
    one, two = enum.Enum("Plain", {"A": "pos", "B": "neg"}), enum.Enum("Text", {"A": "pos", "B": "neg"}, type=str)
    for kind in (one, two):
        assert read([kind.A, kind.B]).labels == ["neg", "pos"]


@each(("labels", "part"), [
    (["billing;login", "login", "crash;billing"], "billing"),
    (["a,b", "b", "c, a"], "b"),
    (["x|y", "y|x"], "y"),
    (["sport|ball", "sport|net", "sport"], None),
    (["up; down", "left; right"], None),
])  # fmt: skip
def test_several_labels_in_a_cell_are_pointed_out_and_hierarchies_are_not(labels, part, caplog):
    assert read(labels).labels == sorted(labels)
    assert ("the part" in caplog.text) == (part is not None) and (part is None or f"part '{part}'" in caplog.text)


def test_texts_with_different_labels_are_counted(caplog):
    rows = [{"text": f"t{number // 2}", "label": "ab"[number % 2]} for number in range(8)]
    Task.of("t", [*rows, {"text": "u", "label": "a"}, {"text": "u", "label": "a"}], rows)
    assert "4 of 5 train texts of the task 't' have different labels" in caplog.text
    caplog.clear()
    pairs = [row | {"text_pair": f"p{number}"} for number, row in enumerate(rows)]
    Task.of("pairs", pairs, pairs)
    assert "different labels" not in caplog.text


def test_labels_that_look_alike_and_too_many_classes_cause_a_warning(caplog):
    read(["Pos", "neg", "pos"])
    assert "'pos' (1 rows) and 'Pos' (1)" in caplog.text
    caplog.clear()
    read(list(range(40)))
    assert "40 classes in 40 train rows" in caplog.text
    caplog.clear()
    read(["pos", "neg"])
    assert not caplog.text


def test_the_negative_class_is_found_in_any_form():
    assert read([False, True]).scoring(negative=["False"]).negative == (0,)
    with pytest.raises(UserError, match=r"Unknown negative label .*'false'.* YAML reads no, yes, on and off"):
        read(["no", "yes"]).scoring(negative=["false"])


def huggingface(feature) -> dict[bytes, bytes]:
    features = {"text": {"dtype": "string", "_type": "Value"}, "label": feature}
    return {b"huggingface": json.dumps({"info": {"features": features}}).encode()}


CLASSES = {"names": ["neg", "pos"], "_type": "ClassLabel"}


def test_names_that_datasets_has_stored(tmp_path):
    rows = [{"text": "a", "label": 0}, {"text": "b", "label": 1}]
    for split in ("train", "test"):
        write(tmp_path / f"{split}.parquet", rows, huggingface(CLASSES))
    task = load_task(tmp_path)
    assert (task.labels, [example.label for example in task.test]) == (["neg", "pos"], [0, 1])
    write(tmp_path / "test.parquet", [*rows, {"text": "c", "label": -1}], huggingface(CLASSES))
    assert [example.text for example in load_task(tmp_path).test] == ["a", "b"]
    write(tmp_path / "test.parquet", [*rows, {"text": "c", "label": 2}], huggingface(CLASSES))
    with pytest.raises(UserError, match="row 3: the label 2 is none of the 2 classes"):
        load_task(tmp_path)
    for feature in ({"feature": CLASSES, "_type": "List"}, [CLASSES]):
        lists = [{"text": "a", "label": [0, 1]}, {"text": "b", "label": [1]}]
        for split in ("train", "test"):
            write(tmp_path / f"{split}.parquet", lists, huggingface(feature))
        assert load_task(tmp_path).labels == ["neg", "pos"]
    for metadata in ({b"huggingface": b"{"}, huggingface([]), huggingface("x"), {b"huggingface": b"[]"}):
        for split in ("train", "test"):
            write(tmp_path / f"{split}.parquet", rows, metadata)
        assert load_task(tmp_path).labels == ["0", "1"]


def test_a_folder_that_datasets_has_saved(tmp_path):
    rows = [{"text": f"t{i}", "label": i % 2} for i in range(4)]
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "validation", "test"]}')
    for split in ("train", "validation", "test"):
        (tmp_path / split).mkdir()
        for part in range(2):
            place = tmp_path / split / f"data-0000{part}-of-00002.arrow"
            write(place, rows[2 * part : 2 * part + 2], huggingface(CLASSES))
    task = load_task(tmp_path)
    assert [example.text for example in task.dev] == [row["text"] for row in rows] and task.labels == ["neg", "pos"]
    assert sorted(Corpus(tmp_path)) == [row["text"] for row in rows]
    (tmp_path / "dev.csv").write_text("text,label\na,neg\n")
    with pytest.raises(UserError, match="several dev files"):
        load_task(tmp_path)
    (tmp_path / "dev.csv").unlink()
    place.unlink()
    with pytest.raises(UserError, match="has 1 of the 2 parts of its test split"):
        load_task(tmp_path)


def test_parts_of_a_split_are_joined(tmp_path):
    rows = [{"text": f"t{i}", "label": i % 2} for i in range(4)]
    (tmp_path / "data").mkdir()
    for place in (tmp_path, tmp_path / "data"):  # the second as on the Hub
        write(place / "test.csv", rows)
        for part in range(2):
            write(place / f"train-0000{part}-of-00002.parquet", rows[2 * part : 2 * part + 2])
        assert [example.text for example in load_task(tmp_path).train] == [row["text"] for row in rows]
        for file in tmp_path.glob("t*"):
            file.unlink()


def test_a_pipe_in_place_of_a_file_is_refused(tmp_path):
    for split in ("train", "test"):
        write(tmp_path / f"{split}.csv", [{"text": "a", "label": 0}, {"text": "b", "label": 1}])
    os.mkfifo(tmp_path / "dev.csv")
    with pytest.raises(UserError, match="is a pipe, a socket or a device"):
        load_task(tmp_path)
