"""Rows of a group are not independent: every kind of task keeps their groups, and every draw respects them."""

from __future__ import annotations

import itertools
import json
import logging
import random
from collections import Counter
from dataclasses import replace

import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.base.errors import UserError, warn_once
from acclimate.data.reading import ReadingOptions
from acclimate.data.task_kinds import TASK_KINDS, find_task_kind, load_task
from acclimate.evaluation.scoring import make_scoring
from acclimate.labs.inspection.leakage import inspect_leakage
from acclimate.tasks.drawing import link_rows
from acclimate.tasks.groups import describe_groups, group_text, number_known_groups
from acclimate.tasks.kinds.choice.model import ChoicePredictor
from acclimate.tasks.kinds.classification.classifier import TextPredictor
from acclimate.tasks.kinds.classification.data import Example, Task
from acclimate.tasks.kinds.entities.tagger import EntityPredictor
from acclimate.tasks.kinds.generation.model import AnswerPredictor
from acclimate.tasks.kinds.qa.data import QATask
from acclimate.tasks.kinds.qa.model import QuestionPredictor
from acclimate.tasks.kinds.regression import NumberPredictor
from acclimate.tasks.splits import cut_dev, limit_splits, repartition, replace_test_with_dev
from tests.cases import each
from tests.tasks.test_contract import SAMPLES

QUICK = {"deadline": None, "database": None}
SPLITS = ("train", "dev", "test")
VARIANTS = {"multi-label": "classification", "pairs": "classification"}
"""Further forms of tasks, with their kinds."""


def rows_of(kind, groups, column="case", split="train"):
    """Rows of a task of a kind, one of each group number, with different texts."""
    made = [
        SAMPLES[VARIANTS.get(kind, kind)].row(random.Random(f"{split}{place}"), place) for place in range(len(groups))
    ]
    for place, (row, group) in enumerate(zip(made, groups, strict=True)):
        for name in ("text", "question", "query", "context"):
            if name in row and not (name == "question" and "context" in row):
                row[name] += f" {split} {place}"
        if "tokens" in row:
            row["tokens"][0] = f"{split}{place}"
        row[column] = f"c{group}"
        row |= {"multi-label": {"label": [row.get("label")]}, "pairs": {"text_pair": "is it"}}.get(kind, {})
    return made


