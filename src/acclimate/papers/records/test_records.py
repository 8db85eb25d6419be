"""Records: any table, all fields, related records in one document, and the control with the same text."""

from __future__ import annotations

import json
import random
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate import transform
from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from acclimate.data.operations import find_accounts
from acclimate.data.pool import count_words
from acclimate.papers.records.transform import SEPARATOR, chain_neighbors, serialize
from tests.cases import each

ROWS = [
    {"name": f"{kind} {number}", "brand": brand, "price": 3 * number, "about": f"a {kind} for {use} number {number}"}
    for number in range(6)
    for kind, brand, use in (("lamp", "Lux", "the desk"), ("rope", "Tau", "the boat"))
]


@each(
    ("record", "settings", "expected"),
    [
        ({"a": 1, "b_c": "x y"}, {}, "a: 1\nb c: x y"),
        ({"a": None, "b": "", "c": float("nan"), "d": [], "e": {}, "f": 0, "g": False}, {}, "f: 0\ng: False"),
        ({"a": {"b": 1, "c": {"d": 2}}}, {}, "a b: 1\na c d: 2"),
        ({"a": ["x", None, 2]}, {}, "a: x, 2"),
        ({"a": [{"b": 1}, {"b": 2}]}, {}, "a b: 1\na b: 2"),
        ({"a": 1, "b": 2, "c": 3}, {"fields": ["c", "a", "missing"]}, "c: 3\na: 1"),
        ({"a": 1, "b": "text\nmore"}, {"body": "b"}, "a: 1\ntext\nmore"),
        ({"a": 1, "b": "text"}, {"body": "b", "fields": ["a"]}, "a: 1\ntext"),
    ],
)
def test_records_as_text(record, settings, expected):
    assert serialize(record, **settings) == expected


def write_table(folder, form):
    path = folder / f"table.{form}"
    if form == "csv":
        lines = [";".join(ROWS[0]), *(";".join(map(str, row.values())) for row in ROWS)]
        path.write_text("\n".join(lines) + "\n")
    elif form == "json":
        path.write_text(json.dumps(ROWS))
    elif form == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    else:
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
    return path


@each("form", ["csv", "json", "jsonl", "parquet"])
def test_whole_rows_of_any_table_are_read(form, tmp_path):
    path = write_table(tmp_path, form)
    expected = [{name: str(v) if form == "csv" else v for name, v in row.items()} for row in ROWS]
    assert [json.loads(text) for text in Corpus(path, text_column="*")] == expected
    assert list(Corpus(tmp_path, text_column="*")) == list(Corpus(f"{path}:*"))
    made = transform(str(path), {"records": "brand"}, text_column="*")
    assert list(made) == [
        SEPARATOR.join(serialize(row) for row in ROWS if row["brand"] == brand) for brand in ("Lux", "Tau")
    ]


def test_rows_in_memory_and_the_account():
    rows = [*ROWS, {"name": "odd", "brand": None}, {"price": None}]
    made = transform(rows, {"records": {"key": "brand", "tokens": 50}}, text_column="*")
    (account,) = find_accounts(made)
    texts = list(made)
    assert texts[-1] == "name: odd" and all(len({"lamp", "rope"} & set(text.split())) == 1 for text in texts[:-1])
    assert all(count <= 50 for count in count_words([text.replace(SEPARATOR, " ") for text in texts]))
    assert (account.notes["keys"], account.notes["without_key"], account.notes["without_record"]) == (2, 1, 1)
    assert account.notes["fields"] == {"name": 13, "brand": 13, "price": 12, "about": 12}
    assert account.dropped == ['{"price": null}'] and account.notes["records"] == 13


def test_the_nearest_share_a_document_and_the_control_has_the_same_text():
    words = {"lamp": "bulb shade desk light switch".split(), "rope": "boat sail knot mast deck".split()}
    draw = random.Random(1)
    rows = [{"kind": kind, "about": " ".join(draw.sample(words[kind], 4))} for _ in range(6) for kind in words]
    settings = {"tokens": 1_000, "related": "nearest"}
    (near,) = transform(rows, {"records": settings}, text_column="*")
    kinds = [text.split()[1] for text in near.split(SEPARATOR)]
    assert sum(one != other for one, other in pairwise(kinds)) == 1  # all lamps, then all ropes
    control = {**settings, "related": "random"}
    drawn = ["".join(transform(rows, {"records": {**control, "seed": k}}, text_column="*")) for k in (0, 1)]
    assert drawn[0] != drawn[1] and Counter(drawn[0].split(SEPARATOR)) == Counter(near.split(SEPARATOR))
    (in_order,) = transform(rows, {"records": {**settings, "related": "next"}}, text_column="*")
    assert in_order.split(SEPARATOR) == list(dict.fromkeys(map(serialize, rows)))


@given(st.integers(1, 12), st.integers(1, 4), st.data())
@settings(max_examples=40, deadline=None)
def test_chains_follow_the_nearest_neighbor_that_is_left(count, k, data):
    row = st.lists(st.integers(-1, count - 1), min_size=k, max_size=k)
    neighbors = np.array(data.draw(st.lists(row, min_size=count, max_size=count)))
    order = chain_neighbors(neighbors)
    assert sorted(order) == list(range(count)) and order[0] == 0
    for place, (one, other) in enumerate(pairwise(order)):
        left = set(range(count)) - set(order[: place + 1])
        following = [near for near in neighbors[one].tolist() if near in left]
        assert other == (following[0] if following else min(left))


@each(
    ("parameters", "message"),
    [
        ({"related": "key"}, "needs key"),
        ({"related": "random", "key": "brand"}, "has no key"),
        ({"tokens": 0}, "at least 1"),
        ({"key": "band"}, "no record has a field 'band'; its fields: name, brand"),
        ({"fields": "absent"}, "with text in the fields 'absent'"),
    ],
)
def test_mistakes_are_explained(parameters, message):
    with pytest.raises(UserError, match=message):
        transform(ROWS, {"records": parameters}, text_column="*")


def test_a_header_with_equal_names_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text("a,b,a\n1,2,3\n")
    with pytest.raises(UserError, match="several columns 'a'"):
        list(Corpus(tmp_path / "a.csv", text_column="*"))


def test_plain_text_has_no_records():
    with pytest.raises(UserError, match="a JSON object with text in its fields"):
        transform(["plain text", "[1, 2]"], "records")
