"""The kind of a table is found by its values: whatever its columns are called, it is right or an error has options."""

from __future__ import annotations

import csv
import json
import random
import re

import numpy
import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.base.errors import UserError
from acclimate.data.task_kinds import load_task
from tests.cases import each

WORDS = [
    f"{start}{end}" for start in "ba ke li mo ru ste tri pla gno shi".split() for end in "r nt lo ck mp se".split()
]
ODD = ["v1", "Spalte 2", "Nachricht", "x", "kolom", "データ", "Unnamed: 0_x", "col-9", "Wert", "f(x)"]
MISLEADING = [
    *("text", "label", "pos", "POS", "answer", "question", "passage", "query", "score", "tags", "tag", "positive"),
    *("document", "sentence", "title", "text1", "text2", "context", "choices", "class", "word", "rating", "entities"),
    *("prompt", "references", "answers"),
]


def sentence(chance, low=5, high=12):
    return " ".join(chance.choices(WORDS, k=chance.randint(low, high)))


def tagged(chance):
    words = chance.choices(WORDS, k=chance.randint(4, 9))
    tags = ["O"] * len(words)
    tags[1], tags[2] = "B-PER", "I-PER"
    tags[-1] = chance.choice(["O", "B-LOC"])
    return words, tags


def word_rows(chance, number):
    words, tags = tagged(chance)
    return [[f"s{number}", word, tag] for word, tag in zip(words, tags, strict=True)]


def spans(chance):
    text = sentence(chance)
    return [text, [{"start": 0, "end": len(text.split()[0]), "label": chance.choice(["PER", "LOC"])}]]


def choice(chance, number):
    return [sentence(chance), [sentence(chance, 1, 2) for _ in range(4)], chance.choice("ABCD")]


def squad(chance):
    context = sentence(chance)
    words = context.split()
    answers = [(words[0], 0), (words[1], len(words[0]) + 1)][: chance.randint(1, 2)]
    return [
        context,
        sentence(chance),
        dict(zip(("text", "answer_start"), map(list, zip(*answers, strict=True)), strict=True)),
    ]


MAKERS = {
    "classes": ("classification", lambda c, n: [sentence(c), c.choice(["yes", "no"])]),
    "phrases": ("classification", lambda c, n: [sentence(c), c.choice(["very good indeed", "quite bad", "no idea"])]),
    "whole numbers": ("classification regression", lambda c, n: [sentence(c), c.randint(1, 5)]),
    "lists": ("classification", lambda c, n: [sentence(c), c.sample(["a", "b", "c"], c.randint(1, 2))]),
    "numbers": ("regression", lambda c, n: [sentence(c), c.random() * 5]),
    "pairs with a class": ("classification", lambda c, n: [sentence(c), sentence(c), c.choice(["same", "other"])]),
    "pairs with a number": ("regression", lambda c, n: [sentence(c), sentence(c), c.random()]),
    "pairs": ("retrieval generation", lambda c, n: [sentence(c), sentence(c, 8, 20)]),
    "tokens and tags": ("entities", lambda c, n: list(tagged(c))),
    "printed tags": ("entities", lambda c, n: [" ".join(part) for part in tagged(c)]),
    "a word per row": ("entities", word_rows),
    "spans": ("entities", lambda c, n: spans(c)),
    "choice": ("choice", choice),
    "questions": ("qa", lambda c, n: squad(c)),
}


@pytest.mark.parametrize("form", MAKERS)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_names_of_columns_never_lead_to_another_kind(form, data):
    """Columns have odd or misleading names in any order, with others such as an id next to them."""
    expected, make = MAKERS[form]
    chance = random.Random(data.draw(st.integers(0, 99)))
    made = [make(chance, number) for number in range(60)]
    rows = [row for one in made for row in one] if form == "a word per row" else made
    names = data.draw(st.lists(st.sampled_from([*ODD, *MISLEADING]), min_size=3, max_size=3, unique=True))[
        : len(rows[0])
    ]
    more = data.draw(st.lists(st.sampled_from(["id", "created", "lang"]), max_size=2, unique=True))
    order = data.draw(st.permutations([*names, *more]))
    table = []
    for number, row in enumerate(rows):
        noise = {"id": number, "created": f"2026-01-{number % 28 + 1:02d}", "lang": "en"}
        cells = dict(zip(names, row, strict=True)) | noise
        table.append({name: cells[name] for name in order})
    try:
        task = load_task(table, name="t")
    except UserError as error:
        assert "\n" not in str(error) and re.search("--|annot be used|add a test split", str(error)), error
        return
    assert task.task_kind in expected.split(), (names, task)


