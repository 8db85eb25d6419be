"""Multiple-choice tasks are read in the forms of common datasets, and nothing unusable is dropped silently."""

from __future__ import annotations

import csv
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.base.errors import UserError
from acclimate.data.task_kinds import find_task_kind, load_task, task_texts
from acclimate.tasks.interfaces import item_texts
from acclimate.tasks.kinds.choice.data import ChoiceTask, Item
from acclimate.tasks.splits import limit_splits
from tests.cases import each
from tests.tasks.choice.toy import rows, task_of

TEXTS = ["red", "green", "blue", "black"]
ABC = dict(zip("ABCD", TEXTS, strict=True))
QUESTION = {"question": "which one ?"}


def two(row, key, values, count=8):
    """Rows that differ in their answers, so that these can be read in one way only."""
    return [{**row, key: values[number % len(values)]} for number in range(count)]


@each(("made", "wanted"), [
    (two({**QUESTION, "choices": TEXTS}, "answer", [0, 2]), [0, 2]),  # MMLU
    (two({**QUESTION, **ABC}, "answer", ["A", "d"]), [0, 3]),
    (two({**QUESTION, "choices": TEXTS}, "answer", ["(B)", "c."]), [1, 2]),
    (two({**QUESTION, "choices": {"text": TEXTS, "label": list("ABCD")}}, "answerKey", ["B", "D"]), [1, 3]),  # ARC
    (two({**QUESTION, "choices": {"text": TEXTS, "label": list("1234")}}, "answerKey", ["2", "4"]), [1, 3]),
    (two({"question_stem": "a", "choices": {"text": TEXTS, "label": list("ABCD")}}, "answerKey", ["C"]), [2, 2]),
    (two({"ctx": "a man", "activity_label": "x", "endings": TEXTS}, "label", ["0", "3"]), [0, 3]),  # HellaSwag
    (two({"article": "long", "question": "q", "options": TEXTS}, "answer", ["A", "C"]), [0, 2]),  # RACE
    (two({**QUESTION, "options": ABC, "answer": "red", "meta_info": "s"}, "answer_idx", ["A", "A"]), [0, 0]),  # MedQA
    (two({**QUESTION, "options": [{"key": k, "value": v} for k, v in ABC.items()]}, "answer_idx", ["B"]), [1, 1]),
    (two({"question": "q", "opa": "1", "opb": "2", "opc": "3", "opd": "4", "exp": "e"}, "cop", [0, 3]), [0, 3]),
    (two({"question": "q", "opa": "w", "opb": "x", "opc": "y", "opd": "z"}, "cop", [1, 4]), [0, 3]),  # from 1
    (two({"premise": "p", "question": "cause", "choice1": "a", "choice2": "b"}, "label", [0, 1]), [0, 1]),  # COPA
    (two({"context": "c", "question": "q", "answerA": "a", "answerB": "b", "answerC": "c"}, "label", ["1", "3"]),
     [0, 2]),  # Social IQa
    (two({"sent1": "s", "sent2": "she", **{f"ending{n}": t for n, t in enumerate(TEXTS)}}, "label", [0, 2]), [0, 2]),
    (two({"goal": "g", "sol1": "a", "sol2": "b"}, "label", [0, 1]), [0, 1]),  # PIQA
    (two({"sentence": "s _", "option1": "a", "option2": "b"}, "answer", ["1", "2"]), [0, 1]),  # WinoGrande
    (two({"context": "c", "query": "q", "options": TEXTS}, "correct_option", [0, 3]), [0, 3]),  # LogiQA
    (two({"context": "c", "question": "q", "answers": TEXTS}, "label", [0, 3]), [0, 3]),  # ReClor
    (two({"question": "q", "distractor1": "b", "distractor2": "c", "support": "s"}, "correct_answer", ["a", "d"]),
     [0, 2]),  # SciQ
    (two({"Question": "q", "Incorrect Answer 1": "b", "Incorrect Answer 2": "c"}, "Correct Answer", ["bb"]), [1, 1]),
    (two({**QUESTION, "choices": TEXTS}, "answer", ["blue", "red"]), [2, 0]),
    (two({**QUESTION, "choices": ["7", "2", "3"]}, "answer", ["2", "7"]), [1, 0]),  # texts, not positions
    (two({**QUESTION, "choices": [7, 2, 3]}, "answer", [7, 3]), [0, 2]),
    (two({**QUESTION, "choices": [1, 0, 2]}, "answer", [0, 1]), [0, 1]),  # positions of numbers
    (two({**QUESTION, "choices": TEXTS}, "answer", [0.0, 2.0]), [0, 2]),
])  # fmt: skip
def test_forms_of_common_datasets(made, wanted):
    made = [{**row, **{name: f"{row[name]} {n}" for name in ("question", "goal") if name in row}}
            for n, row in enumerate(made)]  # fmt: skip
    task = load_task({"train": made, "test": made[:2]})
    assert isinstance(task, ChoiceTask) and [item.answer for item in task.test] == (wanted * 2)[:2]


