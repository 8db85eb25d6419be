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
    "generation": lambda n: {"question": f"what is {n}?", "answers": [f"it is {n}", f"{n}"]},
    "qa": lambda n: {
        **{"id": f"q{n}", "context": f"the waiter {n} was kind", "question": f"who was {n}?"},
        **{"answers": {"text": ["waiter"], "answer_start": [4]}},
    },
}
HALF, HALF_FAULT = "half \ud800", "with half of a surrogate pair, which is not a character"
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
    "generation": [
        ({"question": " "}, "without a question"),
        ({"question": 3}, "whose question is not a string"),
        ({"question": HALF}, "with half of a surrogate pair"),
        ({"answers": None}, "without an answer"),
        ({"answers": [" ", None]}, "without an answer"),
        ({"answers": [{"a": 1}]}, "whose answers cannot be read"),
        ({"answers": ["a", HALF]}, "with half of a surrogate pair"),
    ],
    "qa": [
        ({"context": " "}, "without a context"),
        ({"question": None}, "without a question"),
        ({"id": ""}, "without an id"),
        ({"answers": {"text": [], "answer_start": []}}, "without an answer"),
        ({"answers": {"text": ["cook"], "answer_start": [4]}}, "with an answer that cannot be used"),
        ({"answers": {"text": ["waiter"], "answer_start": ["4"]}}, "with an answer that cannot be used"),
        ({"answers": {"text": ["waiter"], "answer_start": []}}, "with an answer that cannot be used"),
        ({"question": HALF}, "with half of a surrogate pair"),
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


def beir(folder, dirt):
    """A folder in the layout of BEIR with dirt: pairs of a file and a line that cannot be used."""
    lines = {
        "corpus.jsonl": [json.dumps({"_id": f"d{n}", "text": f"the waiter {n}"}) for n in range(60)],
        "queries.jsonl": [json.dumps({"_id": f"q{n}", "text": f"who is {n}?"}) for n in range(60)],
        "qrels/train.tsv": [f"q{n}\td{n}\t1" for n in range(60)],
        "qrels/test.tsv": [f"q{n}\td{n}\t1" for n in range(30, 60)],
    }
    for file, line in dirt:
        lines[file].insert(len(lines[file]) // 2, line)
    for file, found in lines.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        head = ["query-id\tcorpus-id\tscore"] if file.endswith("tsv") else []
        (folder / file).write_text("\n".join([*head, *found]) + "\n")
    return folder


def squad(folder, dirt):
    """A file in the format of SQuAD with dirt: changes of a question, or None for a paragraph without questions."""

    def paragraph(who, number):
        question = {"id": f"{who} {number}", "question": "who?", "answers": [{"text": who, "answer_start": 4}]}
        return {"context": f"the {who} {number}", "qas": [question]}

    paragraphs = [paragraph("waiter", number) for number in range(60)]
    for number, change in enumerate(dirt):
        row = paragraph("cook", number)
        row = {"context": "x"} if change is None else {**row, "qas": [{**row["qas"][0], **change}]}
        paragraphs.insert(1 + 7 * number % 60, row)
    folder.mkdir(parents=True)
    for split, found in (("train", paragraphs), ("test", [row for row in paragraphs if "waiter" in row["context"]])):
        (folder / f"{split}.json").write_text(json.dumps({"data": [{"paragraphs": found}]}))
    return folder


def conll(folder, dirt):
    """Files of columns with dirt: sentences, as text, with a word that has no tag."""
    sentences = [f"Ada B-PER\nis O\n{n} O\n" for n in range(60)]
    folder.mkdir(parents=True)
    (folder / "test.conll").write_text("\n".join(sentences))
    for number, text in enumerate(dirt):
        sentences.insert(7 * number % 60, text)
    (folder / "train.conll").write_text("\n".join(sentences))
    return folder


FOLDERS = {
    beir: [
        (("corpus.jsonl", '{"_id": "d70", "text": 3}'), "without a text"),
        (("corpus.jsonl", '{"text": "without an id"}'), "without an id"),
        (("queries.jsonl", '{"_id": "q3", "text": "again"}'), "with the id of another row"),
        (("queries.jsonl", '{"_id": '), "that cannot be parsed"),
        (("queries.jsonl", "[3]"), "that are no JSON objects"),
        (
            ("corpus.jsonl", '{"_id": "d71", "text": "\\ud800"}'),
            "with half of a surrogate pair, which is not a character",
        ),
        (("qrels/train.tsv", "q1\td99\t1"), "with an unknown document"),
        (("qrels/train.tsv", "q99\td1\t1"), "with an unknown query"),
        (("qrels/train.tsv", "q1\td1\tnan"), "that are no judgements"),
        (("qrels/test.tsv", "q31\td31\tyes"), "that are no judgements"),
        (("qrels/train.tsv", "q2\td2\t5"), "with a second score of the same document"),
        (("qrels/train.tsv", "q2\td2\t1\tmore"), "that cannot be parsed"),
    ],
    squad: [
        (None, "that cannot be parsed"),
        ({"question": " "}, "without a question"),
        ({"id": None}, "without an id"),
        ({"id": "waiter 0"}, "with the id of another question"),
        ({"answers": []}, "without an answer"),
        ({"is_impossible": True}, "without an answer"),
        ({"answers": [{"text": "waiter", "answer_start": 4}]}, "with an answer that cannot be used"),
        ({"answers": [{"text": "cook"}]}, "with an answer that cannot be used"),
    ],
    conll: [("lonely\n", "without a tag for each word"), ("Ada B-PER\nis\n", "without a tag for each word")],
}


@pytest.mark.parametrize("make", FOLDERS)
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_folders_of_other_formats_tolerate_the_same(make, tmp_path_factory, data):
    drawn = data.draw(st.lists(st.sampled_from(FOLDERS[make]), min_size=1, max_size=6))
    clean = load_task(make(tmp_path_factory.mktemp("clean") / "t", []))
    folder = make(tmp_path_factory.mktemp("dirty") / "t", [dirt for dirt, _ in drawn])
    with pytest.MonkeyPatch.context() as patch:
        said = []
        patch.setattr("acclimate.data.rows.warn_once", said.append)
        assert load_task(folder).fingerprint() == clean.fingerprint()
    (message,) = said
    assert counted(message) == Counter(fault for _, fault in drawn)
    with pytest.raises(UserError, match="'strict' is given") as caught:
        load_task(folder, strict=True)
    assert counted(str(caught.value)) == counted(message)
    many = make(tmp_path_factory.mktemp("many") / "t", [drawn[0][0]] * 40)
    with pytest.raises(UserError, match="more than 20%"):
        load_task(many)


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