def written(rows, folder):
    """Yield the rows in memory, as JSON lines and as CSV, where lists are JSON."""
    yield rows
    (folder / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    yield folder / "t.jsonl"
    cells = [
        {key: json.dumps(cell) if isinstance(cell, dict | list) else cell for key, cell in row.items()} for row in rows
    ]
    pandas.DataFrame(cells).to_csv(folder / "t.csv", index=False)
    yield folder / "t.csv"


PREDICTORS = {
    **{"classification": TextPredictor, "multi-label": TextPredictor, "pairs": TextPredictor, "qa": QuestionPredictor},
    **{"regression": NumberPredictor, "entities": EntityPredictor, "choice": ChoicePredictor},
    "generation": AnswerPredictor,
}
"""What predicts rows of a kind that have gold answers."""


@pytest.mark.parametrize("kind", sorted({*PREDICTORS} - {"multi-label"}))  # whose documents are whole anyway
@given(st.lists(st.tuples(st.none() | st.integers(0, 7), st.integers(0, 9)), min_size=24, max_size=40))
@settings(max_examples=6, **QUICK)
def test_rows_without_a_group_are_grouped_by_the_next_column_in_a_task_and_in_a_prediction(kind, places):
    rows = rows_of(kind, [0] * len(places), "other")
    for row, (patient, document) in zip(rows, places, strict=True):
        row |= {"patient_id": patient if patient is None else f"{patient}", "document": f"{document}"}
    expected = [  # rows without a patient are linked with all rows of their document
        {other for other, (p, d) in enumerate(places) if (p is not None and p == patient)
         or (d == document and None in (p, patient))}
        for patient, document in places
    ]  # fmt: skip
    for _ in rows:
        expected = [set().union(own, *(expected[other] for other in own)) for own in expected]
    one = {patient for patient, _ in places} - {None}
    if len(one) < 2 or len({document for _, document in places}) < 2:
        return
    task = load_task({"train": rows, "test": rows}, name="t", task_kind=VARIANTS.get(kind, kind))
    numbers = task.groups("test")
    predicted, name = object.__new__(PREDICTORS[kind]).groups(list(enumerate(rows)), ReadingOptions())
    assert name == task.group_name == "patient" and number_known_groups(predicted) == numbers
    for place, linked in enumerate(expected):
        assert {other for other in range(len(rows)) if numbers[other] == numbers[place]} == linked | {place}


@each(
    ("kind", "column", "name"),
    [
        *(("choice", "context", "context"), ("qa", "context", "passage"), ("qa", "title", "article")),
        ("generation", "context", "context"),
    ],
)
def test_a_prediction_has_the_groups_of_a_kind(kind, column, name):
    rows = rows_of(kind, range(12), "other")
    for place, row in enumerate(rows):
        row |= (
            {"title": f"article {place // 4}"}
            if column == "title"
            else {"context": rows[place // 4 * 4].get("context", f"passage {place // 4}")}
        )
        row |= {"answers": rows[place // 4 * 4]["answers"]} if kind == "qa" and column == "context" else {}
    task = load_task({"train": rows, "test": rows}, name="t", task_kind=kind)
    predicted, what = object.__new__(PREDICTORS[kind]).groups([("", row) for row in rows], ReadingOptions())
    assert number_known_groups(predicted) == task.groups("test") == tuple(n // 4 for n in range(12))
    assert what == task.group_name == name


def groups_in(rows):
    return {row.group for row in rows}


@pytest.mark.parametrize("kind", [*TASK_KINDS.names(), *VARIANTS])
def test_no_consumer_sees_rows_without_their_groups_and_no_draw_divides_one(kind, tmp_path):
    @given(
        st.lists(st.integers(1, 6), min_size=16, max_size=30), st.integers(0, 3), st.sampled_from(["case", "document"])
    )
    @settings(max_examples=4, **QUICK)
    def check(sizes, seed, column):
        numbers = [number for number, size in enumerate(sizes) for _ in range(size)]
        random.Random(seed).shuffle(numbers)
        rows = rows_of(kind, numbers, column)
        how = {
            "name": "t",
            "task_kind": VARIANTS.get(kind, kind),
            "group_column": column if column == "case" else None,
        }
        known = load_task({"train": rows, "test": rows}, **how)
        group_of = {find_task_kind(known).item_text(row): row.group for row in known.train}
        assert sorted(group_of.values()) == sorted(f"c{number}" for number in numbers)

        def check_rows(task):
            for split in SPLITS:
                for row in getattr(task, split):
                    assert row.group == group_of[find_task_kind(task).item_text(row)]
            for split in ("dev", "test"):
                expected = number_known_groups(row.group for row in task.scored_rows(split))
                scoring = task.scoring(split)
                assert task.groups(split) == scoring.groups == expected and task.group_name == column
                assert make_scoring(scoring.name, json.loads(json.dumps(scoring.details()))) == scoring
            return [groups_in(getattr(task, split)) for split in SPLITS]

        drawn = [load_task(form, split_seed=seed, **how) for form in written(rows, tmp_path)]
        assert len({task.fingerprint() for task in drawn}) == 1
        if kind in PREDICTORS:
            found = object.__new__(PREDICTORS[kind]).groups(
                [("", row) for row in rows], ReadingOptions(group_column=how["group_column"])
            )
            assert (number_known_groups(found[0]), found[1]) == (known.groups("test"), column)
        train, dev, test = check_rows(drawn[0])
        assert not (train & dev or train & test or dev & test) and test
        has_dev = load_task({"train": rows[:-6], "dev": rows[-6:]}, split_seed=seed, **how)
        train, dev, test = check_rows(has_dev)
        assert not (test & train or test & dev) and test

        whole = replace(known, dev=known.train, test=known.train[:5])
        tune, confirm = (cut_dev(whole, part) for part in ("tune", "confirm"))
        check_rows(tune), check_rows(confirm), check_rows(replace_test_with_dev(whole))
        assert not groups_in(tune.test) & groups_in(confirm.test) and len(tune.test) + len(confirm.test) == len(rows)
        count = max(20, len(rows) // 2)
        part = limit_splits(whole, train=count, dev=count)
        check_rows(part)
        for rows_kept in (part.train, part.dev):
            whole_groups = Counter(row.group for row in whole.train)
            assert all(whole_groups[group] == size for group, size in Counter(row.group for row in rows_kept).items())
        shots = whole.few_shot(4, seed)
        check_rows(replace(whole, train=shots))
        if whole.scoring().name == "single_label":
            larger = repartition(replace(known, test=known.train[:0], dev=[]), 0.6)
            train, _, test = check_rows(larger)
            assert not train & test and len(larger.train) + len(larger.test) == len(rows)
        other = load_task({"train": rows_of(kind, numbers[::-1], column), "test": rows}, **how)
        assert other.fingerprint() != known.fingerprint() or numbers == numbers[::-1]

    check()


def test_labels_are_drawn_from_as_many_groups_as_possible():
    rows = [{"text": f"text {n}", "label": "ab"[n % 2], "document": n // 10} for n in range(400)]
    task = Task.of("t", rows, rows)
    shots = task.few_shot(16, 0)
    for label in (0, 1):
        assert Counter(row.group for row in shots if row.label == label).most_common(1)[0][1] == 1
    assert len(task.few_shot(100, 0)) == 200 and task.few_shot(16, 0) != task.few_shot(16, 1)
    few = limit_splits(task, test=40)
    assert len(few.test) == 40 and len(groups_in(few.test)) > 20  # no room for five documents: rows of all of them
    assert set(Counter(row.group for row in limit_splits(task, test=55).test).values()) == {10}


@given(st.permutations(range(12)), st.lists(st.integers(0, 4), min_size=12, max_size=12))
@settings(max_examples=25, **QUICK)
def test_names_of_linked_rows_and_halves_of_dev_do_not_depend_on_the_order(order, documents):
    texts = [
        f"{(7 * place) % 12:02d} text" for place in range(12)
    ]  # a group has several, and its first is no smallest
    rows = [Example(text, None, 0, group=f"d{document}") for text, document in zip(texts, documents, strict=True)]
    bare = [Example(text, None, 0, f"d{document}") for text, document in zip(texts, documents, strict=True)]
    for examples in (rows, bare):
        names = link_rows(examples, texts)
        shuffled = link_rows([examples[place] for place in order], [texts[place] for place in order])
        assert shuffled == [names[place] for place in order]
        own = [min(texts[n] for n in range(12) if documents[n] == document) for document in documents]
        assert names == (own if examples is bare else [row.group for row in rows])
        task = Task("t", examples, examples, ["a", "b"], examples)
        try:
            halves = [cut_dev(task, part).test for part in ("tune", "confirm")]
        except UserError:
            continue
        turned = replace(task, dev=[examples[place] for place in order])
        assert [set(cut_dev(turned, part).test) for part in ("tune", "confirm")] == list(map(set, halves))


@given(st.data())
@settings(max_examples=15, **QUICK)
def test_a_group_has_the_same_name_in_every_form(tmp_path_factory, data):
    text = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc", "Z")), max_size=5)
    values = data.draw(st.sampled_from([st.integers(-5, 10**6), text]))
    cells = data.draw(st.lists(st.none() | values, min_size=12, max_size=12))
    rows = [{"text": f"text {n}", "label": n + 0.5, "case": cell} for n, cell in enumerate(cells)]
    frame, folder = pandas.DataFrame(rows), tmp_path_factory.mktemp("forms")
    frame.to_parquet(folder / "t.parquet")
    forms = [*written(rows, folder), folder / "t.parquet", frame]
    tasks = [load_task({"train": form, "test": form}, name="t", group_column="case") for form in (rows, frame)]
    tasks += [load_task(form, name="t", group_column="case") for form in forms]
    assert len({task.fingerprint() for task in tasks[:2]}) == len({task.fingerprint() for task in tasks[2:]}) == 1
    numbers = tasks[0].groups("test")
    names = [None if cell in (None, "") else str(cell) for cell in cells]
    assert (numbers is None) == (set(names) == {None})
    for i, j in itertools.product(range(12), repeat=2) if numbers else ():
        assert (numbers[i] == numbers[j]) == (i == j or names[i] == names[j] is not None)


@each(("value", "name"), [
    (None, None), ("", None), (" ", None), (float("nan"), None), (pandas.NA, None), (pandas.NaT, None),
    (3, "3"), (3.0, "3"), (3.5, "3.5"), (True, "True"), (" a ", "a"), (pandas.Series([3.0])[0], "3"),
])  # fmt: skip
def test_names_of_groups(value, name):
    assert group_text(value) == name


def said(monkeypatch, caplog, load):
    warn_once.cache_clear()
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        task = load()
    return task, " ".join(record.getMessage() for record in caplog.records)


@each(("row", "column", "name", "groups", "line"), [
    ({"document": "d{}"}, None, "document", 10, ""),
    ({"patient_id": "p{}", "document": "d{n}"}, None, "patient", 10, "of 10 patients, by 'patient_id'"),
    ({"abstract_id": "{}"}, None, "abstract", 10, "of 10 abstracts, by 'abstract_id'"),
    ({"id": "DDI-DrugBank.d{}.s{n}.p0"}, None, "document", 10, "by what precedes the number of the sentence in 'id'"),
    ({"id": "12{}_s{n}"}, None, "document", 10, "by what precedes"),
    ({"id": "review {n}"}, None, "document", None, ""),
    ({"document": "same"}, None, "document", None, ""),
    ({"case_id": "{}"}, None, "document", None, ""),
    ({"case_id": "{}"}, "case_id", "case", 10, ""),
    ({"thread": "t{}", "author": "a{n}"}, "patient,thread,author", "thread", 10, "of the task 't' are in 'thread'"),
    ({"a,b": "t{}"}, "a,b", "a,b", 10, ""),
])  # fmt: skip
def test_groups_are_found_and_reported(row, column, name, groups, line, monkeypatch, caplog):
    rows = [
        {
            "text": f"text {n}",
            "label": "xy"[n % 3 == 0],
            **{key: cell.format(n % 10, n=n) for key, cell in row.items()},
        }
        for n in range(100)
    ]
    task, lines = said(
        monkeypatch, caplog, lambda: load_task({"train": rows, "test": rows}, name="t", group_column=column)
    )
    found = task.groups()
    assert (None if found is None else len(set(found))) == groups and task.group_name == name
    assert line in lines and (line or "group" not in lines.replace("--group-column", ""))
    if column:
        again = load_task({"train": rows, "test": rows}, group_column=column.split(",") if "," not in row else column)
        assert again.fingerprint() == task.fingerprint()


def test_a_group_column_that_cannot_be_used_is_an_error():
    rows = [{"text": f"text {n}", "label": "xy"[n % 2], "case": [n]} for n in range(20)]
    with pytest.raises(UserError, match=r"'casse'.*Did you mean 'case'"):
        load_task(rows, group_column="casse")
    with pytest.raises(UserError, match=r"row 1: 'case' is .0.; the name of a group must be a text or a number"):
        load_task(rows, group_column="case")
    alone = [{**row, "case": "one"} for row in rows]
    with pytest.raises(UserError, match="its 1 cases are too few, or some have too many rows, to draw one"):
        load_task(alone, group_column="case")


def squad(articles, title=True, **more):
    """Ten questions on two passages per article."""
    answer = [{"text": "here", "answer_start": 3}]
    return {"data": [
        {**({"title": f"article {a}"} if title else {}), "paragraphs": [
            {"context": f"It here is {a} {p}.", **{key: value.format(a) for key, value in more.items()},
             "qas": [{"id": f"{a}-{p}-{q}", "question": "Where?", "answers": answer} for q in range(5)]}
            for p in range(2)
        ]}
        for a in articles
    ]}  # fmt: skip


@each(("source", "count", "name"), [
    (squad(range(12)), 12, "article"),
    (squad(range(12), title=False), 24, "passage"),
    ({"data": [squad(range(12))["data"][0] | {"title": ["?"]}, *squad(range(1, 12))["data"]]}, 24, "passage"),
    (squad(range(12), title=False, document_id="d{}"), 12, "document"),
])  # fmt: skip
def test_the_coarsest_known_group_of_a_question_is_the_unit(source, count, name, tmp_path):
    task = QATask.of("t", source, source)
    assert (len(set(task.groups())), task.group_name) == (count, name)
    (tmp_path / "t.json").write_text(json.dumps(source))
    drawn = load_task(tmp_path / "t.json")
    assert not groups_in(drawn.train) & groups_in(drawn.test) and drawn.group_name == name
    fine = load_task(tmp_path / "t.json", group_column="context")
    assert len(groups_in(fine.train) | groups_in(fine.dev) | groups_in(fine.test)) == 24
    assert fine.group_name == "context"


def test_snippets_of_one_question_join_their_passages():
    source = squad(range(6), title=False)
    for number, article in enumerate(source["data"]):
        for place, paragraph in enumerate(article["paragraphs"]):
            paragraph["qas"] = [{**paragraph["qas"][0], "id": f"{number:024x}_{place:03d}"}]
    task = QATask.of("t", source, source)
    assert task.groups() == tuple(range(6)) and len(task.test) == 12


def test_a_query_is_of_its_source(tmp_path):
    (tmp_path / "qrels").mkdir()
    documents = [
        {"_id": f"p{n}", "title": f"article {n // 4}", "text": f"passage {n}", "site": n // 8} for n in range(24)
    ]
    queries = [{"_id": f"q{n}", "text": f"query {n}", "metadata": {"asker": n % 3}} for n in range(24)]
    for name, rows in (("corpus", documents), ("queries", queries)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = [f"q{n}\tp{n}\t1\nq{n}\tp{(n + 1) % 24}\t1" for n in range(24)]
    (tmp_path / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n")
    for column, count, name in ((None, 6, "article"), ("site", 3, "site"), ("asker", 3, "asker"), ("_id", 24, "_id")):
        task = load_task(tmp_path, group_column=column)
        assert (len(set(task.groups())), task.group_name) == (count, name), column
    with pytest.raises(UserError, match="Unknown column"):
        load_task(tmp_path, group_column="patient")


def test_documents_that_are_scored_as_one_are_in_one_group():
    rows = [
        {"text": f"text {n}", "label": ["a"], "document": n // 2, "patient_id": None if n == 3 else n // 3}
        for n in range(12)
    ]
    scoring = Task.of("t", rows, rows).scoring()
    pairs = set(zip(scoring.documents, scoring.groups, strict=True))
    assert len(pairs) == 6 > len(set(scoring.groups))  # each document has one group


def lines_about(rows, train=(), **more):
    made = [{"label": "ab"[n % 2], **row} for n, row in enumerate(rows)]
    task = Task.of("t", [*train, *made] if train else [{"text": "z", "label": "a"}, {"text": "y", "label": "b"}], made)
    return describe_groups(task, find_task_kind(task).texts)


LONG = "a sentence of more than forty characters, number {}"


@each(("rows", "expected"), [
    ([{"text": LONG.format(n)} for n in range(100)], []),
    ([{"text": LONG.format(n), "document": n // 2} for n in range(100)], []),
    ([{"text": LONG.format(n), "document": n} for n in range(20)], []),
    ([{"text": LONG.format(n), "document": n // 10} for n in range(200)], ["items of 't' are of 20 documents"]),
    ([{"text": LONG.format(n), "document": n * (n > 20)} for n in range(200)], ["the largest with 10 % of the items"]),
    ([{"text": LONG.format(n // 3)} for n in range(100)], ["99 % of the test rows of 't' share a text"]),
    ([{"text": LONG.format(n // 3), "document": n // 3} for n in range(100)], []),
    ([{"text": f"the food {n // 3}"} for n in range(100)], []),
])  # fmt: skip
def test_what_is_said_about_groups_is_short(rows, expected):
    lines = lines_about(rows)
    assert len(lines) == len(expected)
    for line, part in zip(lines, expected, strict=True):
        assert part in line


def test_groups_in_train_and_test_are_reported(tmp_path):
    rows = [
        {"text": f"sentence {n} is about {'good' if n % 2 else 'bad'} food", "label": "ab"[n % 2]} for n in range(120)
    ]
    train = [{**row, "document": n // 3} for n, row in enumerate(rows[:60])]
    test = [{**row, "document": 15 + n // 3} for n, row in enumerate(rows[60:])]
    task = load_task({"train": train, "test": test}, name="t")
    assert "5 of 20 documents of the test split of 't' are also in train" in " ".join(
        describe_groups(task, find_task_kind(task).texts)
    )
    found = inspect_leakage(tasks=[task], progress=False)
    assert [row["groups_in_train"] for row in found["train"][0]["texts"]] == [5]
    assert "and 5 of 20 documents" in str(found)
