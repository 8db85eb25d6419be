"""Rows that cannot be used: left out and counted in one message, or refused together; others are as they were."""

from __future__ import annotations

import csv
import json
import random
import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.base.errors import UserError
from acclimate.data.task_kinds import load_task
from acclimate.tasks.kinds.classification.labels import similar_labels

CLEAN = {
    "classification": lambda n: {"text": f"ticket {n}", "label": ("billing", "login")[n % 2]},
    "multi-label": lambda n: {"text": f"ticket {n}", "label": [["billing"], ["login", "billing"]][n % 2]},
    "regression": lambda n: {"text": f"ticket {n}", "label": n / 4},
    "choice": lambda n: {"question": f"which {n}", "choices": [f"a{n}", f"b{n}"], "answer": "AB"[n % 2]},
    "retrieval": lambda n: {"query": f"where is {n}", "passage": f"{n} is here"},
    "entities": lambda n: {"text": f"Bob {n}", "spans": [{"start": 0, "end": 3, "label": "PER"}]},
}
HALF = "half \ud800"
DIRT = {
    "classification": [
        ({"text": ""}, "without a text"),
        ({"text": None}, "without a text"),
        ({"label": " "}, "without a label"),
        ({"label": float("nan")}, "without a label"),
        ({"label": "nan"}, "with a missing or infinite number as the label"),
        ({"text": HALF}, "with half of a surrogate pair"),
        ({"text": 3}, "whose text is not a string"),
        ({"label": {"a": 1}}, "whose label is no class"),
        ({"label": ["billing"]}, "whose label has another form"),
    ],
    "multi-label": [
        ({"text": "\n"}, "without a text"),
        ({"label": None}, "without a label"),
        ({"label": [None]}, "without a label"),
        ({"label": [["x"]]}, "whose label is no class"),
        ({"label": "billing"}, "whose label has another form"),
    ],
    "regression": [
        ({"text": " "}, "without a text"),
        ({"label": float("nan")}, "without a label"),
        ({"label": "high"}, "whose label is no number"),
        ({"text": HALF}, "with half of a surrogate pair"),
    ],
    "choice": [
        ({"question": " "}, "without a question"),
        ({"choices": ["a"]}, "with fewer than two choices"),
        ({"choices": "a or b"}, "whose texts cannot be read"),
        ({"answer": None}, "without an answer"),
        ({"answer": "Z"}, "whose answer is none of the choices"),
    ],
    "retrieval": [
        ({"query": ""}, "without a query"),
        ({"passage": None}, "without a passage"),
        ({"passage": HALF}, "with half of a surrogate pair"),
        ({"passage": 3}, "whose passage is not a string"),
    ],
    "entities": [
        ({"text": None}, "without a text"),
        ({"spans": [{"start": 0, "end": 99, "label": "PER"}]}, "with an entity that cannot be used"),
        ({"spans": [{"start": 3, "end": 4, "label": "PER"}]}, "with an entity that cannot be used"),
        ({"spans": [{"start": 0, "end": 3}]}, "with an entity that cannot be used"),
        ({"text": HALF}, "with half of a surrogate pair"),
    ],
}


def counted(message: str) -> dict[str, int]:
    """The number of rows of each fault in a message."""
    return {fault: int(count) for count, fault in re.findall(r"(\d+) ([a-z][^():]*?) \(first: ", message)}