def test_what_was_read_is_said(caplog):
    made = two({"question": "q", "opa": "w", "opb": "x", "opc": "y", "opd": "z", "exp": "e"}, "cop", [1, 4])
    task = load_task({"train": made, "test": made[:2]}, name="med")
    assert task.test[0].choices == ("w", "x", "y", "z") and task.default_length == 256
    assert "the choices in 'opa' to 'opd', the answers in 'cop', which are positions counted from 1." in (caplog.text)
    assert "Columns of the task 'med' that are not used: 'exp' (10)." in caplog.text
    caplog.clear()
    made = two({"question": "q", "opa": "w", "opb": "x", "opc": "y", "opd": "z"}, "cop", [1, 2])
    load_task({"train": made, "test": made[:2]}, name="short")
    assert "counted from 0. They could also be positions counted from 1" in caplog.text


def test_the_same_rows_give_the_same_task_in_every_format(tmp_path):
    made = rows(30)
    wide = [
        {
            "question": row["question"], "answer": "ABCD"[row["answer"]],
            **{letter: text for letter, text in zip("ABCD", [*row["choices"], "", ""], strict=False)},
        }
        for row in made
    ]  # fmt: skip
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made))
    pq.write_table(pa.Table.from_pylist(made), tmp_path / "b.parquet")
    for name, table in (("c.csv", wide), ("d.csv", [{**row, "choices": json.dumps(row["choices"])} for row in made])):
        with open(tmp_path / name, "w", newline="") as file:
            writer = csv.DictWriter(file, list(table[0]))
            writer.writeheader()
            writer.writerows(table)
    tasks = [load_task(file) for file in sorted(tmp_path.iterdir())] + [load_task(made)]
    assert len({task.fingerprint() for task in tasks}) == 1
    assert {len(item.choices) for item in tasks[0].train} == {2, 3, 4}


@each(("change", "words"), [
    ({"answer": 7}, "'answer' is '7', which is none of the choices"),
    ({"answer": None}, "'answer' is empty"),
    ({"question": ""}, "'question' is empty"),
    ({"choices": ["a"]}, "1 choices, but at least two are needed"),
    ({"choices": "['a' 'b']"}, "\"\\['a' 'b'\\]\" cannot be read as a list of choices"),
    ({"choices": "a or b"}, "'choices' must be a list of choices, not 'a or b'"),
    ({"choices": [["a"], ["b"]]}, "a text is \\['a'\\], not a string"),
    ({"question": "\ud800"}, "the text contains half of a surrogate pair"),
])  # fmt: skip
def test_rows_that_cannot_be_used_are_counted_and_named(change, words):
    made = {"train": rows(20), "test": [*rows(3), {**rows(1)[0], **change}, {**rows(1)[0], **change}]}
    with pytest.raises(UserError, match=f"2 of 25 rows of the task 't' cannot be used, .*first: test: row 4: {words}"):
        load_task(made, name="t")


