"""Predictions for new rows: what stays of a table, what is counted, what two models differ in, what a kill costs."""

from __future__ import annotations

import csv
import json
import random

import datasets
import pandas
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from acclimate.base.errors import UserError, warn_once
from acclimate.data.task_kinds import load_task
from acclimate.data.writing import WRITERS, write_rows
from acclimate.tasks import prediction
from acclimate.tasks.finetune import finetune
from acclimate.tasks.kinds.classification.classifier import TextPredictor
from acclimate.tasks.prediction import predict
from tests.cases import each
from tests.tasks.test_contract import splits_of
from tests.tiny import save_tiny

QUIET = {"progress": False}
TUNED = {"epochs": 6, "learning_rate": 1e-2, "batch_size": 8, "max_length": 40, "precision": "fp32", **QUIET}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A classifier that has learned its task, and one that has not."""
    folder = tmp_path_factory.mktemp("models")
    task = load_task(splits_of("classification"), name="tiny")
    start = save_tiny("bert", folder / "start")
    finetune(start, task, out=folder / "good", **TUNED)
    finetune(start, task, out=folder / "poor", **{**TUNED, "epochs": 1, "learning_rate": 1e-12})
    return folder


CELLS = st.one_of(
    st.sampled_from([None, "", "  ", float("nan"), 7, True, "\ud800", ["a list"], "the food is good", "a bad table"]),
    st.text(max_size=12),
)


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cells=st.lists(CELLS, min_size=1, max_size=30))
def test_every_row_stays_in_its_place_and_those_without_a_text_are_counted(cells, models):
    rows = [{"number": place, "text": cell, "other": [place]} for place, cell in enumerate(["a good soup", *cells])]
    made = predict(models / "good", rows, None, **QUIET)
    assert [row["number"] for row in made.rows] == list(range(len(rows)))
    assert [list(row) for row in made.rows] == [["number", "text", "other", "label", "probability"]] * len(rows)
    missing = [row["number"] for row in made.rows if row["label"] is None]
    readable = [isinstance(cell, str) and cell.strip() and cell.isprintable() for cell in cells]
    assert made.skipped == len(missing) and not any(readable[place - 1] for place in missing)
    assert all(not isinstance(cells[place - 1], str) or not cells[place - 1].strip() or "\ud800" in cells[place - 1]
               for place in missing)  # fmt: skip


def test_the_answer_does_not_depend_on_the_other_rows(models):
    texts = [f"the {' '.join(['food'] * (place % 7))} is {('good', 'bad')[place % 2]}" for place in range(20)]
    together = predict(models / "good", [{"text": text} for text in texts], None, **QUIET).rows
    alone = [predict(models / "good", [{"text": text}], None, **QUIET).rows[0] for text in texts[:3]]
    assert [row["label"] for row in together[:3]] == [row["label"] for row in alone]
    shares = [row["probability"] for row in alone]
    assert [row["probability"] for row in together[:3]] == pytest.approx(shares, abs=1e-5)


def test_an_existing_column_is_kept_and_scores_the_model(models, tmp_path):
    rows = splits_of("classification")["test"]
    file = tmp_path / "new.csv"
    pandas.DataFrame(rows).to_csv(file, index=False)
    made = predict(models / "good", file, tmp_path / "out.csv", **QUIET)
    with (tmp_path / "out.csv").open(newline="") as text:
        read = list(csv.DictReader(text))
    assert [row["label"] for row in read] == [row["label"] for row in rows] and "predicted_label" in read[0]
    assert made.metric == "macro_f1" and made.scored == len(rows)
    score, low, high = made.scores[0]
    assert low <= score <= high and score > 0.8


@each("column", ["label", "gold_label", "y"])
def test_gold_labels_are_read_as_those_of_a_task_in_every_form(column, models, tmp_path, caplog):
    names, texts = ["fine", "poor"], [{"text": row["text"]} for row in splits_of("classification")["test"]]
    answers = [row["label"] for row in predict(models / "good", texts, None, **QUIET).rows]
    types = {"text": datasets.Value("string"), column: datasets.ClassLabel(names=names)}
    rows = [{**row, column: names.index(answer)} for row, answer in zip(texts, answers, strict=True)]
    rows[0][column] = -1
    numbered = datasets.Dataset.from_list(rows, features=datasets.Features(types))
    numbered.to_parquet(tmp_path / "t.parquet")
    named = [{**row, column: answers[place] if place else None} for place, row in enumerate(rows)]
    for form in (named, numbered, numbered.data.table, tmp_path / "t.parquet"):
        made = predict(models / "good", form, None, label_column=column, **QUIET)
        assert (made.scored, made.scores[0][0]) == (len(rows) - 1, 1.0)
    for other in ("Fine", 1, "LABEL_0"):
        warn_once.cache_clear()
        made = predict(models / "good", [{**row, column: other} for row in texts], None, label_column=column, **QUIET)
        assert made.scored == 0 and f"None of {len(rows)} gold labels" in caplog.text and f"'{other}'" in caplog.text
    warn_once.cache_clear()
    made = predict(models / "good", [*named, {**named[1], column: "odd"}], None, label_column=column, **QUIET)
    assert made.scored == len(rows) and "1 of 12 gold labels are not a class" in caplog.text


def test_hidden_or_ambiguous_gold_answers_are_said_and_not_scored(models, caplog):
    hidden = [{"text": "the food is good", "label": -1}] * 5
    assert predict(models / "good", hidden, None, **QUIET).scored == 0 and "is -1 in all rows" in caplog.text
    two = [{"text": "the food is good", "topic": "fine", "class": "fine"}] * 5
    assert predict(models / "good", two, None, **QUIET).scored == 0 and "name one with --label-column" in caplog.text
    assert predict(models / "good", two, None, label_column="class", **QUIET).scored == 5


def test_two_models_are_compared_row_by_row(models):
    rows = splits_of("classification")["test"]
    made = predict([models / "poor", models / "good"], rows, None, **QUIET)
    assert made.columns == ["label_poor", "label_good"] and made.models == ["poor", "good"]
    differ = [number for number, row in enumerate(made.rows, 1) if row["label_poor"] != row["label_good"]]
    assert made.changed == differ and len(differ) > 0
    for number, right in zip(made.changed, made.right, strict=True):
        row = made.rows[number - 1]
        assert right == ("good" if row["label_good"] == row["label"] else "poor")
    assert made.difference.difference == pytest.approx(made.scores[1][0] - made.scores[0][0])
    shown = "\n".join(made.describe())
    assert f"{len(differ)} of {len(rows)} rows differ" in shown and "good minus poor: macro_f1 +" in shown


def test_a_kill_costs_no_more_than_the_rows_since_the_last_save(models, tmp_path, monkeypatch):
    monkeypatch.setattr(prediction, "CHUNK", 5)
    rows = [{"text": f"the food is good {place}"} for place in range(17)]
    whole = predict(models / "good", rows, None, **QUIET).rows
    seen, answer = [], TextPredictor.answer

    def killed(self, examples, precision):
        seen.append(len(examples))
        if len(seen) == 3:
            raise KeyboardInterrupt
        return answer(self, examples, precision)

    monkeypatch.setattr(TextPredictor, "answer", killed)
    with pytest.raises(KeyboardInterrupt):
        predict(models / "good", rows, tmp_path / "out.jsonl", **QUIET)
    assert not (tmp_path / "out.jsonl").exists()
    first, second = sorted(tmp_path.rglob("0*.json"))
    saved = json.loads(first.read_text())
    first.write_text(json.dumps({"answers": [None, *saved["answers"][1:]]}))
    second.write_text('{"answers": 5}')  # both are computed again
    made = predict(models / "good", rows, tmp_path / "out.jsonl", **QUIET)
    assert seen == [5, 5, 5, 5, 5, 5, 2] and made.rows == whole
    assert [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()] == whole
    assert [path.name for path in tmp_path.iterdir() if "work" in path.name and path.is_dir()] == []


def as_cell(value):
    """How a value is written in CSV."""
    return "" if value is None else json.dumps(value) if isinstance(value, list) else str(value)


VALUES = st.one_of(st.none(), st.integers(-(2**40), 2**40), st.text(max_size=20), st.lists(st.integers(), max_size=3))


ROWS = st.builds(lambda a, text: {"a": a, "text": text}, VALUES, st.text(max_size=30))


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(
        st.builds(lambda a, text: {"a": a, "text": text}, VALUES, st.text(max_size=30)), min_size=1, max_size=4
    )
)
@example(rows=[{"a": [2**63], "text": "an integer of more than 64 bits"}])
@example(rows=[{"a": None, "text": "\r"}, {"a": "two\r\nlines", "text": '"quoted", and more\n'}])
def test_every_format_holds_what_was_written(rows, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    for ending in WRITERS:
        write_rows(folder / f"rows{ending}", rows)
    lines = [json.loads(line) for line in (folder / "rows.jsonl").read_text("utf-8").split("\n") if line]
    assert lines == json.loads((folder / "rows.json").read_text("utf-8")) == rows
    flat = [[as_cell(value) for value in row.values()] for row in rows]
    for name, delimiter in (("rows.csv", ","), ("rows.tsv", "\t")):
        with (folder / name).open(newline="", encoding="utf-8") as file:
            assert list(csv.reader(file, delimiter=delimiter)) == [["a", "text"], *flat]
    assert pandas.read_parquet(folder / "rows.parquet")["text"].tolist() == [row["text"] for row in rows]


def test_a_text_that_looks_like_a_formula_stays_a_text_in_excel(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    write_rows(tmp_path / "rows.xlsx", [{"text": "=1+1", "n": 2}, {"text": "bad\x07 bell", "n": None}])
    sheet = openpyxl.load_workbook(tmp_path / "rows.xlsx").active
    assert [[cell.value for cell in row] for row in sheet] == [["text", "n"], ["=1+1", 2], ["bad bell", None]]
    assert sheet["A2"].data_type == "s"


@each(
    ("arguments", "options", "message"),
    [
        (["start", [{"text": "a"}]], {}, "has no head of a task"),
        (["good", [{"text": " "}]], {}, "None of the 1 rows has a text"),
        (["good", [{"words": "a"}]], {}, "name the right one with --text-column"),
        ([["good", "good", "poor"], [{"text": "a"}]], {}, "one model, or two"),
        (["good", [{"text": "a"}]], {"passages": [{"text": "b"}]}, "is for sentence encoders"),
        (["good", [{"text": "a"}], "out.docx"], {}, "must end in .csv"),
        (["good", [{"text": "a"}], "there.csv"], {}, "exists; choose another file"),
        (["good", "there.csv", "there.csv"], {}, "is the data"),
    ],
)
def test_what_is_refused(arguments, options, message, models, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.csv").write_text("text,label\na,fine\n")
    given, *rest = arguments
    model = [models / name for name in given] if isinstance(given, list) else models / given
    with pytest.raises(UserError, match=message):
        predict(model, *rest, **({"out": None} if len(rest) == 1 else {}), **options, **QUIET)
    assert (tmp_path / "there.csv").read_text() == "text,label\na,fine\n"


def test_files_of_other_forms_are_read(models, tmp_path):
    chance = random.Random(0)
    texts = [f"the food is {chance.choice(['good', 'bad'])} {place}" for place in range(3)]
    (tmp_path / "lines.txt").write_text("\n\n".join(texts))
    frame = pandas.DataFrame({"body": texts, "id": [3, 4, 5]})
    frame.to_parquet(tmp_path / "rows.parquet")
    renamed = frame.rename(columns={"body": "text"})

    def labels(source, **options):
        return [row["label"] for row in predict(models / "good", source, None, **options, **QUIET).rows]

    for name, content in (("none.txt", ""), ("blank.txt", "\n  \n"), ("none.csv", ""), ("header.csv", "text\n")):
        (tmp_path / name).write_text(content)
        with pytest.raises(UserError, match=r"no rows|is empty|no records"):
            labels(tmp_path / name)
    expected = labels(renamed)
    assert labels(tmp_path / "lines.txt") == labels(f"{tmp_path}/rows.parquet:body") == expected
    assert labels(frame, text_column="body") == expected


def test_rows_without_any_entity_are_predicted_and_scored(tmp_path, caplog):
    start = save_tiny("bert", tmp_path / "start")
    finetune(start, load_task(splits_of("entities"), name="tiny"), out=tmp_path / "out", **{**TUNED, "epochs": 1})
    rows = [{"tokens": ["the", "pasta"], "tags": ["O", "O"]}, {"tokens": [], "tags": []}]
    rows += [{"tokens": ["the", "soup"], "tags": None}] * 2
    made = predict(tmp_path / "out", rows, None, **QUIET)
    assert (made.scored, made.skipped) == (1, 1) and "leaves out 2 of" in caplog.text
    assert isinstance(made.rows[0]["spans"], list) and made.rows[1]["spans"] is None
    names = ["O", "B-food", "B-place"]
    types = {"tokens": [datasets.Value("string")], "ner_tags": [datasets.ClassLabel(names=names)]}
    tagged = [{"tokens": row["tokens"], "ner_tags": row["tags"]} for row in splits_of("entities")["test"]]
    numbered = datasets.Dataset.from_list(
        [{**row, "ner_tags": [*map(names.index, row["ner_tags"])]} for row in tagged], datasets.Features(types)
    )
    numbered.to_parquet(tmp_path / "t.parquet")
    forms = (tagged, numbered, numbered.data.table, tmp_path / "t.parquet")
    found = [predict(tmp_path / "out", form, None, **QUIET) for form in forms]
    assert {made.scored for made in found} == {len(tagged)} and len({tuple(made.scores) for made in found}) == 1
