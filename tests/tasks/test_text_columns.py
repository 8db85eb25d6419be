"""Columns of a task are joined and its texts are edited as those of a corpus are, and a prediction does the same."""

from __future__ import annotations

import json
import random

import pandas
import pytest

from acclimate.base.errors import UserError
from acclimate.base.options import build
from acclimate.data.reading import ReadingOptions
from acclimate.data.task_kinds import TASK_KINDS, find_task_kind, load_task
from acclimate.tasks.finetune import finetune
from acclimate.tasks.kinds.choice.data import read_answers, read_unanswered
from acclimate.tasks.prediction import predict
from acclimate.tasks.splits import limit_splits
from tests.tasks.test_contract import SAMPLES, splits_of
from tests.tiny import save_tiny

QUIET = {"progress": False}
TUNED = {"epochs": 1, "learning_rate": 1e-2, "max_length": 40, "precision": "fp32", **QUIET}
OWN = "<b>call</b> +49 30 1234567 or write to someone@example.com"
EDITS = {"clean": ["html", "signatures"], "mask_personal": True}
FIXED = [kind for kind in TASK_KINDS.names() if TASK_KINDS.lookup(kind).fixed_texts]


def with_own(value, column=""):
    """A value of a row in which each text has personal data, but for labels and texts that have positions."""
    if isinstance(value, list):
        return [with_own(one) for one in value]
    return f"{value} {OWN}" if isinstance(value, str) and column != "label" else value


def rows_of(kind):
    splits = splits_of(kind)
    return {
        split: [{name: with_own(value, name) for name, value in row.items()} for row in rows]
        for split, rows in splits.items()
    }


@pytest.mark.parametrize("kind", [kind for kind in SAMPLES if kind not in FIXED])
def test_no_text_of_any_kind_of_task_keeps_what_is_masked(kind, tmp_path, caplog):
    splits = rows_of(kind)
    folder = tmp_path / "task"
    folder.mkdir()
    for split, rows in splits.items():
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for source in (splits, folder):
        task = load_task(source, name="tiny", **EDITS)
        texts = [text for split in (task.train, task.dev, task.test) for one in split for text in one.texts if text]
        texts += getattr(task, "documents", {}).values()
        assert texts and not any("@" in text or "1234567" in text or "<b>" in text for text in texts)
        assert all("call [phone] or write to [email]" in text for text in texts)
        assert task.reading["masked"]["email"] == task.reading["masked"]["phone"] > 0
        count = f"{task.reading['masked']['email']:,}"
        assert f"Personal data masked in the task 'tiny': {count} email, {count} phone" in caplog.text
        same = load_task(source, name="other", **EDITS)
        assert limit_splits(task, train=8).reading == task.reading and same.fingerprint() == task.fingerprint()
        assert find_task_kind(task).name == kind
    assert load_task(splits, name="tiny").fingerprint() != task.fingerprint()


def test_documents_of_a_search_are_masked(tmp_path):
    pytest.importorskip("sentence_transformers")
    (tmp_path / "qrels").mkdir()
    (tmp_path / "corpus.jsonl").write_text(json.dumps({"_id": "d1", "title": "a", "text": OWN}) + "\n")
    (tmp_path / "queries.jsonl").write_text(json.dumps({"_id": "q1", "text": f"who {OWN}"}) + "\n")
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\n")
    task = load_task(tmp_path, **EDITS)
    assert list(task.documents.values()) == ["a\ncall [phone] or write to [email]"]
    assert task.test[0].text == "who call [phone] or write to [email]"


@pytest.mark.parametrize("kind", FIXED)
def test_texts_in_which_answers_have_positions_stay(kind):
    for options in ({"clean": "html"}, {"mask_personal": True}):
        with pytest.raises(UserError, match="are positions in its texts, so these stay as they are"):
            load_task(splits_of(kind), name="tiny", **options)


def test_spans_are_not_read_from_joined_columns():
    row = {"subject": "the", "body": "pasta is", "spans": [{"start": 0, "end": 5, "label": "food"}]}
    with pytest.raises(UserError, match="name one text column"):
        load_task([row] * 9, text_column="subject,body", name="tiny")


def mails(count, dirt=""):
    chance = random.Random(count)
    return [
        {
            "subject": chance.choice(["", "the menu", "a soup"]),
            "body": f"<p>{('good', 'bad')[place % 2]} food {place}</p>{dirt}",
            "queue": ("fine", "poor")[place % 2],
            "id": place,
        }
        for place in range(count)
    ]