def test_hidden_answers_missing_columns_and_equal_choices(caplog):
    hidden = [{**row, "answer": -1} for row in rows(10, 3)]
    task = load_task({"train": rows(40), "test": hidden}, name="t")
    assert "The test split of 't' is not used: its answers are hidden" in caplog.text and "drawn" in task.drawn
    with pytest.raises(UserError, match=r"multiple choice needs a column 'question'.*The columns are: text, label"):
        load_task([{"text": "a", "label": "b"}] * 4, task_kind="choice")
    with pytest.raises(UserError, match="Did you mean 'answer'"):
        load_task(rows(9), task_kind="choice", label_column="answr")
    load_task({"train": [*rows(20), {**QUESTION, "choices": ["a", "a"], "answer": 0}], "test": rows(3)}, name="t")
    assert "1 items of 't' have the same choice more than once" in caplog.text


def test_named_columns_and_other_kinds():
    made = [{"ask": row["question"], "options": row["choices"], "right": row["answer"]} for row in rows(20)]
    task = load_task({"train": made, "test": made[:2]}, task_kind="choice", text_column="ask", label_column="right")
    assert task.test == load_task({"train": rows(20), "test": rows(20)[:2]}).test
    pairs = [{"question": f"q {n}", "answer": f"that is number {n}"} for n in range(30)]
    assert load_task(pairs).task_kind == "retrieval"
    answers = {"text": ["a"], "answer_start": [0]}
    squad = [{"id": f"{n}", "context": "a b", "question": "q", "answers": answers} for n in range(4)]
    assert load_task({"train": squad, "test": squad}).task_kind == "qa"
    graded = [{"sentence": f"a {n}", "a": "x", "b": f"{n}", "label": "no" if n % 2 else "yes"} for n in range(30)]
    assert load_task(graded, text_column="sentence").task_kind == "classification"


def test_passages_stay_in_one_split_and_texts_do_not_show_the_answer():
    task = load_task(rows(120, context=True), name="t")
    splits = [{item.context for item in split} for split in (task.train, task.dev, task.test)]
    assert not splits[0] & splits[1] and not splits[0] & splits[2] and not splits[1] & splits[2]
    assert len(limit_splits(task, train=10).train) <= 10 and len(task.few_shot(5, 0)) == 5
    item = Item("which ?", ("a", "b"), 1, "the passage")
    kind = find_task_kind(task)
    assert kind.texts(item) == ("the passage", "which ?\na\nb") and kind.answer(item, task) == "b"
    assert kind.item_text(item) == "the passage\nwhich ?\na\nb"
    assert len(item_texts(task)["test"]) == len(task.test) and task.train[0].context in task_texts(task)
    for wrong in (lambda: task.few_shot(0, 0), lambda: task.scoring(negative=["a"])):
        with pytest.raises(UserError):
            wrong()
    assert task.fingerprint() != task_of().fingerprint() and task.labels == []


TEXT = st.text(max_size=5)
VALUES = st.one_of(
    *(TEXT, st.integers(-3, 6), st.none(), st.floats(), st.lists(TEXT)),
    st.dictionaries(st.sampled_from(["text", "label", "A", "B"]), st.one_of(st.lists(TEXT), st.none(), TEXT)),
    st.lists(st.dictionaries(st.sampled_from(["text", "key"]), TEXT)),
)


@settings(deadline=None, max_examples=30, database=None)
@given(st.lists(st.fixed_dictionaries({"question": VALUES, "choices": VALUES, "answer": VALUES}), min_size=1))
def test_any_rows_give_a_task_or_one_line_of_advice(made):
    try:
        task = load_task({"train": made, "test": made}, task_kind="choice")
    except UserError as error:
        assert "\n" not in str(error)
        return
    for item in task.train:
        assert item.question.strip() and len(item.choices) > 1 and all(item.choices)
        assert 0 <= item.answer < len(item.choices)
