"""Reading questions in SQuAD format."""

from __future__ import annotations

import copy
import gzip
import json
import logging

import datasets
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.base.errors import UserError
from acclimate.data.task_kinds import load_task
from acclimate.tasks.kinds.qa.data import Answer, QATask, load_qa
from tests.cases import each

PASSAGE = "Ada Lovelace wrote the first program. Ada was born in London, and Byron was her father."


def squad(*questions, passage=PASSAGE):
    """Return the content of a SQuAD file with one passage; a question is (id, text, answer, answer_start)."""
    qas = [
        {"id": name, "question": text, "answers": [{"text": answer, "answer_start": start}]}
        for name, text, answer, start in questions
    ]
    return {"version": "1.1", "data": [{"title": "t", "paragraphs": [{"context": passage, "qas": qas}]}]}


BORN = ("q1", "Where was Ada born?", "London", PASSAGE.index("London"))
FATHER = ("q2", "Who was her father?", "Byron", PASSAGE.index("Byron"))


def save(folder, train, test, dev=None):
    folder.mkdir(exist_ok=True)
    for split, value in (("train", train), ("test", test), ("dev", dev)):
        if value is not None:
            (folder / f"{split}.json").write_text(json.dumps(value), encoding="utf-8")
    return folder


def test_a_folder_is_read(tmp_path):
    task = load_qa(save(tmp_path / "ada", squad(BORN, FATHER), squad(FATHER)))
    assert (task.name, len(task.train), len(task.test), task.dev) == ("ada", 2, 1, [])
    question = task.train[0]
    assert (question.id, question.text, question.passage) == ("q1", "Where was Ada born?", PASSAGE)
    assert question.answers == (Answer("London", PASSAGE.index("London")),)
    for split in ("train", "test"):
        (tmp_path / "ada" / f"{split}.json").rename(tmp_path / "ada" / f"{split}-v2.0.json")
    assert load_task(tmp_path / "ada") == task


def test_compressed_files_with_a_byte_order_mark(tmp_path):
    save(tmp_path, squad(BORN), squad(FATHER))
    plain = load_qa(tmp_path)
    data = (tmp_path / "train.json").read_bytes()
    (tmp_path / "train.json").unlink()
    (tmp_path / "train.json.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf" + data))
    assert load_qa(tmp_path) == plain


def test_white_space_around_an_answer_is_stripped():
    start = PASSAGE.index("London") - 1
    task = QATask.of("t", squad(("q", "Where?", " London", start)), squad(BORN))
    assert task.train[0].answers == (Answer("London", start + 1),)


def test_a_misplaced_answer_is_located_again_and_counted(caplog):
    with caplog.at_level(logging.WARNING):
        task = QATask.of("t", squad(("q", "Where?", "London", 3), ("r", "Who?", "Byron", -5)), squad(BORN))
    assert [question.answers[0].start for question in task.train] == [
        PASSAGE.index("London"),
        PASSAGE.index("Byron"),
    ]
    assert "t/train: 2 answers were not at 'answer_start' and located again by text." in caplog.text


def test_several_gold_answers_are_kept():
    value = squad(BORN)
    value["data"][0]["paragraphs"][0]["qas"][0]["answers"].append({"text": "in London", "answer_start": 50})
    value["data"][0]["paragraphs"][0]["qas"][0]["answers"][1]["answer_start"] = PASSAGE.index("in London")
    assert [answer.text for answer in QATask.of("t", value, value).test[0].answers] == ["London", "in London"]


def test_bioasq_questions_on_several_snippets_are_one_item():
    name = "0123456789abcdef01234567"
    value = squad((f"{name}_000", *BORN[1:]), (f"{name}_001", *BORN[1:]), ("plain_000", *BORN[1:]))
    assert [question.item for question in QATask.of("t", value, value).test] == [name, name, "plain_000"]


def changed(change):
    value = squad(BORN, FATHER)
    change(value["data"][0]["paragraphs"][0])
    return value