@pytest.mark.parametrize("kind", sorted(CLEAN))
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 99), as_file=st.booleans(), data=st.data())
def test_what_remains_is_the_clean_rows_and_the_counts_add_up(kind, tmp_path_factory, seed, as_file, data):
    clean = [CLEAN[kind](n) for n in range(60)]
    drawn = data.draw(st.lists(st.sampled_from(DIRT[kind]), min_size=1, max_size=12))
    bad = [({**clean[n], **change}, fault) for n, (change, fault) in enumerate(drawn)]
    if as_file:
        bad.append((None, "that cannot be parsed"))
    mixed = [(row, "") for row in clean]
    for one in bad:
        mixed.insert(random.Random(f"{seed} {len(mixed)}").randint(0, len(mixed)), one)
    rows = {"train": [row for row, _ in mixed], "test": clean[:10]}
    if as_file:
        folder = tmp_path_factory.mktemp("dirty") / "t"
        folder.mkdir()
        for split, found in rows.items():
            lines = ['{"text": ' if row is None else json.dumps(row) for row in found]
            (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
        rows = folder
    expected = Counter(fault for _, fault in bad)
    with pytest.MonkeyPatch.context() as patch:
        said = []
        patch.setattr("acclimate.data.rows.warn_once", said.append)
        task = load_task(rows, name="t")
    assert task.fingerprint() == load_task({"train": clean, "test": clean[:10]}, name="t").fingerprint()
    (message,) = said
    found = counted(message)
    assert f"leaves out {len(bad)} of {70 + len(bad)} rows" in message and sum(found.values()) == len(bad)
    assert all(sum(n for name, n in found.items() if name.startswith(fault)) == n for fault, n in expected.items())
    with pytest.raises(UserError, match="'strict' is given") as caught:
        load_task(rows, name="t", strict=True)
    assert counted(str(caught.value)) == found and "\n" not in str(caught.value)


def test_a_dirty_export_is_read_in_one_start(tmp_path, caplog):
    """Each fault with the line of its first row; labels that train lacks, too; more than a fifth is refused."""
    rows = [["text", "label"], *([f"ticket {n}", ("billing", "login")[n % 2]] for n in range(100))]
    rows[5][0], rows[9][1], rows[20][1] = "", " ", ""
    rows[30].append("more")
    with open(tmp_path / "tickets.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    task = load_task(tmp_path / "tickets.csv")
    assert len(task.train) + len(task.dev) + len(task.test) == 96
    assert (
        "The task 'tickets' leaves out 4 of 100 rows: 1 that cannot be parsed (first: tickets.csv:31: 3 fields "
        "instead of 2), 1 without a text (first: tickets.csv:6), 2 without a label (first: tickets.csv:10)."
    ) in caplog.text
    clean = [{"text": f"t{n}", "label": "ab"[n % 2]} for n in range(20)]
    task = load_task({"train": clean, "test": [*clean, {"text": "x", "label": "c"}]})
    assert len(task.test) == 20 and "1 with a label that train does not have" in caplog.text
    empty = [{"text": "", "label": "a"}] * 6
    with pytest.raises(UserError, match=r"6 of 46 rows .*more than 20% of test: 6 without .*test: row 21"):
        load_task({"train": clean, "test": [*clean, *empty]}, name="t")


def test_labels_that_look_alike_are_all_named_and_merged(caplog):
    counts = {"Billing": 640, "billing ": 3, "LOGIN": 5, "login": 600, "fraud": 40, "fruad": 1, "feud": 1, "１": 4}
    similar = {"billing ": "Billing", "LOGIN": "login", "fruad": "fraud"}
    assert similar_labels(counts) == similar
    assert similar_labels({"grade A": 20, "grade B": 1, "10": 20, "11": 1, "type I": 20, "type II": 1}) == {}
    names = ["Billing"] * 30 + ["billing"] * 3 + ["login"] * 30 + ["LOGIN"] * 5 + ["logn"]
    rows = [{"text": f"t{n}", "label": name} for n, name in enumerate(names)]
    task = load_task({"train": rows, "test": rows})
    assert len(task.labels) == 5 and "--merge-labels" in caplog.text
    assert all(f"'{one}' ({n} row" in caplog.text for one, n in (("billing", 3), ("LOGIN", 5), ("logn", 1)))
    merged = load_task({"train": rows, "test": rows}, merge_labels=True)
    assert merged.labels == ["Billing", "login"] and len(merged.train) == 69
    assert "'LOGIN' (10 rows) into 'login'" in caplog.text
    with pytest.raises(UserError, match="'merge_labels' does not apply"):
        load_task([{"text": f"t{n}", "label": n / 2} for n in range(30)], merge_labels=True)