def test_columns_are_joined_and_rows_that_cleaning_empties_are_left_out(tmp_path, caplog):
    rows = [*mails(60), *({"subject": "", "body": "<br>", "queue": "fine"},) * 3]
    pandas.DataFrame(rows).to_csv(tmp_path / "mails.csv", index=False, sep=";")
    task = load_task(tmp_path / "mails.csv", text_column="subject,body", label_column="queue", clean="html")
    texts = [one.text.replace("\n\n", "\n") for split in (task.train, task.dev, task.test) for one in split]
    assert len(texts) == 60 and {
        "\n".join(filter(None, (row["subject"], row["body"][3:-4]))) for row in rows[:60]
    } == {*texts}
    assert "3 without a text" in caplog.text
    assert task.reading == {"text_column": "subject,body", "clean": ("html",)}
    colon = load_task(f"{tmp_path / 'mails.csv'}:subject,body", label_column="queue", clean="html")
    assert colon.fingerprint() == task.fingerprint()
    caplog.clear()
    load_task(tmp_path / "mails.csv", label_column="queue")
    assert "text in 'body', label in 'queue'. --text-column subject,body reads both." in caplog.text
    with pytest.raises(UserError, match=r"'subjekt'.*Did you mean 'subject'"):
        load_task(tmp_path / "mails.csv", text_column="subjekt,body", label_column="queue")
    with pytest.raises(
        UserError, match=r"can be in 'review' or 'comment'.*Both are read by --text-column review,comment"
    ):
        load_task([{"review": "a", "comment": "b", "label": "c"}] * 9, name="tiny")


def test_a_prediction_reads_rows_as_the_model_has_learned_them(tmp_path):
    model = save_tiny("bert", tmp_path / "start")
    reading = {"text_column": "subject,body", "label_column": "queue", **EDITS}
    result = finetune(model, mails(60, " 0170/1234567"), out=tmp_path / "out", **reading, **TUNED)
    masked = {"phone": 60}
    known = {"text_column": "subject,body", "clean": ["html", "signatures"], "mask_personal": True, "masked": masked}
    assert json.loads((tmp_path / "out" / "metrics.json").read_text())["reading"] == known
    assert result.reading["masked"] == masked
    assert "| clean | html, signatures |" in (tmp_path / "out" / "README.md").read_text()
    rows = [{"subject": "the menu", "body": f"<b>bad</b> food {OWN}"}, {"subject": " ", "body": "<br>"}]
    plain = [{"body": "the menu\nbad food call [phone] or write to [email]"}]
    made = predict(tmp_path / "out", rows, None, **QUIET)
    assert [list(row) for row in made.rows] == [["subject", "body", "label", "probability"]] * 2
    assert [row["body"] for row in made.rows] == [row["body"] for row in rows] and made.skipped == 1
    (other,) = predict(tmp_path / "out", plain, None, **QUIET).rows
    assert made.rows[0]["probability"] == pytest.approx(other["probability"], abs=1e-6)
    assert made.rows[1]["label"] is None
    body = predict(tmp_path / "out", rows, None, text_column="body", **QUIET).rows[0]["probability"]
    assert body != pytest.approx(made.rows[0]["probability"], abs=1e-6)


def test_passages_of_clicks_are_edited_and_their_ids_are_not(tmp_path):
    keys = [f"030-123456{place}" for place in range(6)]
    passages = [{"id": key, "title": "a food", "text": f"{place} {OWN}"} for place, key in enumerate(keys)]
    pandas.DataFrame(passages).to_csv(tmp_path / "passages.csv", index=False)
    clicks = [{"query": f"which food {place} {OWN}", "id": keys[place % 6]} for place in range(30)]
    task = load_task(clicks, name="tiny", passages=tmp_path / "passages.csv", pair_column="id", **EDITS)
    assert set(task.documents) == set(keys)
    texts = [*task.documents.values(), *(query.text for query in task.train)]
    assert all(text.endswith("call [phone] or write to [email]") for text in texts)


def test_choices_without_answers_are_edited_as_those_with_answers():
    rows = [(f"row {place}", row) for place, row in enumerate(rows_of("choice")["test"])]
    options = build(ReadingOptions, **EDITS)
    items = read_unanswered(rows, options)
    assert not any("@" in text for item in items for text in (item.question, *item.choices))
    by_text = [(where, {**row, "answer": row["choices"][row["answer"]]}) for where, row in rows]
    assert read_answers(by_text, options) == read_answers(rows, options) == [row["answer"] for _, row in rows]