@each(
    ("change", "message"),
    [
        (lambda p: p["qas"][1]["answers"][0].update(text="Paris"), "question 'q2': the answer 'Paris' is not in the"),
        (
            lambda p: p["qas"][0]["answers"][0].update(text="Ada", answer_start=5),
            "paragraph 1, question 'q1': the answer 'Ada' is not at 5 and occurs several times",
        ),
        (lambda p: p["qas"][1].update(answers=[]), "1 without an answer .*question 'q2': unanswerable questions"),
        (lambda p: p["qas"][1].update(is_impossible=True), "1 without an answer"),
        (lambda p: p["qas"][1].update(id="q1"), "1 with the id of another question .*the id is 'q1'"),
        (lambda p: p["qas"][1].pop("id"), "1 without an id .*paragraph 1"),
        (lambda p: p["qas"][1].update(question=" "), "1 without a question .*question 'q2'"),
        (lambda p: p["qas"][1].update(question="\ud800"), "half of a surrogate pair"),
        (lambda p: p["qas"][1]["answers"][0].update(answer_start="7"), "'answer_start' must be an integer"),
        (lambda p: p["qas"][1]["answers"][0].update(text=""), "the 'text' of an answer must not be empty"),
        (lambda p: p.update(context=""), "2 without a context .*paragraph 1"),
        (lambda p: p.update(qas="x"), "paragraph 1: 'qas' must be a list"),
        (lambda p: p.update(qas=[]), "'t/train' holds no questions"),
    ],
)
def test_errors_name_the_place(change, message):
    with pytest.raises(UserError, match=message) as error:
        QATask.of("t", changed(change), squad(BORN))
    assert "train" in str(error.value)
    assert "\n" not in str(error.value)


@each(
    ("text", "message"),
    [
        ("[]", "not in SQuAD format"),
        ("{", "not JSON"),
        ('{"data": 3}', "'data' must be a list"),
        ('{"data": [{}]}', "'paragraphs' must be a list"),
    ],
)
def test_broken_files_are_named(tmp_path, text, message):
    save(tmp_path, squad(BORN), squad(FATHER))
    (tmp_path / "test.json").write_text(text)
    with pytest.raises(UserError, match=message) as error:
        load_qa(tmp_path)
    assert "test.json" in str(error.value)


def test_folders_without_a_task(tmp_path):
    save(tmp_path, squad(BORN), squad(FATHER))
    (tmp_path / "train.json.gz").write_bytes(b"not gzip")
    with pytest.raises(UserError, match="several train files"):
        load_qa(tmp_path)
    (tmp_path / "train.json").unlink()
    with pytest.raises(UserError, match="cannot be read"):
        load_qa(tmp_path)
    (tmp_path / "train.json.gz").unlink()
    with pytest.raises(UserError, match=r"has no train file; it needs train\.jsonl \(or \.json,"):
        load_qa(tmp_path)
    (tmp_path / "train.json").write_bytes(b"{\xff}")
    with pytest.raises(UserError, match="UTF-8"):
        load_qa(tmp_path)


def test_rows_as_datasets_has_them(tmp_path):
    rows = [
        {"id": name, "context": PASSAGE, "question": text, "answers": {"text": [answer], "answer_start": [start]}}
        for name, text, answer, start in (BORN, FATHER)
    ]
    (tmp_path / "train.json").write_text(json.dumps(rows))
    (tmp_path / "dev.jsonl").write_text("\n".join(map(json.dumps, rows)))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "test.parquet")
    task = load_task(tmp_path)
    expected = QATask.of("t", squad(BORN, FATHER), squad(BORN, FATHER))
    assert task.scoring().name == "qa" and task.train == task.dev == task.test == expected.train
    rows[0]["answers"]["text"].append("more")
    (tmp_path / "train.json").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(UserError, match=r"train.json: row 1: 'text' and 'answer_start' must be lists of"):
        load_task(tmp_path)


def test_the_fingerprint_depends_on_the_content():
    one = QATask.of("one", squad(BORN, FATHER), squad(FATHER))
    assert one.fingerprint() == QATask.of("two", squad(BORN, FATHER), squad(FATHER)).fingerprint()
    assert one.fingerprint() != QATask.of("one", squad(FATHER, BORN), squad(FATHER)).fingerprint()
    other = copy.deepcopy(squad(BORN, FATHER))
    other["data"][0]["paragraphs"][0]["qas"][0]["question"] = "Where?"
    assert one.fingerprint() != QATask.of("one", other, squad(FATHER)).fingerprint()


def test_few_shot_keeps_the_order_of_questions():
    task = QATask.of("t", squad(*[(f"q{number}", *BORN[1:]) for number in range(20)]), squad(BORN))
    drawn = task.few_shot(5, seed=1)
    assert [question.id for question in drawn] == [q.id for q in task.train if q in drawn]
    assert len(drawn) == 5
    assert drawn == task.few_shot(5, seed=1) != task.few_shot(5, seed=2)
    assert task.few_shot(99, seed=0) == task.train
    with pytest.raises(UserError, match="at least 1"):
        task.few_shot(0, seed=0)