def csv_of(path, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def exported(form):
    """Rows as a tool writes them."""
    chance = random.Random(form)
    text, short, pick = (lambda: sentence(chance)), (lambda: sentence(chance, 1, 2)), chance.choice
    make = {
        "zendesk": lambda n: {"Ticket ID": n, "Subject": text(), "Description": text(), "Type": pick(["a", "b"])},
        "support": lambda n: {"subject": short(), "body": text(), "queue": pick(["a", "b"]), "priority": pick("hl")},
        "german": lambda n: {"Nachricht": text(), "Abteilung": pick(["HR", "IT"]), "Datum": f"{n % 28}.1.2026"},
        "sms": lambda n: {"v1": pick(["ham", "spam"]), "v2": text(), "": ""},
        "survey": lambda n: {"id": n, "text": text(), "answer": pick(["yes", "no"])},
        "faq": lambda n: {"question": text(), "answer": text()},
        "faq with topics": lambda n: {"question": text(), "answer": text(), "category": pick("ab")},
        "facts": lambda n: {"question": text(), "answer": f"item{n}"},
        "pairs": lambda n: {"text1": text(), "text2": text(), "same": pick(["yes", "no"])},
        "quora": lambda n: {"qid1": n, "question1": text(), "question2": text(), "is_duplicate": pick([0, 1])},
        "positive": lambda n: {"text": text(), "positive": pick([0, 1])},
        "exchanged": lambda n: {"label": text(), "text": pick(["ham", "spam"])},
        "free labels": lambda n: {"text": text(), "label": [text()]},
        "stars or mood": lambda n: {"review": text(), "sentiment": pick("ab"), "rating": n % 5},
        "scale": lambda n: {"essay": text(), "score": n % 6},
        "answers to passages": lambda n: {"question": text(), "passage": text(), "answer": pick([True, False])},
        "relevance": lambda n: {"query": text(), "passage": text(), "label": n % 2},
        "preferences": lambda n: {"prompt": text(), "chosen": text(), "rejected": text()},
        "unlabelled": lambda n: {"text": text(), "lang": pick(["en", "de"]), "author": pick("ab")},
        "no header": lambda n: {"so the food was good": text(), "and that is all there was": text()},
        "bge": lambda n: {"query": text(), "pos": [text()], "neg": [text(), text()]},
        "mmlu": lambda n: {"prompt": text(), **{letter: short() for letter in "ABCD"}, "answer": pick("ABCD")},
        "list of options": lambda n: {"Frage": text(), "Optionen": [short(), short()], "x": pick("AB")},
        "open questions": lambda n: {"question": text(), "answers": [f"item{n}", short()], "difficulty": text()},
        "aliases": lambda n: {"question": text(), "answer": [f"item{n}"]},
        "prompts": lambda n: {"prompt": text(), "answer": f"item{n}"},
        "sums": lambda n: {"problem": text(), "answer": n * 37},
        "summaries": lambda n: {"question": text(), "reference": text()},
        "prompts with topics": lambda n: {"prompt": text(), "answer": f"item{n}", "category": pick("ab")},
        "prompts with classes": lambda n: {"prompt": text(), "answer": pick(["yes", "no"])},
        "completions": lambda n: {"prompt": text(), "completion": text()},
        "places": lambda n: dict(zip(("references", "prompt", "v1"), squad(chance), strict=True)),
        "two texts and places": lambda n: {"x": text(), **dict(zip("abc", squad(chance), strict=True))},
        "label studio": lambda n: {"data": {"text": text()}, "annotations": [{"result": [{"value": {}}]}]},
    }[form]  # fmt: skip
    return [make(number) for number in range(60)]


@each(("form", "expected"), [
    ("zendesk", r"the text can be in 'Subject' or 'Description'.*--text-column"),
    ("support", r"the label can be in 'queue' or 'priority'.*--label-column"),
    ("german", "classification"),
    ("sms", "classification"),
    ("survey", "'answer' has 2 values of 1.0 words for 60 of 'text'. If it is a label, give --label-column answer"),
    ("faq", "retrieval"),
    ("faq with topics", "queries and passages to find, or texts with a label in 'category'"),
    ("facts", "'answer' has 60 values .*--label-column answer.*--task-kind retrieval; if.*--task-kind generation"),
    ("pairs", "or texts with a label in 'same'.*--task-kind retrieval, or --text-column text1 --pair-column text2"),
    ("quora", "classification"),
    ("positive", "'positive' has 2 values.*--label-column positive"),
    ("exchanged", "are exchanged, give --text-column label --label-column text"),
    ("free labels", "'label' holds texts of .* --task-kind retrieval --text-column text --pair-column label"),
    ("stars or mood", "the label can be in 'sentiment' or 'rating'"),
    ("scale", "'score' holds whole numbers.*--label-column score.*--task-kind regression"),
    ("answers to passages", "the text can be in 'question' or 'passage'.*--pair-column"),
    ("relevance", "or texts with a label in 'label'.*--task-kind retrieval"),
    ("preferences", "preferences are text to adapt to"),
    ("unlabelled", "no column 'label'"),
    ("no header", "If the first row is no header"),
    ("bge", "retrieval"),
    ("mmlu", "choice"),
    ("list of options", "'Optionen' can be choices .*--task-kind choice, or --task-kind classification"),
    ("open questions", "generation"),
    ("aliases", "generation"),
    ("prompts", "generation"),
    ("sums", "generation"),
    ("summaries", "generation"),
    ("prompts with topics", "classification"),
    ("prompts with classes", "classification"),
    ("completions", "--task-kind generation"),
    ("places", "qa"),
    ("two texts and places", "'c' holds answers with their places in 'a', but .* in 'x' or 'b'.*--text-column"),
    ("label studio", "If it has classes instead, export them as CSV"),
])  # fmt: skip
def test_exports_of_tools_are_read_or_refused_with_the_options(form, expected, caplog):
    rows = exported(form)
    if " " in expected or "'" in expected:
        with pytest.raises(UserError, match=expected):
            load_task(rows, name="t")
        return
    task = load_task(rows, name="t")
    assert task.task_kind == expected
    kind = {"choice": "multiple choice", "qa": "question answering"}.get(expected, expected)
    assert re.search(f"The task 't' is {kind}: .* in '", caplog.text)


def test_a_click_log_is_read_with_its_passages(tmp_path, caplog):
    """Clicks add up, grades do not; unknown ids are left out; a log without the texts says what is missing."""
    texts = [{"id": f"p{n}", "title": f"t{n}", "text": f"the text {n}"} for n in range(40)]
    passages = csv_of(tmp_path / "passages.csv", texts)
    rows = [{"query": f"who is {n}?", "passage_id": f"p{n % 40}", "clicks": n % 3} for n in range(60)]
    rows += [rows[1], {**rows[2], "passage_id": "p7"}, {**rows[2], "passage_id": "p99"}]
    log = csv_of(tmp_path / "clicks.csv", rows)
    with pytest.raises(UserError, match=r"'passage_id' looks like ids of passages.*--passages FILE"):
        load_task(log)
    task = load_task(log, passages=passages)
    assert "is retrieval: query in 'query', passage in 'passage_id', grade in 'clicks'" in caplog.text
    assert "1 with an unknown passage" in caplog.text and "queries without a relevant passage" in caplog.text
    queries = {query.text: query for query in [*task.train, *task.dev, *task.test]}
    assert len(task.documents) == 40 and len(queries) == 40 and task.documents["p3"] == "t3. the text 3"
    assert [(p.id, p.grade) for p in queries["who is 1?"].relevant] == [("p1", 2.0)]
    assert {(p.id, p.grade) for p in queries["who is 2?"].relevant} == {("p2", 2.0), ("p7", 2.0)}
    odd = [{"Suche": row["query"], "Treffer": row["passage_id"], "relevance": row["clicks"]} for row in rows]
    graded = load_task(csv_of(tmp_path / "odd.csv", odd), passages=passages)
    queries = {query.text: query for query in [*graded.train, *graded.dev, *graded.test]}
    assert [(p.id, p.grade) for p in queries["who is 1?"].relevant] == [("p1", 1.0)]
    keyed = [{"row_id": 39 - n, "category_id": n % 3, **text} for n, text in enumerate(texts)]
    assert load_task(log, passages=csv_of(tmp_path / "keyed.csv", keyed)).fingerprint() == task.fingerprint()
    twice = [*texts, {**texts[1], "id": "p1b"}]
    again = load_task(log, passages=csv_of(tmp_path / "twice.csv", twice))
    assert again.documents == task.documents and "1 passages of" in caplog.text
    with pytest.raises(UserError, match="no column has ids of the passages"):
        load_task([{"query": "a", "passage_id": "x"}] * 9, passages=passages)
    with pytest.raises(UserError, match="'passages' is for retrieval"):
        load_task(log, passages=passages, task_kind="classification")


def test_lists_of_passages_are_lists_in_every_form(tmp_path):
    texts = [[f"the text {n} says", f"the other text {n} says"] for n in range(40)]
    rows = [{"query": f"who is {n}?", "pos": several} for n, several in enumerate(texts)]
    arrays = pandas.DataFrame([{**row, "pos": numpy.array(row["pos"], dtype=object)} for row in rows])
    flat = csv_of(tmp_path / "a.csv", [{**row, "pos": str(row["pos"])} for row in rows])
    prints = {load_task(form, name="t", task_kind="retrieval").fingerprint() for form in (rows, arrays, flat)}
    assert len(prints) == 1
    bracketed = [{**row, "pos": f"[note, {n}] the text"} for n, row in enumerate(rows)]
    assert "[note, 0] the text" in load_task(bracketed, task_kind="retrieval").documents.values()


def test_an_answer_in_json_is_an_answer_where_rows_can_hold_lists(tmp_path):
    rows = [{"prompt": f"name the drugs of {n}", "output": json.dumps(["aspirin", f"drug {n}"])} for n in range(40)]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for form in (rows, path):
        assert all(len(one.references) == 1 for one in load_task(form, task_kind="generation").train)
    flat = csv_of(tmp_path / "a.csv", rows)
    assert all(len(one.references) == 2 for one in load_task(flat, task_kind="generation").train)


def test_the_reason_why_no_split_can_be_drawn_is_true():
    numbers = [{"text": f"text {n}", "label": n} for n in range(40)]
    with pytest.raises(UserError, match="none of its 40 classes has more than 1 of 40 rows"):
        load_task(numbers)