@each("name", ["squad_sample", "covid_qa", "rrc_restaurant"])
def test_real_data_sets_are_read_completely(shared, name):
    sizes = {"squad_sample": (839, 105, 246), "covid_qa": (1012, 64, 304), "rrc_restaurant": (632, 167, 431)}
    task = load_qa(shared / "data" / name)
    assert (len(task.train), len(task.dev), len(task.test)) == sizes[name]
    for question in task.train + task.dev + task.test:
        for answer in question.answers:
            assert question.passage.startswith(answer.text, answer.start)
            assert answer.text == answer.text.strip()


def as_rows(count, passages):
    """Return rows as ``datasets`` has those of SQuAD, several of them for each passage."""
    return [
        {
            "id": f"q{n}",
            "title": "t",
            "context": f"Guest {n % passages} ordered soup {n % passages} today.",
            "question": f"What did guest {n % passages} order, question {n}?",
            "answers": {"text": [f"soup {n % passages}"], "answer_start": [16]},
        }
        for n in range(count)
    ]


def test_the_same_rows_give_the_same_questions_in_every_form(tmp_path, monkeypatch):
    rows = as_rows(60, 20)
    (tmp_path / "python").mkdir()
    (tmp_path / "food.json").write_text(json.dumps(rows))
    (tmp_path / "food.jsonl").write_text("\n".join(map(json.dumps, rows)))
    nested = [
        {
            "context": row["context"],
            "qas": [{**row, "answers": [{"text": row["answers"]["text"][0], "answer_start": 16}]}],
        }
        for row in rows
    ]
    (tmp_path / "squad.json").write_text(json.dumps({"data": [{"paragraphs": nested}]}))
    dataset = datasets.Dataset.from_list(rows)
    dataset.to_parquet(tmp_path / "food.parquet")
    dataset.save_to_disk(tmp_path / "saved" / "train")
    frame = dataset.to_pandas()
    frame.assign(answers=[json.dumps(row["answers"]) for row in rows]).to_csv(tmp_path / "food.csv", index=False)
    frame.assign(answers=[str(row["answers"]) for row in rows]).to_csv(tmp_path / "python" / "food.csv", index=False)
    monkeypatch.setattr(datasets, "load_dataset", lambda *a, **k: datasets.DatasetDict(train=dataset))
    files = [tmp_path / f"food.{ending}" for ending in ("json", "jsonl", "parquet", "csv")]
    files.append(tmp_path / "python" / "food.csv")
    forms = [*files, tmp_path / "squad.json", tmp_path / "saved", rows, dataset, frame, {"train": rows}, "hf:food"]
    tasks = [load_task(form, split_seed=3) for form in forms]
    assert len({task.fingerprint() for task in tasks}) == 1
    assert {task.name for task in tasks} == {"food", "squad", "saved", "task"}
    assert load_task(rows, split_seed=4).fingerprint() != tasks[0].fingerprint()
    with pytest.raises(UserError, match="kind 'qa', whose columns cannot be named"):
        load_task(files[0], text_column="context")


@given(count=st.integers(20, 60), passages=st.integers(10, 20), seed=st.integers(0, 3), has_dev=st.booleans())
@settings(max_examples=15, deadline=None, database=None)
def test_splits_are_drawn_by_passage(count, passages, seed, has_dev):
    rows = as_rows(count, passages)
    task = load_task({"train": rows, **({"dev": rows[:2]} if has_dev else {})}, split_seed=seed)
    read = {split: {question.passage for question in getattr(task, split)} for split in ("train", "dev", "test")}
    pairs = (("train", "test"), *([] if has_dev else [("train", "dev"), ("dev", "test")]))
    assert not any(read[one] & read[other] for one, other in pairs)
    assert len(task.train) + len(task.test) + (0 if has_dev else len(task.dev)) == count
    assert 0 < len(task.test) <= round(0.2 * count)
    assert (
        "all questions of the same passage, and equal texts, in one split" in task.drawn
        and f"seed {seed}" in task.drawn
    )


def test_snippets_of_a_question_are_drawn_together():
    rows = as_rows(60, 60)
    for n, row in enumerate(rows):
        row["id"] = f"{n // 3:024x}_{n % 3:03d}"
    task = load_task(rows)
    items = [{question.item for question in split} for split in (task.train, task.dev, task.test)]
    assert not (items[0] & items[1] or items[0] & items[2] or items[1] & items[2])
    assert sum(map(len, items)) == 20
    with pytest.raises(UserError, match="passages are too few"):
        load_task(as_rows(60, 2))
